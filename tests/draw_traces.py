"""Draws the traces of docs/tracing.md: `python -m tests.draw_traces FOLDER`.

A deployment in memory answers from a recording, one of its models fails at its second step, and the spans are those
that the tracer has exported to a collector.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib.pyplot as plt
import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix
from streams.local.broker import free_port
from tests.streams.gateway.test_traces import Failing, ask_all, attributes
from tests.support.collector import Collector
from tests.support.gateway_deployment import DEPLOYED, GatewayDeployment
from tests.support.recorded import recorded_in_memory, recorded_paths
from tests.support.recorded_engines import run_on

COLOURS = {
    "query": "#3b4252",
    "admission": "#88a0b8",
    "decision": "#8f6fb0",
    "chat": "#2f6db3",
    "step": "#3a9d6b",
    "verification": "#d08a2e",
    "grading": "#7a7a7a",
}


class Slow(Failing):
    """Takes the time of a real engine, so that there is something to see."""

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        await asyncio.sleep(0.03 + 0.002 * n * len(prefixes))
        return await super().generate(step_id, prefixes, n, seeds, sampling)


def main(folder: Path) -> None:
    """Ask, wait for the traces, and draw one with two attempts and one with a search of three steps."""
    collector = Collector()
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
    with pytest.MonkeyPatch.context() as patched, TemporaryDirectory() as state:
        run_on(patched, Slow)
        settings = recorded_in_memory(Path(state), recorded_paths(12, samples=3, steps=(1, 3)))
        ports = {"gateway_port": free_port(), "decider_port": free_port()}
        site = GatewayDeployment(settings.replace(attempts=2, warm_up=50, **ports), (*DEPLOYED, "tracer"))
        ask_all(site, collector)
        traces = {
            root.trace_id: [s for s in collector.spans if s.trace_id == root.trace_id]
            for root in collector.named("query")
        }
        site.close()
    twice = [t for t in traces.values() if len(_named(t, "chat")) == 2]
    once = [t for t in traces.values() if len(_named(t, "chat")) == 1 and len(_named(t, "step")) == 3]
    for name, found in (("trace-two-attempts", twice), ("trace-three-steps", once)):
        draw(max(found, key=len), folder / f"{name}.png")


def draw(spans: list[Any], path: Path) -> None:
    """Draw a trace: one row a span, children below their parent, times in ms since the query."""
    (root,) = _named(spans, "query")
    rows: list[tuple[int, Any]] = []

    def below(span: Any, depth: int) -> None:
        rows.append((depth, span))
        inner = [each for each in spans if each.parent_span_id == span.span_id]
        for each in sorted(inner, key=lambda each: (each.start_time_unix_nano, each.end_time_unix_nano)):
            below(each, depth + 1)

    below(root, 0)
    figure, axes = plt.subplots(figsize=(10, 0.36 * len(rows) + 0.9))
    for at, (_, span) in enumerate(rows):
        began = (span.start_time_unix_nano - root.start_time_unix_nano) / 1e6
        took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        axes.barh(at, max(took, 0.4), left=began, height=0.62, color=COLOURS[span.name.split()[0]])
        told = attributes(span)
        note = told.get("error.type") or told.get("uniscale.action", "")
        axes.annotate(f" {took:.0f} ms  {note}", (began + max(took, 0.4), at), va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), ["    " * depth + span.name for depth, span in rows], ha="left")
    axes.tick_params(axis="y", pad=120, length=0)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms since the query was sent")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def _named(spans: list[Any], name: str) -> list[Any]:
    return [each for each in spans if each.name.split()[0] == name]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
