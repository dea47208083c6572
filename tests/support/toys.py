"""Services for the contract of the runtimes, and their worker as a process of its own on Kafka.

    copier    query -> context, one send a record; what it handles is known by the order on `context`
    counter   answer -> due, with a row a key: the count of records seen, idempotent by offset; feedback -> due
    keeper    context -> decision, the same with a table of one writer, which it begins to read behind its last snapshot

A record names its query and says what its handler does (`asked`): `fail` raises an unknown error, `tear` one that
leaves more known than written, `refuse` an error of the record, `hang` never ends. The copier sends the record before
an `again` once more, for a `lost` one that the topic does not hold; what it copies then is `found` or `gone`. For
`find` it copies the first record of the key `k` in the hours around this one, for `past` and `future` in another hour:
`gone`. For `groups` it copies how many records its consumer group has waiting, -1 for none known. `wait` ends when
`free` has begun, `stuck` when it ends, five seconds later, with the number of records copied until then; `once` never
ends, but for the second time.
For `late` the counter writes, once, a row that is older than the one it replaces.
The counter sends `begin` and `end` around its work, so that what runs beside what is known by the order on `due`.
As a process: `python -m tests.support.toys SERVICE DIES_AFTER [METRICS_PORT]`, which kills itself after so many effects
(0: never).
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from schemas.errors import UniscaleError
from schemas.query import Origin
from streams.runtime.base import ConsumerRecord, Outgoing, Runtime, ServiceSpec, Table, Torn

HOUR_MS = 3_600_000

SPANS = {b"find": (-HOUR_MS, HOUR_MS), b"past": (-2 * HOUR_MS, -HOUR_MS), b"future": (HOUR_MS, 2 * HOUR_MS)}


def asked(key: bytes, what: bytes) -> bytes:
    """Return the value of a record of the query `key` that asks for something."""
    return json.dumps({"query_id": key.decode(), "do": what.decode()}).encode()


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
    freeing, freed = asyncio.Event(), asyncio.Event()
    copied = 0

    async def on_query(record: ConsumerRecord) -> None:
        nonlocal copied
        value = _obey(record)
        if value == b"hang" or (value == b"once" and _first_time(runtime)):
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
            value = b"found" if await runtime.send_again(origin) else b"gone"
        if value in SPANS:
            span = [record.timestamp_ms + shift_ms for shift_ms in SPANS[value]]
            known = await runtime.find(record.topic, b"k", *span)
            value = b"gone" if known is None else _what(known)
        if value == b"groups":
            own = runtime.topics.app_id(runtime.service)
            found = await runtime.groups([own, "no such group"])
            waiting = sum(found[own].waiting.values()) if own in found else -1
            value = b"%d in %d" % (waiting, len(set(found) - {own}))
        await runtime.send(Outgoing(runtime.topics.context, record.key, value))
        copied += 1

    runtime.each(runtime.topics.query, on_query, stage="copy")


async def build_counter(runtime: Runtime) -> None:
    async def recovered() -> None:
        for key, _ in table.items():
            assert table.partition_of(key) in runtime.assigned(runtime.topics.answer)

    def newer(value: bytes, than: bytes) -> bool:
        return int(value.split()[0]) >= int(than.split()[0])

    partitions = runtime.settings.kafka.join_partitions
    table = runtime.table("join", partitions, source=runtime.topics.answer, recovered=recovered, newer=newer)

    async def on_answer(record: ConsumerRecord) -> None:
        key = record.key or b""
        if _obey(record) == b"late":
            if _first_time(runtime):
                await table.put(key, b"-1 0", record.partition)
            return
        last, count = map(int, (table.get(key) or b"-1 0").split())
        if record.offset <= last:
            return
        row = b"%d %d" % (record.offset, count + 1)
        await runtime.send(Outgoing(runtime.topics.due, key, row))
        await table.put(key, row, record.partition)

    async def on_feedback(record: ConsumerRecord) -> None:
        for word in (b"begin", b"end"):
            value = b"%s %s/%d" % (word, record.topic.encode(), record.offset)
            await runtime.send(Outgoing(runtime.topics.due, record.key, value))
            await runtime.sleep(0.02)

    async def beside(record: ConsumerRecord) -> None:
        await (on_feedback if _what(record) == b"beside" else on_answer)(record)

    runtime.each(runtime.topics.answer, beside, stage="count")
    runtime.each(runtime.topics.feedback, beside, stage="count too")


async def build_keeper(runtime: Runtime) -> None:
    kept: dict[bytes, bytes] = {}
    topics = runtime.topics
    changelog = topics.changelog(runtime.service, "pending")

    async def begins() -> int:
        kept.clear()
        kept.update(await runtime.latest(topics.snapshot))
        return int(kept.pop(b"begin", b"0"))

    async def recovered() -> None:
        table.seed((key, value, 0) for key, value in kept.items())

    table = runtime.table(
        "pending", 1, source=topics.context, recovered=recovered, one_writer=True, begins=begins
    )

    async def on_context(record: ConsumerRecord) -> None:
        key = record.key or b""
        last, count = map(int, (table.get(key) or b"-1 0").split())
        if record.offset <= last:
            return
        row = b"%d %d" % (record.offset, count + 1)
        await runtime.send(Outgoing(topics.decision, key, row))
        await table.put(key, row, 0)
        if record.offset % 4 == 3:
            end = (await runtime.end_offsets((changelog,)))[changelog, 0]
            await table.post(topics.snapshot, table.items())
            await table.post(topics.snapshot, [(b"begin", b"%d" % end)])

    runtime.each(topics.context, on_context, stage="keep")


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
        raise Torn("half done") from ZeroDivisionError("a fault nobody thought of")
    if what == b"refuse":
        raise Refused(f"{record.coordinates}: refused")
    return what


TOYS = {
    "embedder": ServiceSpec(
        name="embedder", inputs=("query",), outputs=("context", "answer", "dead-letter"), build=build_copier
    ),
    "aggregator": ServiceSpec(
        name="aggregator",
        inputs=("answer", "feedback"),
        outputs=("due", "answer", "dead-letter"),
        state=("aggregator-join-changelog",),
        build=build_counter,
    ),
    "decider": ServiceSpec(
        name="decider",
        inputs=("context",),
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
    _after(Table, "put", done)
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
