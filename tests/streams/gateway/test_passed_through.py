"""What a client asks for besides a text passes through whole: the official client before us, an upstream behind."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from schemas.answer import Answer
from schemas.decision import Decision
from schemas.query import Query
from schemas.reward import Reward
from tests.streams.test_chat_models import chat, start  # noqa: F401  # a fixture
from tests.support.gateway_deployment import ASK, Deploy, GatewayDeployment, refused
from tests.support.upstream import Body, Upstream

ALL = ["tools", "json", "images", "audio", "logprobs"]
PRICE = {"input": 2.0, "output": 8.0}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
SUM = {
    "type": "json_schema",
    "json_schema": {
        "name": "sum",
        "strict": True,
        "schema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
    },
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}}
CATALOGUE = {"cost_range": None, "hardware": None}


def call(name: str, **arguments: int) -> Body:
    """Return the message of an assistant that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": f"call-{name}", "type": "function", "function": function}],
    }


def says(body: Body) -> str | Body:
    """Call a tool twice and then answer, if there are tools; else answer as asked."""
    if "tools" in body:
        results = [each for each in body["messages"] if each["role"] == "tool"]
        said: list[str | Body] = [call("add", a=1, b=2), call("add", a=3, b=4), "It is 7"]
        return said[len(results)]
    return '{"sum":5}' if "response_format" in body else "So \\boxed{5}"


def entry(name: str, upstream: Upstream, capabilities: list[str], **endpoint: Any) -> dict[str, Any]:
    """Return the entry of a chat endpoint in USD."""
    made = chat(name, upstream, **endpoint)
    del made["architecture"]
    return {**made, "price": PRICE, "capabilities": capabilities}


@pytest.fixture
def upstreams() -> Iterator[tuple[Upstream, Upstream]]:
    """An upstream that can do everything, and one that answers with text alone."""
    able, plain = Upstream(says=says), Upstream()
    yield able, plain
    able.close()
    plain.close()


@pytest.fixture
def site(start: Deploy, upstreams: tuple[Upstream, Upstream]) -> GatewayDeployment:  # noqa: F811
    """A deployment of both; the able one may also give four answers."""
    able, plain = upstreams
    entries = entry("plain", plain, []), entry("able", able, ALL, n=[1, 4])
    return start(*entries, content=CATALOGUE)


