"""The order in which effects are applied, and what becomes of them where one of them cannot be."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.record import decode
from streams.log.base import ConsumerRecord, Outgoing
from streams.runtime.effects import BatchEffects, Effects, KeyedService, Rows
from streams.runtime.errors import Crash
from streams.runtime.handler_guard import Refusal
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.runtime.runtime import Input, Runtime, ServiceSpec
from streams.settings import Settings
from tests.support.toys import TOYS, Asked, Keeper, asked

InMemory = Callable[..., Settings]
Says = Callable[["Told", bytes | None, str], Effects[bytes]]


async def recovered() -> None:
    pass


class Told(KeyedService[bytes]):
    """A service that returns what a test tells it to, and keeps what it was given."""

    def __init__(self, runtime: Runtime, says: Says) -> None:
        self.runtime, self.says = runtime, says
        table = runtime.table("join", 2, source=runtime.topics.answer, recovered=recovered)
        self.rows = Rows(table, bytes, bytes)

    async def on(self, row: bytes | None, message: Asked, at: ConsumerRecord) -> Effects[bytes]:
        given.append(row)
        return self.says(self, row, message.do)

    def out(self, value: bytes) -> Outgoing:
        return Outgoing(self.runtime.topics.due, b"q", value)


given: list[bytes | None] = []


def lived(settings: Settings, says: Says, sent: list[bytes], **how: Any) -> Cluster:
    """Send records of one query to a service, and let it run until all are handled."""
    given.clear()

    async def build(runtime: Runtime) -> Told:
        return Told(runtime, says)

    spec = ServiceSpec(
        name="aggregator",
        inputs={"answer": Input(Asked, "tell")},
        outputs=("due", "answer", "dead-letter"),
        state=("aggregator-join-changelog",),
        build=build,
    )

    async def main() -> Cluster:
        cluster = Cluster(settings, {"aggregator": spec})
        if refuses := how.get("refuses"):
            cluster.broker.refuses = refuses(cluster)
        await cluster.up()
        for what in sent:
            cluster.produce(cluster.topics.answer, b"q", asked(b"q", what))
        await cluster.until(lambda: len(given) >= len(sent) and not cluster.busy, 120)
        await cluster.close()
        return cluster

    return run(main())


def effects(cluster: Cluster) -> list[tuple[str, str]]:
    return [(each.kind, each.topic.removeprefix("m.")) for each in cluster.broker.effects]


def dead_letters(cluster: Cluster) -> list[DeadLetter]:
    return [decode(record.value, DeadLetter) for record in cluster.broker.records(cluster.topics.dead_letter)]


def test_effects_apply_sends_then_row_then_memory(in_memory: InMemory) -> None:
    def says(told: Told, row: bytes | None, do: str) -> Effects[bytes]:
        if do == "close":
            return Effects(row=None)
        why = Refusal(UniscaleError("not this"), b"what came before", origin)
        return Effects(
            send=[told.out(b"1"), told.out(b"2")],
            row=b"row",
            refused=[why] if row is None else [],
            then=lambda: seen.append(len(told.runtime.broker.effects)),  # type: ignore[attr-defined]
        )

    origin = ConsumerRecord("m.feedback", 1, 5, 0, None, None).origin
    seen: list[int] = []
    cluster = lived(in_memory(), says, [b"open", b"same", b"close", b"close"])
    assert effects(cluster) == [
        ("send", "due"), ("send", "due"), ("send", "dead-letter"), ("row", "aggregator-join-changelog"),
        ("commit", "answer"),
        ("send", "due"), ("send", "due"), ("commit", "answer"),  # the row is the same: it is not written
        ("row", "aggregator-join-changelog"), ("commit", "answer"),
        ("commit", "answer"),
    ]  # fmt: skip
    assert seen == [4, 7]
    assert given == [None, b"row", b"row", None]
    (letter,) = dead_letters(cluster)
    assert (letter.origin, letter.error, letter.head) == (origin, "UniscaleError", b"what came before")
    assert cluster.broker.records(cluster.topics.answer)[4:] == [], "its query goes on"
    (worker,) = cluster.workers
    assert worker.metrics.dead_letters.labels("m.feedback", "UniscaleError")._value.get() == 1


def test_oversized_row_is_refused_before_sending(in_memory: InMemory) -> None:
    def says(told: Told, row: bytes | None, do: str) -> Effects[bytes]:
        return Effects(send=[told.out(b"1")], row=b"x" * 70_000)

    cluster = lived(in_memory(max_record_bytes=65_536), says, [b"open"])
    assert effects(cluster) == [("send", "dead-letter"), ("commit", "answer")]
    assert [letter.error for letter in dead_letters(cluster)] == ["RowTooLarge"]


@pytest.mark.parametrize("refused", ["m.due", "m.aggregator-join-changelog"])
def test_broker_refusal_repeats_the_record_with_its_row(in_memory: InMemory, refused: str) -> None:
    done: list[bytes | None] = []

    def says(told: Told, row: bytes | None, do: str) -> Effects[bytes]:
        return Effects(send=[told.out(do.encode())], row=do.encode(), then=lambda: done.append(row))

    def until_the_third(cluster: Cluster) -> Callable[[str, bytes | None], str]:
        return lambda topic, key: "full" if topic == refused and len(given) < 4 else ""

    cluster = lived(in_memory(), says, [b"one", b"two"], refuses=until_the_third)
    assert given == [None, None, None, None, b"one"]
    assert done == [None, b"one"], "nothing is remembered that is not on the broker"
    sent = [record.value for record in cluster.broker.records(cluster.topics.due)]
    assert sent == ([b"one"] * (1 if refused == "m.due" else 4)) + [b"two"]
    assert cluster.deaths == []


def test_partially_applied_effects_end_the_service(in_memory: InMemory) -> None:
    def says(told: Told, row: bytes | None, do: str) -> Effects[bytes]:
        def fails() -> None:
            raise MemoryError("no room")

        return Effects(send=[told.out(do.encode())], then=fails if do == "fail" else lambda: None)

    cluster = lived(in_memory(), says, [b"one", b"fail", b"two"])
    assert [type(death) for death in cluster.deaths] == [Crash] * 3
    (letter,) = dead_letters(cluster)
    assert (letter.error, letter.attempts) == ("KilledProcess", 3)
    assert "MemoryError: no room" in letter.reason
    sent = [record.value for record in cluster.broker.records(cluster.topics.due)]
    assert sent == [b"one", b"fail", b"fail", b"fail", b"two"]


def test_a_service_sends_only_what_its_spec_names(in_memory: InMemory) -> None:
    def says(told: Told, row: bytes | None, do: str) -> Effects[bytes]:
        return Effects(send=[Outgoing(told.runtime.topics.reward, b"q", b"x")], row=b"row")

    cluster = lived(in_memory(), says, [b"one"])
    assert effects(cluster) == [("send", "dead-letter"), ("commit", "answer")]
    assert "not among the outputs of its ServiceSpec" in dead_letters(cluster)[0].reason
    assert len(cluster.deaths) == 2


class Batches(Keeper):
    """The toy, which notes the row of each batch whose rows are written."""

    async def on_batch(self, batch: Sequence[tuple[Any, ConsumerRecord]]) -> BatchEffects:
        found = await super().on_batch(batch)
        return replace(found, then=lambda: given.append(found.rows[0][1] if found.rows else None))


async def build_batches(runtime: Runtime) -> Batches:
    return Batches(runtime)


async def test_batch_rows_go_first_and_redelivery_sends_the_row(in_memory: InMemory) -> None:
    given.clear()

    cluster = Cluster(in_memory(), {"decider": replace(TOYS["decider"], build=build_batches)})
    topics, refused = cluster.topics, True
    cluster.broker.refuses = lambda topic, key: "full" if refused and topic == topics.decision else ""
    await cluster.up()
    cluster.produce(topics.context, b"q", asked(b"q", b"on"))
    cluster.produce(topics.context, b"q", b"{")
    await asyncio.sleep(5.0)
    assert effects(cluster) == [("row", "decider-pending-changelog")]
    assert given[0] == b"0 1", "what is counted of a row is counted when it is written"
    refused = False
    await cluster.until(lambda: bool(dead_letters(cluster)) and not cluster.busy, 60)
    assert [record.value for record in cluster.broker.records(topics.decision)] == [b"0 1"]
    assert effects(cluster).count(("row", "decider-pending-changelog")) == 1
    assert given.count(b"0 1") == 1
    assert [letter.error for letter in dead_letters(cluster)] == ["UnreadableRecord"]
    await cluster.close()
