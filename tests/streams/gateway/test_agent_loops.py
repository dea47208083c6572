"""Tools, formats and images through both other protocols: the upstream's log says what reached the model."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.support.gateway_deployment import GatewayDeployment, before_chat_server
from tests.support.upstream import Body, Upstream

ADDS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADDS}}
PIXEL = "iVBORw0KGgo="
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}


class Agentic(Upstream):
    """An upstream that calls a tool until it is given a result, and answers with JSON where it is asked for."""

    def completion(self, body: Body) -> Body:
        said: Body = {"role": "assistant", "content": "It is 5."}
        if body.get("response_format"):
            said["content"] = '{"total": 5}'
        elif body.get("tools") and body["messages"][-1]["role"] != "tool":
            said = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        finish = "tool_calls" if said.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
        choices = [{"index": 0, "message": said, "finish_reason": finish}]
        return {"id": "c", "object": "chat.completion", "choices": choices, "usage": usage}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Agentic]:
    made = Agentic()
    yield made
    made.close()


@pytest.fixture(scope="module")
def site(upstream: Agentic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayDeployment]:
    """A deployment with one chat endpoint that can do everything."""
    able = ("tools", "json", "images", "audio", "logprobs")
    made = before_chat_server(tmp_path_factory.mktemp("agents"), upstream.url, ("hosted",), able)
    yield made
    made.close()


@pytest.fixture
def sent(upstream: Agentic, site: GatewayDeployment) -> list[Body]:
    """What reaches the upstream from now on."""
    with site.http() as client:
        site.until(lambda: client.get("/health/ready").json()["models"]["ready"] == 1)
    upstream.requests.clear()
    return upstream.requests


@pytest.fixture(scope="module")
def api(site: GatewayDeployment) -> Iterator[openai.OpenAI]:
    http: Any = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="any", http_client=http, max_retries=0) as client:
        yield client


TOOL: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": ADDS,
    "strict": False,
}
RESULT = [
    {"role": "user", "content": "2 + 3?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "5", "tool_call_id": "call-1"},
]


def turns(body: Body) -> list[Any]:
    """Return an upstream's messages; an empty content beside calls counts as null."""
    return [{**each, "content": each.get("content") or None} for each in body["messages"]]


