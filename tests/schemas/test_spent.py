"""Where the time of a query went: sums to the microsecond, and records of before it was told are read."""

import orjson
import pytest
import zstandard
from msgspec import structs

from schemas.answer import Answer
from schemas.decision import Decision
from schemas.query import QueryContext
from schemas.record import Record, decode, encode, load
from schemas.spent import Spent


def test_seconds_add_up_to_the_microsecond() -> None:
    spent = Spent(admission_s=0.1).plus(embed_s=0.2).plus(embed_s=0.1, verify_s=1 / 3)
    assert spent == Spent(admission_s=0.1, embed_s=0.3, verify_s=0.333333)
    assert spent.total_s == pytest.approx(0.733333)


def test_the_total_is_of_every_component() -> None:
    names = Spent.__struct_fields__
    assert Spent(**dict.fromkeys(names, 1.0)).total_s == len(names)


@pytest.mark.parametrize("before", [QueryContext, Decision, Answer])
def test_a_record_of_before_is_read_as_one_that_took_no_time(
    before: type[Record], samples: tuple[Record, ...]
) -> None:
    sample = next(each for each in samples if type(each) is before)
    plain = {name: value for name, value in load(encode(sample)).items() if name != "spent"}
    value = orjson.dumps(plain)
    value = zstandard.compress(value) if before.framed else value
    assert decode(value, before) == structs.replace(sample, spent=Spent())
