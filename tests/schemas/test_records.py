"""Round trips, and the rules that hold for every record."""

import math
import re
import struct
from array import array

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.action import Action
from schemas.dead_letter import DeadLetter
from schemas.decision import ScoredAction
from schemas.errors import InvalidField, RecordTooLarge, UniscaleError, UnknownSchema, UnreadableRecord
from schemas.forest import Draft, Forest, Limits
from schemas.objective import Weights
from schemas.query import Budget, Message, Origin, Query, QueryContext, pack, unpack
from schemas.record import MAX_VALUE, Record, decode, encode, load, readable_id
from schemas.reward import Feedback
from schemas.search import SearchStep
from tests.support.records import decision_for

names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20)
ids = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=200)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80).filter(str.strip)
weights = st.builds(
    Weights,
    correct=st.floats(0, 1e6),
    score=st.floats(0, 1e6),
    cost=st.floats(1e-3, 1e6),
)
budgets = st.builds(Budget, tokens=st.none() | st.integers(1, 10**9), eflops=st.none() | st.floats(1, 1e20))
actions = st.builds(Action, model=names, qp=st.integers(1, 16), cp=st.integers(4, 64), bs=st.integers(1, 4))
queries = st.builds(
    Query,
    query_id=ids,
    text=words,
    weights=st.none() | weights,
    reference=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    pin_action=st.none() | actions.map(str),
    allowed_models=st.none() | st.lists(names, min_size=1, max_size=3).map(tuple),
    budget=st.none() | budgets,
    timeout_s=st.none() | st.floats(0.001, 21_600),
    tenant=st.none() | names,
    metadata=st.dictionaries(names, st.integers(-(2**53), 2**53) | st.booleans() | words, max_size=3),
)


@given(query=queries)
def test_a_query_survives_the_wire(query: Query) -> None:
    assert decode(encode(query), Query) == query


@given(query=queries, vector=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_a_context_keeps_every_bit_of_its_embedding(query: Query, vector: list[float]) -> None:
    context = QueryContext(
        query=query, embedding=pack(array("f", vector)), origin=Origin(topic="q", partition=0, offset=1)
    )
    back = decode(encode(context), QueryContext)
    assert back == context
    assert back.vector().tolist() == vector


@given(action=actions)
def test_an_action_id_names_one_action(action: Action) -> None:
    assert Action.parse(action.id) == action


def test_unknown_fields_are_ignored(sample: Record) -> None:
    plain = load(encode(sample)) | {"added_by_a_later_release": {"x": 1}}
    assert decode(orjson.dumps(plain), type(sample)) == decode(encode(sample), type(sample)) == sample


def test_every_missing_required_field_is_named(kind: type[Record], samples: tuple[Record, ...]) -> None:
    plain = load(encode(next(each for each in samples if type(each) is kind)))
    required = [f.name for f in msgspec.structs.fields(kind) if f.required]
    assert required
    for name in required:
        with pytest.raises(InvalidField) as caught:
            decode(orjson.dumps({key: value for key, value in plain.items() if key != name}), kind)
        assert caught.value.field == name
        assert "is missing" in str(caught.value)


def test_every_ill_typed_field_is_named(kind: type[Record], samples: tuple[Record, ...]) -> None:
    plain = load(encode(next(each for each in samples if type(each) is kind)))
    for field in msgspec.structs.fields(kind):
        refused = []
        wrongs: list[object] = [[[3]], 3.5, "no\n", {"no": 1}, True]
        for wrong in (
            [*wrongs, []] if field.name == "reference" else wrongs
        ):  # which takes JSON, but no empty list
            try:
                decode(orjson.dumps(plain | {field.name: wrong}), kind)
            except InvalidField as error:
                refused.append(error.field)
        assert len(refused) >= 2, f"{field.name} takes almost anything"
        assert {re.split(r"[.\[]", each)[0] for each in refused} == {field.name}


def test_another_version_and_a_missing_one_are_told_apart(
    kind: type[Record], samples: tuple[Record, ...]
) -> None:
    plain = load(encode(next(each for each in samples if type(each) is kind)))
    with pytest.raises(UnknownSchema, match=r"is 'later\.v9'.*write \"schema\""):
        decode(orjson.dumps(plain | {"schema": "later.v9"}), kind)
    del plain["schema"]
    with pytest.raises(UnknownSchema, match="schema: is missing"):
        decode(orjson.dumps(plain), kind)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_never_leaves(number: float) -> None:
    weighed = ScoredAction(action="m/1/1/1", mean=0.0, width=number, score=0.0)
    with pytest.raises(InvalidField, match=r"runners_up\[0\]\.width: is not a finite number"):
        encode(decision_for(Query(query_id="q", text="x"), runners_up=(weighed,)))


def test_a_number_that_is_not_finite_is_found_in_a_free_field() -> None:
    feedback = Feedback(query_id="q", correct=1.0, metadata={"deep": [{"x": math.nan}]})
    with pytest.raises(InvalidField, match=r"metadata\.deep\[0\]\.x: is not a finite number"):
        encode(feedback)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"not JSON",
        b"\xff\xfe",
        b"[1]",
        b"3",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":-Infinity}',
        b'{"a":"\\ud800"}',
        b"\x28\xb5\x2f\xfdbroken",
    ],
    ids=str,
)
def test_bytes_that_are_no_json_object_are_refused(value: bytes | None) -> None:
    with pytest.raises(UnreadableRecord):
        decode(value, Query)


