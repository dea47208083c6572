"""The tracer: follows the topics and exports a trace of each query over OTLP, configured by OpenTelemetry's variables.

No query waits for the tracer or needs it. A query sent before the tracer started has no trace.
"""

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision as SamplerDecision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.record import decode, load, quick_id
from schemas.reward import Reward
from streams.log.base import ConsumerRecord
from streams.runtime.runtime import Runtime
from streams.trace import QueryTrace, SpanData, is_off, step_of

log = logging.getLogger("streams.tracer")

MOST: Final = 20_000
"""Maximum number of queries to keep until their Reward; the oldest are dropped first."""

BATCH: Final = 512
"""Spans in one request to the collector, OpenTelemetry's default."""

LINGER_S: Final = 2.0
"""Seconds to wait after an Answer before exporting its trace, because there is no order across topics."""

CONTENTS: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""OpenTelemetry's environment variable for whether spans contain questions and answers."""


_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class MissingExporter(UniscaleError):
    """The tracer's packages are not installed. Run `pip install 'uniscale-streams[tracing]'`."""


class TracerService:
    """Collects the records of queries and exports their spans.

    Args:
        runtime: Access to the topics.
        spans: Exports the spans.
    """

    def __init__(self, runtime: Runtime, spans: "SpanExporting") -> None:
        self.runtime, self._spans = runtime, spans
        self._open: OrderedDict[str, QueryTrace] = OrderedDict()
        self._due: OrderedDict[str, float] = OrderedDict()  # when the trace of an answered query is exported

    async def follow(self) -> None:
        """Read new records on the topics, and export the traces of queries that have ended."""
        topics, tail = self.runtime.topics, self.runtime.log.tail
        takes = {
            topics.query: self._on_query,
            topics.context: self._on_context,
            topics.decision: self._on_decision,
            topics.search_step: self._on_step,
            topics.attempt_failed: self._on_failure,
            topics.answer: self._on_answer,
        }
        # One reader: a fetch then brings the records of all of these topics, in any order.
        await tail(list(takes), lambda record: takes[record.topic](record), begin="end")
        await tail([topics.reward], self._on_reward, begin="end")
        self.runtime.background("spans", self._export)
        self.runtime.closers.append(self._close)

    def _of(self, query_id: str) -> QueryTrace:
        """Return what is known of a query, whichever of its records comes first."""
        found = self._open.setdefault(query_id, QueryTrace(query_id))
        if len(self._open) > MOST:
            self._open.popitem(last=False)
        return found

    def _on_query(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):
            query = decode(record.value, Query)
            found = self._of(query.query_id)
            if found.query is None:
                found.query, found.asked_ms = query, record.timestamp_ms

    def _on_context(self, record: ConsumerRecord) -> None:
        # Contexts are keyed by shard.
        if (query_id := quick_id(record.value)) is not None:
            found = self._of(query_id)
            found.context_ms = found.context_ms or record.timestamp_ms

    def _on_decision(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):
            made = decode(record.value, Decision)
            self._of(made.query_id).decisions.setdefault(made.attempt, (record.timestamp_ms, made))

    def _on_step(self, record: ConsumerRecord) -> None:
        key = (record.key or b"").decode(errors="replace")
        with contextlib.suppress(UniscaleError, KeyError, TypeError, ValueError):
            step, found = step_of(load(record.value), record.timestamp_ms), self._of(key)
            if all((s.attempt, s.number) != (step.attempt, step.number) for s in found.steps):
                found.steps.append(step)

    def _on_failure(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):
            failed = decode(record.value, AttemptFailed)
            self._of(failed.query_id).failures.setdefault(failed.attempt, (record.timestamp_ms, failed))

    def _on_answer(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):
            answer = decode(record.value, Answer)
            found = self._of(answer.query_id)
            if found.answer is None:
                found.answer = record.timestamp_ms, answer
                self._due[answer.query_id] = self.runtime.monotonic() + LINGER_S

    def _on_reward(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):
            reward = decode(record.value, Reward)
            found = self._open.get(reward.query_id)
            if not reward.closes or found is None or found.reward is not None:
                return
            found.reward = record.timestamp_ms, reward
            if reward.query_id not in self._due and found.answer is not None:
                self._finish(found)

    async def _export(self) -> None:
        while True:
            await self.runtime.sleep(LINGER_S / 4)
            now_s = self.runtime.monotonic()
            while self._due and next(iter(self._due.values())) <= now_s:
                self._answered(self._due.popitem(last=False)[0])
            await self._spans.export()

    def _answered(self, query_id: str) -> None:
        if (found := self._open.get(query_id)) is None:
            return
        if found.query is None:  # it was sent before the tracer started
            del self._open[query_id]
            return
        self._spans.add(found, found.spans(contents=self._spans.contents))
        for exported in (found.decisions, found.steps, found.failures):
            exported.clear()  # a Reward may take days
        if found.reward is not None or found.answer is None or found.answer[1].status == "rejected":
            self._finish(found)

    def _finish(self, found: QueryTrace) -> None:
        self._spans.add(found, found.grading())
        del self._open[found.query_id]

    async def _close(self) -> None:
        for query_id in list(self._due):
            self._answered(query_id)
        await self._spans.close()


