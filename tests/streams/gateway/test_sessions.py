"""Conversations over HTTP: which requests are turns of one, as each protocol says it."""

from functools import partial
from typing import Any

import httpx
import pytest

from schemas.decision import Decision
from schemas.query import Query
from tests.support.gateway_deployment import ASK, QUESTION, Deploy, GatewayDeployment, refused

REPLY = {"role": "assistant", "content": "5"}
GOES_ON: list[Any] = [*QUESTION, REPLY, {"role": "user", "content": "And 3 + 3?"}]


@pytest.fixture(scope="module")
def site(deploy: Deploy) -> GatewayDeployment:
    """A deployment whose policy still draws at random: each choice of its own may be another one."""
    return deploy(warm_up=1_000)


def ask(client: httpx.Client, messages: list[Any] = QUESTION, headers: Any = None, **body: Any) -> Any:
    got = client.post(ASK, json={"model": "auto", "messages": messages, **body}, headers=headers)
    assert got.status_code == 200, got.text
    return got.json()


def decisions(site: GatewayDeployment, *replies: Any) -> list[Decision]:
    found = {each.query_id: each for each in site.read(site.topics.decision, Decision)}
    return [found[each["id"]] for each in replies]


@pytest.mark.parametrize(
    ("how", "messages"),
    [
        ({"session_id": "by id"}, QUESTION),
        ({"headers": {"x-session-id": "by header"}}, QUESTION),
        ({"session_id": "the body", "headers": {"x-session-id": "goes before"}}, QUESTION),
        ({}, GOES_ON),
    ],
    ids=["id", "header", "both", "messages"],
)
def test_later_turns_run_what_the_first_ran(
    how: dict[str, Any], messages: list[Any], site: GatewayDeployment, client: httpx.Client
) -> None:
    replies = [ask(client, messages, **how) for _ in range(5)]
    first, *later = decisions(site, *replies)
    assert first.reason == "warm-up"
    assert {(each.reason, each.action) for each in later} == {("session", first.action)}
    longer = [*messages, REPLY, {"role": "user", "content": "And 4 + 4?"}]
    [again] = decisions(site, ask(client, longer, **how))
    assert (again.reason, again.action) == ("session", first.action)
    assert (again.propensity, again.randomised, again.cohort) == (None, False, "policy")


def test_what_is_no_conversation_is_decided_alone(site: GatewayDeployment, client: httpx.Client) -> None:
    system = [{"role": "system", "content": "Be brief."}, *QUESTION]
    replies = [ask(client, system) for _ in range(3)]
    replies += [ask(client, GOES_ON, uniscale={"sticky": False}) for _ in range(3)]
    replies += [ask(client, [*QUESTION, {**REPLY, "content": f"{n}"}, *QUESTION]) for n in range(3)]
    assert {each.reason for each in decisions(site, *replies)} == {"warm-up"}
    queries = {each.query_id: each for each in site.read(site.topics.query, Query)}
    assert [queries[each["id"]].session is None for each in replies] == [True] * 6 + [False] * 3


def test_responses_and_messages_have_sessions_too(site: GatewayDeployment, client: httpx.Client) -> None:
    for path, body in (
        ("/v1/responses", {"input": "What is 2 + 3, number 0?"}),
        ("/v1/messages", {"messages": QUESTION, "max_tokens": 64}),
    ):
        said = {"model": "auto", "session_id": f"of {path}", **body}
        replies = [client.post(path, json=said) for _ in range(2)]
        assert [each.status_code for each in replies] == [200, 200], replies[0].text
        first, later = decisions(site, *(each.json() for each in replies))
        assert (later.reason, later.action, first.session) == ("session", first.action, later.session)
    first_reply = client.post(
        "/v1/responses", json={"model": "auto", "input": "What is 2 + 3, number 0?"}
    ).json()
    follows = {"model": "auto", "input": "And 3 + 3?", "previous_response_id": first_reply["id"]}
    second = client.post("/v1/responses", json=follows).json()
    third = client.post(
        "/v1/responses", json={**follows, "input": "And 4 + 4?", "previous_response_id": second["id"]}
    ).json()
    later, last = decisions(site, second, third)
    assert (last.reason, last.action) == ("session", later.action)


def known(client: httpx.Client) -> bool:
    """Return whether the gateway knows a client's key."""
    return client.get("/v1/models").status_code == 200


def test_ids_of_two_tenants_are_two_sessions(deploy: Deploy) -> None:
    site = deploy(warm_up=1_000)
    keys = [site.key(name, scopes=("ask", "read")) for name in ("shop", "bank")]
    replies = []
    for key in keys:
        with site.http(key) as client:
            site.until(partial(known, client))
            replies.append(ask(client, session_id="one"))
    made = decisions(site, *replies)
    assert [each.reason for each in made] == ["warm-up", "warm-up"]
    assert made[0].session != made[1].session


def test_a_preview_shows_what_a_turn_would_keep(site: GatewayDeployment, client: httpx.Client) -> None:
    [first] = decisions(site, ask(client, session_id="seen before"))
    body = {"model": "auto", "messages": QUESTION, "session_id": "seen before"}
    shown = client.post("/v1/decide", json=body).json()
    assert (shown["reason"], shown["action"], shown["candidates"]) == ("session", str(first.action), 1)


@pytest.mark.parametrize("session_id", ["", "x" * 201])
def test_an_id_of_a_wrong_length_is_refused(session_id: str, client: httpx.Client) -> None:
    body = {"model": "auto", "messages": QUESTION, "session_id": session_id}
    refused(client.post(ASK, json=body), 400, "session_id")
