"""The effects of a record, which a service returns as a value and the runtime applies in a fixed order.

A keyed service handles the records of a query one after another. It sends and writes nothing itself but returns
effects, so a test can pass in a record and check the records that come out. `_handle` applies the effects:

    1. the record is decoded, and the row of its query is read;
    2. the service returns its effects;
    3. the new row is encoded, and refused if it is too large, before anything is sent;
    4. the records, including dead letters, are sent and delivered;
    5. the row is written;
    6. `then` runs last, so that the service's in-memory state is never ahead of its rows.

Only then may the offset move. What is sent depends only on the row and the record. If the worker dies between 4 and 5,
or the broker refuses the records or the row, the record is redelivered; it finds the same row and sends the same
records with the same ids. If 5 or 6 fails for any other reason, the process ends (`PartialWrite`), because a service
that has applied only some of the effects must not handle any more records.

An ordered service handles batches, and its decisions depend on more than one row, so it could not reproduce them.
`_handle_batch` therefore reverses the order: it first writes the rows of the batch, atomically, and then sends their
contents. A redelivered record finds its row, and the same records are sent again. If the rows cannot be written, the
service is ahead of its log: it is not used again, and its process ends. If by then the log belongs to another worker,
or is being recovered (`PartitionLost`), the service recovers instead.
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
from streams.runtime.runtime import Input, Runtime, ServiceSpec
from streams.runtime.table import PlacedRow, Table

R = TypeVar("R")


class Effects(Struct, Generic[R], frozen=True):
    """The effects of one record.

    Attributes:
        send: Records to send, in order.
        row: The query's new row; None deletes the row. By default the row does not change.
        beside: Rows (key, value) under the service's own keys, in the record's partition; a value of None deletes one.
        refused: Records to send to the dead-letter topic while their queries continue. To end the query, the service
            raises the error instead.
        then: Called when everything above is on the broker, to update counters and in-memory state.
    """

    send: Sequence[Outgoing] = ()
    row: R | UnsetType | None = UNSET
    beside: Sequence[tuple[bytes, bytes | None]] = ()
    refused: Sequence[Refusal] = ()
    then: Callable[[], object] = lambda: None


class Rows(NamedTuple, Generic[R]):
    """A keyed service's rows, by query.

    Attributes:
        table: The table that holds them.
        decode: Decodes a row.
        encode: Encodes a row.
    """

    table: Table
    decode: Callable[[bytes], R]
    encode: Callable[[R], bytes]

    def get(self, query_id: str) -> R | None:
        """Return the row of a query, or None if it has no row."""
        value = self.table.get(key_of(query_id))
        return None if value is None else self.decode(value)

    def change(
        self, query_id: str, before: R | None, after: R | UnsetType | None, partition: int
    ) -> PlacedRow | None:
        """Return the row to write if a query's row changes, or None if it stays the same.

        Raises:
            RowTooLarge: the new row exceeds the record limit.
        """
        if after is UNSET or after == before:
            return None
        row = key_of(query_id), None if after is None else self.encode(after), partition
        self.table.check(row)
        return row


class KeyedService(Generic[R]):
    """A service that handles the records of one query at a time.

    Attributes:
        rows: The service's state by query; None for a stateless service.
    """

    rows: Rows[R] | None = None

    async def on(self, row: R | None, message: Any, at: ConsumerRecord) -> Effects[R]:
        """Return the effects of a record.

        Args:
            row: The row of the record's query, or None if it has no row.
            message: The record, decoded as declared in its `Input`.
            at: Position and append time of the record.
        """
        raise NotImplementedError


class BatchEffects(Struct, frozen=True):
    """The effects of a batch of records.

    Attributes:
        rows: The key and value of each row to write.
        send: Records to send, in order.
        refused: Records for the dead-letter topic.
        then: Called when the rows are on the broker.
    """

    rows: Sequence[tuple[bytes, bytes]] = ()
    send: Sequence[Outgoing] = ()
    refused: Sequence[Refusal] = ()
    then: Callable[[], object] = lambda: None


class OrderedService(ABC):
    """A service that handles batches in partition order and whose state changes with each batch.

    Attributes:
        lock: Held until the effects of a batch are applied.
    """

    lock: asyncio.Lock

    @abstractmethod
    async def prepare(self, kind: type[Record], batch: Sequence[tuple[Any, ConsumerRecord]]) -> None:
        """Read what a batch needs before the lock is taken, while other batches are being handled."""

    @abstractmethod
    async def ready(self, kind: type[Record], batch: Sequence[tuple[Any, ConsumerRecord]]) -> None:
        """Prepare for a batch of records of one kind. An error raised here leaves the service unchanged."""

    @abstractmethod
    async def on_batch(self, batch: Sequence[tuple[Any, ConsumerRecord]]) -> BatchEffects:
        """Return the effects of a batch of records of one kind, each with its position and append time."""

    @abstractmethod
    def changing(self) -> AbstractContextManager[None]:
        """Return a context manager to wrap `on_batch` and `write`; if either fails, the service is not used again."""

    @abstractmethod
    async def write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write rows atomically."""

    @abstractmethod
    async def settled(self) -> None:
        """Do the work that is due between two batches."""


async def connect(runtime: Runtime, spec: ServiceSpec) -> object:
    """Build the service of a worker, bind it to its inputs, and return it."""
    service = await spec.build(runtime)
    for topic, each in zip(
        spec.input_topics(runtime.topics, runtime.group), spec.inputs.values(), strict=True
    ):
        if isinstance(service, KeyedService):
            one = partial(_handle, runtime, service, each)
            runtime.each(topic, one, stage=each.stage, waits=each.waits)
        elif isinstance(service, OrderedService):
            batch = partial(_handle_batch, runtime, service, each)
            runtime.batches(topic, batch, stage=each.stage, most=each.most)
    return service


async def _handle(runtime: Runtime, service: KeyedService[R], each: Input, at: ConsumerRecord) -> None:
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
    runtime: Runtime, service: OrderedService, each: Input, records: Sequence[ConsumerRecord]
) -> None:
    batch, refused = list[tuple[Record, ConsumerRecord]](), list[Refusal]()
    for at in records:
        try:
            batch.append((decode(at.value, each.kind), at))
        except UniscaleError as error:
            refused.append(Refusal(error, at.value, at.origin, answer=True))
    await service.prepare(each.kind, batch)
    async with service.lock:
        if not all(map(runtime.is_ours, records)):
            return  # the group rebalanced during the wait; another worker may own the partition now
        await service.ready(each.kind, batch)
        with service.changing():
            effects = await service.on_batch(batch)
            await service.write(effects.rows)
            effects.then()  # once per row: if sending fails, redelivered records find their rows
        await send_refused(runtime, effects.send, [*refused, *effects.refused])
        try:
            await service.settled()
        except (Unavailable, Crash, MemoryError):
            raise
        except Exception as error:
            raise Crash("what is due between two batches failed") from error  # no record is at fault