def respond(api: openai.OpenAI, items: Any, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": "auto", "input": items, "tools": [TOOL], **more}
    return api.responses.create(**asked)


@pytest.mark.parametrize("stored", [True, False], ids=["previous", "items"])
def test_a_response_calls_a_tool_and_goes_on(api: openai.OpenAI, sent: list[Body], stored: bool) -> None:
    first = respond(api, "2 + 3?", tool_choice="required", parallel_tool_calls=False)
    [call] = first.output
    assert (call.type, call.name, call.call_id, call.arguments) == (
        "function_call",
        "add",
        "call-1",
        '{"a": 2, "b": 3}',
    )
    assert (first.tools[0].name, first.tool_choice, first.parallel_tool_calls) == ("add", "required", False)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
    if stored:
        second = respond(api, [result], previous_response_id=first.id)
    else:
        second = respond(api, [{"role": "user", "content": "2 + 3?"}, call.to_dict(), result])
    assert second.output_text == "It is 5."
    asked, answered = sent
    function = {**CHAT_TOOL["function"], "strict": False}  # type: ignore[dict-item]
    assert asked["tools"] == [{"type": "function", "function": function}]
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("required", False)
    assert turns(answered) == RESULT


def test_a_stream_of_a_response_has_its_calls(api: openai.OpenAI, sent: list[Body]) -> None:
    asked: dict[str, Any] = {"model": "auto", "input": "2 + 3?", "tools": [TOOL]}
    with api.responses.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output[0].type == "function_call"
    assert json.loads(final.output[0].arguments) == {"a": 2, "b": 3}
    assert "response.function_call_arguments.done" in events
    assert events[-1] == "response.completed"
    assert "response.output_text.delta" not in events


def test_allowed_tools_are_the_only_ones_sent(api: openai.OpenAI, sent: list[Body]) -> None:
    other = {**TOOL, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
    respond(api, "2 + 3?", tools=[other, TOOL], tool_choice=choice)
    assert [tool["function"]["name"] for tool in sent[0]["tools"]] == ["add"]
    respond(api, "2 + 3?", tools=[other, TOOL], tool_choice={"type": "function", "name": "add"})
    assert sent[1]["tool_choice"] == {"type": "function", "function": {"name": "add"}}


class Sum(BaseModel):
    """What a structured output is parsed into."""

    total: int


def test_a_format_is_the_upstream_s(api: openai.OpenAI, sent: list[Body]) -> None:
    made = api.responses.parse(model="auto", input="2 + 3?", text_format=Sum)
    assert made.output_parsed == Sum(total=5)
    form = sent[0]["response_format"]
    assert (form["type"], form["json_schema"]["name"]) == ("json_schema", "Sum")
    assert form["json_schema"]["schema"]["required"] == ["total"]
    assert made.text is not None
    assert made.text.format is not None
    assert made.text.format.type == "json_schema"


def test_a_custom_tool_reaches_the_upstream(api: openai.OpenAI, sent: list[Body]) -> None:
    grammar = {"syntax": "regex", "definition": "a+"}
    tool = {"type": "custom", "name": "patch", "format": {"type": "grammar", **grammar}}
    called = {"type": "custom_tool_call", "call_id": "call-2", "name": "patch", "input": "aa"}
    result = {"type": "custom_tool_call_output", "call_id": "call-2", "output": "done"}
    made = respond(api, [{"role": "user", "content": "Patch."}, called, result], tools=[tool])
    assert made.tools[0].to_dict() == tool
    [body] = sent
    custom = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
    assert body["tools"] == [{"type": "custom", "custom": custom}]
    [call] = body["messages"][1]["tool_calls"]
    assert call == {"id": "call-2", "type": "custom", "custom": {"name": "patch", "input": "aa"}}
    assert body["messages"][2]["tool_call_id"] == "call-2"


def test_the_cost_is_part_of_the_usage(site: GatewayDeployment, api: openai.OpenAI, sent: list[Body]) -> None:
    cost = pytest.approx((30 * 2.0 + 4 * 8.0) / 1e6)
    made = respond(api, "2 + 3?", tools=[])
    streamed = list(respond(api, "2 + 3?", tools=[], stream=True))[-1].response
    kept: Any = api.responses.retrieve(made.id)
    assert [each.usage.cost for each in (made, streamed, kept)] == [cost] * 3
    used = message(site, [{"role": "user", "content": "2 + 3?"}], tools=[])["usage"]
    assert (used["cost"], used["cost_details"]["upstream_inference_cost"]) == (cost, cost)


def test_images_reach_the_upstream(site: GatewayDeployment, api: openai.OpenAI, sent: list[Body]) -> None:
    url = f"data:image/png;base64,{PIXEL}"
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": url, "detail": "low"},
    ]
    respond(api, [{"role": "user", "content": parts}], tools=[])
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    message(site, [{"role": "user", "content": content}], tools=[])
    [first, second] = [each["messages"][0]["content"] for each in sent]
    assert first == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    assert second == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]


def test_audio_reaches_the_upstream(site: GatewayDeployment, api: openai.OpenAI, sent: list[Body]) -> None:
    recording = {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}}
    said = {"type": "input_text", "text": "What does she say?"}
    respond(api, [{"role": "user", "content": [said, recording]}], tools=[])
    [body] = sent
    assert body["messages"][0]["content"] == [{"type": "text", "text": "What does she say?"}, recording]


BLOCK = {"type": "tool_use", "id": "call-1", "name": "add", "input": {"a": 2, "b": 3}}


