"""What passes through a chat endpoint whole: messages and options as they were sent, the reply as it came."""

import json

import msgspec
import pytest

from agents.serving.engine import Prefix
from agents.serving.errors import ContentFilteredError, RequestRefusedError
from schemas.chat import MAX_MESSAGE, ChatOptions
from schemas.query import Message, ToolCall
from tests.agents.serving.test_chat_engine import ASKED, ask, upstream  # noqa: F401  # a fixture
from tests.support.upstream import Upstream

TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def test_a_conversation_with_calls_and_images_is_sent_as_it_was(upstream: Upstream) -> None:  # noqa: F811
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    custom = ToolCall(id="d", name="sh", arguments="ls", type="custom")
    messages = (
        Message(role="user", content="", parts=(image,)),
        Message(
            role="assistant", content=None, tool_calls=(ToolCall(id="c", name="add", arguments="{}"), custom)
        ),
        Message(role="tool", content="3", tool_call_id="c"),
    )
    options = ChatOptions(tools=(TOOL,), temperature=0.5)
    prefix = Prefix(messages=messages, options=options, whole=True)
    ask(upstream, prefix=prefix, extra_body={"temperature": 0.9, "top_p": 0.8})
    [body] = upstream.requests
    assert body["messages"] == [
        {"role": "user", "content": [image]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [CALL, {"id": "d", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]
    assert (body["tools"], body["temperature"], body["top_p"]) == ([TOOL], 0.5, 0.8)


def test_a_reply_is_returned_whole_only_if_that_is_asked(upstream: Upstream) -> None:  # noqa: F811
    said = {"role": "assistant", "content": None, "refusal": "No.", "tool_calls": [CALL], "note": {"a": 1}}
    upstream.says = lambda body: said
    asked = msgspec.structs.replace(ASKED, options=ChatOptions(logprobs=True), whole=True)
    [draft] = ask(upstream, prefix=asked)
    assert draft.upstream is not None
    assert (draft.text, draft.finish, draft.upstream.message) == ("", "eos", said)
    assert draft.upstream.finish_reason == "tool_calls"
    assert json.loads(draft.upstream.logprobs)["content"][0]["logprob"] == -0.5
    with pytest.raises(ContentFilteredError):
        ask(upstream)
    upstream.says = lambda body: {"role": "assistant", "content": "x" * (MAX_MESSAGE + 1)}
    with pytest.raises(RequestRefusedError, match="the reply's message takes"):
        ask(upstream, prefix=asked)
