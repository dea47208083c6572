"""Keys over HTTP: what each may see, ask and change, its streams and sessions, and what it teaches."""

import hashlib
import socket
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from schemas.control import KeyEntry
from schemas.query import Query
from schemas.reward import Feedback
from streams.gateway import quotas, routes, statistics
from streams.gateway.auth import ApiKeys
from tests.support.gateway_deployment import ASK, PLAIN, WITHOUT_EXECUTOR, Deploy, GatewayDeployment, refused


def test_feedback_is_limited_by_the_minute(deploy: Deploy) -> None:
    guarded = deploy()
    with guarded.http(guarded.key("shop", per_minute=2)) as client:
        told = {"id": client.post(ASK, json=PLAIN).json()["id"], "value": True}
        assert [client.post("/v1/feedback", json=told).json()["duplicate"] for _ in range(2)] == [False, True]
        told_thrice = refused(client.post("/v1/feedback", json=told), 429)
        assert "2 feedback requests a minute" in told_thrice["message"]


def test_keys_scopes_and_tenants(deploy: Deploy) -> None:
    guarded = deploy()
    shop, bank, eye = guarded.key("shop"), guarded.key("bank"), guarded.key("eye", scopes=("read",))
    operator = guarded.key("boss", scopes=("ask", "feedback", "read", "admin"))
    for wrong in (None, "uk-wrong", shop + "x", shop[:-1], "\x7f", "é"):
        headers: dict[str, Any] = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
        with guarded.http() as anyone:
            for path in (
                "/v1/models",
                "/v1/queries",
                "/v1/now",
                "/v1/dead-letters",
                "/v1/objectives",
                "/none",
            ):
                refused(anyone.get(path, headers=headers), 401)
            refused(anyone.post("/v1/decide", json=PLAIN, headers=headers), 401)
            refused(anyone.post("/v1/dead-letters/retry", json={"origin": "x"}, headers=headers), 401)
            assert anyone.get("/health/ready", headers=headers).status_code == 200
    with guarded.http(shop) as mine, guarded.http(bank) as theirs, guarded.http(eye) as reader:
        made = mine.post(ASK, json=PLAIN).json()["id"]
        assert mine.get(f"/v1/queries/{made}").status_code == 200
        assert [query.tenant for query in guarded.read(guarded.topics.query, Query)] == ["shop"]
        unknown = theirs.get(f"/v1/queries/{'x' * len(made)}").json()["error"]["message"]
        for path in (f"/v1/queries/{made}", f"/v1/queries/{made}/events"):
            error = refused(theirs.get(path), 404, "id")
            assert error["message"].replace(made, "x" * len(made)) == unknown
        refused(theirs.post("/v1/feedback", json={"id": made, "value": True}), 404, "id")
        assert theirs.get("/v1/queries").json()["data"] == []
        assert theirs.get("/v1/now").json()["queries"] == 0
        refused(mine.get("/v1/dead-letters"), 403)
        refused(mine.post("/v1/dead-letters/retry", json={"origin": "x"}), 403)
        refused(mine.put("/v1/objectives/x", json={"accuracy": 0.9}), 403)
        refused(reader.post(ASK, json=PLAIN), 403)
        paired = {**PLAIN, "metadata": {"baseline_of": made}}
        refused(mine.post(ASK, json=paired), 403)
        refused(reader.post("/v1/feedback", json={"id": made, "value": True}), 403)
        guarded.revoke("shop")
        refused(mine.get("/v1/models"), 401)
    with guarded.http(operator) as boss:
        assert boss.post(ASK, json=paired).status_code == 200
        assert len(boss.get("/v1/queries").json()["data"]) == 2
        refused(boss.post("/v1/dead-letters/retry", json={"origin": "none/0/0"}), 404, "origin")


