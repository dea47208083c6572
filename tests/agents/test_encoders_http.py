"""The HTTP encoder against a real server, small and ill-behaved on demand."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from agents import encoders
from agents.embedding import (
    EMPTY_TEXT,
    BadEmbedding,
    Encoder,
    EncoderRefused,
    EncoderUnavailable,
    TextUnanswered,
    encoder_id,
)
from agents.encoders import ATTEMPTS, BATCH, MAX_CHARACTERS, HttpEncoder
from tests.support.http_servers import JsonHandler, Server

DIMENSION = 4
Reply = Callable[[list[str]], tuple[int, Any]]


def vector_of(text: str) -> list[float]:
    """A vector of no unit length that tells texts apart."""
    return [3.0, float(len(text)), float(sum(map(ord, text)) % 97), -1.0]


def good(texts: list[str]) -> tuple[int, Any]:
    rows = [
        {"index": at, "object": "embedding", "embedding": vector_of(text)} for at, text in enumerate(texts)
    ]
    return 200, {"object": "list", "data": rows[::-1], "model": "small"}


class Embeddings(Server):
    """Answers each request by the next reply of a list, then well; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []


class Handler(JsonHandler):
    server: Embeddings

    def do_POST(self) -> None:
        body = self.body()
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        self.server.paths.append(self.path)
        reply = self.server.replies.pop(0) if self.server.replies else good
        status, answer = reply(body["input"])
        with contextlib.suppress(BrokenPipeError):  # the client has given up on a slow reply, as it should
            self.reply(answer, status)


@pytest.fixture
def server() -> Iterator[Embeddings]:
    running = Embeddings()
    running.listen()
    yield running
    running.close()


@pytest.fixture
def waits() -> list[float]:
    return []


def client_of(server: Embeddings, **options: Any) -> HttpEncoder:
    return HttpEncoder(**{"url": server.url, "model": "small", "dimension": DIMENSION, **options})


@pytest.fixture
def encoder(server: Embeddings, waits: list[float]) -> Iterator[HttpEncoder]:
    with client_of(server, sleep=waits.append) as client:
        yield client


def test_rows_are_unit_and_in_the_order_of_the_texts(encoder: HttpEncoder, server: Embeddings) -> None:
    texts = ["a" * n for n in range(1, BATCH + 3)]
    rows = encoder.encode(texts)
    for row, text in zip(rows, texts, strict=True):
        expected = np.array(vector_of(text)) / np.linalg.norm(vector_of(text))
        assert row == pytest.approx(expected, abs=1e-6)
    assert rows.dtype == np.float32
    assert [len(body["input"]) for body in server.bodies] == [BATCH, 2]
    assert server.bodies[0] == {"model": "small", "input": texts[:BATCH], "encoding_format": "float"}


def test_it_is_an_encoder(encoder: HttpEncoder) -> None:
    assert isinstance(encoder, Encoder)
    assert encoder_id(encoder) == "small@unversioned/4"


def test_no_texts_send_nothing(encoder: HttpEncoder, server: Embeddings) -> None:
    assert encoder.encode([]).shape == (0, DIMENSION)
    assert server.bodies == []


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_url_may_end_in_v1_or_not(server: Embeddings, suffix: str) -> None:
    with client_of(server, url=server.url + suffix, api_key="secret") as client:
        client.encode(["a"])
    assert server.paths == ["/v1/embeddings"]
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_empty_text_is_replaced_and_long_text_cut(encoder: HttpEncoder, server: Embeddings) -> None:
    longest = "0" * MAX_CHARACTERS
    encoder.encode([" ", longest, longest + "!"])
    assert server.bodies[0]["input"] == ["(empty)", longest, longest]


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_passing_fault_is_tried_again(
    encoder: HttpEncoder, server: Embeddings, waits: list[float], status: int
) -> None:
    server.replies = [lambda _: (status, {"error": "busy"})] * 3
    assert encoder.encode(["a"]).shape == (1, DIMENSION)
    assert len(server.bodies) == ATTEMPTS
    assert waits == [0.2, 0.4, 0.8]


