"""Bad input over HTTP: the right status in OpenAI's format, nothing leaks, nothing runs, nothing stops."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from streams import health
from streams.gateway import endpoint
from streams.gateway.request import MAX_BODY

ASK = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is 2 + 3, number 0?"}]
PLAIN = {"model": "auto", "messages": QUESTION}
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def site(house: Callable[..., Any]) -> Any:
    return house()


@pytest.fixture(scope="module")
def client(site: Any) -> Iterator[httpx.Client]:
    with site.http() as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_stops(site: Any, client: httpx.Client) -> Iterator[None]:
    """After each test the gateway still answers, no worker has died, and bad input became no query."""
    yield
    assert client.get("/health/live").status_code == 200
    assert site.call(lambda cluster: list(cluster.deaths)) == []
    assert client.post(ASK, json={**PLAIN, "uniscale": {"reference": "5"}}).status_code == 200


def refused(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """Demand an error in OpenAI's shape."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    assert error["param"] == param or (param is not None and str(error["param"]).startswith(param)), error
    return error


WRONG: list[tuple[Any, str | None]] = [
    ([], None),
    (7, None),
    ({}, "model"),
    ({"model": 5, "messages": QUESTION}, "model"),
    ({"model": "auto"}, "messages"),
    ({**PLAIN, "messages": []}, "messages"),
    ({**PLAIN, "messages": "hello"}, "messages"),
    ({**PLAIN, "messages": [None]}, "messages"),
    ({**PLAIN, "messages": [{"role": "user"}]}, "messages[0].content"),
    ({**PLAIN, "messages": [{"role": "robot", "content": "?"}]}, "messages[0].role"),
    ({**PLAIN, "messages": [{"role": "user", "content": ""}]}, "messages"),
    ({**PLAIN, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({**PLAIN, "messages": [{"role": "user", "content": "\ud800"}]}, None),
    ({**PLAIN, "stream": "yes"}, "stream"),
    ({**PLAIN, "n": 0}, "n"),
    ({**PLAIN, "n": 1.5}, "n"),
    ({**PLAIN, "n": 10**30}, "n"),
    ({**PLAIN, "max_completion_tokens": -1}, "max_completion_tokens"),
    ({**PLAIN, "temperature": 2.5}, "temperature"),
    ({**PLAIN, "logprobs": True}, "logprobs"),
    ({**PLAIN, "temprature": 1}, "temprature"),
    ({**PLAIN, "metadata": {"a": 1}}, "metadata"),
    ({**PLAIN, "uniscale": []}, "uniscale"),
    ({**PLAIN, "uniscale": {"objectiv": "x"}}, "uniscale"),
    ({**PLAIN, "uniscale": {"weights": {"correct": "much"}}}, "uniscale.weights"),
    ({**PLAIN, "uniscale": {"weights": {"correct": -1, "score": 0, "cost": 0}}}, "uniscale.weights"),
    ({**PLAIN, "uniscale": {"weights": {"correct": 1e400}}}, None),
    ({**PLAIN, "uniscale": {"mean_cost": 0}}, "mean_cost"),
    ({**PLAIN, "uniscale": {"accuracy": 7}}, "accuracy"),
    ({**PLAIN, "uniscale": {"accuracy": 0.9, "mean_cost": 1e9}}, "accuracy"),
    ({**PLAIN, "uniscale": {"timeout_s": -5}}, "timeout_s"),
    ({**PLAIN, "uniscale": {"timeout_s": 1e300}}, "timeout_s"),
    ({**PLAIN, "uniscale": {"budget": {"tokens": 0}}}, "uniscale.budget"),
    ({**PLAIN, "uniscale": {"allowed_models": []}}, "allowed_models"),
    ({**PLAIN, "uniscale": {"metadata": {"x": "y" * 20_000}}}, "metadata"),
]


@pytest.mark.parametrize("path", [ASK, "/v1/decide"])
def test_wrong_types_and_unknown_fields(site: Any, client: httpx.Client, path: str) -> None:
    before = len(site.records(site.cluster.topics.query))
    for body, param in WRONG:
        sent = json.dumps(body).encode()
        answer = client.post(path, content=sent, headers={"content-type": "application/json"})
        refused(answer, 400, param)
    assert len(site.records(site.cluster.topics.query)) == before


@pytest.mark.parametrize(
    "path", [ASK, "/v1/decide", "/v1/feedback", "/v1/dead-letters/retry", "/v1/objectives/x"]
)
def test_bodies_that_are_no_json_object(client: httpx.Client, path: str) -> None:
    method = "PUT" if "objectives" in path else "POST"
    nan = b'{"model": "auto", "messages": [], "uniscale": {"weights": {"correct": NaN}}, "id": NaN, "origin": NaN}'
    for body in (
        b"",
        b"{",
        b"\xff\xfe{}",
        b'{"id": "\xc3"}',
        nan,
        b"[" * 100_000,
        b"null",
        b'"x"',
        b"\0" * 9,
    ):
        refused(client.request(method, path, content=body), 400)
    refused(client.request(method, path, content=b" " * (MAX_BODY + 1)), 413)


def test_a_body_above_two_megabytes_is_cut_off_while_it_comes(client: httpx.Client) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 50 * MAX_BODY:
            sent += 65_536
            yield b"x" * 65_536

    # Or the gateway hangs up first, perhaps between the head of its answer and the body.
    with contextlib.suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        refused(client.post(ASK, content=endless()), 413)
    assert sent < 50 * MAX_BODY


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"weights": {"correct": "x"}}, "weights"),
        ({"weights": {"accuracy": 1}}, "weights"),
        ({"weights": 5}, "weights"),
        ({"mean_cost": "dear"}, "mean_cost"),
        ({"accuracy": True}, "accuracy"),
        ({"accuracy": 2}, "accuracy"),
        ({"mean_cost": 1e9, "accuracy": 0.5}, "accuracy"),
        ({"name": "y"}, "name"),
        ({}, "weights"),
    ],
)
def test_objectives_that_cannot_be(client: httpx.Client, body: Any, param: str) -> None:
    refused(client.put("/v1/objectives/x", json=body), 400, param)


