"""The HTTP engine against a real server in a thread that speaks the protocol, and misbehaves when told to."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agents.catalogue.models import Sampling
from agents.serving.circuit_breaker import FAILURES, Breaker
from agents.serving.engine import Drafted, Piece, Prefix, StreamingEngine
from agents.serving.errors import (
    DeadlinePassedError,
    EndpointRefusedError,
    EndpointSuspendedError,
    EngineBusyError,
    EngineFaultError,
    EngineReplyError,
    EngineTimeoutError,
    EngineUnreachableError,
    HostClosedError,
    PromptTooLongError,
    RequestRefusedError,
    ServingError,
    StreamBrokenError,
)
from agents.serving.http import (
    MOST_REPLY_BYTES,
    HttpEngine,
    JsonServer,
    ServerSettings,
    _Silence,
)
from agents.serving.prompts import ChatPrompts
from agents.serving.retries import Retries, within
from schemas.query import Message
from tests.support.http_servers import JsonHandler, Server, about_to_open

SAMPLING = Sampling(temperature=0.7, step_tokens=32, depth_limit=8, top_k=20)
ROOT = Prefix(messages=(Message(role="user", content="How many is 12 + 7?"),))


EVENTS = {"Content-Type": "text/event-stream"}


class CompletionServer:
    """`/v1/completions` as vLLM answers it: the text is the seed's, and the next replies can be spoilt."""

    def __init__(self, prompts: ChatPrompts) -> None:
        self.prompts = prompts
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.spoilt: list[Any] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.gate: threading.Barrier | None = None
        outer = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                body = self.body()
                with outer.lock:
                    outer.requests.append(body)
                    outer.headers.append(dict(self.headers))
                    outer.in_flight += 1
                    outer.most_in_flight = max(outer.most_in_flight, outer.in_flight)
                    spoil = outer.spoilt.pop(0) if outer.spoilt else None
                try:
                    if outer.gate is not None:
                        outer.gate.wait(20)
                    self.answer(body, spoil)
                finally:
                    with outer.lock:
                        outer.in_flight -= 1

            def answer(self, body: dict[str, Any], spoil: Any) -> None:
                if spoil == "hang-up":
                    self.close_connection = True
                    return
                if spoil == "stall":
                    outer.stalled.wait(20)
                    self.close_connection = True
                    return
                if isinstance(spoil, tuple):
                    self.reply(spoil[1], spoil[0], spoil[2])
                elif body.get("stream"):
                    self.reply(outer.events(outer.completion(body)), headers=EVENTS)
                else:
                    self.reply(outer.completion(body))

        self.stalled = threading.Event()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = self.server.url
        self.server.listen()

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        text = f"draft {body['seed']}.\n\n"
        reasons = {"finish_reason": "stop", "stop_reason": "\n\n"}
        if body["seed"] % 3 == 1:
            text, reasons = f"\\boxed{{{body['seed']}}}", {"finish_reason": "stop", "stop_reason": None}
        if body["seed"] % 3 == 2:
            text, reasons = "half a st", {"finish_reason": "length", "stop_reason": None}
        if not body.get("stop"):  # a plain server: no stop asked, none told
            text, reasons = (
                text + "and beyond" * text.endswith("\n\n"),
                {"finish_reason": reasons["finish_reason"]},
            )
        told = {"token_ids": list(self.prompts.encode(text))} if body.get("return_token_ids") else {}
        return {"id": "x", "choices": [{"index": 0, "text": text, **reasons, **told}], "usage": {}}

    def events(self, completion: dict[str, Any]) -> bytes:
        """Return a completion as vLLM streams it: a piece of its text and of its tokens at a time."""
        [choice] = completion["choices"]
        text, ids = choice["text"], choice.get("token_ids")
        deltas: list[dict[str, Any]] = [{"text": text[at : at + 3]} for at in range(0, len(text), 3)]
        for at, delta in enumerate(deltas):
            of_last = at == len(deltas) - 1
            delta |= {"token_ids": ids[at:] if of_last else ids[at : at + 1]} if ids is not None else {}
            delta |= {
                name: choice.get(name) if of_last else None for name in ("finish_reason", "stop_reason")
            }
        lines = [json.dumps({"choices": [delta]}) for delta in deltas]
        return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()

    def close(self) -> None:
        self.stalled.set()
        self.server.close()


