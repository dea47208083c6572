"""A stream shows the model's text while its upstream writes it, in all three protocols, and never a mixture of two."""

import json
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import openai
import pytest

from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.control import Cancel
from schemas.query import Query
from tests.streams.gateway.test_passed_through import ADD, CATALOGUE, call, entry
from tests.streams.test_chat_models import start  # noqa: F401  # a fixture
from tests.support.gateway_deployment import ASK, Deploy, GatewayDeployment
from tests.support.upstream import Body, Upstream

TEXT = "The answer to this is \\boxed{5}"
ASKED: list[Any] = [{"role": "user", "content": "What is 2 + 3, by and by?"}]


class Waiting(Upstream):
    """Writes a word of its answer and waits for a client to have read it before it writes the next."""

    def __init__(self) -> None:
        super().__init__(says=lambda body: TEXT)
        self.read = Event()
        self.paced = lambda body, chunk: chunk != 2 or self.read.wait(20)


@pytest.fixture
def upstream() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.read.set()
    made.close()


@pytest.fixture
def site(start: Deploy, upstream: Waiting) -> GatewayDeployment:  # noqa: F811
    return start(entry("hosted", upstream, ["tools", "logprobs"]), content=CATALOGUE, engine_attempts=1)


def openai_client(site: GatewayDeployment) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.url}/v1", api_key="any", max_retries=0)


def chat(site: GatewayDeployment) -> Iterator[str]:
    with openai_client(site) as client:
        for chunk in client.chat.completions.create(
            model="auto", messages=ASKED, stream=True, stream_options={"include_usage": True}
        ):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content
            if chunk.usage is not None:
                assert chunk.usage.completion_tokens == len(TEXT.split())


def responses(site: GatewayDeployment) -> Iterator[str]:
    with openai_client(site) as client:
        for event in client.responses.create(model="auto", input=ASKED[0]["content"], stream=True):
            if event.type == "response.output_text.delta":
                yield event.delta
            if event.type == "response.completed":
                assert event.response.output_text == TEXT


def messages(site: GatewayDeployment) -> Iterator[str]:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=site.url, api_key="any", max_retries=0)
    with client, client.messages.stream(model="auto", messages=ASKED, max_tokens=64) as stream:
        yield from stream.text_stream


def chat_call(site: GatewayDeployment) -> Iterator[str]:
    with openai_client(site) as client:
        asked: Any = {"model": "auto", "messages": ASKED, "tools": [ADD], "stream": True}
        for chunk in client.chat.completions.create(**asked):
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or ():
                    assert (call.id, call.function.name) in (("call-add", "add"), (None, None))
                    yield call.function.arguments
    assert choice.finish_reason == "tool_calls"


def responses_call(site: GatewayDeployment) -> Iterator[str]:
    event: Any
    tool: Any = {"type": "function", "strict": False, **ADD["function"]}  # type: ignore[dict-item]
    with openai_client(site) as client:
        question = ASKED[0]["content"]
        for event in client.responses.create(model="auto", input=question, tools=[tool], stream=True):
            if event.type == "response.function_call_arguments.delta":
                yield event.delta
    assert event.type == "response.completed"
    assert event.response.output[0].arguments == CALLED


def messages_call(site: GatewayDeployment) -> Iterator[str]:
    anthropic = pytest.importorskip("anthropic")
    tool = {"name": "add", "input_schema": ADD["function"]["parameters"]}  # type: ignore[index]
    client = anthropic.Anthropic(base_url=site.url, api_key="any", max_retries=0)
    with client, client.messages.stream(model="auto", messages=ASKED, max_tokens=64, tools=[tool]) as stream:
        for event in stream:
            if event.type == "input_json" and event.partial_json:
                yield event.partial_json
        assert stream.get_final_message().content[-1].input == json.loads(CALLED)


CALLED = '{"a": 1, "b": 2}'