@pytest.mark.parametrize("model", ["auto", "large", "large/1/1/1"])
def test_a_question_that_fits_no_context_becomes_no_query(client: httpx.Client, model: str) -> None:
    long = [{"role": "user", "content": "x" * 300_000}]
    error = refused(client.post(ASK, json={"model": model, "messages": long}), 400, "messages")
    assert error["code"] == "context_length_exceeded"
    assert "300000 bytes" in error["message"]
    assert "32768 tokens" in error["message"]


def test_names_and_numbers_in_addresses(client: httpx.Client) -> None:
    for path in (
        "/v1/queries?limit=0",
        "/v1/queries?limit=x",
        "/v1/now?limit=99999999999",
        "/v1/now?limit=-1",
    ):
        refused(client.get(path), 400, "limit")
    for path in (
        "/v1/queries/none",
        f"/v1/queries/{'x' * 5000}",
        "/v1/queries/%ff%00",
        "/v1/queries/'; drop table queries",
    ):
        refused(client.get(path), 404, "id")
    refused(client.get("/v1/models/none"), 404, "model")
    refused(client.get("/v1/embeddings"), 404)
    assert refused(client.delete("/v1/models"), 405)["code"] == "method_not_allowed"
    for path in ("/static/../http.py", "/static/%2e%2e/service.py", "/static//etc/passwd"):
        assert client.get(path).status_code in (404, 405)


def test_foreign_hosts_and_pages(client: httpx.Client) -> None:
    for headers in (
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"host": ""},
    ):
        for path in (ASK, "/v1/decide", "/v1/feedback", "/v1/dead-letters/retry", "/session"):
            answer = client.post(path, json=PLAIN, headers=headers)
            assert answer.status_code in (400, 403), (path, headers)
            if answer.status_code == 403:
                assert answer.json()["error"]["code"] == "host_not_allowed"