def test_a_lasting_fault_ends_after_the_attempts_allowed(encoder: HttpEncoder, server: Embeddings) -> None:
    server.replies = [lambda _: (500, {"error": "out of memory"})] * 10
    with pytest.raises(
        EncoderUnavailable,
        match=r"4 attempts failed, the last with HTTP 500: .*out of memory.*it does not embed any other text",
    ):
        encoder.encode(["a"])
    assert len(server.bodies) == ATTEMPTS + 1


@pytest.mark.parametrize("again", [True, False])
def test_a_text_at_which_the_server_fails_each_time_is_refused(
    encoder: HttpEncoder, server: Embeddings, again: bool
) -> None:
    """Servers answer 500 to a text that is too long for them, too."""
    fails: list[Reply] = [lambda _: (500, {"error": "input is too large to process"})] * ATTEMPTS
    server.replies = [*fails, good, *(fails[:1] if again else [])]
    if again:
        with pytest.raises(EncoderRefused, match="too large to process"):
            encoder.encode(["a"])
    else:
        assert encoder.encode(["a"]).shape == (1, DIMENSION), "it was away, and came back"
    assert [body["input"] for body in server.bodies[ATTEMPTS:]] == [[EMPTY_TEXT], ["a"]]


def at_text(text: str, reply: Reply) -> Reply:
    """Reply so to one text, and well to others."""
    return lambda texts: reply(texts) if text in texts else good(texts)


@pytest.mark.parametrize("status", [408, 502, 503, 504])
def test_text_that_alone_fails_is_named_unanswered(
    encoder: HttpEncoder, server: Embeddings, status: int
) -> None:
    server.replies = [at_text("a", lambda _: (status, {"error": "no"}))] * 5
    with pytest.raises(TextUnanswered, match=f"4 attempts failed, .*HTTP {status}.*; it embeds another text"):
        encoder.encode(["a"])
    assert [body["input"] for body in server.bodies] == [["a"]] * ATTEMPTS + [[EMPTY_TEXT]]


def test_text_that_closes_the_connection_is_named_unanswered() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        texts = json.loads(request.content)["input"]
        if "a" in texts:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        status, answer = good(texts)
        return httpx.Response(status, json=answer)

    transport = httpx.MockTransport(reply)
    with HttpEncoder(
        url="http://x", model="small", dimension=DIMENSION, sleep=lambda _: None, transport=transport
    ) as client:
        with pytest.raises(TextUnanswered, match="Server disconnected"):
            client.encode(["a"])
        assert client.encode(["b"]).shape == (1, DIMENSION)


@pytest.mark.parametrize("status", [500, 503])
def test_no_text_is_blamed_while_another_fails_too(
    encoder: HttpEncoder, server: Embeddings, status: int
) -> None:
    """The other one is tried once: behind a load balancer, a server may fail every second time."""
    server.replies = [lambda _: (status, {"error": "no"})] * 5
    with pytest.raises(EncoderUnavailable, match="it does not embed any other text either") as raised:
        encoder.encode(["a"])
    assert raised.type is EncoderUnavailable


def test_no_text_is_to_blame_for_a_rate_limit(encoder: HttpEncoder, server: Embeddings) -> None:
    server.replies = [at_text("a", lambda _: (429, {"error": "slow down"}))] * ATTEMPTS
    with pytest.raises(EncoderUnavailable, match="HTTP 429") as raised:
        encoder.encode(["a"])
    assert not issubclass(raised.type, TextUnanswered)
    assert [body["input"] for body in server.bodies] == [["a"]] * ATTEMPTS, (
        "a limit is not met with more requests"
    )


def test_a_refusal_is_not_tried_again(encoder: HttpEncoder, server: Embeddings) -> None:
    server.replies = [lambda _: (404, {"error": "no such model"})]
    with pytest.raises(EncoderRefused, match=r"HTTP 404: .*no such model.*; check the model's name"):
        encoder.encode(["a"])
    assert [body["input"] for body in server.bodies] == [["a"], [EMPTY_TEXT]], "it embeds another text"


