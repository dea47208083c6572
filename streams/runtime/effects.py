"""Effects: what a record causes, as a value that a service returns, and the one place that applies it, in one order.

A keyed service handles the records of a query one after another. It sends and writes nothing itself: it returns what
is to happen, so that a test reads it as records in, records out. `_handle` makes it happen:

    1. the record is decoded, and the row of its query read;
    2. the service says what is to happen;
    3. the new row is encoded, and refused where it does not fit, before anything has left;
    4. records are sent, dead letters among them, and delivered;
    5. the row is written;
    6. `then` runs: what the service remembers beside its rows is never ahead of them.

Only then may the offset move. What is sent depends on the row and the record alone. Where the worker dies between 4 and
5, or the broker refuses one of them, the record is handled again with the same row, and sends the same under the same
identity. Where 5 or 6 fails for another reason, the process ends (`PartialWrite`): no record may be handled by a
service that has done half of what it said.

An ordered service handles batches, and what it decides depends on more than a row, so it could not say the same again.
`_handle_batch` has the opposite order: the rows of the batch are written first, all or none of them, and then what they
hold is sent. A record that is handled again finds its row, and the same is sent again. If the rows cannot be written,
the service is ahead of its log: it is not used any more, and its process ends. Where the log is another worker's by
now, or is read anew (`PartitionLost`), the service recovers instead.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import UNSET, Struct, UnsetType

from schemas.errors import UniscaleError
from schemas.record import Record, decode
from streams.log.base import ConsumerRecord, Outgoing, Unavailable, key_of
from streams.runtime.errors import Crash, PartialWrite
from streams.runtime.handler_guard import Refusal, send_refused
from streams.runtime.runtime import Runtime
from streams.runtime.spec import Input, ServiceSpec
from streams.runtime.table import PlacedRow, Table

R = TypeVar("R")


class Effects(Struct, Generic[R], frozen=True):
    """What a record causes.

    Attributes:
        send: Records, in their order.
        row: What the query's row becomes; None for no row. By default it stays as it is.
        beside: Rows under keys of the service's own, key and value, in the record's partition; None deletes one.
        refused: Records for the dead-letter topic, whose query goes on. A record that ends its query is none of them:
            the service raises its error.
        then: Called when all of this is on the broker. What the service counts and remembers belongs here.
    """

    send: Sequence[Outgoing] = ()
    row: R | UnsetType | None = UNSET
    beside: Sequence[tuple[bytes, bytes | None]] = ()
    refused: Sequence[Refusal] = ()
    then: Callable[[], object] = lambda: None


class Rows(NamedTuple, Generic[R]):
    """The rows of a keyed service, by query.

    Attributes:
        table: Where they lie.
        decode: Reads one.
        encode: Writes one.
    """

    table: Table
    decode: Callable[[bytes], R]
    encode: Callable[[R], bytes]

    def get(self, query_id: str) -> R | None:
        """Return the row of a query, None if it has none."""
        value = self.table.get(key_of(query_id))
        return None if value is None else self.decode(value)

    def change(
        self, query_id: str, before: R | None, after: R | UnsetType | None, partition: int
    ) -> PlacedRow | None:
        """Return the row to write where the row of a query changes, None where it stays as it is.

        Raises:
            RowTooLarge: it cannot be written.
        """
        if after is UNSET or after == before:
            return None
        row = key_of(query_id), None if after is None else self.encode(after), partition
        self.table.check(row)
        return row


class Keyed(Generic[R]):
    """A service that handles the records of one query at a time.

    Attributes:
        rows: What it keeps of each query; None for a service that keeps nothing.
    """

    rows: Rows[R] | None = None

    async def on(self, row: R | None, message: Any, at: ConsumerRecord) -> Effects[R]:
        """Return what a record causes.

        Args:
            row: What is kept of its query.
            message: The record, decoded as its `Input` says.
            at: Where and when it was appended.
        """
        raise NotImplementedError


class BatchEffects(Struct, frozen=True):
    """What a batch of records causes.

    Attributes:
        rows: Key and value of each row.
        send: Records, in their order.
        refused: Records for the dead-letter topic.
        then: Called when the rows are on the broker.
    """

    rows: Sequence[tuple[bytes, bytes]] = ()
    send: Sequence[Outgoing] = ()
    refused: Sequence[Refusal] = ()
    then: Callable[[], object] = lambda: None


class Ordered(ABC):
    """A service that handles batches in the order of a partition, and is itself changed by each.

    Attributes:
        lock: Held until the effects of a batch are applied.
    """

    lock: asyncio.Lock

    @abstractmethod
    async def ready(self, kind: type[Record]) -> None:
        """Make ready for a batch of these records; what is raised here has changed nothing."""

    @abstractmethod
    async def on_batch(self, batch: Sequence[tuple[Any, ConsumerRecord]]) -> BatchEffects:
        """Return what a batch causes: records of one kind, each with where and when it was appended."""

    @abstractmethod
    def changing(self) -> AbstractContextManager[None]:
        """Return what is entered around `on_batch` and `write`; where they fail, the service is not used again."""

    @abstractmethod
    async def write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write rows, all or none."""

    @abstractmethod
    async def settled(self) -> None:
        """Do what is due between two batches."""


async def connect(runtime: Runtime, spec: ServiceSpec) -> object:
    """Build the service of a worker, bind it to its inputs, and return it."""
    service = await spec.build(runtime)
    for topic, each in zip(spec.reads(runtime.topics, runtime.group), spec.inputs.values(), strict=True):
        if isinstance(service, Keyed):
            one = partial(_handle, runtime, service, each)
            runtime.each(topic, one, stage=each.stage, waits=each.waits)
        elif isinstance(service, Ordered):
            batch = partial(_handle_batch, runtime, service, each)
            runtime.batches(topic, batch, stage=each.stage, most=each.most)
    return service


async def _handle(runtime: Runtime, service: Keyed[R], each: Input, at: ConsumerRecord) -> None:
    message: Any = decode(at.value, each.kind)
    rows = service.rows
    row = rows.get(message.query_id) if rows is not None else None
    effects = await service.on(row, message, at)
    changes = list[PlacedRow]()
    if rows is not None:
        change = rows.change(message.query_id, row, effects.row, at.partition)
        changes = [] if change is None else [change]
        changes += [(key, value, at.partition) for key, value in effects.beside]
    await send_refused(runtime, effects.send, effects.refused)
    try:
        if rows is not None and changes:
            await rows.table.put_all(changes)
        effects.then()
    except (Unavailable, Crash):
        raise
    except Exception as error:
        raise PartialWrite("what was sent is delivered, and not all that belongs to it is done") from error


async def _handle_batch(
    runtime: Runtime, service: Ordered, each: Input, records: Sequence[ConsumerRecord]
) -> None:
    async with service.lock:
        if not all(map(runtime.is_ours, records)):
            return  # the group has rebalanced while this waited: another worker may handle them by now
        await service.ready(each.kind)
        batch, refused = list[tuple[Record, ConsumerRecord]](), list[Refusal]()
        for at in records:
            try:
                batch.append((decode(at.value, each.kind), at))
            except UniscaleError as error:
                refused.append(Refusal(error, at.value, at.origin, answer=True))
        with service.changing():
            effects = await service.on_batch(batch)
            await service.write(effects.rows)
            effects.then()  # once for each row: where sending fails, the records find their rows
        await send_refused(runtime, effects.send, [*refused, *effects.refused])
        try:
            await service.settled()
        except (Unavailable, Crash, MemoryError):
            raise
        except Exception as error:
            raise Crash("what is due between two batches failed") from error  # not the fault of any record
