"""Tool calls, refusals and log probabilities of an upstream, as output items and events of a response."""

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from schemas.answer import Answer
from schemas.chat import ChatOptions
from schemas.query import Query
from streams.gateway.answer_details import usage
from streams.gateway.responses_api.response import Events, response
from streams.gateway.upstream_message import calls, turn
from tests.support.upstream_answers import CALLS, returned

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def made(answer: Answer, query: Query | None = None) -> Any:
    return Response.model_validate(response("resp_1", 0, "hosted", query, answer, usage(answer)))


def events(answer: Answer, *deltas: str) -> list[Any]:
    stream = Events("resp_1")
    sent = [part for text in deltas for part in stream.delta(text)]
    sent += [
        part for at, call in enumerate(calls(answer)) for part in stream.called(at, call, call.arguments)
    ]
    sent += stream.end(answer)
    found = [json.loads(part.split(b"data: ", 1)[1]) for part in sent]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return [EVENT.validate_python(each) for each in found]


def items_of(stream: list[Any]) -> list[Any]:
    return [each.item for each in stream if each.type == "response.output_item.done"]


def test_calls_are_items_of_their_own() -> None:
    answer = returned("", tool_calls=CALLS)
    whole, stream = made(answer), events(answer)
    assert [(item.type, item.call_id, item.name, item.arguments) for item in whole.output] == [
        ("function_call", "call-1", "add", '{"a": 2}'),
        ("function_call", "call-2", "look", "not JSON"),
    ]
    assert items_of(stream) == whole.output
    kinds = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert [each.type for each in stream] == [f"response.{kind}" for kind in kinds] * 2
    assert [each.output_index for each in stream] == [0] * 4 + [1] * 4


def test_a_custom_tool_is_called_with_a_text() -> None:
    call = {"id": "call-3", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    answer = returned("", tool_calls=[call])
    whole, stream = made(answer), events(answer)
    [item] = whole.output
    assert (item.type, item.call_id, item.name, item.input) == (
        "custom_tool_call",
        "call-3",
        "patch",
        "*** Begin",
    )
    assert items_of(stream) == whole.output
    kinds = [
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
    ]  # fmt: skip
    assert [each.type for each in stream] == [f"response.{kind}" for kind in kinds]


def test_a_text_comes_before_its_calls() -> None:
    answer = returned("Let me add.", tool_calls=CALLS[:1])
    whole = made(answer)
    assert [item.type for item in whole.output] == ["message", "function_call"]
    assert whole.output_text == "Let me add."
    for stream in (events(answer, "Let ", "me add."), events(answer, "Let me add.")):
        assert items_of(stream) == whole.output
        assert "".join(e.delta for e in stream if e.type == "response.output_text.delta") == whole.output_text
        assert stream[-1].output_index == 1


def test_a_refusal_is_the_content_of_a_message() -> None:
    answer = returned("", refusal="I will not.")
    whole, stream = made(answer), events(answer)
    assert whole.output[0].content[0].refusal == "I will not."
    assert items_of(stream) == whole.output
    kinds = [
        "output_item.added", "content_part.added", "refusal.delta", "refusal.done", "content_part.done",
        "output_item.done",
    ]  # fmt: skip
    assert [each.type for each in stream] == [f"response.{kind}" for kind in kinds]


def test_an_empty_text_is_a_message() -> None:
    answer = returned("")
    assert made(answer).output[0].content[0].text == ""
    assert items_of(events(answer)) == made(answer).output


def test_log_probabilities_are_those_of_the_upstream() -> None:
    token = {"token": "5", "logprob": -0.1, "bytes": [53], "top_logprobs": []}
    answer = returned("5", logprobs=json.dumps({"content": [token]}))
    assert made(answer).output[0].content[0].logprobs[0].logprob == -0.1
    [done] = [each for each in events(answer, "5") if each.type == "response.output_text.done"]
    assert done.logprobs[0].token == "5"


def test_usage_is_what_the_upstream_counted() -> None:
    used = made(returned("5")).usage
    assert (used.input_tokens, used.input_tokens_details.cached_tokens) == (57, 20)
    assert (used.output_tokens, used.output_tokens_details.reasoning_tokens, used.total_tokens) == (19, 4, 76)


def test_the_request_is_echoed_in_the_terms_of_the_api() -> None:
    function = {"name": "add", "parameters": {"type": "object"}}
    schema = {"name": "sum", "schema": {"type": "object"}}
    options = ChatOptions(
        tools=({"type": "function", "function": function},),
        tool_choice={"type": "function", "function": {"name": "add"}},
        parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": schema},
        temperature=0.5,
    )
    whole = made(returned("5"), Query(query_id="resp_1", text="2 + 3?", options=options))
    assert (whole.tools[0].name, whole.tool_choice.name, whole.parallel_tool_calls) == ("add", "add", False)
    assert (whole.text.format.name, whole.temperature) == ("sum", 0.5)


def test_a_turn_keeps_its_calls() -> None:
    message = turn(returned("", tool_calls=CALLS))
    assert (message.content, [call.id for call in message.tool_calls]) == (None, ["call-1", "call-2"])
    assert turn(returned("5")).content == "5"
