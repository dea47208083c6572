"""A chat completion request becomes a Query, or a 400 that names the field."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.catalogue.cost_model import CostModel
from agents.serving.errors import PromptTooLongError, StreamBrokenError
from schemas.answer import Answer
from schemas.errors import RecordError
from schemas.grader import Grader
from schemas.query import Query, ToolCall
from streams.gateway.answer_details import details
from streams.gateway.errors import ApiError, of_answer
from streams.gateway.request import ChatRequest, ModelChoice, asked, parse, to_query

HELLO = {"model": "auto", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}


def request(**more: object) -> ChatRequest:
    return parse(orjson.dumps({**HELLO, **more}))


def query(parsed: ChatRequest, name: ModelChoice | None = None) -> Query:
    return to_query(
        parsed, name or ModelChoice(), query_id="q-1", tenant="shop", kept={"key": "", "digest": "d"}
    )


def test_a_plain_request() -> None:
    made = query(request())
    assert made.question == "What is 2 + 3?"
    assert made.tenant == "shop"
    assert made.n == 1
    assert made.metadata == {"gateway": {"key": "", "digest": "d"}}


def test_the_extension_is_what_a_query_can_say() -> None:
    made = query(
        request(
            uniscale={
                "accuracy": 0.98,
                "reference": ["5", 5],
                "grader": "exact",
                "timeout_s": 20,
                "budget": {"eflops": 1e12},
            },
            max_completion_tokens=100,
            n=3,
            user="ann",
            metadata={"team": "a"},
        )
    )
    assert (made.accuracy, made.reference, made.timeout_s, made.n) == (0.98, ["5", 5], 20, 3)
    assert made.graded_with == Grader(name="exact")
    assert made.budget is not None
    # The bound on each answer leaves the budget of the whole search as it is.
    assert (made.max_tokens, made.budget.tokens, made.budget.eflops) == (100, None, 1e12)
    assert made.metadata["user"] == "ann"
    assert made.metadata["team"] == "a"


def test_text_parts_are_joined_and_developer_is_system() -> None:
    made = query(
        request(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "2 "}, {"type": "text", "text": "+ 3"}],
                },
            ]
        )
    )
    assert made.messages is not None
    assert [(m.role, m.content) for m in made.messages] == [("system", "Be brief."), ("user", "2 + 3")]


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 1},
        {"temperature": 1.0},
        {"temperature": None},
        {"top_p": 1},
        {"logprobs": False},
        {"tools": []},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}, "modalities": ["text"], "n": 1},
        {"store": False},
        {"stream": None, "stream_options": None, "metadata": None, "uniscale": None, "user": None},
        {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": False}},
    ],
)
def test_what_asks_for_nothing_is_accepted(more: dict[str, object]) -> None:
    parsed = request(**more)
    assert (query(parsed).question, parsed.ignored) == ("What is 2 + 3?", ())


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": "high"}, "top_p"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"logit_bias": []}, "logit_bias"),
        ({"reasoning_effort": 1}, "reasoning_effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": {}}, "tools"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"seed": "x"}, "seed"),
        ({"stop": 3}, "stop"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_k": 5}, "top_k"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"moderation": {"mode": "x"}}, "moderation"),
        ({"ignored": ["temperature"]}, "ignored"),
        ({"modle": "auto"}, "modle"),
        ({"messages": "hello"}, "messages"),
        ({"n": "three"}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"uniscale": {"objectiv": "x"}}, "uniscale.objectiv"),
        ({"uniscale": {"weights": {"correct": -1}}}, "uniscale.weights.correct"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stream": True, "n": 2}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_completion_tokens": 10**12}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [".", ""]}, "stop[1]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklG"}}]}
                ]
            },
            "messages[0].content[0].input_audio.format",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}]},
            "messages[0].tool_calls[0]",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls",
        ),
        ({"metadata": {"gateway": "x"}}, "metadata.gateway"),
        ({"metadata": {"team": "a"}, "uniscale": {"metadata": {"team": "b"}}}, "uniscale.metadata.team"),
        ({"metadata": {"user": "ann"}, "user": "eve"}, "user"),
        ({"uniscale": {"accuracy": 2}}, "accuracy"),
        ({"uniscale": {"timeout_s": -1}}, "timeout_s"),
    ],
)
def test_what_cannot_be_is_refused_by_name(more: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        query(request(**more))
    assert (refused.value.status, refused.value.param) == (400, param)


IGNORED: list[tuple[dict[str, object], str]] = [
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"store": True}, "store"),
    ({"prompt_cache_key": "a"}, "prompt_cache_key"),
    ({"prompt_cache_options": {"mode": "a"}}, "prompt_cache_options"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"safety_identifier": "a"}, "safety_identifier"),
    ({"messages": [{"role": "user", "content": "What is 2 + 3?", "name": "ann"}]}, "messages[].name"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
]


TOOL = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("more", "required"),
    [
        ({"temperature": 0}, ("sampling", "greedy")),
        ({"temperature": 0, "n": 2}, ("sampling",)),
        ({"temperature": 1}, ()),
        ({"temperature": 0.7}, ("sampling",)),
        ({"top_p": 0.9}, ("sampling",)),
        ({"presence_penalty": 0.5}, ("penalties",)),
        ({"frequency_penalty": -0.5}, ("penalties",)),
        ({"logit_bias": {"50256": -100}}, ("penalties",)),
        ({"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False}, ("tools",)),
        ({"response_format": {"type": "json_object"}}, ("json",)),
        ({"logprobs": True, "top_logprobs": 0}, ("logprobs",)),
    ],
)
def test_what_is_asked_of_the_model_goes_with_the_query(
    more: dict[str, object], required: tuple[str, ...]
) -> None:
    made = query(request(**more))
    assert made.options is not None
    assert orjson.loads(orjson.dumps(made.options.fields)) == {
        name: more[name] for name in more if name != "n"
    }
    assert (made.required, request(**more).ignored) == (required, ())


def test_tools_and_images_of_a_conversation_are_kept() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    content = [{"type": "text", "text": "What is "}, image]
    said = [
        {"role": "user", "content": content},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a cat"}]},
        {"role": "assistant", "content": None, "refusal": "I will not say."},
        {"role": "user", "content": "Why?"},
    ]
    made = query(request(messages=said))
    assert made.messages is not None
    assert [message.text for message in made.messages] == ["What is ", "", "a cat", "I will not say.", "Why?"]
    assert made.messages[0].parts == tuple(content)
    assert made.messages[1].tool_calls == (ToolCall(id="c", name="look", arguments="{}"),)
    assert made.messages[2].tool_call_id == "c"
    assert made.required == ("tools", "images")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"n": 0}, "invalid_value"),
        ({"temperature": -1}, "invalid_value"),
        ({"top_logprobs": 99, "logprobs": True}, "invalid_value"),
        ({"top_logprobs": 3}, "invalid_value"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"uniscale": {"weights": {"correct": -1}}}, "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "invalid_value"),
        ({"temperature": "hot"}, "invalid_type"),
        ({"verbosity": 3}, "invalid_type"),
        ({"messages": [{"role": "user", "content": None}]}, "invalid_type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_type"),
        ({"uniscale": {"objectiv": "x"}}, "unknown_parameter"),
    ],
)
def test_equal_mistakes_have_equal_codes(more: dict[str, object], code: str) -> None:
    with pytest.raises(ApiError) as refused:
        query(request(**more))
    assert (refused.value.status, refused.value.code) == (400, code)


@pytest.mark.parametrize(("more", "name"), IGNORED)
def test_unsupported_field_is_ignored_or_strictly_refused(more: dict[str, object], name: str) -> None:
    parsed = request(**more)
    assert parsed.ignored == (name,)
    known = {field: each for field, each in more.items() if field == "stream"}
    assert query(parsed) == query(request(**known))
    with pytest.raises(ApiError, match="UNISCALE_GATEWAY_STRICT") as refused:
        parse(orjson.dumps({**HELLO, **more}), strict=True)
    assert (refused.value.status, refused.value.param) == (400, name)
    assert query(parse(orjson.dumps(HELLO), strict=True)) == query(request())


def test_every_field_of_the_official_client_is_known() -> None:
    params = pytest.importorskip("openai.types.chat.completion_create_params")
    for name in params.CompletionCreateParamsBase.__annotations__:
        values = {"model": "auto", "messages": HELLO["messages"]}
        request(**{name: values.get(name)})


def test_an_unknown_field_names_what_may_be_meant() -> None:
    with pytest.raises(ApiError, match="did you mean temperature") as refused:
        request(temprature=0)
    assert (refused.value.param, refused.value.code) == ("temprature", "unknown_parameter")
    with pytest.raises(ApiError, match="object `uniscale`"):
        request(reference="5")
    with pytest.raises(ApiError, match="leave it out"):
        request(chat_template_kwargs={})


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "fields",
    [{LONG: 1}, {"uniscale": {LONG: 1}}, {"messages": [{"role": "user", "content": "?", LONG: 1}]}],
    ids=["request", "uniscale", "message"],
)
def test_an_error_is_short_however_long_the_field_that_it_names(fields: Any) -> None:
    with pytest.raises(ApiError) as refused:
        query(request(**fields))
    assert len(str(refused.value.fields())) < 5000


def test_bounds_of_the_client_reach_the_query() -> None:
    made = query(request(max_tokens=50, seed=-7, stop="END", uniscale={"budget": {"tokens": 900}}))
    assert (made.max_tokens, made.seed, made.stop) == (50, -7, ("END",))
    assert made.budget is not None
    assert made.budget.tokens == 900
    assert query(request(stop=["a", "b"])).stop == ("a", "b")
    assert query(request(stop=[])).stop == query(request(stop=None)).stop == ()


def test_n_beyond_the_paths_of_a_pin_is_refused() -> None:
    assert query(request(n=4), ModelChoice(pin="mini-1/2/2/1")).n == 4
    with pytest.raises(ApiError, match="drafts 4 paths") as refused:
        query(request(n=5), ModelChoice(pin="mini-1/2/2/1"))
    assert (refused.value.status, refused.value.param) == (400, "n")


def test_a_prompt_beyond_the_context_is_the_client_s_error() -> None:
    why = "PromptTooLongError: m: a prompt of 9 tokens leaves no room in a context of 8; shorten the query"
    error = of_answer(Answer(query_id="q", status="failed", by="executor", error=why))
    assert error is not None
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert str(error).startswith("m: a prompt of 9 tokens")
    assert PromptTooLongError.__name__ == why.partition(":")[0]


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (
            "EndpointRefusedError: http://gpu-3.internal:8000/v1: HTTP 401: key sk-1 expired",
            "the search failed",
            "search_failed",
        ),
        ("connection to 10.0.0.3 lost: twice", "the search failed", "search_failed"),
        (
            f"{StreamBrokenError.__name__}: http://gpu-3.internal:8000/v1: the stream ended early",
            "the model's server broke off the answer",
            "stream_broken",
        ),
    ],
)
def test_what_an_engine_says_does_not_reach_a_client(error: str, said: str, code: str) -> None:
    answer = Answer(query_id="q", status="failed", by="executor", error=error, fault="infrastructure")
    told = f"{said}; try again, or report q to the operator"
    refused = of_answer(answer)
    assert refused is not None
    assert (refused.status, refused.code, str(refused)) == (502, code, told)
    assert details(answer, None, CostModel({}, {}, ""), None)["error"] == told


def test_contradicting_model_and_extension_are_refused() -> None:
    with pytest.raises(ApiError, match="one of the two"):
        query(request(uniscale={"accuracy": 0.9}), ModelChoice(objective="frugal"))
    with pytest.raises(ApiError, match="one of the two"):
        query(request(uniscale={"allowed_models": ["a"]}), ModelChoice(model="b"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["model", "messages", "n", "stream", "uniscale", "metadata", "user", "max_tokens", "stop"]
        ),
        JSON,
    )
)
def test_any_json_gives_a_query_or_an_api_error(fields: dict[str, object]) -> None:
    body = orjson.dumps({**HELLO, **fields}, option=orjson.OPT_NON_STR_KEYS)
    try:
        query(parse(body))
    except ApiError as error:
        status = error.status
        if status not in (400, 413):
            raise
    except RecordError as error:  # pragma: no cover - what the test looks for
        raise AssertionError(f"{body!r}: {error}") from error


def test_model_names() -> None:
    known = (["mini-1", "org/mini-2"], ["frugal"], ["mini-1/4/16/4", "org/mini-2/1/1/1"])
    assert asked("auto", *known) == ModelChoice()
    assert asked("auto:frugal", *known) == ModelChoice(objective="frugal")
    assert asked("org/mini-2", *known) == ModelChoice(model="org/mini-2")
    assert asked("org/mini-2/1/1/1", *known) == ModelChoice(pin="org/mini-2/1/1/1")
    for wrong in ("", "auto:", "auto:rich", "mini-9", "mini-1/3/3/3", "mini-1/4/16", "AUTO"):
        with pytest.raises(ApiError) as refused:
            asked(wrong, *known)
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")