class SpanExporting:
    """Passes spans to OpenTelemetry's exporter, with the ids that follow from the records.

    Attributes:
        contents: Whether spans contain questions and answers.

    Raises:
        MissingExporter: the exporter's packages are not installed.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise MissingExporter(str(error)) from error
        name = os.environ.get("OTEL_SERVICE_NAME", "uniscale-streams")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self._exporter = OTLPSpanExporter()
        self._made: list[ReadableSpan] = []
        self._scope = InstrumentationScope("uniscale.streams")
        self._off = is_off(os.environ)
        self.contents = os.environ.get(CONTENTS, "").lower() == "true"

    def add(self, query: QueryTrace, spans: Iterable[SpanData]) -> None:
        """Make spans of a query, for the next export.

        They are made whole, as a started span would ask the sampler and copy its attributes once more for each.
        """
        trace_id, parent_id, flags = query.context

        def own(key: str) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(query.span_id(key), 16), False, _SAMPLED)

        client = None
        if parent_id:
            client = SpanContext(int(trace_id, 16), int(parent_id, 16), True, TraceFlags(int(flags, 16)))
        if self._off or not self._sampled(int(trace_id, 16), client):
            return
        for span in spans:
            self._made.append(
                ReadableSpan(
                    span.name,
                    own(span.key),
                    parent=own(span.parent) if span.parent else client,
                    resource=self._provider.resource,
                    attributes={name: value for name, value in span.attributes.items() if value is not None},
                    kind=SpanKind.INTERNAL if span.parent else SpanKind.SERVER,
                    status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                    start_time=_ns(span.began_ms),
                    end_time=_ns(span.ended_ms),
                    instrumentation_scope=self._scope,
                )
            )

    def _sampled(self, trace_id: int, client: SpanContext | None) -> bool:
        """Return whether `OTEL_TRACES_SAMPLER` chooses a trace, whose other spans follow the first."""
        context = Context()
        if client is not None:
            context = otel.set_span_in_context(NonRecordingSpan(client), context)
        chosen = self._provider.sampler.should_sample(context, trace_id, "query", SpanKind.SERVER)
        return chosen.decision is SamplerDecision.RECORD_AND_SAMPLE

    async def export(self) -> None:
        """Export the spans made so far, in one request after another: none is dropped while the collector keeps up.

        If it refuses some, or does not answer within `OTEL_EXPORTER_OTLP_TIMEOUT`, all are dropped.
        """
        while self._made:
            batch, self._made = self._made[:BATCH], self._made[BATCH:]
            if not await asyncio.to_thread(self._taken, batch):
                lost, self._made = len(batch) + len(self._made), []
                log.warning("%d spans are lost: the collector did not take them", lost)

    def _taken(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # whatever a wrong address or certificate raises
            log.exception("a request to the collector failed")
            return False

    async def close(self) -> None:
        """Export the remaining spans and shut down."""
        await self.export()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it has no annotations


def _ns(ms: float) -> int:
    return round(ms * 1000) * 1000  # microseconds are exact in a float
