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
identity. Where 5 or 6 fails for another reason, the process ends (`Torn`): no record may be handled by a service that
has done half of what it said.

The decider has the opposite order, rows first, because what it decides depends on more than the row: see
`streams.services.decider`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import UNSET, Struct, UnsetType

from schemas.dead_letter import DeadLetter
from schemas.query import Origin
from schemas.record import decode
from streams.runtime.base import (
    ConsumerRecord,
    Crash,
    Input,
    Outgoing,
    PlacedRow,
    Runtime,
    ServiceSpec,
    Table,
    Torn,
    Unavailable,
    key_of,
)
from streams.runtime.guard import letter_of, to_send

R = TypeVar("R")


class Refused(NamedTuple):
    """A record for the dead-letter topic, whose query goes on without it.

    A record that ends its query is not among the effects: the service raises its error, and the guard sends an Answer.
    """

    error: Exception
    value: bytes | None
    origin: Origin

    def letter(self, runtime: Runtime) -> DeadLetter:
        """Return its dead letter."""
        return letter_of(
            self.value,
            self.error,
            service=runtime.service,
            origin=self.origin,
            keep_bytes=runtime.settings.kafka.dead_letter_bytes,
        )


class Effects(Struct, Generic[R], frozen=True):
    """What a record causes.

    Attributes:
        send: Records, in their order.
        row: What the query's row becomes; None for no row. By default it stays as it is.
        refused: Records for the dead-letter topic.
        then: Called when all of this is on the broker. What the service counts and remembers belongs here.
    """

    send: Sequence[Outgoing] = ()
    row: R | UnsetType | None = UNSET
    refused: Sequence[Refused] = ()
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


async def connect(runtime: Runtime, spec: ServiceSpec) -> object:
    """Build the service of a worker, bind it to its inputs if it is a keyed one, and return it."""
    service = await spec.build(runtime)
    if isinstance(service, Keyed):
        for topic, each in zip(spec.reads(runtime.topics, runtime.group), spec.inputs.values(), strict=True):
            handle = partial(_handle, runtime, service, each)
            runtime.each(topic, handle, stage=each.stage, waits=each.waits)
    return service


async def _handle(runtime: Runtime, service: Keyed[R], each: Input, at: ConsumerRecord) -> None:
    message: Any = decode(at.value, each.kind)
    rows = service.rows
    row = rows.get(message.query_id) if rows is not None else None
    effects = await service.on(row, message, at)
    change = None if rows is None else rows.change(message.query_id, row, effects.row, at.partition)
    letters = [refused.letter(runtime) for refused in effects.refused]
    if out := [*effects.send, *(to_send(runtime, letter) for letter in letters)]:
        await runtime.send(*out)
    try:
        if rows is not None and change is not None:
            await rows.table.put_all([change])
        for letter in letters:
            runtime.metrics.dead_letters.labels(letter.origin.topic, letter.error).inc()
        effects.then()
    except (Unavailable, Crash):
        raise
    except Exception as error:
        raise Torn("what was sent is delivered, and not all that belongs to it is done") from error
