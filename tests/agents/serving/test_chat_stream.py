"""Streamed chat completions: the same answer as without a stream, the text as it arrives, and no text twice."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agents.catalogue.endpoints import Endpoint
from agents.serving.chat_engine import ChatEngine
from agents.serving.chat_stream import ChatStream
from agents.serving.engine import Drafted, Piece, StreamingEngine
from agents.serving.errors import (
    ContentFilteredError,
    EngineFaultError,
    EngineReplyError,
    RequestRefusedError,
    ServingError,
    StreamBrokenError,
)
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.retries import Retries
from schemas.chat import ChatOptions
from schemas.prices import Billed
from schemas.query import ToolCall
from tests.agents.serving.test_chat_engine import ASKED, SAMPLING
from tests.support.upstream import Body, Upstream


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.close()


def stream(upstream: Upstream, pieces: list[Piece], **asked: Any) -> Drafted:
    """Ask for one answer, as the executor does for a client that streams."""

    async def slept(_: float) -> None:
        """Do not wait between attempts."""

    async def asking() -> Drafted:
        fields = {"model": "hosted", "max_output_tokens": 32, **asked.pop("endpoint", {})}
        settings = ServerSettings(url=upstream.url, retries=Retries(attempts=2))
        server = JsonServer(settings, sleep=slept)
        engine = ChatEngine(server, "m", Endpoint(kind="chat", url=upstream.url, **fields))
        assert isinstance(engine, StreamingEngine)
        try:
            prefix = msgspec.structs.replace(ASKED, **asked)
            return await engine.stream("q/1", prefix, 0, SAMPLING, pieces.append)
        finally:
            await engine.close()

    return asyncio.run(asking())


def test_text_arrives_in_pieces_with_the_tokens_at_its_end(upstream: Upstream) -> None:
    pieces: list[Piece] = []
    made = stream(upstream, pieces)
    assert pieces == ["So", " \\boxed{5}"]
    assert (made.text, made.finish, made.tokens, made.prompt_tokens) == ("So \\boxed{5}", "eos", 2, 10)
    assert made.billed == Billed(input=10, output=2)
    [body] = upstream.requests
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


CALLING: Body = {
    "role": "assistant",
    "content": "I call.",
    "reasoning_content": None,
    "tool_calls": [
        {"id": "c-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "c-2", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
    ],
}


@pytest.mark.parametrize("says", ["So \\boxed{5}", CALLING], ids=["text", "calls"])
def test_a_streamed_reply_is_the_one_without_a_stream(upstream: Upstream, says: str | Body) -> None:
    upstream.says = lambda body: says
    options = ChatOptions(logprobs=True)
    whole = stream(upstream, [], options=options, whole=True, endpoint={"stream": False})
    pieces: list[Piece] = []
    streamed = stream(upstream, pieces, options=options, whole=True)
    assert "stream" not in upstream.requests[0]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    assert "".join(texts) == streamed.text == whole.text
    assert streamed.upstream is not None
    assert whole.upstream is not None
    sent = {name: each for name, each in whole.upstream.message.items() if each is not None}
    assert streamed.upstream.message == sent
    assert msgspec.structs.replace(streamed, upstream=None) == msgspec.structs.replace(whole, upstream=None)
    assert streamed.upstream.finish_reason == whole.upstream.finish_reason
    if isinstance(says, str):
        assert json.loads(streamed.upstream.logprobs) == json.loads(whole.upstream.logprobs)


def test_a_stream_that_breaks_off_after_a_word_is_not_repeated(upstream: Upstream) -> None:
    upstream.breaks, pieces = 2, list[Piece]()
    with pytest.raises(StreamBrokenError) as broken:
        stream(upstream, pieces)
    assert (len(upstream.requests), pieces) == (1, ["So"])
    assert (broken.value.infrastructure, broken.value.cause) == (True, "")


def test_a_stream_that_breaks_off_before_any_word_is_repeated(upstream: Upstream) -> None:
    upstream.breaks, pieces = 1, list[Piece]()
    assert stream(upstream, pieces).text == "So \\boxed{5}"
    assert (len(upstream.requests), pieces) == (2, ["So", " \\boxed{5}"])


def test_a_server_that_does_not_stream_is_read_as_a_whole(upstream: Upstream) -> None:
    upstream.spoilt = [(200, upstream.completion({"messages": [{"content": "?"}]}), {})]
    pieces: list[Piece] = []
    assert (stream(upstream, pieces).text, pieces) == ("So \\boxed{5}", [])


def test_a_stream_without_usage_names_the_setting(upstream: Upstream) -> None:
    upstream.lacks = ("usage",)
    with pytest.raises(EngineReplyError, match=r"set endpoint\.stream to false"):
        stream(upstream, [])
    assert stream(upstream, [], endpoint={"stream": False}).tokens == 2


def test_a_refusal_of_a_stream_is_a_refusal(upstream: Upstream) -> None:
    upstream.lacks = ("stream_options",)
    with pytest.raises(RequestRefusedError):
        stream(upstream, [])


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def read(raw: bytes, at_once: int = 7) -> tuple[Body, list[Piece]]:
    """Read a stream in parts of some bytes, which end anywhere."""
    pieces: list[Piece] = []
    reader = ChatStream("/x", pieces.append)
    for begin in range(0, len(raw), at_once):
        reader.take(raw[begin : begin + at_once])
    return reader.whole(), pieces


def test_pieces_of_a_message_are_joined_wherever_the_bytes_end() -> None:
    raw = b": a comment\n\nevent: message\n"
    raw += event(delta={"role": "assistant", "content": "é", "reasoning_content": "h"})
    raw += event(delta={"role": "assistant", "content": [{"type": "text", "text": "è"}, {"type": "x"}]})
    raw += event(delta={"content": None, "reasoning_content": "m", "annotations": [1]}).replace(
        b"\n", b"\r\n"
    )
    raw += event(delta={}, finish_reason="stop") + b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
    for at_once in (1, 2, 3, len(raw)):
        reply, pieces = read(raw + b"data: [DONE]\n\n", at_once)
        message = reply["choices"][0]["message"]
        assert pieces == ["é", "è"]
        assert message == {
            "role": "assistant",
            "content": "éè",
            "reasoning_content": "hm",
            "annotations": [1],
        }
        assert reply["usage"] == {"prompt_tokens": 1}


def test_calls_arrive_with_their_arguments_so_far(upstream: Upstream) -> None:
    upstream.says, pieces = lambda body: CALLING, list[Piece]()
    stream(upstream, pieces, whole=True)
    first, second = (ToolCall(id=call["id"], **call["function"]) for call in CALLING["tool_calls"])
    begun = msgspec.structs.replace(second, arguments=second.arguments[:3])
    assert pieces[-4:] == [
        (msgspec.structs.replace(first, arguments=first.arguments[:3]),), (first,), (first, begun), (first, second),
    ]  # fmt: skip
    assert pieces[:-4] == ["I", " call."]


def test_a_stream_that_breaks_off_in_a_call_is_not_repeated(upstream: Upstream) -> None:
    upstream.says, upstream.breaks = lambda body: {**CALLING, "content": None}, 2
    with pytest.raises(StreamBrokenError):
        stream(upstream, [], whole=True)
    assert len(upstream.requests) == 1


def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    first = {"id": "a", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"google": {"s": "1"}}}
    raw = event(delta={"tool_calls": [first]}) + event(delta={"tool_calls": [{**first, "id": "b"}]})
    reply, _ = read(raw + event(finish_reason="tool_calls"))
    assert [each["id"] for each in reply["choices"][0]["message"]["tool_calls"]] == ["a", "b"]
    assert reply["choices"][0]["message"]["tool_calls"][0] == first


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (event(delta={"content": "5"}), StreamBrokenError),
        (b'data: {"error": {"message": "out of memory"}}\n\n', EngineFaultError),
        (b"data: {\n\n", EngineReplyError),
        (b"data: []\n\n", EngineReplyError),
        (b'data: {"choices": [5]}\n\n', EngineReplyError),
        (event(delta={"content": 5}), EngineReplyError),
        (event(delta={"content": [5]}), EngineReplyError),
        (event(delta={"tool_calls": 5}), EngineReplyError),
        (event(delta={"tool_calls": [5]}), EngineReplyError),
        (event(delta={"tool_calls": [{"index": 7}]}), EngineReplyError),
        (event(delta={"tool_calls": [{"index": "a"}]}), EngineReplyError),
        (
            event(delta={"tool_calls": [{"index": 0, "function": {"arguments": "x"}}] * 1})
            + event(delta={"tool_calls": [{"index": 0, "function": {"arguments": 5}}]}),
            EngineReplyError,
        ),
        (event(logprobs={"content": 5}), EngineReplyError),
    ],
    ids=str,
)
def test_what_is_no_stream_of_chunks_is_an_error(raw: bytes, error: type[ServingError]) -> None:
    with pytest.raises(error):
        read(raw)


def test_a_filtered_stream_is_an_error_though_it_began(upstream: Upstream) -> None:
    chunks = upstream.chunks

    def filtered(body: Body) -> list[Body]:
        made = chunks(body)
        made[-2]["choices"][0]["finish_reason"] = "content_filter"
        return made

    upstream.chunks = filtered  # type: ignore[method-assign]
    pieces: list[Piece] = []
    with pytest.raises(ContentFilteredError):
        stream(upstream, pieces)
    assert pieces
