"""What a client of Anthropic's Messages sends and gets over HTTP: the table of docs/messages.md."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from schemas.query import Query
from tests.support.gateway_deployment import WITHOUT_EXECUTOR, Deploy, GatewayDeployment
from tests.support.recorded import write_steps

LONG = "Tell me at length."
ONE = "large/1/1/1"
URL = "/v1/messages"
TOKENS = 10
STEPS = ["One: END.\n\n", "Two: END.\n\n", "So \\boxed{3}"]
WHOLE = "".join(STEPS)
PLAIN: dict[str, Any] = {"model": ONE, "max_tokens": 1000, "messages": [{"role": "user", "content": LONG}]}


@pytest.fixture(scope="module")
def site(deploy: Deploy, tmp_path_factory: pytest.TempPathFactory) -> GatewayDeployment:
    """A deployment whose every answer is the same three steps."""
    recording = tmp_path_factory.mktemp("messages") / "recording.jsonl"
    write_steps(recording, LONG, STEPS, TOKENS)
    return deploy(recorded=str(recording))


@pytest.fixture(scope="module")
def client(site: GatewayDeployment) -> Iterator[httpx.Client]:
    with site.http() as opened:
        yield opened


def ask(client: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = client.post(URL, json={**PLAIN, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def streamed(client: httpx.Client, **more: Any) -> list[dict[str, Any]]:
    """Return the events of a stream; each is named as its data says."""
    with client.stream("POST", URL, json={**PLAIN, "stream": True, **more}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [event["type"] for event in events]
    return events


def refused(answer: httpx.Response, status: int, kind: str) -> str:
    """Demand an error in Anthropic's shape and return its message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert set(body["error"]) == {"type", "message"}
    assert body["request_id"] == answer.headers["request-id"]
    return str(body["error"]["message"])


def query_of(site: GatewayDeployment, message_id: str) -> Query:
    return next(q for q in site.read(site.topics.query, Query) if q.query_id == message_id)


def said(query: Query) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in query.chat]


def test_an_answer_is_a_message_with_one_text_block(site: GatewayDeployment, client: httpx.Client) -> None:
    made = ask(client, system="Be brief.", metadata={"user_id": "ann"})
    assert (made["type"], made["role"], made["model"]) == ("message", "assistant", "large")
    assert made["id"].startswith("msg_")
    assert made["content"] == [{"type": "text", "text": WHOLE}]
    assert (made["stop_reason"], made["stop_sequence"]) == ("end_turn", None)
    assert made["usage"] == {
        "input_tokens": 9,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": 3 * TOKENS,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    assert (made["uniscale"]["action"], made["uniscale"]["ignored"]) == (ONE, [])
    query = query_of(site, made["id"])
    assert said(query) == [("system", "Be brief."), ("user", LONG)]
    assert (query.max_tokens, query.pin_action, query.metadata["user"]) == (1000, ONE, "ann")
    assert client.get(f"/v1/queries/{made['id']}").json()["answer"]["text"] == WHOLE


def test_content_blocks_are_the_conversation(site: GatewayDeployment, client: httpx.Client) -> None:
    first = ask(client)
    made = ask(
        client,
        system=[{"type": "text", "text": "In words."}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": LONG}]},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": "And now?"},
        ],
    )
    assert said(query_of(site, made["id"])) == [
        ("system", "In words."),
        ("user", LONG),
        ("assistant", WHOLE),
        ("user", "And now?"),
    ]


def test_a_stream_sends_every_event_in_order(client: httpx.Client) -> None:
    events = streamed(client)
    assert [event["type"] for event in events] == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["model"] == "large"
    assert [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"] == STEPS
    last = events[-2]
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == (9, 3 * TOKENS)
    assert last["uniscale"]["action"] == ONE


@pytest.mark.parametrize(
    ("more", "reason", "sequence", "text"),
    [
        ({"max_tokens": 15}, "max_tokens", None, None),
        ({"stop_sequences": [": END"]}, "stop_sequence", ": END", "One"),
        ({"stop_sequences": ["Two", "END.", "???"]}, "stop_sequence", "END.", "One: "),
    ],
)
def test_the_stop_reason_says_what_ended_the_text(
    client: httpx.Client, more: dict[str, Any], reason: str, sequence: str | None, text: str | None
) -> None:
    made = ask(client, **more)
    assert (made["stop_reason"], made["stop_sequence"]) == (reason, sequence)
    if text is not None:
        assert made["content"] == [{"type": "text", "text": text}]
    delta = next(e for e in streamed(client, **more) if e["type"] == "message_delta")["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


IGNORED: dict[str, Any] = {
    "thinking": {"type": "enabled", "budget_tokens": 2000}, "output_config": {"effort": "low"}, "top_k": 5,
    "cache_control": {"type": "ephemeral"}, "service_tier": "standard_only",
    "speed": "fast", "inference_geo": "eu", "user_profile_id": "u", "workspace_id": "w",
    "diagnostics": {"previous_message_id": "m"}, "context_management": {"edits": []},
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]}],
}  # fmt: skip
NAMES = {
    "output_config": "output_config.effort",
    "system": "system[].cache_control",
    "messages": "messages[].content[].cache_control",
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_has_no_effect_is_named(client: httpx.Client, name: str) -> None:
    answer = client.post(URL, json={**PLAIN, name: IGNORED[name]})
    assert answer.status_code == 200, answer.text
    expected = NAMES.get(name, name)
    assert answer.json()["uniscale"]["ignored"] == [expected]
    assert answer.headers["x-uniscale-ignored"] == expected


def test_a_beta_has_no_effect(client: httpx.Client) -> None:
    answer = client.post(
        URL, json=PLAIN, headers={"anthropic-beta": "x-2026", "anthropic-version": "2023-06-01"}
    )
    assert answer.json()["uniscale"]["ignored"] == ["anthropic-beta"]


NEUTRAL: dict[str, Any] = {
    "thinking": {"type": "disabled"}, "service_tier": "auto", "speed": "standard", "temperature": 1.0, "tools": [],
    "tool_choice": {"type": "auto"}, "metadata": {"user_id": None}, "container": None, "mcp_servers": [],
    "output_config": {},
}  # fmt: skip


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_asks_for_nothing_is_accepted(client: httpx.Client, name: str) -> None:
    assert ask(client, **{name: NEUTRAL[name]})["uniscale"]["ignored"] == []


USER = {"role": "user", "content": LONG}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
    ({"uniscale": {"progress": True}}, "uniscale.progress"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"stop_sequences": ["a", "b", "c", "d", "e"]}, "stop_sequences"),
    ({"temperature": 3}, "temperature"),
    ({"max_token": 5}, "max_token"),
    ({"n": 2}, "n"),
    ({"messages": []}, "messages"),
    ({"messages": [USER, {"role": "assistant", "content": "So"}]}, "messages[1].role"),
    ({"messages": [{"role": "robot", "content": "?"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{**USER, "name": "ann"}]}, "messages[0].name"),
    ({"system": "S", "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": "x" * 300_000}]}, "messages"),
]


