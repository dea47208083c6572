"""Bad input over HTTP: the right status in OpenAI's format, nothing leaks, nothing runs, nothing stops."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from streams.gateway import endpoint
from streams.gateway.request import MAX_BODY
from streams.http import server
from tests.support.gateway_deployment import ASK, PLAIN, QUESTION, GatewayDeployment, refused

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def nothing_stops(site: GatewayDeployment, client: httpx.Client) -> Iterator[None]:
    """After each test the gateway still answers, no worker has died, and bad input became no query."""
    yield
    assert client.get("/health/live").status_code == 200
    assert site.call(lambda cluster: list(cluster.deaths)) == []
    assert client.post(ASK, json={**PLAIN, "uniscale": {"reference": "5"}}).status_code == 200


# What is wrong with one field `test_request.py` has; these are other shapes, and bounds of a query.
WRONG: list[tuple[Any, str | None]] = [
    ([], None),
    (7, None),
    ({}, "model"),
    ({"model": 5, "messages": QUESTION}, "model"),
    ({"model": "auto"}, "messages"),
    ({**PLAIN, "messages": [None]}, "messages"),
    ({**PLAIN, "messages": [{"role": "user"}]}, "messages[0].content"),
    ({**PLAIN, "messages": [{"role": "robot", "content": "?"}]}, "messages[0].role"),
    ({**PLAIN, "messages": [{"role": "user", "content": ""}]}, "messages"),
    ({**PLAIN, "messages": [{"role": "user", "content": "\ud800"}]}, None),
    ({**PLAIN, "n": 1.5}, "n"),
    ({**PLAIN, "n": 10**30}, "n"),
    ({**PLAIN, "max_completion_tokens": -1}, "max_completion_tokens"),
    ({**PLAIN, "metadata": {"a": 1}}, "metadata"),
    ({**PLAIN, "uniscale": []}, "uniscale"),
    ({**PLAIN, "uniscale": {"weights": {"correct": "much"}}}, "uniscale.weights"),
    ({**PLAIN, "uniscale": {"weights": {"correct": 1e400}}}, None),
    ({**PLAIN, "uniscale": {"mean_cost": 0}}, "mean_cost"),
    ({**PLAIN, "uniscale": {"accuracy": 0.9, "mean_cost": 1e9}}, "accuracy"),
    ({**PLAIN, "uniscale": {"timeout_s": 1e300}}, "timeout_s"),
    ({**PLAIN, "uniscale": {"budget": {"tokens": 0}}}, "uniscale.budget"),
    ({**PLAIN, "uniscale": {"allowed_models": []}}, "allowed_models"),
    ({**PLAIN, "uniscale": {"metadata": {"x": "y" * 20_000}}}, "metadata"),
    ({**PLAIN, "uniscale": {"reference": []}}, "reference"),
    ({**PLAIN, "uniscale": {"grader": "exact"}}, "reference"),
    ({**PLAIN, "uniscale": {"grader": "exakt", "reference": "5"}}, "grader"),
    ({**PLAIN, "uniscale": {"grader": {"name": "exact", "fields": ["a"]}}}, "uniscale.grader.fields"),
    ({**PLAIN, "uniscale": {"grader": {"name": "json", "schma": {}}}}, "uniscale.grader"),
    ({**PLAIN, "uniscale": {"grader": {"name": "json", "schema": {}, "fields": ["a"]}}}, "reference"),
]


@pytest.mark.parametrize("path", [ASK, "/v1/decide"])
def test_wrong_types_and_unknown_fields(site: GatewayDeployment, client: httpx.Client, path: str) -> None:
    before = len(site.records(site.topics.query))
    for body, param in WRONG:
        sent = json.dumps(body).encode()
        answer = client.post(path, content=sent, headers={"content-type": "application/json"})
        refused(answer, 400, param)
    assert len(site.records(site.topics.query)) == before


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"grader": "regex", "reference": "("}, "reference: is '(', which is not a valid regular expression"),
        ({"grader": {"name": "json", "schema": {"type": 5}}}, "grader.schema: is not a JSON Schema ($.type"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_anything_runs(
    site: GatewayDeployment, client: httpx.Client, fields: dict[str, Any], why: str
) -> None:
    before = len(site.records(site.topics.decision))
    answer = client.post(ASK, json={**PLAIN, "uniscale": fields})
    assert why in refused(answer, 400)["message"]
    assert len(site.records(site.topics.decision)) == before


@pytest.mark.parametrize(
    "path", [ASK, "/v1/decide", "/v1/feedback", "/v1/dead-letters/retry", "/v1/objectives/x"]
)
def test_bodies_that_are_no_json_object(client: httpx.Client, path: str) -> None:
    method = "PUT" if "objectives" in path else "POST"
    nan = b'{"model": "auto", "messages": [], "uniscale": {"weights": {"correct": NaN}}, "id": NaN, "origin": NaN}'
    broken = (b"", b"{", b"[]", b"\xff\xfe{}", b'{"id": "\xc3"}', nan)
    for body in (*broken, b"[" * 100_000, b"null", b'"x"', b"\0" * 9):
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
        "/v1/queries?limit=1001",
        "/v1/queries?limit=99999999999",
        "/v1/queries?limit=-1",
        "/v1/now?limit=1",
    ):
        refused(client.get(path), 400, "limit")
    refused(client.get("/v1/now?within_s=0"), 400, "within_s")
    refused(client.get("/v1/queries?status=ok,lost"), 400, "status")
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


def raw(site: GatewayDeployment) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.settings.gateway.port), timeout=10)


def test_a_flood_of_headers_is_cut_off(site: GatewayDeployment) -> None:
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


def test_slow_clients_keep_nobody_waiting(site: GatewayDeployment, client: httpx.Client) -> None:
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


def test_who_sends_no_whole_head_is_cut_off(site: GatewayDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.3)
    with raw(site) as silent, raw(site) as slow, raw(site) as twice:
        slow.sendall(b"GET /v1/models HTTP/1.1\r\nhost: loc")
        twice.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of_next(twice) == 200
        twice.sendall(b"GET /v1/mod")
        assert (ends(silent), ends(slow), ends(twice)) == (0, 0, 0)


def test_where_connections_run_out_who_waited_longest_makes_room(
    site: GatewayDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "most_connections", lambda: 20)
    waiting = [raw(site) for _ in range(30)]
    try:
        for first in waiting[:8]:
            assert ends(first) == 0
        waiting[-1].sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of_next(waiting[-1]) == 200
    finally:
        for connection in waiting:
            connection.close()


@pytest.mark.parametrize("name", ["uPlot.esm.js", "d3-hierarchy.js"])
def test_who_reads_nothing_of_what_is_sent_is_cut_off(
    name: str, site: GatewayDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long file stops in its midst; a short one with its last part, when the next request is there already."""
    monkeypatch.setattr(server, "WRITE_S", 0.3)
    path = f"/static/vendor/{name}"
    with site.http() as client:
        size = len(client.get(path, headers={"accept-encoding": "identity"}).content)
    count = (20 << 20) // size
    request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with socket.socket() as connection:
        # Little fits into the buffers: they are full long before all is sent.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", site.settings.gateway.port))
        connection.sendall(count * request)
        with pytest.raises(ConnectionError):
            keep_sending(connection, request)
        assert ends(connection) < count * size


def keep_sending(connection: socket.socket, request: bytes) -> None:
    """Send until the other side is gone, which only sending shows to a client that reads nothing; 100 s at most."""
    for _ in range(1000):
        time.sleep(0.1)
        connection.sendall(request)


def status_of_next(connection: socket.socket) -> int:
    """Read one whole response: head and body may come in segments of their own."""
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def test_who_still_sends_a_refused_body_reads_why(site: GatewayDeployment) -> None:
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


def test_a_body_that_does_not_come_ends_in_a_408(
    site: GatewayDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "BODY_S", 0.3)
    with raw(site) as connection:
        connection.sendall(b"POST /v1/decide HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        said = b"".join(iter(lambda: connection.recv(4000), b""))
    assert b" 408 " in said.split(b"\r\n")[0]
    assert b'"code":"body_timeout"' in said


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
