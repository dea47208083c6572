"""One clock for deadlines: the broker's, by the append times that a worker sees."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from schemas.answer import Answer
from schemas.query import Query
from schemas.record import decode, encode
from streams.runtime.clock import BrokerClock
from streams.runtime.memory import MemoryRuntime, run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("service", "minutes"),
    [("executor", 15), ("executor", -15), ("verifier", 15), ("aggregator", 15), ("aggregator", -15)],
)
def test_a_service_whose_machine_has_another_time_serves_as_the_others_do_and_says_so(
    in_memory: Callable[..., Settings],
    ask: Callable[..., Query],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    service: str,
    minutes: int,
) -> None:
    right = MemoryRuntime.wall_ms

    def wall_ms(self: MemoryRuntime) -> int:
        return right(self) + (minutes * MINUTE_MS if self.service == service else 0)

    monkeypatch.setattr(MemoryRuntime, "wall_ms", wall_ms)

    async def main() -> None:
        cluster = Cluster(in_memory(), SERVICES, seed=3)
        await cluster.up()
        for n in range(6):
            cluster.produce(cluster.topics.query, b"q%d" % n, encode(ask(n)))
        # One that nothing can answer in its time expires when the broker says so.
        cluster.produce(cluster.topics.query, b"late", encode(ask(7, query_id="late", timeout_s=0.001)))

        def answers() -> list[Any]:
            return [decode(r.value, Answer) for r in cluster.broker.records(cluster.topics.answer)]

        await cluster.until(lambda: len({answer.query_id for answer in answers()}) == 7, 60)
        assert Counter(answer.status for answer in answers() if answer.query_id != "late") == {"ok": 6}
        await asyncio.sleep(10.0)  # some heartbeats
        for worker in cluster.workers:
            skew_s = worker.metrics.clock_skew._value.get()
            assert skew_s == pytest.approx(60 * minutes if worker.service == service else 0, abs=0.1)
        await cluster.close()

    with caplog.at_level(logging.WARNING, "streams.clock"):
        run(main())
    assert [record.message for record in caplog.records if record.name == "streams.clock"] == [
        f"this machine's clock is {60 * minutes:+d} s from the broker's; deadlines go by the broker's, but logs and "
        "metrics of this machine do not: set its clock"
    ]


def test_the_brokers_time_is_the_newest_append_time_and_what_has_passed_since() -> None:
    now_s, skews = 1_000.0, list[float]()
    clock = BrokerClock(lambda: now_s, lambda: 7_000_000, skews.append)
    assert clock.now_ms() == 7_000_000, "nothing but this machine's clock is known"
    clock.handled(50_000)  # it had waited
    now_s += 2.5
    assert clock.now_ms() == 52_500
    clock.arrived(6_000_000)
    now_s += 1.0
    clock.handled(5_999_000)
    clock.handled(-1)
    assert clock.now_ms() == 6_001_000
    assert skews == [1_000.0]
    now_s += 700.0
    clock.arrived(3_000_000)  # the broker's clock was set back
    assert clock.now_ms() == 6_701_000
    now_s += 301.0
    clock.arrived(3_301_000)
    assert clock.now_ms() == 3_301_000