@pytest.mark.parametrize("protocol", [chat_call, responses_call, messages_call])
def test_official_client_reads_a_call_before_it_is_whole(
    protocol: Callable[[GatewayDeployment], Iterator[str]], site: GatewayDeployment, upstream: Waiting
) -> None:
    upstream.says = lambda body: call("add", a=1, b=2)
    deltas = protocol(site)
    first = next(deltas)
    assert not site.read(site.topics.answer, Answer)
    assert first == CALLED[:3]
    upstream.read.set()
    assert first + "".join(deltas) == CALLED
    [answer] = site.read(site.topics.answer, Answer)
    assert answer.complete


@pytest.mark.parametrize("protocol", [chat, responses, messages])
def test_official_client_reads_text_before_its_upstream_is_done(
    protocol: Callable[[GatewayDeployment], Iterator[str]], site: GatewayDeployment, upstream: Waiting
) -> None:
    deltas = protocol(site)
    text = next(deltas)
    assert not site.read(site.topics.answer, Answer)
    assert TEXT.startswith(text)
    assert text != TEXT
    upstream.read.set()
    assert text + "".join(deltas) == TEXT
    [query], [answer] = site.read(site.topics.query, Query), site.read(site.topics.answer, Answer)
    assert (query.stream, answer.text, answer.complete) == (True, TEXT, True)
    assert answer.billed is not None
    assert answer.billed.output == len(TEXT.split())


def events(site: GatewayDeployment, **body: Any) -> Iterator[Body]:
    """Ask for a stream and yield its chunks."""
    said = {"model": "auto", "messages": ASKED, "stream": True, **body}
    with site.http() as client, client.stream("POST", ASK, json=said) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def text_of(chunks: list[Body]) -> str:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_calls_follow_the_text_that_was_streamed(site: GatewayDeployment, upstream: Waiting) -> None:
    upstream.says = lambda body: {**call("add", a=1, b=2), "content": TEXT}
    chunks = events(site, tools=[ADD])
    found = [next(chunks), next(chunks)]
    assert 0 < len(text_of(found)) < len(TEXT)
    upstream.read.set()
    found += chunks
    assert text_of(found) == TEXT
    deltas = [chunk["choices"][0]["delta"] for chunk in found if chunk.get("choices")]
    called = [each for delta in deltas for each in delta.get("tool_calls", ())]
    assert json.loads("".join(each["function"]["arguments"] for each in called)) == {"a": 1, "b": 2}
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_stop_text_is_never_streamed(site: GatewayDeployment, upstream: Waiting) -> None:
    upstream.read.set()
    upstream.paced = lambda body, chunk: Event().wait(0.15)
    found = list(events(site, stop=[" is \\boxed"]))
    assert text_of(found) == "The answer to this"
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_broken_stream_ends_with_an_error_and_no_second_model(
    start: Deploy,  # noqa: F811
    upstream: Waiting,
) -> None:
    other = Upstream()
    entries = entry("hosted", upstream, []), entry("other", other, [])
    site = start(*entries, content=CATALOGUE, engine_attempts=1, attempts=2)
    upstream.breaks = 2
    chunks = events(site, model="hosted")
    found = [next(chunks), next(chunks)]
    upstream.read.set()
    found += chunks
    assert text_of(found) == "The"
    assert found[-1]["error"]["code"] == "stream_broken"
    assert found[-1]["error"]["message"].startswith("the model's server broke off the answer; try again, or")
    [answer] = site.read(site.topics.answer, Answer)
    assert (answer.status, answer.fault, answer.attempt) == ("failed", "infrastructure", 1)
    assert not site.read(site.topics.attempt_failed, AttemptFailed)
    other.close()


def kill_executor(site: GatewayDeployment, upstream: Waiting) -> None:
    """End the executor while the upstream's reply is arriving."""
    upstream.read.set()
    upstream.paced = lambda body, chunk: Event().wait(0.15)

    def kill(cluster: Any) -> None:
        cluster.kill(next(each for each in cluster.workers if each.service == "executor"))

    site.call(kill)