@pytest.mark.parametrize(("more", "field"), REFUSED)
def test_what_cannot_be_answered_is_refused_by_name(
    site: GatewayDeployment, client: httpx.Client, more: dict[str, Any], field: str
) -> None:
    before = len(site.records(site.topics.query))
    why = refused(client.post(URL, json={**PLAIN, **more}), 400, "invalid_request_error")
    assert field in why
    assert len(site.records(site.topics.query)) == before


def test_a_missing_limit_is_named(client: httpx.Client) -> None:
    answer = client.post(URL, json={"model": ONE, "messages": [USER]})
    assert "max_tokens" in refused(answer, 400, "invalid_request_error")


def test_errors_have_the_shape_of_the_api(client: httpx.Client) -> None:
    refused(client.post(URL, json={**PLAIN, "model": "claude-9"}), 404, "not_found_error")
    refused(client.get(URL), 405, "invalid_request_error")
    refused(client.post(f"{URL}/batches", json={}), 404, "not_found_error")
    refused(client.post(URL, content=b"x" * (3 * 1024 * 1024)), 413, "request_too_large")
    refused(client.post(URL, json=PLAIN, headers={"host": "evil.example"}), 403, "permission_error")


def test_either_header_names_the_key(deploy: Deploy) -> None:
    keyed = deploy(("gateway",))
    key = keyed.key("acme")
    counted = {"model": "auto", "messages": [USER]}
    with keyed.http() as client:
        keyed.until(lambda: client.get("/v1/models").status_code == 401)
        refused(client.post(f"{URL}/count_tokens", json=counted), 401, "authentication_error")
        for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
            assert client.post(f"{URL}/count_tokens", json=counted, headers=headers).status_code == 200
        wrong = {"x-api-key": "wrong"}
        refused(client.post(URL, json=PLAIN, headers=wrong), 401, "authentication_error")


def test_an_expired_query_is_an_error_and_ends_its_stream(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    soon = {
        "messages": [{"role": "user", "content": "What is 2 + 3, number 0?"}],
        "uniscale": {"timeout_s": 0.5},
    }
    with held.http() as client:
        answer = client.post(URL, json={**PLAIN, **soon})
        refused(answer, 504, "timeout_error")
        assert answer.headers["x-should-retry"] == "false"
        events = streamed(client, **soon)
    assert [event["type"] for event in events] == ["message_start", "ping", "error"]
    assert events[-1]["error"]["type"] == "timeout_error"


def test_tokens_are_estimated_and_said_to_be(site: GatewayDeployment, client: httpx.Client) -> None:
    before = len(site.records(site.topics.query))
    body = {"model": "auto", "system": "Be brief.", "messages": [{"role": "user", "content": "x" * 400}]}
    counted = client.post(f"{URL}/count_tokens", json={**body, "thinking": {"type": "adaptive"}}).json()
    assert 100 < counted["input_tokens"] < 120
    assert "estimate" in counted["uniscale"]["method"]
    assert counted["uniscale"]["ignored"] == ["thinking"]
    assert len(site.records(site.topics.query)) == before
    for wrong, status in (({**body, "max_tokens": 5}, 400), ({**body, "model": "claude-9"}, 404)):
        assert client.post(f"{URL}/count_tokens", json=wrong).status_code == status


def test_the_same_body_in_two_protocols_is_two_queries(client: httpx.Client) -> None:
    headers = {"idempotency-key": "both"}
    message = client.post(URL, json=PLAIN, headers=headers).json()
    again = client.post(URL, json=PLAIN, headers=headers).json()
    chat = client.post("/v1/chat/completions", json=PLAIN, headers=headers).json()
    assert again["id"] == message["id"]
    assert (chat["object"], message["type"]) == ("chat.completion", "message")
    assert chat["id"] != message["id"]