def test_a_session_is_good_for_the_gateways_own_page_alone(deploy: Deploy) -> None:
    guarded = deploy()
    key = guarded.key("boss", scopes=("ask", "feedback", "read", "admin"))
    own = guarded.url
    with guarded.http() as page:
        for foreign in ({"origin": "http://localhost:3000"}, {"sec-fetch-site": "same-site"}):
            assert page.post("/session", json={"key": key}, headers=foreign).status_code == 403
        assert page.post("/session", content=b'{"key": 1}').status_code == 403  # not said to be JSON
        page.post("/session", json={"key": key}, headers={"origin": own}).raise_for_status()
        change: dict[str, Any] = {"content": b'{"accuracy": 0.5}', "url": "/v1/objectives/x"}
        plain, in_json = {"content-type": "text/plain"}, {"content-type": "application/json; charset=utf-8"}
        for headers in (
            {"origin": own, **plain},
            {"origin": "http://localhost:3000", **in_json},
            {"origin": f"{own}0", **in_json},
            {"origin": own, "sec-fetch-site": "same-site", **in_json},
        ):
            assert page.put(**change, headers=headers).status_code in (401, 403), headers
        assert page.put(**change, headers={"origin": own, **in_json}).status_code == 202
        # Through a proxy that changes the host, the browser's own word counts.
        proxied = {"origin": "http://localhost:9999", "sec-fetch-site": "same-origin", **in_json}
        assert page.put(**change, headers=proxied).status_code == 202
        assert page.get("/v1/queries").status_code == 200
        assert page.get("/v1/queries", headers={"sec-fetch-site": "same-site"}).status_code == 401
        assert page.delete("/session", headers={"origin": "http://localhost:3000"}).status_code == 403
        assert page.get("/session").json() == {"needed": True, "logged_in": True}
        assert page.delete("/session", headers={"origin": own}).json() == {"logged_in": False}
        assert page.get("/v1/queries").status_code == 401


def test_sessions_of_one_key_end_none_of_another_s(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_MOST_SESSIONS", 2)
    guarded = deploy(("gateway",))
    boss, shop = guarded.key("boss"), guarded.key("shop")
    pages = [guarded.http() for _ in range(4)]
    for page, key in zip(pages, (boss, shop, shop, shop), strict=True):
        page.post("/session", json={"key": key}).raise_for_status()
    assert [page.get("/session").json()["logged_in"] for page in pages] == [True, False, True, True]
    for page in pages:
        page.close()


def test_sessions_of_revoked_keys_go_at_the_next_login() -> None:
    keys = ApiKeys()
    page = routes.Page(keys, frozenset({"testserver"}))
    client = TestClient(Starlette(routes=page.routes()))

    def login(name: str, **more: Any) -> None:
        secret = name.encode()
        entry = KeyEntry(name=name, op="add", sha256=hashlib.sha256(secret).hexdigest(), tenant=name, **more)
        keys.change(entry)
        assert client.post("/session", json={"key": name}).is_success

    assert client.post("/session", json={"key": "before there was one"}).is_success
    for name in ("shop", "bank"):
        login(name)
    assert sorted(key for _, key in page._sessions.values()) == ["bank", "shop"]
    keys.change(KeyEntry(name="shop", op="revoke"))
    login("bank", scopes=("read",))
    assert [key for _, key in page._sessions.values()] == ["bank", "bank"], "a key's other scopes end none"


def test_streams_of_a_key_are_counted_and_end_with_it(deploy: Deploy) -> None:
    guarded = deploy(gateway_streams=1, feedback_wait_s=600.0)
    shop, bank = guarded.key("shop"), guarded.key("bank")
    with guarded.http(shop) as mine, guarded.http(bank) as theirs:
        made = mine.post(ASK, json=PLAIN).json()["id"]
        path = f"/v1/queries/{made}/events"
        with mine.stream("GET", path) as watched:
            events = watched.iter_lines()
            assert next(events) == "event: decision"
            refused(mine.get(path), 429)
            asked = len(guarded.records(guarded.topics.query))
            refused(mine.post(ASK, json={**PLAIN, "stream": True}), 429)
            assert len(guarded.records(guarded.topics.query)) == asked
            assert theirs.post(ASK, json={**PLAIN, "stream": True}).status_code == 200
        until = time.monotonic() + 20  # a stream that ended leaves its place
        while mine.post(ASK, json={**PLAIN, "stream": True}).status_code == 429:
            assert time.monotonic() < until
        with mine.stream("GET", path) as watched:
            events = watched.iter_lines()
            assert next(events) == "event: decision"
            guarded.revoke("shop")
            assert "event: answer" in list(events)  # it ends


def test_requests_that_join_a_query_count_among_those_in_flight(deploy: Deploy) -> None:
    guarded = deploy(WITHOUT_EXECUTOR)
    shop, bank = guarded.key("shop", in_flight=2), guarded.key("bank", in_flight=1)

    def post(key: str) -> httpx.Response:
        with guarded.http(key) as client:
            return client.post(ASK, json=PLAIN, headers={"idempotency-key": "k"})

    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(post, shop) for _ in range(3)]
        done, waiting = wait(asked, timeout=60, return_when=FIRST_COMPLETED)
        (limited,) = (each.result() for each in done)
        assert "2 requests in flight" in refused(limited, 429)["message"]
        asked.append(pool.submit(post, bank))
        guarded.until(lambda: len(guarded.records(guarded.topics.query)) == 2, "the query of the other key")
        guarded.start("executor", "mini")
        answers = [each.result() for each in (*waiting, asked[-1])]
    assert [each.status_code for each in answers] == [200] * 3
    assert len({each.json()["id"] for each in answers[:2]}) == 1
    assert post(shop).status_code == 200, "those that ended count no longer"


