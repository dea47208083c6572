"""Traces of queries: spans and their ids from the records, exported to a collector that was really run."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import EngineFaultError
from agents.serving.recorded import RecordedEngine
from streams.services.tracer import SpanExporting, TracerService
from streams.trace import QueryTrace, SpanData, is_wanted
from tests.support.collector import Collector
from tests.support.gateway_deployment import ASK, DEPLOYED, PLAIN, Deploy, GatewayDeployment
from tests.support.recorded import question
from tests.support.recorded_engines import run_on

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


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


def test_records_in_any_order_make_the_same_trace(
    traced: GatewayDeployment, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced.http() as client:
        query_id = client.post(ASK, json={**PLAIN, "uniscale": {"reference": "5"}}).json()["id"]
    traced.closing(query_id)
    trace = QueryTrace(query_id).context[0]

    def of_trace(found: Collector) -> set[tuple[str, bytes, bytes]]:
        return {
            (each.name, each.span_id, each.parent_span_id)
            for each in found.spans
            if each.trace_id.hex() == trace
        }

    traced.until(lambda: any(name == "grading" for name, *_ in of_trace(collector)))
    other = Collector()
    threading.Thread(target=other.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", other.url)
    runtime: Any = SimpleNamespace(monotonic=lambda: 0.0)
    service, topics = TracerService(runtime, SpanExporting()), traced.topics
    for topic, take in (
        (topics.answer, service._on_answer),
        (topics.search_step, service._on_step),
        (topics.decision, service._on_decision),
        (topics.context, service._on_context),
        (topics.query, service._on_query),
        (topics.reward, service._on_reward),
    ):
        for record in reversed(traced.records(topic)):
            take(record)
    asyncio.run(service._close())
    assert of_trace(other) == of_trace(collector)
    assert len(of_trace(other)) > 5
    other.shutdown()


def test_a_burst_of_spans_is_exported_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Collector()
    threading.Thread(target=found.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    exporting = SpanExporting()
    for number in range(300):
        steps = [SpanData(f"step {at}", "burst", "", 0.0, 1.0) for at in range(10)]
        exporting.add(QueryTrace(f"q-{number}"), steps)
    asyncio.run(exporting.close())
    assert len(found.named("burst")) == 3000
    found.shutdown()


def test_a_collector_that_refuses_costs_spans_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "no address")
    exporting = SpanExporting()
    exporting.add(QueryTrace("q-1"), [SpanData("query", "query", "", 0.0, 1.0)])
    asyncio.run(exporting.close())
    assert "1 spans are lost: the collector did not take them" in caplog.text


class Failing(RecordedEngine):
    """Fails a client's search at its first or second step."""

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        if self.model == "large" and step_id.endswith(("/1", "/2")):
            raise EngineFaultError(f"{self.model}: HTTP 500")
        return await super().generate(step_id, prefixes, n, seeds, sampling)


def ask_all(site: GatewayDeployment, collector: Collector) -> None:
    """Ask every recorded question, and wait for all traces."""
    with site.http() as client:
        for number in range(12):
            text, answer = question(number)
            asked = {"model": "auto", "messages": [{"role": "user", "content": text}]}
            client.post(ASK, json={**asked, "uniscale": {"reference": answer}})
    site.until(lambda: len(collector.named("grading")) == 12)


def test_each_attempt_is_a_span_with_its_error(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    run_on(monkeypatch, Failing)
    collector = Collector()
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    site = deploy((*DEPLOYED, "tracer"), attempts=2, warm_up=50)
    ask_all(site, collector)
    twice = [each for each in collector.named("query") if attributes(each)["uniscale.attempts"] == 2]
    assert twice
    for root in twice:
        attempts = [each for each in collector.named("chat ") if each.parent_span_id == root.span_id]
        first, second = sorted(attempts, key=lambda each: each.start_time_unix_nano)
        assert attributes(first)["gen_ai.request.model"] == "large"
        assert attributes(second)["gen_ai.request.model"] != "large"
        assert first.status.code == 2
        assert "error.type" in attributes(first)
        assert second.status.code == 0
        assert first.end_time_unix_nano <= second.start_time_unix_nano
    collector.shutdown()


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
