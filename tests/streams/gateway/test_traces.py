"""Traces of queries: spans and their ids from the records, exported to a collector that was really run."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streams.trace import is_wanted
from tests.support.gateway_deployment import ASK, DEPLOYED, PLAIN, Deploy, GatewayDeployment

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector(ThreadingHTTPServer):
    """An OTLP collector: keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        super().__init__(("127.0.0.1", 0), _Receive)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def named(self, name: str) -> list[Any]:
        return [each for each in self.spans if each.name.startswith(name)]


class _Receive(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Collector)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def traced(deploy: Deploy, collector: Collector) -> Iterator[GatewayDeployment]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield deploy((*DEPLOYED, "tracer"))


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_a_query_is_one_trace_across_all_services(traced: GatewayDeployment, collector: Collector) -> None:
    with traced.http() as client:
        answer = client.post(
            ASK, json={**PLAIN, "uniscale": {"reference": "5"}}, headers={"traceparent": PARENT}
        )
    query_id = answer.json()["id"]
    traced.closing(query_id)
    traced.until(lambda: bool(collector.named("grading")))

    (root,) = collector.named("query")
    assert root.trace_id.hex() == PARENT.split("-")[1]
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    assert attributes(root)["uniscale.query.id"] == query_id
    for name in ("admission", "decision", "chat ", "grading"):
        (span,) = collector.named(name)
        assert (span.trace_id, span.parent_span_id) == (root.trace_id, root.span_id), name
    (attempt,) = collector.named("chat ")
    assert attributes(attempt)["gen_ai.request.model"] in attempt.name
    assert attributes(attempt)["gen_ai.usage.output_tokens"] > 0
    steps, scored = collector.named("step"), collector.named("verification")
    assert steps
    assert len(steps) == len(scored)
    assert {each.parent_span_id for each in (*steps, *scored)} == {attempt.span_id}
    for span in (*steps, *collector.named("admission"), *collector.named("decision"), attempt):
        assert root.start_time_unix_nano <= span.start_time_unix_nano + 5e6, span.name
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano + 5e6, (
            span.name
        )


def test_no_text_is_exported_unless_it_is_asked_for(collector: Collector) -> None:
    assert collector.spans
    assert not any("messages" in name for span in collector.spans for name in attributes(span))


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_opentelemetrys_variables_turn_it_on(environ: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environ) is wanted