@pytest.fixture(scope="module")
def prompts(micro) -> ChatPrompts:
    return ChatPrompts.load(micro.path("micro-a"))


@pytest.fixture
def server(prompts) -> Iterator[CompletionServer]:
    server = CompletionServer(prompts)
    yield server
    server.close()


def ask(server: CompletionServer, prompts: ChatPrompts, n: int = 1, seeds=(3,), prefixes=(ROOT,), **settings):
    """Return the drafts, the engine, and the pauses made between attempts."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    breaker = settings.pop("breaker", None)
    retries = Retries(attempts=settings.pop("attempts", 5))

    async def run():
        wanted: dict[str, Any] = {"url": server.url, "retries": retries} | settings
        connection = JsonServer(ServerSettings(**wanted), sleep=pause, breaker=breaker)
        engine = HttpEngine(connection, "micro-a", prompts, context_tokens=256, served_name="m")
        try:
            return await engine.generate("q/1", prefixes, n, list(seeds), SAMPLING), engine, pauses
        finally:
            await engine.close()

    return asyncio.run(run())


def test_drafts_and_their_endings_are_read_as_vllm_tells_them(server, prompts) -> None:
    drafts, _, _ = ask(server, prompts, n=3, seeds=(3, 4, 5))
    assert [(draft.text, draft.finish) for draft in drafts] == [
        ("draft 3.\n\n", "separator"),
        ("\\boxed{4}", "eos"),
        ("half a st", "length"),
    ]
    assert [draft.token_ids for draft in drafts] == [prompts.encode(draft.text) for draft in drafts]


def test_prompt_is_sent_as_tokens_of_the_models_template(server, prompts) -> None:
    ask(server, prompts, api_key="secret-key")
    [request] = server.requests
    ids = prompts.prompt([("user", "How many is 12 + 7?")])
    assert request["prompt"] == list(ids)
    assert (request["model"], request["seed"], request["max_tokens"], request["top_k"]) == ("m", 3, 32, 20)
    assert (request["stop"], request["include_stop_str_in_output"]) == (["\n\n"], True)
    assert server.headers[0]["Authorization"] == "Bearer secret-key"


def stream(server: CompletionServer, prompts: ChatPrompts, seed: int, pieces: list[Piece]) -> Drafted:
    """Ask for one draft, as the executor does for a client that streams."""

    async def run() -> Drafted:
        connection = JsonServer(ServerSettings(url=server.url))
        engine = HttpEngine(connection, "micro-a", prompts, context_tokens=256)
        assert isinstance(engine, StreamingEngine)
        try:
            return await engine.stream("q/1", ROOT, seed, SAMPLING, pieces.append)
        finally:
            await engine.close()

    return asyncio.run(run())


@pytest.mark.parametrize("seed", [3, 4, 5], ids=["separator", "eos", "length"])
def test_a_streamed_draft_is_the_one_without_a_stream(server, prompts, seed: int) -> None:
    [whole], _, _ = ask(server, prompts, seeds=(seed,))
    pieces: list[Piece] = []
    assert stream(server, prompts, seed, pieces) == whole
    assert len(pieces) > 2
    assert "".join(map(str, pieces)) == whole.text
    assert [request.get("stream", False) for request in server.requests] == [False, True]


def test_a_stream_of_tokens_that_breaks_off_is_not_repeated(server, prompts) -> None:
    events = server.events(server.completion({"seed": 3, "stop": ["\n\n"], "return_token_ids": True}))
    server.spoilt = [(200, events.split(b"\n\n")[0] + b"\n\n", EVENTS)]
    pieces: list[Piece] = []
    with pytest.raises(StreamBrokenError):
        stream(server, prompts, 3, pieces)
    assert (len(server.requests), len(pieces)) == (1, 1)


def test_many_drafts_are_in_flight_at_once(server, prompts) -> None:
    server.gate = threading.Barrier(16)  # nobody is answered before sixteen have asked
    drafts, _, _ = ask(server, prompts, n=32, seeds=range(32))
    assert len({draft.text for draft in drafts}) > 20
    assert server.most_in_flight >= 16


def test_connections_are_bounded(server, prompts) -> None:
    ask(server, prompts, n=24, seeds=range(24), connections=4)
    assert server.most_in_flight <= 4


@pytest.mark.parametrize(
    "spoil",
    [
        "hang-up",
        (500, b"no", {}),
        (503, {"error": {"message": "busy"}}, {"Retry-After": "2"}),
    ],
)
def test_a_fault_that_passes_is_repeated(server, prompts, spoil) -> None:
    server.spoilt = [spoil, spoil]
    drafts, _, pauses = ask(server, prompts)
    assert drafts[0].text == "draft 3.\n\n"
    assert pauses == ([2.0, 2.0] if isinstance(spoil, tuple) and spoil[0] == 503 else [0.25, 0.5])


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"{not json", "is not JSON"),
        ([], "is not a JSON object"),
        ({"choices": []}, "0 choices for a request of one"),
        ({"choices": [{"text": "a", "finish_reason": "abort", "token_ids": [1]}]}, "finish_reason"),
        ({"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [-1]}]}, "token_ids"),
        ({"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [1 << 32]}]}, "token_ids"),
        (
            {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": []}]},
            "0 token_ids for a text of 1",
        ),
        ({"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [1] * 33}]}, "of 32 tokens"),
        (b" " * (MOST_REPLY_BYTES + 1), "more than"),
    ],
)
def test_work_that_was_done_is_not_asked_for_again(server, prompts, reply, said) -> None:
    server.spoilt = [(200, reply, {})]
    with pytest.raises(EngineReplyError, match=said):
        ask(server, prompts)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        ("hang-up", EngineUnreachableError, "is the server up, and is its address right\\?"),
        ((502, b"bad gateway", {}), EngineFaultError, "HTTP 502: bad gateway"),
        ((429, b"slow down", {"Retry-After": "Wed, 21 Oct"}), EngineBusyError, "HTTP 429"),
    ],
)
def test_a_fault_that_stays_is_named_after_the_last_attempt(server, prompts, spoil, error, said) -> None:
    server.spoilt = [spoil] * 3
    with pytest.raises(error, match=said) as raised:
        ask(server, prompts, attempts=3)
    assert "(after 3 attempts)" in str(raised.value)
    assert raised.value.retryable
    assert len(server.requests) == 3


def test_a_reply_that_never_comes_times_out(server, prompts) -> None:
    server.spoilt = ["stall"] * 2
    with pytest.raises(EngineTimeoutError, match=r"no reply in 0\.2 s"):
        ask(server, prompts, attempts=2, read_timeout_s=0.2)
    assert len(server.requests) == 1, "its work may be done, and paid"


def test_a_refusal_is_not_repeated_and_keeps_the_key_secret(server, prompts) -> None:
    server.spoilt = [(404, {"error": {"message": "The model `m` does not exist."}}, {})]
    with pytest.raises(EndpointRefusedError, match="HTTP 404: The model `m` does not exist") as raised:
        ask(server, prompts, api_key="secret-key")
    assert len(server.requests) == 1
    assert "secret-key" not in str(raised.value) + repr(ServerSettings(url=server.url, api_key="secret-key"))


def test_a_server_that_is_not_there_is_unreachable(server, prompts) -> None:
    server.close()
    with pytest.raises(EngineUnreachableError, match=r"/v1/completions: .*is the server up"):
        ask(server, prompts, attempts=2)


def test_one_failed_draft_fails_the_step_and_stops_the_others(server, prompts) -> None:
    server.spoilt = [(400, {"error": "bad"}, {})]
    with pytest.raises(RequestRefusedError, match="HTTP 400: bad"):
        ask(server, prompts, n=8, seeds=range(8), connections=1)
    assert len(server.requests) < 8


def test_a_server_that_tells_no_token_ids_is_not_taken_for_vllm(server, prompts) -> None:
    choice = {"index": 0, "text": "a\n\n", "finish_reason": "stop"}
    server.spoilt = [(200, {"choices": [choice]}, {})]
    with pytest.raises(EngineReplyError, match="returned no token_ids, so it is not vLLM"):
        ask(server, prompts)


def test_a_question_too_long_is_never_sent(server, prompts) -> None:
    long = Prefix(messages=(Message(role="user", content="x" * 300),))
    with pytest.raises(PromptTooLongError):
        ask(server, prompts, prefixes=(long,))
    assert server.requests == []


def test_a_reply_whose_encoding_is_damaged_is_named(server, prompts) -> None:
    server.spoilt = [(200, b"this is not gzip", {"Content-Encoding": "gzip"})]
    with pytest.raises(EngineReplyError, match="content encoding is damaged"):
        ask(server, prompts, attempts=2)


@pytest.mark.parametrize("reply", [b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_reply_that_cannot_be_read_is_an_error_of_ours(server, prompts, reply) -> None:
    for status in (200, 500, 400):
        server.spoilt = [(status, reply, {})]
        with pytest.raises(ServingError, match=r"/v1/completions"):
            ask(server, prompts, attempts=1)


def test_an_endpoint_that_fails_is_left_alone_until_it_is_back(server, prompts) -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    server.spoilt = [(500, b"no", {})] * FAILURES
    with pytest.raises(EngineFaultError):
        ask(server, prompts, attempts=FAILURES, breaker=breaker)
    assert breaker.state == "open"
    with pytest.raises(EndpointSuspendedError, match=r"no requests for another 10 s, because .*HTTP 500"):
        ask(server, prompts, attempts=3, breaker=breaker)
    assert len(server.requests) == FAILURES
    now[0] = 10.0
    drafts, _, _ = ask(server, prompts, breaker=breaker)
    assert drafts[0].text == "draft 3.\n\n"
    assert breaker.state == "closed"


@pytest.mark.parametrize(
    ("status", "opens"),
    [
        *((status, True) for status in (200, 301, 307, 401, 402, 403, 404, 405, 500, 503)),
        *((status, False) for status in (400, 413, 422, 429)),
    ],
)
def test_the_breaker_counts_what_is_the_endpoint_s_fault(server, prompts, status, opens) -> None:
    breaker = Breaker(lambda: 0.0)
    for _ in range(FAILURES):
        server.spoilt = [(status, {"error": "no"}, {})]
        with pytest.raises(ServingError):
            ask(server, prompts, attempts=1, breaker=breaker)
    assert breaker.state == ("open" if opens else "closed")


def test_silence_over_several_requests_opens_the_breaker(server, prompts) -> None:
    breaker = about_to_open(lambda: 0.0)
    server.spoilt = ["stall"] * 4

    async def run() -> None:
        connection = JsonServer(ServerSettings(url=server.url, silent_s=0.5), breaker=breaker)
        try:
            for wait_s, state in ((0.2, "closed"), (0.2, "closed"), (0.05, "closed"), (0.2, "open")):
                with pytest.raises(DeadlinePassedError, match="q/1: the query's deadline passed"):
                    await within(wait_s, connection.post("/v1/completions", {}, len), "q/1")
                assert breaker.state == state
                await asyncio.sleep(0.3)  # while nobody waits
        finally:
            await connection.close()

    asyncio.run(run())


def test_an_answer_ends_the_silence() -> None:
    silence = _Silence()
    silence.asked(0.0)
    silence.asked(10.0)
    silence.ended(30.0, answered=False)
    assert silence.seconds(40.0) == 40.0
    silence.ended(50.0, answered=False)
    silence.asked(1000.0)
    assert silence.seconds(1001.0) == 51.0
    silence.asked(1002.0)
    silence.ended(1003.0, answered=True)
    assert silence.seconds(1005.0) == 2.0


async def test_connection_is_idle_after_its_last_request(server) -> None:
    connection = JsonServer(ServerSettings(url=server.url))
    await connection.idle()
    server.spoilt = ["stall"]
    waits = asyncio.ensure_future(connection.post("/v1/completions", {}, len))
    await asyncio.sleep(0.05)
    idle = asyncio.ensure_future(connection.idle())
    await asyncio.sleep(0.05)
    assert not idle.done()
    waits.cancel()
    await idle
    await connection.close()
    with pytest.raises(HostClosedError, match="because its model's entry changed"):
        await connection.post("/v1/completions", {}, len)


@pytest.mark.parametrize("charset", ["hex", "rot13", "idna", "no-such"])
def test_a_complaint_in_a_strange_charset_is_read_as_utf_8(server, prompts, charset) -> None:
    server.spoilt = [(400, "so ein Ärger".encode(), {"Content-Type": f"text/plain; charset={charset}"})]
    with pytest.raises(RequestRefusedError, match="HTTP 400: so ein Ärger"):
        ask(server, prompts, attempts=1)