def test_a_truncated_frame_is_refused(samples: tuple[Record, ...]) -> None:
    value = encode(next(each for each in samples if isinstance(each, SearchStep)))
    for cut in range(1, len(value) - 1, 7):
        with pytest.raises(UnreadableRecord):
            decode(value[:cut], SearchStep)


def test_a_record_over_the_limit_is_refused_with_its_size() -> None:
    origin = Origin(topic="q", partition=0, offset=1)
    big = DeadLetter(
        service="r", origin=origin, error="E", reason="x" * (MAX_VALUE + 1), head=b"", size=0, sha256=""
    )
    with pytest.raises(RecordTooLarge, match=f"of {MAX_VALUE}"):
        encode(big)


def test_an_id_is_read_from_a_poison_record_where_there_is_one() -> None:
    assert readable_id(b'{"query_id":"q-1","text":3}') == "q-1"
    assert readable_id(b'{"query":{"query_id":"q-2"}}') == "q-2"
    assert readable_id(b'{"search":{"query_id":"q-3"}}') == "q-3"
    for value in (None, b"\xff", b"[]", b'{"query_id":3}', b'{"query_id":""}', b'{"query_id":"a b"}', b"{}"):
        assert readable_id(value) is None


@given(value=st.binary(max_size=300))
def test_no_bytes_raise_anything_but_our_errors(value: bytes) -> None:
    try:
        decode(value, Query)
    except UniscaleError:
        readable_id(value)


@given(vector=st.lists(st.floats(width=32, allow_nan=False), max_size=8))
def test_packed_numbers_are_little_endian(vector: list[float]) -> None:
    assert pack(array("f", vector)) == struct.pack(f"<{len(vector)}f", *vector)
    assert unpack(pack(array("f", vector))).tolist() == vector


def test_a_message_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Message(role="user", content="x").role = "system"  # type: ignore[misc]


def test_a_search_with_drafts_has_a_prompt() -> None:
    """Its price could not be told, which would end the executor that takes it up."""
    action, limits = Action(model="m", qp=1, cp=1, bs=1), Limits(depth_limit=5, step_tokens=8)
    drafts = (Draft(parent=-1, depth=1, tokens=3, finish="eos"),)
    with pytest.raises(ValueError, match="prompt_tokens is 0 with drafts"):
        Forest(action=action, limits=limits, drafts=drafts, step=1)
    assert Forest(action=action, limits=limits, drafts=drafts, step=1, prompt_tokens=2).step == 1