@pytest.mark.parametrize("same", [True, False], ids=["same text", "other text"])
def test_a_death_in_a_stream_repeats_no_text_and_mixes_none(
    same: bool, site: GatewayDeployment, upstream: Waiting
) -> None:
    chunks = events(site)
    found = [next(chunks), next(chunks)]
    if not same:
        upstream.says = lambda body: "Another text"
    kill_executor(site, upstream)
    found += chunks
    if same:
        assert text_of(found) == TEXT
        assert found[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        assert text_of(found) == "The"
        assert found[-1]["error"]["code"] == "stream_diverged"


def called_in(chunks: list[Body]) -> list[tuple[str, str]]:
    """Return the calls of a stream, with their arguments put together."""
    found: list[tuple[str, str]] = []
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            for each in choice["delta"].get("tool_calls", ()):
                if "id" in each:
                    assert each["index"] == len(found)
                    found.append((each["id"], ""))
                name, arguments = found[each["index"]]
                found[each["index"]] = name, arguments + each["function"]["arguments"]
    return found


@pytest.mark.parametrize("same", [True, False], ids=["same call", "other call"])
def test_a_death_in_a_call_repeats_nothing_and_mixes_nothing(
    same: bool, site: GatewayDeployment, upstream: Waiting
) -> None:
    upstream.says = lambda body: call("add", a=1, b=2)
    chunks = events(site, tools=[ADD])
    found = [next(chunks), next(chunks)]
    assert called_in(found) == [("call-add", CALLED[:3])]
    if not same:
        upstream.says = lambda body: call("add", c=1)
    kill_executor(site, upstream)
    found += chunks
    if same:
        assert called_in(found) == [("call-add", CALLED)]
        assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        assert called_in(found) == [("call-add", CALLED[:3])]
        assert found[-1]["error"]["code"] == "stream_diverged"


def test_a_broken_call_ends_with_an_error_and_no_second_model(
    site: GatewayDeployment, upstream: Waiting
) -> None:
    upstream.says, upstream.breaks = lambda body: call("add", a=1, b=2), 2
    chunks = events(site, tools=[ADD])
    found = [next(chunks), next(chunks)]
    upstream.read.set()
    found += chunks
    assert called_in(found) == [("call-add", CALLED[:3])]
    assert found[-1]["error"]["code"] == "stream_broken"
    assert found[-1]["error"]["message"].startswith("the model's server broke off the answer; try again, or")


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_text_after_a_call_is_sent_at_the_end(path: str, site: GatewayDeployment, upstream: Waiting) -> None:
    upstream.read.set()
    upstream.says = lambda body: {**call("add", a=1, b=2), "content": "Well."}
    upstream.paced = lambda body, chunk: Event().wait(0.15)
    before = upstream.chunks

    def late(body: Body) -> list[Body]:
        role, text, *calls, end, usage = before(body)
        return [role, *calls, text, end, usage]

    upstream.chunks = late  # type: ignore[method-assign]
    parameters = ADD["function"]["parameters"]  # type: ignore[index]
    asked: Body = {
        "chat/completions": {"messages": ASKED, "tools": [ADD]},
        "responses": {"input": ASKED[0]["content"], "tools": [{"type": "function", **ADD["function"]}]},  # type: ignore[dict-item]
        "messages": {
            "messages": ASKED,
            "max_tokens": 64,
            "tools": [{"name": "add", "input_schema": parameters}],
        },
    }[path]
    with site.http() as client:
        said = client.post(f"/v1/{path}", json={"model": "auto", "stream": True, **asked}).text
    pieces = ['{\\"a', '\\": 1, \\"b\\": 2}', "Well."]
    assert [said.index(piece) for piece in pieces] == sorted(said.index(piece) for piece in pieces)
    assert "stream_diverged" not in said


def test_a_client_that_leaves_in_a_stream_cancels_its_search(
    site: GatewayDeployment, upstream: Waiting
) -> None:
    chunks = events(site)
    next(chunks), next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    site.until(lambda: bool(site.read(site.topics.cancel_for("mini"), Cancel)), "the Cancel")
    upstream.read.set()