def message(site: GatewayDeployment, turns: Any, **more: Any) -> dict[str, Any]:
    tool = {"name": "add", "description": "Adds.", "input_schema": ADDS}
    asked = {"model": "auto", "max_tokens": 50, "messages": turns, "tools": [tool], **more}
    with site.http() as client:
        answer = client.post("/v1/messages", json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_message_calls_a_tool_and_goes_on(site: GatewayDeployment, sent: list[Body]) -> None:
    question = {"role": "user", "content": "2 + 3?"}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    first = message(site, [question], tool_choice=choice)
    assert (first["content"], first["stop_reason"]) == ([BLOCK], "tool_use")
    result = {"type": "tool_result", "tool_use_id": "call-1", "content": [{"type": "text", "text": "5"}]}
    second = message(
        site,
        [question, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}],
    )
    assert (second["content"], second["stop_reason"]) == ([{"type": "text", "text": "It is 5."}], "end_turn")
    asked, answered = sent
    assert asked["tools"] == [CHAT_TOOL]
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("required", False)
    returned = turns(answered)
    assert json.loads(returned[1]["tool_calls"][0]["function"].pop("arguments")) == BLOCK["input"]
    assert returned[1]["tool_calls"][0]["id"] == "call-1"
    assert [(each["role"], each["content"]) for each in returned] == [
        ("user", "2 + 3?"),
        ("assistant", None),
        ("tool", "5"),
    ]


def test_tools_and_calls_are_counted(site: GatewayDeployment) -> None:
    question = {"role": "user", "content": "2 + 3?"}
    tool = {"name": "add", "input_schema": ADDS}
    called = {"role": "assistant", "content": [BLOCK]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call-1", "content": "5"}]}
    counts = []
    with site.http() as client:
        for more in ({}, {"tools": [tool]}, {"tools": [tool], "messages": [question, called, result]}):
            body = {"model": "auto", "messages": [question], **more}
            counts.append(client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"])
    assert counts[0] < counts[1] < counts[2]


def test_a_result_comes_before_what_else_a_user_says(site: GatewayDeployment, sent: list[Body]) -> None:
    result = {"type": "tool_result", "tool_use_id": "call-1", "content": "5", "is_error": True}
    said = {"role": "user", "content": [result, {"type": "text", "text": "Sure?"}]}
    question, called = {"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": [BLOCK]}
    made = message(site, [question, called, said])
    assert [each["role"] for each in sent[0]["messages"]] == ["user", "assistant", "tool", "user"]
    assert made["uniscale"]["ignored"] == ["messages[].content[].is_error"]


def test_a_stream_of_a_message_has_its_calls(site: GatewayDeployment, sent: list[Body]) -> None:
    tool = {"name": "add", "input_schema": ADDS}
    asked = {"model": "auto", "max_tokens": 50, "messages": RESULT[:1], "tools": [tool], "stream": True}
    with site.http() as client:
        lines = client.post("/v1/messages", json=asked).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    kinds = [kind for kind, _ in groupby(event["type"] for event in events)]
    assert kinds == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[2]["content_block"] == {**BLOCK, "input": {}}
    said = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(said)) == BLOCK["input"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_format_of_a_message_is_the_upstream_s(site: GatewayDeployment, sent: list[Body]) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    form = {"format": {"type": "json_schema", "schema": schema}}
    made = message(site, RESULT[:1], tools=[], output_config=form)
    assert json.loads(made["content"][0]["text"]) == {"total": 5}
    assert sent[0]["response_format"]["json_schema"]["schema"] == schema


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/responses", {"input": "?", "tools": [{"type": "mcp"}]}, "tools[0].type"),
    ("/v1/responses", {"input": "?", "tools": [{"type": "function"}]}, "tools[0].name"),
    ("/v1/messages", {"messages": RESULT[:1], "tools": [{"name": "add"}]}, "tools[0].input_schema"),
    ("/v1/messages", {"messages": RESULT[:1], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ("/v1/responses", {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0]"),
    ("/v1/responses", {"input": "?", "text": {"format": {"type": "xml"}}}, "text.format"),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "messages[0].content[0].tool_use_id",
    ),
]


@pytest.mark.parametrize(("path", "more", "field"), WRONG)
def test_what_is_wrong_with_a_tool_is_named(
    site: GatewayDeployment, path: str, more: Any, field: str
) -> None:
    limit = {"max_tokens": 50} if path.endswith("messages") else {}
    with site.http() as client:
        answer = client.post(path, json={"model": "auto", **limit, **more})
    assert answer.status_code == 400, answer.text
    assert field in answer.text
