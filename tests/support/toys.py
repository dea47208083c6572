"""Services for the contract of the runtimes, and their worker as a process of its own on Kafka.

    copier    query -> context, one send a record; what it handles is known by the order on `context`
    counter   answer, feedback -> due, keyed, with a row a key: the count of records seen, idempotent by offset
    keeper    context -> decision, ordered, the same with a table of one writer, which it begins to read behind its
              last snapshot: a redelivered record sends what its row holds

A record names its query and says what its handler does (`asked`): `fail` raises an unknown error, `tear` one that
leaves more known than written, `refuse` an error of the record, `hang` never ends. The copier sends the record before
an `again` once more, for a `lost` one that the topic does not hold; what it copies then is `found` or `gone`. For
`find` it copies the first record of the key `k` in the hours around this one, for `past` and `future` in another hour:
`gone`. For `groups` it copies how many records its consumer group has waiting, -1 for none known. `wait` ends when
`free` has begun, `stuck` when it ends, five seconds later, with the number of records copied until then; `once` never
ends, but for the second time. `greedy` has no memory left while another one is in hand.
`stall` never ends, and a watch beside the handlers ends the worker.
For `late` the counter writes, once, a row that is older than the one it replaces.
For `beside` it sends `begin` and `end` around a pause, so that what runs beside what is known by the order on `due`.
As a process: `python -m tests.support.toys SERVICE DIES_AFTER [METRICS_PORT]`, which kills itself after so many effects
(0: never).
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from schemas.errors import UniscaleError
from schemas.query import Origin
from schemas.record import Record, encode
from streams.log.base import ConsumerRecord, Outgoing, key_of
from streams.runtime.effects import BatchEffects, Effects, KeyedService, OrderedService, Rows
from streams.runtime.errors import Death, PartialWrite
from streams.runtime.runtime import Input, Runtime, ServiceSpec
from streams.runtime.table import Table

HOUR_MS = 3_600_000

SPANS = {b"find": (-HOUR_MS, HOUR_MS), b"past": (-2 * HOUR_MS, -HOUR_MS), b"future": (HOUR_MS, 2 * HOUR_MS)}


class Asked(Record, frozen=True, kw_only=True, tag="asked.v1"):
    """What a toy is told to do."""

    query_id: str
    do: str


def asked(key: bytes, what: bytes) -> bytes:
    """Return the value of a record of the query `key` that asks for something."""
    return encode(Asked(query_id=key.decode(), do=what.decode()))


def _what(record: ConsumerRecord | None) -> bytes:
    """Return what a record asks for; other bytes are returned as they are."""
    value = b"" if record is None else record.value or b""
    try:
        return json.loads(value)["do"].encode()
    except (ValueError, TypeError, KeyError):
        return value


class Refused(UniscaleError):
    """The record says so."""


async def build_copier(runtime: Runtime) -> None:
    freeing, freed, stepping = asyncio.Event(), asyncio.Event(), asyncio.Event()
    copied = greedy = 0

    async def watch() -> None:
        await stepping.wait()
        await runtime.sleep(0.5)
        raise Death("an engine hangs")

    runtime.background("a watch", watch)

    async def on_query(record: ConsumerRecord) -> None:
        nonlocal copied, greedy
        value = _obey(record)
        if value == b"greedy":
            greedy += 1
            await runtime.sleep(0.5)
            if greedy > 1:
                raise MemoryError("there is enough for one")
            greedy -= 1
        if value == b"hang" or (value == b"once" and _first_time(runtime)):
            await asyncio.Future()
        if value == b"stall":
            stepping.set()
            await asyncio.Future()
        if value == b"wait":
            await freeing.wait()
        if value == b"stuck":
            await freed.wait()
        if value == b"free":
            freeing.set()
            await runtime.sleep(5.0)
            value = b"%d" % copied
            freed.set()
        if value in (b"again", b"lost"):
            offset = record.offset - 1 if value == b"again" else 1_000_000
            origin = Origin(topic=record.topic, partition=record.partition, offset=offset)
            value = b"found" if await runtime.log.append_again(origin) else b"gone"
        if value in SPANS:
            span = [record.timestamp_ms + shift_ms for shift_ms in SPANS[value]]
            known = await runtime.log.find(record.topic, b"k", *span)
            value = b"gone" if known is None else _what(known)
        if value == b"groups":
            own = runtime.topics.app_id(runtime.service)
            found = await runtime.log.groups([own, "no such group"])
            waiting = found[own].waiting if own in found else -1
            value = b"%d in %d" % (waiting, len(set(found) - {own}))
        await runtime.send(Outgoing(runtime.topics.context, record.key, value))
        copied += 1

    runtime.each(runtime.topics.query, on_query, stage="copy")


class Counter(KeyedService[bytes]):
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        partitions = runtime.settings.kafka.join_partitions
        self.table = runtime.table(
            "join", partitions, source=runtime.topics.answer, recovered=self._recovered, newer=self._newer
        )
        self.rows = Rows(self.table, bytes, bytes)

    async def on(self, row: bytes | None, message: Asked, at: ConsumerRecord) -> Effects[bytes]:
        due = self.runtime.topics.due
        if (what := _obey(at)) == b"late":
            return Effects(row=b"-1 0") if _first_time(self.runtime) else Effects()
        if what == b"beside":
            word = b"%s " + b"%s/%d" % (at.topic.encode(), at.offset)
            await self.runtime.send(Outgoing(due, at.key, word % b"begin"))
            await self.runtime.sleep(0.02)
            return Effects(send=[Outgoing(due, at.key, word % b"end")])
        last, count = map(int, (row or b"-1 0").split())
        if at.offset <= last:
            return Effects()
        new = b"%d %d" % (at.offset, count + 1)
        return Effects(send=[Outgoing(due, at.key, new)], row=new)

    async def _recovered(self) -> None:
        for key, _ in self.table.items():
            assert self.table.partition_of(key) in self.runtime.assigned(self.runtime.topics.answer)

    def _newer(self, value: bytes, than: bytes) -> bool:
        return int(value.split()[0]) >= int(than.split()[0])


async def build_counter(runtime: Runtime) -> Counter:
    return Counter(runtime)


class Keeper(OrderedService):
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.lock = asyncio.Lock()
        self.changelog = runtime.topics.changelog(runtime.service, "pending")
        self.kept: MutableMapping[bytes, bytes] = {}
        self.offset = -1
        self.table = runtime.table(
            "pending",
            1,
            source=runtime.topics.context,
            recovered=self._recovered,
            one_writer=True,
            begins=self._begins,
        )

    async def prepare(self, kind: object, batch: object) -> None:
        """Need nothing that has to be read."""

    async def ready(self, kind: object, batch: object) -> None:
        """Be ready at any time."""

    async def on_batch(self, batch: Sequence[tuple[Any, ConsumerRecord]]) -> BatchEffects:
        rows: dict[bytes, bytes] = {}
        send = []
        for message, at in batch:
            key = key_of(message.query_id)
            row = rows.get(key) or self.table.get(key) or b"-1 0"
            last, count = map(int, row.split())
            if at.offset > last:
                row = rows[key] = b"%d %d" % (at.offset, count + 1)
            send.append(Outgoing(self.runtime.topics.decision, key, row))
            self.offset = at.offset
        return BatchEffects(rows=list(rows.items()), send=send)

    def changing(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        await self.table.put_all((*row, 0) for row in rows)

    async def settled(self) -> None:
        if self.offset % 4 == 3:
            end = (await self.runtime.log.end_offsets((self.changelog,)))[self.changelog, 0]
            await self.table.post(self.runtime.topics.snapshot, self.table.items())
            await self.table.post(self.runtime.topics.snapshot, [(b"begin", b"%d" % end)])

    async def _begins(self) -> int:
        self.kept = await self.runtime.log.latest(self.runtime.topics.snapshot)
        return int(self.kept.pop(b"begin", b"0"))

    async def _recovered(self) -> None:
        self.table.seed((key, value, 0) for key, value in self.kept.items())


async def build_keeper(runtime: Runtime) -> Keeper:
    return Keeper(runtime)


def _first_time(runtime: Runtime) -> bool:
    once = runtime.settings.state_path("once")
    if once.exists():
        return False
    once.parent.mkdir(parents=True, exist_ok=True)
    once.touch()
    return True


def _obey(record: ConsumerRecord) -> bytes:
    what = _what(record)
    if what == b"fail":
        raise ZeroDivisionError("a fault nobody thought of")
    if what == b"tear":
        raise PartialWrite("half done") from ZeroDivisionError("a fault nobody thought of")
    if what == b"refuse":
        raise Refused(f"{record.coordinates}: refused")
    return what


TOYS = {
    "embedder": ServiceSpec(
        name="embedder",
        inputs={"query": Input(Asked, "copy")},
        outputs=("context", "answer", "dead-letter"),
        build=build_copier,
    ),
    "aggregator": ServiceSpec(
        name="aggregator",
        inputs={"answer": Input(Asked, "count"), "feedback": Input(Asked, "count too")},
        outputs=("due", "answer", "dead-letter"),
        state=("aggregator-join-changelog",),
        build=build_counter,
    ),
    "decider": ServiceSpec(
        name="decider",
        inputs={"context": Input(Asked, "keep")},
        outputs=("action-decision", "answer", "dead-letter"),
        state=("decider-pending-changelog", "learner-snapshot"),
        one_writer=True,
        build=build_keeper,
    ),
}


def main(service: str, dies_after: int, metrics_port: int = 0) -> None:
    """Run a toy on Kafka by the product's own worker; die after so many effects, once."""
    from streams.runtime.kafka import KafkaRuntime
    from streams.services import SERVICES
    from streams.settings import Settings
    from streams.worker import run_service

    SERVICES.update(TOYS)
    settings = Settings.from_env(os.environ)
    once = Path(settings.state_path("died"))
    left = dies_after if dies_after and not once.exists() else 1 << 30

    def done() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    _after(KafkaRuntime, "send", done)
    _after(Table, "put_all", done)
    sys.argv[1:] = []
    run_service(settings, service, metrics_port=metrics_port)


def _after(kind: type, name: str, done: Callable[[], None]) -> None:
    plain = getattr(kind, name)

    async def mortal(self: object, *args: object) -> None:
        await plain(self, *args)
        done()

    setattr(kind, name, mortal)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
