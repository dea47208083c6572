"""Tool calls and refusals of an upstream, as content blocks of a message."""

from streams.gateway import answer_details
from streams.gateway.messages_api.response import content, stop, usage
from tests.support.upstream_answers import CALLS, returned


def test_calls_are_blocks_after_the_text() -> None:
    answer = returned("Let me add.", tool_calls=CALLS)
    assert content(answer) == [
        {"type": "text", "text": "Let me add."},
        {"type": "tool_use", "id": "call-1", "name": "add", "input": {"a": 2}},
        {"type": "tool_use", "id": "call-2", "name": "look", "input": {"unparsed": "not JSON"}},
    ]
    assert stop(answer)["stop_reason"] == "tool_use"
    assert [block["type"] for block in content(returned("", tool_calls=CALLS))] == ["tool_use", "tool_use"]


def test_a_refusal_is_a_text_and_the_reason() -> None:
    answer = returned("", refusal="I will not.")
    assert content(answer) == [{"type": "text", "text": "I will not."}]
    assert stop(answer)["stop_reason"] == "refusal"


def test_cached_tokens_are_not_counted_twice() -> None:
    assert usage(answer_details.usage(returned("5"))) == {
        "input_tokens": 37,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "output_tokens": 19,
        "output_tokens_details": {"thinking_tokens": 4},
    }