def test_a_slow_server_counts_as_unavailable(
    server: Embeddings, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "SILENCE_S", 0.1)
    release = threading.Event()

    def slow(texts: list[str]) -> tuple[int, Any]:
        release.wait(10)
        return good(texts)

    server.replies = [slow] * 5
    slowly = client_of(server, sleep=waits.append)
    with slowly as client, pytest.raises(EncoderUnavailable, match="ReadTimeout"):
        client.encode(["a"])
    release.set()
    assert len(server.bodies) == ATTEMPTS + 1


def test_a_server_that_drips_is_given_up(server: Embeddings) -> None:
    now = iter(range(0, 10_000, 40))
    timed = client_of(server, sleep=lambda _: None, clock=lambda: float(next(now)))
    why = "4 attempts failed, the last with no complete reply in 30 s"
    with timed as client, pytest.raises(EncoderUnavailable, match=why):
        client.encode(["a"])


def test_nobody_listening_counts_as_unavailable(encoder: HttpEncoder, server: Embeddings) -> None:
    server.socket.close()  # the port is free again, and nobody else is given it within this test
    with pytest.raises(EncoderUnavailable, match="4 attempts failed, the last with ConnectError"):
        encoder.encode(["a"])


def with_rows(*rows: Any) -> Reply:
    return lambda _: (200, {"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)]})


NAN = b'{"data": [{"index": 0, "embedding": [1.0, NaN, 0.0, 0.0]}]}'


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (with_rows([1.0, 2.0]), r"vectors of length \[2\], expected 4; set the encoder's dimension"),
        (with_rows(), r"embeddings \[\] for 1 texts"),
        (with_rows([1.0] * 4, [1.0] * 4), r"embeddings \[0, 1\] for 1 texts"),
        (with_rows([0.0] * 4), "has no direction"),
        (with_rows("AAAAAA=="), "holds no embeddings: Expected `array`, got `str`"),
        (with_rows([1.0, "x", 0.0, 0.0]), "Expected `float`, got `str`"),
        (with_rows([1.0, None, 0.0, 0.0]), "Expected `float`, got `null`"),
        (lambda _: (200, NAN), "JSON is malformed"),
        (lambda _: (200, b"<html>welcome</html>"), "holds no embeddings: JSON is malformed.*; check the url"),
        (lambda _: (200, ["a"]), "Expected `object`, got `array`"),
        (lambda _: (200, {"data": ["a"]}), "Expected `object`, got `str`"),
        (
            lambda _: (200, {"data": [{"index": 5, "embedding": [1.0] * 4}]}),
            r"embeddings \[5\] for 1 texts",
        ),
    ],
)
def test_an_answer_that_is_no_embedding_is_refused(
    encoder: HttpEncoder, server: Embeddings, reply: Reply, complaint: str
) -> None:
    server.replies = [reply]
    with pytest.raises(BadEmbedding, match=complaint):
        encoder.encode(["a"])
    assert [body["input"] for body in server.bodies] == [["a"], [EMPTY_TEXT]], "it embeds another text"


@pytest.mark.parametrize(
    "reply",
    [
        lambda _: (401, {"error": {"message": "key expired"}}),
        lambda _: (403, {"error": "forbidden"}),
        lambda _: (404, {"error": "model not found"}),
        lambda _: (200, b"<html>maintenance</html>"),
        with_rows([1.0, 2.0, 3.0]),
    ],
    ids=["401", "403", "404", "page", "dimension"],
)
def test_server_that_embeds_nothing_is_unavailable(
    encoder: HttpEncoder, server: Embeddings, reply: Reply
) -> None:
    server.replies = [reply, reply]
    with pytest.raises(EncoderUnavailable, match="it does not embed any other text either"):
        encoder.encode(["a"])
    assert encoder.encode(["a"]).shape == (1, DIMENSION), "nothing is remembered against it"
