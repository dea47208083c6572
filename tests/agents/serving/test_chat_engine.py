"""The chat engine against a scripted upstream: what is sent, what is read, and what each fault becomes."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import Sampling
from agents.serving.chat_engine import ChatEngine
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import (
    ContentFilteredError,
    EndpointRefusedError,
    EndpointSuspendedError,
    EngineBusyError,
    EngineFaultError,
    EngineReplyError,
    EngineTimeoutError,
    EngineUnreachableError,
    RequestRefusedError,
    ServingError,
)
from agents.serving.health_checks import ProbeRules, first_token
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.retries import Retries
from schemas.prices import Billed
from schemas.query import Message
from tests.support.upstream import Upstream

SAMPLING = Sampling(temperature=1.0, step_tokens=32, depth_limit=1)
ASKED = Prefix(messages=(Message(role="user", content="What is 2 + 3 ?"),))


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.close()


async def _slept(_: float) -> None:
    """Do not wait between attempts."""


def ask(
    upstream: Upstream,
    n: int = 1,
    key: str = "",
    prefix: Prefix = ASKED,
    usual: str = "",
    **endpoint: Any,
) -> list[Drafted]:
    """Ask for n answers, one subtree each, as the executor does; `usual` is the deployment's instruction."""

    async def asked() -> list[Drafted]:
        entry = Endpoint(
            kind="chat", url=upstream.url, **{"model": "hosted", "max_output_tokens": 32, **endpoint}
        )
        retries = Retries(attempts=2, longest_pause_s=8.0)
        settings = ServerSettings(
            url=upstream.url,
            api_key=key,
            headers=entry.headers,
            read_timeout_s=entry.timeout_s,
            retries=retries,
        )
        engine = ChatEngine(JsonServer(settings, sleep=_slept), "m", entry, instruction=usual)
        try:
            return await engine.generate("q/1", [prefix] * n, 1, list(range(n)), SAMPLING)
        finally:
            await engine.close()

    return asyncio.run(asked())


def test_an_answer_has_the_tokens_that_the_server_counted(upstream: Upstream) -> None:
    [made] = ask(
        upstream, headers={"x-team": "a"}, extra_body={"temperature": 0.2, "reasoning_effort": "low"}
    )
    assert (made.text, made.finish, made.tokens, made.prompt_tokens) == ("So \\boxed{5}", "eos", 2, 10)
    assert made.billed == Billed(input=10, output=2)
    assert upstream.requests == [
        {
            "temperature": 0.2,
            "reasoning_effort": "low",
            "model": "hosted",
            "messages": [{"role": "user", "content": "What is 2 + 3 ?"}],
            "max_tokens": 32,
        }
    ]
    assert upstream.headers[0]["x-team"] == "a"


def test_several_answers_are_several_requests_or_one_with_n(upstream: Upstream) -> None:
    apart = ask(upstream, 3, seed=True)
    assert [request["seed"] for request in sorted(upstream.requests, key=lambda r: r["seed"])] == [0, 1, 2]
    assert [made.billed for made in apart] == [Billed(input=10, output=2)] * 3
    upstream.says = lambda body: "one two three"
    together = ask(upstream, 2, native_n=True)
    assert (len(upstream.requests), upstream.requests[-1]["n"]) == (4, 2)
    assert [made.tokens for made in together] == [3, 3]
    assert [made.billed for made in together] == [Billed(input=10, output=6), None]


def test_cached_and_reasoning_tokens_are_billed_as_counted(upstream: Upstream) -> None:
    usage = {
        "prompt_tokens": 90,
        "completion_tokens": 41,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    message = {"content": [{"type": "text", "text": "5"}], "reasoning_content": "hm"}
    upstream.spoilt = [
        (200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}, {})
    ]
    [made] = ask(upstream)
    assert (made.text, made.tokens) == ("5", 41)
    assert made.billed == Billed(input=90, cached_input=64, output=41, reasoning=30)


def test_max_tokens_is_bounded_by_client_entry_and_context(upstream: Upstream) -> None:
    upstream.says = lambda body: "word " * 50
    assert [made.finish for made in ask(upstream)] == ["length"]
    bounded = Prefix(messages=ASKED.messages, max_tokens=3)
    [made] = ask(upstream, prefix=bounded, max_tokens_field="max_completion_tokens")
    assert (made.tokens, upstream.requests[-1]["max_completion_tokens"]) == (3, 3)
    ask(upstream, context_tokens=40, max_output_tokens=32)
    assert upstream.requests[-1]["max_tokens"] == 40 - 15 // 3 - 16


def refused(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def said_so(finish: str | None = None, **message: str) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}]}


KEY, NAME = (
    "; check its key: endpoint.key_env",
    "; check endpoint.url, and the model's name there: endpoint.model",
)
WITHHELD = "by a content filter or a refusal"
FAULTS: list[tuple[Any, type[ServingError], str]] = [
    ((401, refused("no such key"), {}), EndpointRefusedError, f"HTTP 401: no such key{KEY}"),
    ((404, refused("no model x"), {}), EndpointRefusedError, f"HTTP 404: no model x{NAME}"),
    ((400, refused("bad field"), {}), RequestRefusedError, "HTTP 400: bad field"),
    ((500, b"oops", {}), EngineFaultError, "HTTP 500: oops"),
    ((429, b"slow down", {"Retry-After": "2"}), EngineBusyError, "HTTP 429: slow down .after 2 attempts."),
    ("hang-up", EngineUnreachableError, "is the server up"),
    ((200, b"<html>", {}), EngineReplyError, "the reply is not JSON"),
    ((200, {"choices": []}, {}), EngineReplyError, "0 choices for a request of 1"),
    ((200, said_so(content="5"), {}), EngineReplyError, "does not say how many tokens it took"),
    ((200, said_so("content_filter", content=""), {}), ContentFilteredError, WITHHELD),
    ((200, said_so(refusal="no"), {}), ContentFilteredError, WITHHELD),
]


