"""One clock for deadlines: the broker's, by the append times that a worker sees."""

import asyncio
import logging
from collections import Counter

import pytest

from schemas.answer import Answer
from streams.runtime.clock import BrokerClock
from streams.runtime.memory import MemoryRuntime
from tests.support.cluster import Ask, InMemory, answered, read, running, send

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("service", "minutes"),
    [("executor", 15), ("executor", -15), ("verifier", 15), ("aggregator", 15), ("aggregator", -15)],
)
async def test_skewed_machine_clock_changes_nothing_and_is_logged(
    in_memory: InMemory,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    service: str,
    minutes: int,
) -> None:
    right = MemoryRuntime.wall_ms

    def wall_ms(self: MemoryRuntime) -> int:
        return right(self) + (minutes * MINUTE_MS if self.service == service else 0)

    monkeypatch.setattr(MemoryRuntime, "wall_ms", wall_ms)

    caplog.set_level(logging.WARNING, "streams.clock")
    async with running(in_memory(), seed=3) as cluster:
        # One that nothing can answer in its time expires when the broker says so.
        send(cluster, *(ask(n) for n in range(6)), ask(7, query_id="late", timeout_s=0.001))
        await cluster.until(lambda: len(answered(cluster)) == 7, 60)
        answers = read(cluster, cluster.topics.answer, Answer)
        assert Counter(answer.status for answer in answers if answer.query_id != "late") == {"ok": 6}
        await asyncio.sleep(10.0)  # some heartbeats
        for worker in cluster.workers:
            skew_s = worker.metrics.clock_skew._value.get()
            assert skew_s == pytest.approx(60 * minutes if worker.service == service else 0, abs=0.1)
    assert [record.message for record in caplog.records if record.name == "streams.clock"] == [
        f"this machine's clock is {60 * minutes:+d} s from the broker's; deadlines go by the broker's, but logs and "
        "metrics of this machine do not: set its clock"
    ]


def test_broker_time_is_newest_append_time_plus_elapsed() -> None:
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