@contextmanager
def connected(site: GatewayDeployment) -> Iterator[Any]:
    """Connect the official client."""
    http = httpx.Client(trust_env=False)
    at: dict[str, Any] = {"base_url": f"{site.url}/v1", "http_client": http}
    with openai.OpenAI(**at, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def client(site: GatewayDeployment) -> Iterator[Any]:
    with connected(site) as client:
        yield client


def asked(upstream: Upstream, word: str) -> list[Body]:
    """Return the requests for completions that an upstream got for a conversation."""
    return [body for body in upstream.requests if word in str(body["messages"])]


def test_a_tool_loop_runs_on_the_model_that_has_tools(
    site: GatewayDeployment, client: Any, upstreams: tuple[Upstream, Upstream]
) -> None:
    able, plain = upstreams
    messages: list[Any] = [{"role": "user", "content": "Add the LOOP."}]
    ids = []
    for results in range(3):
        made = client.chat.completions.create(
            model="auto",
            messages=messages,
            tools=[ADD],
            tool_choice="auto",
            parallel_tool_calls=False,
        )
        choice, details = made.choices[0], (made.model_extra or {})["uniscale"]
        assert (made.model, details["action"], details["restricted"]) == ("able", "able/1/1/1", ["tools"])
        assert details["ignored"] == []
        ids.append(made.id)
        messages.append(choice.message)
        if results == 2:
            break
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.tool_calls is not None
        messages.append({"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "3"})
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == (
        "stop",
        "It is 7",
        None,
    )

    bodies = asked(able, "LOOP")
    assert not asked(plain, "LOOP")
    assert len(bodies) == 3
    assert all(body["tools"] == [ADD] for body in bodies)
    assert all((body["tool_choice"], body["parallel_tool_calls"]) == ("auto", False) for body in bodies)
    assert [each["role"] for each in bodies[2]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    first = {name: each for name, each in call("add", a=1, b=2).items() if name != "refusal"}
    assert bodies[2]["messages"][1] == first
    assert bodies[2]["messages"][2] == {"role": "tool", "tool_call_id": "call-add", "content": "3"}
    decided = site.read(site.topics.decision, Decision)
    assert {(d.required, d.unable_models, str(d.action)) for d in decided} == {
        (("tools",), ("plain",), "able/1/1/1")
    }
    answer = next(a for a in site.read(site.topics.answer, Answer) if a.query_id == ids[0])
    assert (answer.text, answer.complete, answer.score) == ("", True, None)


def test_calls_are_streamed_and_the_last_chunk_has_the_cost(
    site: GatewayDeployment, client: Any, upstreams: tuple[Upstream, Upstream]
) -> None:
    chunks = list(
        client.chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "Add the STREAM."}],
            tools=[ADD],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    deltas = [each.choices[0].delta for each in chunks if each.choices]
    called = [each for delta in deltas for each in delta.tool_calls or ()]
    assert {each.index for each in called} == {0}
    assert (called[0].id, called[0].function.name) == ("call-add", "add")
    assert json.loads("".join(each.function.arguments for each in called)) == {"a": 1, "b": 2}
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "tool_calls"
    [(_, usage)] = [(body, used) for body, used in upstreams[0].log if "STREAM" in str(body)]
    cost = (usage["prompt_tokens"] * PRICE["input"] + usage["completion_tokens"] * PRICE["output"]) / 1e6
    last = chunks[-1].usage
    assert last is not None
    assert last.model_extra == {"cost": cost, "cost_details": {"upstream_inference_cost": cost}}


def test_n_beyond_every_configuration_is_refused_unsent(site: GatewayDeployment) -> None:
    before = len(site.records(site.topics.query))
    plain: Body = {"model": "auto", "messages": [{"role": "user", "content": "How much is 2 + 3?"}]}
    several: list[tuple[str, Body]] = [
        ("more than 4 paths; ask for at most 4", {"n": 5}),
        ("more than one path; ask for at most 1", {"n": 3, "model": "plain"}),
    ]
    with site.http() as http:
        for said, more in several:
            for path in (ASK, "/v1/decide"):
                error = refused(http.post(path, json={**plain, **more}), 400, "n")
                assert error["code"] == "invalid_value"
                assert said in error["message"]
        error = refused(http.post(ASK, json={**plain, "n": 5, "model": "able/4/1/1"}), 400, "n")
        assert error["code"] == "invalid_value"
        assert len(site.records(site.topics.query)) == before
        assert site.records(site.topics.dead_letter) == []
        assert len(http.post(ASK, json={**plain, "n": 4}).json()["choices"]) == 4


def test_a_format_reaches_the_upstream_and_json_the_client(
    site: GatewayDeployment, client: Any, upstreams: tuple[Upstream, Upstream]
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=[{"role": "user", "content": "The SUM?"}],
        response_format=SUM,
    )
    made = raw.parse()
    assert json.loads(made.choices[0].message.content or "") == {"sum": 5}
    assert (made.model_extra or {})["uniscale"]["restricted"] == ["json"]
    [body] = asked(upstreams[0], "SUM")
    assert body["response_format"] == SUM
    assert made.usage is not None
    cost = (made.usage.prompt_tokens * PRICE["input"] + made.usage.completion_tokens * PRICE["output"]) / 1e6
    assert (made.usage.model_extra or {})["cost"] == float(raw.headers["x-litellm-response-cost"]) == cost


def test_images_and_log_probabilities_pass_both_ways(
    site: GatewayDeployment, client: Any, upstreams: tuple[Upstream, Upstream]
) -> None:
    content = [{"type": "text", "text": "What is in the PICTURE?"}, IMAGE]
    alone = [{"role": "system", "content": "PICTURE"}, {"role": "user", "content": [IMAGE]}]
    made = client.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": content}], logprobs=True, top_logprobs=2
    )
    assert made.choices[0].logprobs.content[0].logprob == -0.5
    assert made.model_extra["uniscale"]["restricted"] == ["images", "logprobs"]
    client.chat.completions.create(model="auto", messages=alone)
    first, second = asked(upstreams[0], "PICTURE")
    assert first["messages"][0]["content"] == content
    assert (first["logprobs"], first["top_logprobs"]) == (True, 2)
    assert second["messages"] == alone
    chunks = list(
        client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "Again?"}], logprobs=True, stream=True
        )
    )
    assert [each.choices[0].logprobs.content[0].logprob for each in chunks if each.choices[0].logprobs] == [
        -0.5
    ]


def test_audio_reaches_the_model(
    site: GatewayDeployment, client: Any, upstreams: tuple[Upstream, Upstream]
) -> None:
    content = [{"type": "text", "text": "What is in the RECORDING?"}, AUDIO]
    alone = [{"role": "system", "content": "RECORDING"}, {"role": "user", "content": [AUDIO]}]
    for messages in ([{"role": "user", "content": content}], alone):
        made = client.chat.completions.create(model="auto", messages=messages)
        assert made.model_extra["uniscale"]["restricted"] == ["audio"]
        assert made.model_extra["uniscale"]["action"].endswith("/1/1/1")
    first, second = asked(upstreams[0], "RECORDING")
    assert (first["messages"][0]["content"], second["messages"]) == (content, alone)


