"""A Context whose query has been decided already: send the same Decision again, send nothing, or refuse a duplicate."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from agents.decider.errors import DuplicateQuery
from agents.decider.log.rows import Row, decode_row
from agents.decider.results import Decided
from schemas.context import Context
from schemas.query import Origin


def again(context: Context, value: bytes) -> Decided:
    """Return the result for a Context whose query has a row: the Decision already made, or DuplicateQuery."""
    row = decode_row(context.query_id.encode(), value)
    assert isinstance(row, Row)
    if row.query_origin != context.origin:
        return Decided(
            context.query_id, error=DuplicateQuery(context.query_id, row.query_origin, context.origin)
        )
    sent = bytes(row.decision)
    return Decided(context.query_id, sent, msgspec.json.decode(sent, type=_Sent).group)


def over(context: Context, place: tuple[int, int]) -> Decided:
    """Return the result for a Context whose query has ended and lost its row: nothing, or DuplicateQuery."""
    partition, offset = place
    if (context.origin.partition, context.origin.offset) == place:
        return Decided(context.query_id)
    first = Origin(topic=context.origin.topic, partition=partition, offset=offset)
    return Decided(context.query_id, error=DuplicateQuery(context.query_id, first, context.origin))


class _Sent(Struct):
    group: str