@pytest.mark.parametrize(("spoil", "error", "said"), FAULTS, ids=lambda each: str(each)[:40])
def test_what_is_wrong_is_named(upstream: Upstream, spoil: Any, error: type[ServingError], said: str) -> None:
    upstream.spoilt = [spoil] * 2
    with pytest.raises(error, match=said):
        ask(upstream)


def test_a_server_that_hangs_or_is_away_is_named(upstream: Upstream) -> None:
    upstream.spoilt = ["hang"]
    with pytest.raises(EngineTimeoutError, match=r"no reply in 0\.2 s"):
        ask(upstream, timeout_s=0.2)
    upstream.close()
    with pytest.raises(EngineUnreachableError, match="is the server up"):
        ask(upstream)


BEFORE, UNTIL = "Fri, 27 Nov 2026 20:00:00 GMT", "Fri, 27 Nov 2026 20:02:00 GMT"


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "120"},
        {"Retry-After": UNTIL, "Date": BEFORE},
    ],
    ids=["seconds", "a date"],
)
def test_a_server_that_asks_for_long_is_left_alone_for_that_long(
    upstream: Upstream, headers: dict[str, str]
) -> None:
    upstream.spoilt = [(429, b"come back", headers)]

    async def asked() -> tuple[float, str]:
        server = JsonServer(ServerSettings(url=upstream.url), sleep=_slept)
        engine = ChatEngine(server, "m", Endpoint(kind="chat", url=upstream.url, model="hosted"))
        for error in (EngineBusyError, EndpointSuspendedError):
            with pytest.raises(error):
                await engine.generate("q/1", [ASKED], 1, [0], SAMPLING)
        await engine.close()
        return server.breaker.wait_s, server.breaker.state

    wait_s, state = asyncio.run(asked())
    assert (len(upstream.requests), state) == (1, "open")
    assert 100 < wait_s <= 120


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda upstream: None, ""),
        (lambda upstream: upstream.spoilt.append((429, b"busy", {})), ""),
        (
            lambda upstream: setattr(upstream, "key", "k"),
            "HTTP 401: no such key; check its key: endpoint.key_env",
        ),
        (
            lambda upstream: setattr(upstream, "models", ("other",)),
            "HTTP 404: no model hosted; check endpoint.url",
        ),
        (lambda upstream: upstream.spoilt.append((200, {}, {})), "unexpected reply"),
    ],
)
def test_a_server_is_ready_once_it_has_given_one_token(
    upstream: Upstream, spoil: Callable[[Upstream], object], why: str
) -> None:
    spoil(upstream)

    async def known() -> tuple[bool, str]:
        server = JsonServer(ServerSettings(url=upstream.url, retries=Retries(attempts=1)), sleep=_slept)
        engine = ChatEngine(server, "m", Endpoint(kind="chat", url=upstream.url, model="hosted"))
        server.first = lambda: first_token(engine, SAMPLING, ProbeRules(timeout_s=5.0))
        await server.knock()
        await engine.close()
        return server.answered.is_set(), server.why

    ready, said = asyncio.run(known())
    assert (ready, why in said) == (not why, True), said
    assert [request["max_tokens"] for request in upstream.requests] == [1]


def test_answered_requests_are_billed_when_another_fails(upstream: Upstream) -> None:
    upstream.spoilt = ["hang"]
    with pytest.raises(EngineTimeoutError) as raised:
        ask(upstream, 3, timeout_s=0.5)
    assert raised.value.billed == Billed(input=20, output=4)


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        ([{"message": {"content": ""}, "finish_reason": "content_filter"}], ContentFilteredError),
        ([{"message": {"refusal": "no"}, "finish_reason": "stop"}], ContentFilteredError),
        ([], EngineReplyError),
    ],
)
def test_reply_of_no_use_is_billed(
    upstream: Upstream, choices: list[dict[str, Any]], error: type[ServingError]
) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 4}
    upstream.spoilt = [(200, {"choices": choices, "usage": usage}, {})]
    with pytest.raises(error) as raised:
        ask(upstream)
    assert raised.value.billed == Billed(input=90, output=4)


def test_reply_without_a_count_of_its_prompt_is_not_billed(upstream: Upstream) -> None:
    usage = {"prompt_tokens": 0, "completion_tokens": 0}
    upstream.spoilt = [(200, {"choices": [], "usage": usage}, {})]
    with pytest.raises(EngineReplyError) as raised:
        ask(upstream)
    assert raised.value.billed is None, "a cost of 0 has no logarithm"


def test_an_entry_s_instruction_precedes_the_deployment_s(upstream: Upstream) -> None:
    told = Prefix(messages=(Message(role="system", content="Rhyme."), *ASKED.messages))
    ask(upstream, usual="Reason.")
    ask(upstream, usual="Reason.", instruction="Be brief.")
    ask(upstream, prefix=told, instruction="Be brief.")
    first = [each["messages"][0] for each in upstream.requests]
    assert [(each["role"], each["content"]) for each in first] == [
        ("system", "Reason."), ("system", "Be brief."), ("system", "Rhyme."),
    ]  # fmt: skip