def test_script_in_a_prompt_comes_back_as_text(client: httpx.Client) -> None:
    made = client.post(ASK, json={**PLAIN, "messages": [{"role": "user", "content": SCRIPT}], "user": SCRIPT})
    assert made.status_code in (200, 502)
    for path in ("/v1/queries", f"/v1/queries/{SCRIPT}", f"/v1/models/{SCRIPT}", f"/{SCRIPT}"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/json", path
    page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"


def raw(site: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.settings.gateway.port), timeout=10)


def test_a_flood_of_headers_is_cut_off(site: Any) -> None:
    for flood in (
        b"x: " + b"y" * 200_000,
        b"".join(b"h%d: v\r\n" % at for at in range(50_000)),
        b"\0\1\2" * 99_999,
    ):
        with raw(site) as connection:
            try:
                connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + flood)
                said = connection.recv(400)
            except (ConnectionResetError, BrokenPipeError):
                continue
            assert said == b"" or b" 400 " in said.split(b"\r\n")[0], said


def test_slow_clients_keep_nobody_waiting(site: Any, client: httpx.Client) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{"
    slow = [raw(site) for _ in range(40)]
    try:
        for at, connection in enumerate(slow):
            connection.sendall(head if at % 2 else head[:30])
        # Half of them never end: who waited for them would get no answer at all.
        assert client.get("/v1/models").status_code == 200
        assert client.post(ASK, json=PLAIN).status_code == 200
    finally:
        for connection in slow:
            connection.close()


def ends(connection: socket.socket) -> int:
    """Wait until the other side ends a connection; return how many bytes came before."""
    came = 0
    try:
        while part := connection.recv(1 << 16):
            came += len(part)
    except ConnectionResetError:
        pass
    return came


def test_who_sends_no_whole_head_is_cut_off(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "HEAD_S", 0.3)
    with raw(site) as silent, raw(site) as slow, raw(site) as twice:
        slow.sendall(b"GET /v1/models HTTP/1.1\r\nhost: loc")
        twice.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of_next(twice) == 200
        twice.sendall(b"GET /v1/mod")
        assert (ends(silent), ends(slow), ends(twice)) == (0, 0, 0)


def test_where_connections_run_out_who_waited_longest_makes_room(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "most_connections", lambda: 20)
    waiting = [raw(site) for _ in range(30)]
    try:
        for first in waiting[:8]:
            assert ends(first) == 0
        waiting[-1].sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of_next(waiting[-1]) == 200
    finally:
        for connection in waiting:
            connection.close()


def test_who_reads_nothing_of_what_is_sent_is_cut_off(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WRITE_S", 0.3)
    path = "/static/vendor/uPlot.esm.js"
    with site.http() as client:
        size = len(client.get(path, headers={"accept-encoding": "identity"}).content)
    with raw(site) as connection:
        connection.sendall(200 * f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        time.sleep(2)
        assert ends(connection) < 200 * size


def status_of_next(connection: socket.socket) -> int:
    """Read one whole response: head and body may come in segments of their own."""
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def test_who_still_sends_a_refused_body_reads_why(site: Any) -> None:
    head = b"POST /v1/decide HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n"
    with raw(site) as connection:
        connection.sendall(head % 9 + b"content-encoding: gzip\r\n\r\n")
        assert status_of_next(connection) == 415
        connection.sendall(b"x" * 9 + head % 2 + b"\r\n{}")
        assert status_of_next(connection) == 400
    with raw(site) as connection:
        connection.sendall(head % (2 * MAX_BODY) + b"\r\n" + b" " * (MAX_BODY + 1))
        time.sleep(0.2)
        connection.sendall(b" " * (MAX_BODY - 1))
        said = b"".join(iter(lambda: connection.recv(4000), b""))
    assert said.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_ends_in_a_408(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_S", 0.3)
    with raw(site) as connection:
        connection.sendall(b"POST /v1/decide HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        said = b"".join(iter(lambda: connection.recv(4000), b""))
    assert b" 408 " in said.split(b"\r\n")[0]
    assert b'"code":"body_timeout"' in said


def test_keys_scopes_and_tenants(house: Callable[..., Any]) -> None:
    guarded = house()
    shop, bank, eye = guarded.key("shop"), guarded.key("bank"), guarded.key("eye", scopes=("read",))
    operator = guarded.key("boss", scopes=("ask", "feedback", "read", "admin"))
    for wrong in (None, "uk-wrong", shop + "x", shop[:-1], "\x7f", "é"):
        headers = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
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
        unknown = theirs.get(f"/v1/queries/{'x' * len(made)}").json()["error"]["message"]
        for path in (f"/v1/queries/{made}", f"/v1/queries/{made}/events"):
            error = refused(theirs.get(path), 404, "id")
            assert error["message"].replace(made, "x" * len(made)) == unknown
        refused(theirs.post("/v1/feedback", json={"id": made, "value": True}), 404, "id")
        assert theirs.get("/v1/queries").json()["data"] == []
        assert theirs.get("/v1/now").json()["queries"] == 0
        for path in ("/v1/dead-letters",):
            refused(mine.get(path), 403)
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


def test_a_session_is_good_for_the_gateways_own_page_alone(house: Callable[..., Any]) -> None:
    guarded = house()
    key = guarded.key("boss", scopes=("ask", "feedback", "read", "admin"))
    own = guarded.url
    with guarded.http() as page:
        for foreign in ({"origin": "http://localhost:3000"}, {"sec-fetch-site": "same-site"}):
            assert page.post("/session", json={"key": key}, headers=foreign).status_code == 403
        assert page.post("/session", content=b'{"key": 1}').status_code == 403  # not said to be JSON
        page.post("/session", json={"key": key}, headers={"origin": own}).raise_for_status()
        change = {"content": b'{"accuracy": 0.5}', "url": "/v1/objectives/x"}
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


def test_streams_of_a_key_are_counted_and_end_with_it(house: Callable[..., Any]) -> None:
    guarded = house(gateway_streams=1, feedback_wait_s=600.0)
    shop, bank = guarded.key("shop"), guarded.key("bank")
    with guarded.http(shop) as mine, guarded.http(bank) as theirs:
        made = mine.post(ASK, json=PLAIN).json()["id"]
        path = f"/v1/queries/{made}/events"
        with mine.stream("GET", path) as watched:
            events = watched.iter_lines()
            assert next(events) == "event: decision"
            refused(mine.get(path), 429)
            asked = len(guarded.records(guarded.cluster.topics.query))
            refused(mine.post(ASK, json={**PLAIN, "stream": True}), 429)
            assert len(guarded.records(guarded.cluster.topics.query)) == asked
            assert theirs.post(ASK, json={**PLAIN, "stream": True}).status_code == 200
        until = time.monotonic() + 20  # a stream that ended leaves its place
        while mine.post(ASK, json={**PLAIN, "stream": True}).status_code == 429:
            assert time.monotonic() < until
        with mine.stream("GET", path) as watched:
            events = watched.iter_lines()
            assert next(events) == "event: decision"
            guarded.revoke("shop")
            assert "event: answer" in list(events)  # it ends


def test_feedback_that_cannot_be(client: httpx.Client) -> None:
    made = client.post(ASK, json=PLAIN).json()["id"]
    for told, param in (
        ({"id": made}, "value"),
        ({"id": made, "value": "yes"}, "value"),
        ({"id": made, "value": 2}, "correct"),
        ({"id": made, "value": -0.1}, "correct"),
        ({"id": 7, "value": True}, "id"),
        ({"id": made, "value": True, "comment": 7}, "comment"),
        ({"id": made, "value": True, "comment": "x" * 5000}, "comment"),
        ({"id": made, "value": True, "source": "me"}, "source"),
    ):
        refused(client.post("/v1/feedback", json=told), 400, param)
    refused(client.post("/v1/feedback", json={"id": "none", "value": True}), 404, "id")
    assert client.post("/v1/feedback", json={"id": made, "value": True}).json()["duplicate"] is False
