"""The cost of traces: the same deployment with and without the tracer, in alternating rounds.

Without the tracer nothing of a trace exists: the services are the same processes on both sides. With it, the tracer
runs beside them, as under `up`, and exports every query's trace to a collector in a process of its own
(`python -m bench.traces PORT`), which keeps what it is sent and decodes it after the round.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import numpy as np
import uvicorn
from scipy import stats
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.gateway import group_cpu_s
from bench.peers import serving
from bench.streams import BenchFailed, RunningServices, answered_s, cpu_s, recording, running
from schemas.query import Query
from streams.local.broker import LocalBroker, free_port
from streams.local.deployment import Supervisor, service_commands, settings_for
from streams.settings import Settings

SHARE: Final = 0.03
"""Greatest share of the throughput that traces may cost."""

_PATIENCE_S: Final = 60.0


class TracePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of the measurement.

    Attributes:
        queries: Number of queries in each round.
        rounds: Number of rounds of each side.
        steps: Number of steps of each search.
        in_flight: Number of queries in flight.
        warm: Number of queries before the first round.
    """

    queries: int = 2000
    rounds: int = 6
    steps: int = 5
    in_flight: int = 256
    warm: int = 300


class Round(NamedTuple):
    """One round of one side.

    Attributes:
        queries_per_s: Queries per second, until the last Answer.
        services_ms: Processor time of the services and the broker for each query, in ms.
        tracer_ms: Processor time of the tracer for each query, in ms, until every trace has been exported.
    """

    queries_per_s: float
    services_ms: float
    tracer_ms: float = 0.0


def measure(settings: Settings, broker: LocalBroker, plan: TracePlan, folder: Path) -> dict[str, Any]:
    """Return the queries per second and the processor time of both sides, and the ratios with and without traces.

    Args:
        settings: Settings of the services. They use the hashed encoder and a recorded engine.
        broker: A running broker.
        plan: The extent of the measurement.
        folder: Folder for the recording, the state and the logs.

    Raises:
        ServiceFailed: a service did not become ready.
        BenchFailed: a query has no Answer, or no trace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    questions = [f"Question {n}: how many are {n % 97} and {n % 89} together?" for n in range(50)]
    recorded = partial(recording, questions=questions, steps=plan.steps)
    shared = settings_for(settings, broker).replace(encoder="hashed", max_in_flight=plan.in_flight)
    port, taken = free_port(), {"off": list[Round](), "on": list[Round]()}
    url = f"http://127.0.0.1:{port}"
    collector = serving(
        [sys.executable, "-m", "bench.traces", str(port)], f"{url}/traces", folder / "collector.log"
    )
    with collector, running(shared, folder / "run", recorded) as services:
        answered_s(services.settings, _queries(services, "warm", plan.warm, questions), 0.0)
        for at in range(plan.rounds):
            for side in ("off", "on") if at % 2 == 0 else ("on", "off"):
                queries = _queries(services, f"{side}-{at}", plan.queries, questions)
                if side == "off":
                    taken[side].append(_round(services, broker, queries))
                    continue
                with _tracer(services, url, folder) as tracer:
                    began_s = cpu_s(tracer.services["tracer"].pid)
                    one = _round(services, broker, queries)
                    _wait_for_traces(url, len(queries))
                    spent_s = cpu_s(tracer.services["tracer"].pid) - began_s
                    taken[side].append(one._replace(tracer_ms=1000 * spent_s / len(queries)))
    return _figures(taken)


def _queries(services: RunningServices, name: str, count: int, questions: Sequence[str]) -> list[Query]:
    # One path per search, as in `bench.streams`.
    pin = f"{services.catalogue.smallest.name}/1/1/1"
    return [
        Query(query_id=f"{name}-{n}", text=questions[n % len(questions)], reference="0", pin_action=pin)
        for n in range(count)
    ]


def _round(services: RunningServices, broker: LocalBroker, queries: Sequence[Query]) -> Round:
    def spent_s() -> float:
        own = sum(cpu_s(service.pid) for service in services.supervisor.services.values())
        return own + (group_cpu_s(broker.process.pid) if broker.process is not None else 0.0)

    before_s = spent_s()
    wall_s = answered_s(services.settings, queries, 0.0)
    return Round(len(queries) / wall_s, 1000 * (spent_s() - before_s) / len(queries))


@contextmanager
def _tracer(services: RunningServices, url: str, folder: Path) -> Iterator[Supervisor]:
    """Run a tracer beside the services until the end of the block."""
    argv = service_commands(services.catalogue.groups, optional=("tracer",))["tracer"]
    environ = {**os.environ, **services.settings.environ(), "OTEL_EXPORTER_OTLP_ENDPOINT": url}
    log = folder / "tracer.log"
    with Supervisor({"tracer": [*argv, "--metrics-port", "0"]}, environ=environ, log_path=log) as tracer:
        tracer.wait_ready()
        yield tracer


def _wait_for_traces(url: str, count: int) -> None:
    until_s, found = time.monotonic() + _PATIENCE_S, 0
    while found < count:
        if time.monotonic() > until_s:
            raise BenchFailed(f"the collector has {found} of {count} traces after {_PATIENCE_S:.0f} s")
        time.sleep(0.5)
        found += httpx.get(f"{url}/traces", trust_env=False).json()["queries"]


def _figures(taken: dict[str, list[Round]]) -> dict[str, Any]:
    def of(side: str, name: str) -> list[float]:
        return [float(f"{getattr(each, name):.4g}") for each in taken[side]]

    speed = [on.queries_per_s / off.queries_per_s for off, on in zip(taken["off"], taken["on"], strict=True)]
    work = [
        (on.services_ms + on.tracer_ms) / off.services_ms
        for off, on in zip(taken["off"], taken["on"], strict=True)
    ]
    return {
        "queries_per_s": {side: of(side, "queries_per_s") for side in taken},
        "services_ms": {side: of(side, "services_ms") for side in taken},
        "tracer_ms": of("on", "tracer_ms"),
        "speed": _ratio(speed),
        "processor_time": _ratio(work),
        "reached": median(speed) >= 1 - SHARE,
    }


def _ratio(pairs: Sequence[float]) -> dict[str, Any]:
    """Return the geometric mean of paired ratios with its 95 % interval; None as interval of a single pair."""
    logs, count = np.log(pairs), len(pairs)
    found: dict[str, Any] = {"mean": round(float(np.exp(fmean(logs))), 3), "interval": None}
    if count > 1:
        half = float(stats.t.ppf(0.975, count - 1)) * stdev(logs) / count**0.5
        found["interval"] = [round(float(np.exp(fmean(logs) + sign * half)), 3) for sign in (-1, 1)]
    return found


# The collector. It runs in a process of its own.


class _Collector:
    """Keeps the bodies that it is sent, and counts their queries when it is asked."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []

    async def take(self, request: Request) -> Response:
        self._bodies.append(await request.body())
        return Response(media_type="application/x-protobuf")

    async def count(self, _: Request) -> Response:
        """Return how many spans called `query` have come since the last call."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        bodies, self._bodies = self._bodies, []
        found = 0
        for body in bodies:
            await asyncio.sleep(0)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                found += sum(span.name == "query" for scope in resource.scope_spans for span in scope.spans)
        return JSONResponse({"queries": found})


if __name__ == "__main__":
    collector = _Collector()
    routes = [
        Route("/v1/traces", collector.take, methods=["POST"]),
        Route("/traces", collector.count),
    ]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[1]), log_level="error", access_log=False)