def test_keys_without_tenant_do_not_share_idempotency_keys(deploy: Deploy) -> None:
    guarded = deploy()
    answers = []
    for name in ("one", "two"):
        with guarded.http(guarded.key(name, tenant=None)) as client:
            body = {**PLAIN, "user": name}
            answers += [client.post(ASK, json=body, headers={"idempotency-key": "k"}) for _ in range(2)]
    assert [each.status_code for each in answers] == [200] * 4
    first, again, other, _ = (each.json()["id"] for each in answers)
    assert (first == again, first == other) == (True, False)


def test_requests_whose_bodies_do_not_come_are_counted(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "OTHERS", 1)
    guarded = deploy(("gateway",))
    shop, bank = guarded.key("shop", in_flight=1), guarded.key("bank")
    head = f"POST /v1/feedback HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {shop}\r\ncontent-length: 9\r\n\r\n"
    address = ("127.0.0.1", guarded.settings.gateway.port)
    with ExitStack() as held, guarded.http(shop) as mine, guarded.http(bank) as theirs:
        for _ in range(2):
            held.enter_context(socket.create_connection(address)).sendall(head.encode())
        guarded.until(lambda: mine.get("/v1/models").status_code == 429, "the limit")
        assert "2 requests at once" in refused(mine.get("/v1/models"), 429)["message"]
        assert theirs.get("/v1/models").status_code == 200
        held.close()
        guarded.until(lambda: mine.get("/v1/models").status_code == 200, "room")


def test_reads_are_counted_by_key(deploy: Deploy) -> None:
    guarded = deploy(("gateway",), gateway_reads=6)
    shop, bank = guarded.key("shop"), guarded.key("bank")
    reads = ("/v1/now", "/v1/queries", "/v1/models", "/v1/queries/none", "/v1/objectives", "/none")
    with guarded.http(shop) as mine, guarded.http(bank) as theirs:
        assert {mine.get(path).status_code for path in reads} == {200, 404}
        for path in reads:
            limited = mine.get(path)
            assert "6 reads a minute" in refused(limited, 429)["message"]
            assert 0 < int(limited.headers["retry-after"]) <= 61
        assert theirs.get("/v1/now").status_code == 200


