"""What a client may send wrong: each refusal names the field and the fix."""

import hashlib
from typing import Any

import orjson
import pytest

from schemas.action import Action
from schemas.answer import Answer
from schemas.chat import MAX_OPTIONS, MAX_PASSED_VALUES
from schemas.control import ControlRecord, PriceFactorEntry, decode_control
from schemas.dead_letter import HEAD_BYTES, DeadLetter
from schemas.errors import InvalidField, UnknownSchema, UnreadableRecord
from schemas.objective import CostRange, Weights
from schemas.query import MAX_TEXT, Origin, Query, QueryContext
from schemas.record import Record, decode, encode, load, quick_id
from schemas.reward import Reward
from schemas.search import SearchStep, Verification

NESTED: dict[str, Any] = {}
for _ in range(70):
    NESTED = {"items": NESTED}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
CALL = {"id": "c", "name": "add", "arguments": "{}"}
GOOD = {"schema": "query.v1", "query_id": "q-1", "text": "3 + 4?"}


def query(**changes: Any) -> Query:
    """Decode a good query with some fields changed; None leaves a field out."""
    plain = {key: value for key, value in (GOOD | changes).items() if value is not None}
    return decode(orjson.dumps(plain), Query)


def refused(plain: dict[str, Any], kind: type[Record] | None = None) -> InvalidField:
    """Return why a record is refused: one of a kind, or one of `control` if None."""
    with pytest.raises(InvalidField) as caught:
        decode_control(orjson.dumps(plain)) if kind is None else decode(orjson.dumps(plain), kind)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        ({"query_id": ""}, "query_id", "give 1 to 200"),
        ({"query_id": "a b"}, "query_id", "no spaces"),
        ({"query_id": "x" * 201}, "query_id", "1 to 200"),
        ({"query_id": "ü"}, "query_id", "ASCII"),
        ({"query_id": None}, "query_id", "is missing"),
        ({"text": None}, "text", "is missing, and so is messages"),
        ({"text": ""}, "text", "ask something"),
        ({"text": " \n\t"}, "text", "ask something"),
        ({"text": "x" * 2_000_000}, "text", "shorten"),
        ({"text": "ü" * (MAX_TEXT // 2 + 1)}, "text", "shorten"),
        ({"text": 3}, "text", "expected `str"),
        ({"messages": [{"role": "user", "content": "x"}]}, "text", "cannot be combined with messages"),
        ({"text": None, "messages": []}, "messages", "at least one"),
        ({"text": None, "messages": [{"role": "", "content": "x"}]}, "messages[0].role", "write user"),
        ({"text": None, "messages": [{"role": "user", "content": " "}]}, "messages", "ask something"),
        ({"text": None, "messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        ({"text": None, "messages": [{"role": "user", "content": None}]}, "messages[0].content", "is null"),
        (
            {"text": None, "messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
            "only an assistant",
        ),
        (
            {"text": None, "messages": [{"role": "tool", "content": "x"}]},
            "messages[0].tool_call_id",
            "give it",
        ),
        (
            {"text": None, "messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]},
            "messages[0].tool_call_id",
            "only there",
        ),
        (
            {"text": None, "messages": [{"role": "tool", "content": "x", "tool_call_id": ""}]},
            "messages[0].tool_call_id",
            "has 0 characters",
        ),
        (
            {
                "text": None,
                "messages": [{"role": "assistant", "content": None, "tool_calls": [{**CALL, "name": ""}]}],
            },
            "messages[0].tool_calls[0].name",
            "has 0 characters",
        ),
        ({"options": {"tools": [{}] * 129}}, "options.tools", "at most 128"),
        ({"options": {"tools": [{"a": "x" * MAX_OPTIONS}]}}, "options", "shorten"),
        ({"options": {"tools": [{"a": [[]] * MAX_PASSED_VALUES}]}}, "options", "JSON values; send fewer"),
        ({"options": {"response_format": NESTED}}, "options", "send it flatter"),
        ({"options": {"tool_choice": "auto"}}, "options.tool_choice", "needs tools"),
        ({"options": {"top_logprobs": 3}}, "options.top_logprobs", "needs logprobs"),
        ({"options": {"top_logprobs": 21, "logprobs": True}}, "options.top_logprobs", "<= 20"),
        ({"options": {"temperature": 2.5}}, "options.temperature", "<= 2.0"),
        ({"options": {"logit_bias": {"5": -101}}}, "options.logit_bias[...]", ">= -100"),
        (
            {"options": {"logit_bias": {f"{at}": 1 for at in range(1025)}}},
            "options.logit_bias",
            "at most 1024",
        ),
        (
            {"text": None, "messages": [{"role": "user", "content": "x", "parts": [{"a": NESTED}]}]},
            "messages[0].parts",
            "send it flatter",
        ),
        (
            {
                "text": None,
                "messages": [{"role": "user", "content": "", "parts": [IMAGE | {"a": "x" * MAX_TEXT}]}],
            },
            "messages[0].parts",
            "shorten",
        ),
        ({"weights": {"correct": -0.1, "cost": 1}}, "weights.correct", "zero or more"),
        ({"weights": {"correct": 0, "score": 0, "cost": 0}}, "weights", "at least one weight above zero"),
        ({"weights": {}}, "weights", "at least one weight above zero"),
        ({"weights": {"cost": "all"}}, "weights.cost", "expected `float`"),
        ({"weights": {"cost": 1e308, "score": 1e308}}, "weights", "at least one"),
        (
            {"objective": "a", "weights": {"cost": 1}},
            "weights",
            "cannot be combined with objective; give one of",
        ),
        ({"objective": "a", "mean_cost": 1e9}, "mean_cost", "cannot be combined with objective; give one of"),
        ({"mean_cost": 1e9, "accuracy": 0.9}, "accuracy", "cannot be combined with mean_cost; give one of"),
        ({"mean_cost": 0.0}, "mean_cost", "finite and above 0"),
        ({"mean_cost": -3.0}, "mean_cost", "finite and above 0"),
        ({"accuracy": 0.0}, "accuracy", "a share above 0, at most 1"),
        ({"accuracy": 98}, "accuracy", "a share above 0, at most 1"),
        ({"n": 0}, "n", "from 1 to 64"),
        ({"n": 65}, "n", "from 1 to 64"),
        ({"n": 1.5}, "n", "expected `int`"),
        ({"objective": ""}, "objective", "1 to 200 characters"),
        ({"pin_action": "mini-3"}, "pin_action", "model/qp/cp/bs"),
        ({"pin_action": "mini-3/1/2/x"}, "pin_action", "model/qp/cp/bs"),
        ({"pin_action": "mini-3/0/1/1"}, "pin_action", "from 1 to 1024"),
        ({"pin_action": "mini-3/1/1/2"}, "pin_action", "at most cp"),
        ({"pin_action": f"mini-3/1/1/{'9' * 5000}"}, "pin_action", "from 1 to 1024"),
        ({"allowed_models": []}, "allowed_models", "at least one"),
        ({"allowed_models": [""]}, "allowed_models", "at least one"),
        ({"budget": {"tokens": 0}}, "budget.tokens", "positive number"),
        ({"budget": {"eflops": -1.0}}, "budget.eflops", "positive number"),
        ({"timeout_s": 0}, "timeout_s", "a deadline in the past; give seconds above 0"),
        ({"timeout_s": -5}, "timeout_s", "a deadline in the past"),
        ({"timeout_s": 1e12}, "timeout_s", "out of reach"),
        ({"timeout_s": 30 * 24 * 3600}, "timeout_s", "at most 21600"),
        ({"budget": {"tokens": 10**10}}, "budget.tokens", "up to 1e+09"),
        ({"budget": {"eflops": 1e25}}, "budget.eflops", "up to 1e+24"),
        ({"pin_action": "mini-3/1024/1024/1"}, "pin_action", "at most 4096"),
        ({"pin_action": f"{'m' * 1000}/1/1/1"}, "pin_action", "1 to 200"),
        ({"allowed_models": ["m" * 1000]}, "allowed_models", "1 to 200"),
        ({"allowed_models": ["m"] * 1001}, "allowed_models", "at most 1000"),
        ({"text": None, "messages": [{"role": "user", "content": "x"}] * 1001}, "messages", "at most 1000"),
        ({"text": None, "messages": [{"role": "u" * 300, "content": "x"}]}, "messages[0].role", "too long"),
        ({"reference": {"tests": [["a", "b"]] * 257}}, "reference.tests", "at most 256"),
        ({"reference": 1180591620717411303424.0}, "reference", "give it as text"),
        ({"reference": "x" * 300_000}, "reference", "shorten"),
        ({"tenant": "t" * 201}, "tenant", "1 to 200"),
        ({"feedback_wait_s": -1}, "feedback_wait_s", "give 0 to"),
        ({"metadata": {"x": "y" * 20_000}}, "metadata", "shorten"),
        ({"metadata": [1]}, "metadata", "expected `object`"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_query_is_refused_by_field(changes: dict[str, Any], field: str, fix: str) -> None:
    with pytest.raises(InvalidField) as caught:
        query(**changes)
    assert caught.value.field == field
    assert caught.value.record == "Query"
    assert fix in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_weights_made_in_python_are_judged_alike(number: float) -> None:
    with pytest.raises(InvalidField, match="Weights: score: is"):
        Weights(score=number, cost=1.0)


def test_weights_sum_to_one_and_stay_as_they_are() -> None:
    w = query(weights={"correct": 1, "score": 2, "cost": 7}).weights
    assert w == Weights(correct=0.1, score=0.2, cost=0.7)
    assert decode(encode(query(weights={"cost": 3})), Query).weights == Weights(cost=1.0)


def test_messages_and_text_give_the_same_question() -> None:
    asked = query(
        text=None, messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3?"}]
    )
    assert asked.question == "Be brief.\n\n3?"
    assert [m.role for m in asked.chat] == ["system", "user"]
    assert [(m.role, m.content) for m in query().chat] == [("user", "3 + 4?")]


def test_a_pinned_action_is_parsed() -> None:
    assert query(pin_action="Qwen/Qwen3-8B/4/16/4").pinned == Action(model="Qwen/Qwen3-8B", qp=4, cp=16, bs=4)
    assert query().pinned is None


@pytest.mark.parametrize("embedding", ["", "AAA=", "AAAAAAAA4H8AAAAA", "AADAfw==", "AACAfw=="])
def test_an_embedding_that_would_poison_the_policy_is_refused(embedding: str) -> None:
    plain = {"schema": "context.v1", "query": GOOD, "embedding": embedding}
    plain["origin"] = {"topic": "q", "partition": 0, "offset": 0}
    assert refused(plain, QueryContext).field == "embedding"


def of(kind: type[Record], samples: tuple[Record, ...]) -> dict[str, Any]:
    return load(encode(next(each for each in samples if type(each) is kind)))


def test_a_score_is_never_missing_nor_made_up(samples: tuple[Record, ...]) -> None:
    plain = of(Verification, samples)
    for scores in (plain["scores"][:1], [*plain["scores"], {"score": 0.5}], []):
        assert "score each draft once" in str(refused(plain | {"scores": scores}, Verification))
    for score in (-0.1, 1.1):
        why = refused(plain | {"scores": [{"score": score}, {"score": 0.5}]}, Verification)
        assert "scores[0].score" in str(why)


def test_a_forest_that_is_no_tree_is_refused(samples: tuple[Record, ...]) -> None:
    plain = of(SearchStep, samples)
    plain["forest"]["drafts"][1]["parent"] = 1
    assert refused(plain, SearchStep).field.startswith("forest")


@pytest.mark.parametrize(
    ("changed", "fix"),
    [({"score": 0.5}, "give a score"), ({"fate": "finished"}, "give a score"), ({"best": 0}, "best 0")],
)
def test_a_forest_scored_in_part_is_refused(
    changed: dict[str, Any], fix: str, samples: tuple[Record, ...]
) -> None:
    # Its first step waits for its scores: no draft has one yet, and none is the best.
    plain = of(SearchStep, samples)
    plain["forest"] |= changed if "best" in changed else {}
    plain["forest"]["drafts"][0] |= {} if "best" in changed else changed
    assert fix in str(refused(plain, SearchStep))


def test_an_answer_cannot_contradict_itself() -> None:
    for wrong, field in (
        ({"status": "ok"}, "text"),
        ({"status": "failed"}, "error"),
        ({"status": "rejected"}, "error"),
        ({"status": "expired", "path": [0]}, "path"),
        ({"status": "solved"}, "status"),
    ):
        plain = {"schema": "answer.v1", "query_id": "q", "by": "executor"} | wrong
        assert refused(plain, Answer).field == field


@pytest.mark.parametrize(
    ("stage", "correct"), [("final", None), ("correction", None), ("provisional", 1.0), ("default", 0.0)]
)
def test_a_reward_of_one_kind_has_its_terms(
    stage: str, correct: float | None, samples: tuple[Record, ...]
) -> None:
    plain = of(Reward, samples) | {"kind": stage, "reward_id": f"q-1/{stage}", "correct": correct}
    assert refused(plain, Reward).field == "correct"


def test_a_reward_has_one_unit(samples: tuple[Record, ...]) -> None:
    why = refused(of(Reward, samples) | {"price": {"cost": 0.003, "unit": "usd"}}, Reward)
    assert "price.unit: is usd under an objective in eflops; count both" in str(why)


def test_a_reward_id_is_that_of_its_query_and_kind(samples: tuple[Record, ...]) -> None:
    assert "reward_id" in str(refused(of(Reward, samples) | {"reward_id": "q-2/final"}, Reward))


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (2.0, 1.0), (1.0, 1.0), (1.0, float("inf")), (-1.0, 1.0)]
)
def test_cost_bounds_between_which_nothing_lies_are_refused(low: float, high: float) -> None:
    with pytest.raises(InvalidField, match="low"):
        CostRange(low=low, high=high)


def test_control_records_are_told_apart_by_schema(samples: tuple[Record, ...]) -> None:
    records = [each for each in samples if isinstance(each, ControlRecord)]
    assert [decode_control(encode(each)) for each in records] == records
    assert [each.key for each in records] == [
        "model/mini-6",
        "price/mini-6",
        "objective/thrifty",
        "objective/nearly-best",
        "cost-bounds",
        "key/shop",
        "price/mini-6",
    ]
    for schema in ("query.v1", "catalogue-entry.v9", None, ["x"]):
        with pytest.raises(UnknownSchema, match=r"catalogue-entry\.v1"):
            decode_control(orjson.dumps({"schema": schema}))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"schema": "catalogue-entry.v1", "name": "m", "op": "add"}, "model"),
        ({"schema": "catalogue-entry.v1", "name": "m", "op": "remove", "model": {"name": "m"}}, "model"),
        ({"schema": "catalogue-entry.v1", "name": "m", "op": "add", "model": {"name": "n"}}, "model.name"),
        ({"schema": "catalogue-entry.v1", "name": "", "op": "remove"}, "name"),
        ({"schema": "catalogue-entry.v1", "name": "m", "op": "replace"}, "op"),
        ({"schema": "objective-entry.v1", "name": "o", "op": "set"}, "weights"),
        ({"schema": "objective-entry.v1", "name": "o", "op": "set", "accuracy": 2.0}, "accuracy"),
        ({"schema": "objective-entry.v1", "name": "o", "op": "set", "mean_cost": 0.0}, "mean_cost"),
        (
            {"schema": "objective-entry.v1", "name": "o", "op": "set", "mean_cost": 1, "accuracy": 0.5},
            "accuracy",
        ),
        ({"schema": "objective-entry.v1", "name": "o", "op": "remove", "accuracy": 0.5}, "accuracy"),
        ({"schema": "objective-entry.v1", "name": "o", "op": "remove", "weights": {"cost": 1}}, "weights"),
    ],
)
def test_a_bad_control_record_is_refused_by_field(wrong: dict[str, Any], field: str) -> None:
    assert refused(wrong).field == field


def test_a_dead_letter_keeps_the_head_and_the_digest_of_anything() -> None:
    value = b'{"query_id":"q-7","text":"' + b"\xff" * 2_000_000
    origin = Origin(topic="uniscale.query", partition=1, offset=9)
    with pytest.raises(UnreadableRecord) as caught:
        decode(value, Query)
    letter = DeadLetter.of(value, caught.value, service="embedder", origin=origin)
    assert letter.head == value[:HEAD_BYTES]
    assert (letter.size, letter.sha256) == (len(value), hashlib.sha256(value).hexdigest())
    assert (letter.error, letter.key) == ("UnreadableRecord", "uniscale.query/1/9")
    assert decode(encode(letter), DeadLetter) == letter
    assert len(encode(letter)) < 8192


def test_a_dead_letter_names_field_and_query() -> None:
    value = orjson.dumps(GOOD | {"text": ""})
    with pytest.raises(InvalidField) as caught:
        decode(value, Query)
    letter = DeadLetter.of(
        value, caught.value, service="embedder", origin=Origin(topic="q", partition=0, offset=0)
    )
    assert (letter.field, letter.query_id) == ("text", "q-1")
    assert letter.reason == "Query: text: is empty; ask something"


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_price_is_refused(factor: float) -> None:
    with pytest.raises(InvalidField, match=r"PriceFactorEntry.*factor.*give a finite number above 0"):
        PriceFactorEntry(name="m", factor=factor)


def test_a_field_name_that_is_no_text_ends_nothing() -> None:
    """Each record's queue is found by this, in every service."""
    assert quick_id(b'{"\xff": 1}') is None
    assert quick_id(b'{"query_id": "q-1"}') == "q-1"