def test_sampling_reaches_the_model_and_teaches_within_reason(
    site: GatewayDeployment, client: Any, upstreams: tuple[Upstream, Upstream]
) -> None:
    def sampled(word: str, **more: Any) -> tuple[Any, Body, Reward]:
        judged = {"uniscale": {"reference": "5"}}
        message = [{"role": "user", "content": f"How much is 2 plus 3, {word}?"}]
        made = client.chat.completions.create(model="auto", messages=message, extra_body=judged, **more)
        return made, (asked(upstreams[0], word) + asked(upstreams[1], word))[0], site.closing(made.id)[0]

    made, body, reward = sampled("WARM", temperature=0.7, top_p=0.5)
    assert (body["temperature"], body["top_p"]) == (0.7, 0.5)
    assert (reward.bounded, reward.correct) == (False, 1.0)
    assert made.model_extra["uniscale"]["ignored"] == []

    made, body, reward = sampled("COLD", temperature=0)
    assert body["temperature"] == 0
    assert made.model_extra["uniscale"]["action"].endswith("/1/1/1")
    assert reward.correct == 1.0

    for word, more in (("HOT", {"temperature": 1.5}), ("BIASED", {"logit_bias": {"20": -100}})):
        _, body, reward = sampled(word, **more)
        assert body.items() >= more.items()
        assert (reward.bounded, reward.correct, reward.kind) == (True, None, "default")
        assert reward.log_cost is not None


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"tools": [ADD]}, "tools", "tools is asked for, and no model that may answer calls tools"),
        ({"response_format": SUM}, "response_format", "no model that may answer keeps to a format"),
        ({"logprobs": True}, "logprobs", "no model that may answer returns log probabilities"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages",
            "messages has an image, and no model that may answer takes images",
        ),
        (
            {"messages": [{"role": "user", "content": [AUDIO]}]},
            "messages",
            "messages has audio, and no model that may answer takes audio",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "?"},
                    call("add"),
                    {"role": "tool", "tool_call_id": "c", "content": "3"},
                ]
            },
            "tools",
            "no model that may answer calls tools",
        ),
    ],
)
def test_what_no_model_has_is_refused_with_what_to_declare(
    site: GatewayDeployment, more: dict[str, Any], param: str, said: str
) -> None:
    body = {"model": "plain", "messages": [{"role": "user", "content": "?"}], **more}
    with site.http() as http:
        refused = http.post(ASK, json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, param), error
        assert f"{said}; allow another model, or give the entry of a chat endpoint `cap" in error["message"]
        several = http.post(ASK, json={**body, "model": "able/4/1/1"})
        assert (several.status_code, several.json()["error"]["param"]) == (400, "model")
        several = http.post(ASK, json={**body, "model": "auto", "n": 2})
        assert (several.status_code, several.json()["error"]["param"]) == (400, "n")
    assert not site.read(site.topics.query, Query)


def test_sampling_leads_to_who_takes_it_or_is_ignored(
    start: Deploy,  # noqa: F811
    upstreams: tuple[Upstream, Upstream],
) -> None:
    able, plain = upstreams
    site = start(entry("thinker", plain, [], sampling=False), entry("able", able, []), content=CATALOGUE)

    def ask(model: str, word: str) -> Any:
        said = [{"role": "user", "content": f"How much, {word}?"}]
        with connected(site) as client:
            made = client.chat.completions.create(
                model=model, messages=said, temperature=0.5, top_p=1, frequency_penalty=1
            )
        return made.model_extra["uniscale"]

    assert ask("auto", "HERE")["restricted"] == ["sampling", "penalties"]
    assert asked(able, "HERE")[0]["frequency_penalty"] == 1
    there = ask("thinker", "THERE")
    assert sorted(there["ignored"]) == ["frequency_penalty", "temperature"]
    assert asked(plain, "THERE")[0].keys().isdisjoint({"temperature", "frequency_penalty"})


def test_what_the_upstream_refuses_is_the_clients_to_correct(
    site: GatewayDeployment, client: Any, upstreams: tuple[Upstream, Upstream]
) -> None:
    upstreams[0].lacks = ("tools",)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "Add."}], tools=[ADD]
        )
    assert (refused.value.code, refused.value.response.headers["x-should-retry"]) == ("refused", "false")
    [answer] = site.read(site.topics.answer, Answer)
    assert (answer.fault, answer.cause) == ("", "refused")