def test_what_many_look_at_is_worked_out_once(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in ("_FRESH_S", "_COUNTED_S"):
        monkeypatch.setattr(routes, kept, 3600.0)
    worked_out = 0
    plain = statistics.now

    def counted(*given: Any, **more: Any) -> dict[str, Any]:
        nonlocal worked_out
        worked_out += 1
        return plain(*given, **more)

    monkeypatch.setattr(statistics, "now", counted)
    guarded = deploy()
    shop, again, bank = guarded.key("shop"), guarded.key("again", tenant="shop"), guarded.key("bank")
    with guarded.http(shop) as client:
        assert client.post(ASK, json=PLAIN).status_code == 200
    seen = []
    for key in (shop, shop, again, bank, bank):
        with guarded.http(key) as client:
            now, listed = client.get("/v1/now").json(), client.get("/v1/queries?limit=1").json()["data"]
            seen.append((now["queries"], len(listed)))
    assert seen == [(1, 1)] * 3 + [(0, 0)] * 2
    assert worked_out == 2, "once for each tenant"


def decide(deployment: GatewayDeployment, key: str | None = None, **body: Any) -> int:
    """Ask what would run; return the status."""
    with deployment.http(key) as client:
        return client.post("/v1/decide", json={**PLAIN, **body}).status_code


def test_a_preview_needs_the_scope_and_the_models_of_its_key(deploy: Deploy) -> None:
    guarded = deploy()
    asker = guarded.key("shop", scopes=("ask",), allowed_models=("auto", "small"), allowed_objectives=())
    reader = guarded.key("eye", scopes=("read",))
    assert decide(guarded) == 401
    assert decide(guarded, reader) == 403
    assert decide(guarded, asker) == 200
    assert decide(guarded, asker, model="large") == 404
    assert decide(guarded, asker, uniscale={"objective": "quality-priority"}) == 404
    with guarded.http(asker) as client:
        found = client.post("/v1/decide", json=PLAIN).json()["configurations"]
        assert {each["action"].split("/")[0] for each in found} == {"small"}
        assert client.post(ASK, json=PLAIN).json()["model"] == "small"
        (sent,) = guarded.read(guarded.topics.query, Query)
        assert sent.allowed_models == ("small",)
    for key, names in (
        (asker, ["auto", "small"]),
        (guarded.key("one", allowed_models=("large/4/4/2", "x")), ["large/4/4/2"]),
    ):
        with guarded.http(key) as client:
            assert [each["id"] for each in client.get("/v1/models").json()["data"]] == names
            assert client.get(f"/v1/models/{names[0]}").json()["id"] == names[0]
            assert client.get("/v1/models/large").status_code == 404
    guarded.revoke("shop")
    assert decide(guarded, asker) == 401


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "reference": {"uniscale": {"reference": "4"}},
    "grader": {"uniscale": {"grader": {"name": "json", "schema": {"type": "object"}}}},
    "pinned": {"model": "large/1/1/1"},
}


def ask(deployment: GatewayDeployment, key: str | None, **more: Any) -> str:
    with deployment.http(key) as client:
        answered = client.post(ASK, json={**PLAIN, **more})
    assert answered.status_code == 200, answered.text
    return str(answered.json()["id"])


def learned(deployment: GatewayDeployment, key: str | None) -> dict[str, bool]:
    """Return which of three queries under a key the learner may learn from."""
    ids = {ask(deployment, key, **more): name for name, more in ASKED.items()}
    sent = deployment.read(deployment.topics.query, Query)
    return {ids[query.query_id]: query.learn for query in sent if query.query_id in ids}


def test_a_key_teaches_by_its_claims_only_if_it_says_so(deploy: Deploy) -> None:
    """Without the scope `teach` it teaches nothing, and its claims grade an answer for its owner alone."""
    there = deploy(feedback_wait_s=60.0)
    everything = dict.fromkeys(ASKED, True)
    assert learned(there, None) == everything, "no key exists"
    asks = there.key("asks")
    assert learned(there, asks) == {**dict.fromkeys(ASKED, False), "plain": True}, "no key teaches"
    teaches = there.key("teaches", scopes=("ask", "feedback", "read", "teach"))
    assert learned(there, asks) == dict.fromkeys(ASKED, False)
    assert learned(there, teaches) == everything
    told = {}
    for key in (asks, teaches):
        query_id = ask(there, key)
        with there.http(key) as client:
            sent = client.post("/v1/feedback", json={"id": query_id, "value": False})
        assert sent.status_code == 200, sent.text
        told[query_id] = key == teaches
    assert {each.query_id: each.learn for each in there.read(there.topics.feedback, Feedback)} == told
    closed = there.closing(*told)
    assert [(each.kind, each.learn) for each in closed] == [("correction", learn) for learn in told.values()]
    assert {each.correct for each in closed} == {0.0}, "its owner has its grade"
