"""One measured run of the streams: all services, with engines that answer at once, on one broker.

The engine's own speed is not measured here; see `engine.py`. `turns.py` takes the medians of alternating runs.
"""

import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import psutil

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue
from agents.serving.recorded import RecordedPath, RecordedStep, write_paths
from schemas.errors import UniscaleError
from schemas.query import Query
from streams.client.client import Client
from streams.client.events import read_timelines
from streams.client.replay import SendSchedule
from streams.demo.summary import latencies
from streams.local.broker import LocalBroker
from streams.local.deployment import READY, Supervisor, service_commands, settings_for
from streams.local.llama import llama_commands
from streams.log import kafka_admin
from streams.settings import Settings
from streams.topics import Topics


class BenchFailed(UniscaleError):
    """A measurement cannot be completed. The message says why."""


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a run."""

    queries: int = 1000
    steps: int = 5
    in_flight: int = 256
    warm: int = 100


def recording(catalogue: Catalogue, questions: Sequence[str], steps: int) -> list[RecordedPath]:
    """Return a recorded path with `steps` steps for each question and model, so that every search takes that many."""
    rng = random.Random(5)
    return [
        RecordedPath(
            question=question,
            model=model,
            path=0,
            prompt_tokens=60,
            steps=tuple(
                RecordedStep(
                    text=f"Step {at} of {model}: " + "so there are more of them. " * 3 + "\n\n",
                    tokens=30,
                    score=rng.random(),
                    finish="eos" if at == steps else "separator",
                )
                for at in range(1, steps + 1)
            ),
        )
        for question in questions
        for model in catalogue.model_names
    ]


class RunningServices(NamedTuple):
    """A running deployment.

    Attributes:
        settings: The settings for clients.
        catalogue: The models.
        supervisor: The services' supervisor; all services are ready.
    """

    settings: Settings
    catalogue: Catalogue
    supervisor: Supervisor


@contextmanager
def running(
    settings: Settings,
    folder: Path,
    recorded: Callable[[Catalogue], Sequence[RecordedPath]] | None,
    *,
    optional: Sequence[str] = (),
    ports: Callable[[str], int] = lambda name: 0,
) -> Iterator[RunningServices]:
    """Run a separate deployment on a running broker. Its services stop at the end of the block.

    Args:
        settings: Base settings.
        folder: The folder for the recording, the state and the log.
        recorded: Returns the recording to answer from; None to run the catalogue's engines.
        optional: Optional services to run.
        ports: Returns a service's metrics port, given its name; 0 for none.

    Raises:
        ServiceFailed: a service does not become ready.
    """
    folder.mkdir(parents=True, exist_ok=True)
    catalogue, file = load_catalogue(Path(settings.catalogue)), folder / "recording.jsonl"
    if recorded is not None:
        write_paths(file, recorded(catalogue))
    settings = settings.replace(
        prefix=f"bench-{uuid.uuid4().hex[:6]}.",
        state_dir=str(folder / "state"),
        recorded="" if recorded is None else str(file),
    )
    kafka_admin.create(settings, Topics(settings).declared(catalogue.groups))
    commands: dict[str, Sequence[str]] = {
        name: [*argv, "--metrics-port", str(ports(name))]
        for name, argv in service_commands(catalogue.groups, optional=optional).items()
    }
    commands |= llama_commands(settings, READY, partial(click.echo, err=True))
    environ = {**os.environ, **settings.environ(), "OMP_NUM_THREADS": "1"}
    with Supervisor(commands, environ=environ, log_path=folder / "services.log") as supervisor:
        supervisor.wait_ready(600)
        yield RunningServices(settings, catalogue, supervisor)


def run_once(
    settings: Settings, broker: LocalBroker, plan: StreamPlan, folder: Path, encoder: str, rate: float
) -> dict[str, Any]:
    """Start the services, warm them up, send the queries, wait for all Answers, and return the run's figures.

    Args:
        settings: Settings common to all runs.
        broker: A running broker.
        plan: The extent of the run.
        folder: A new folder for the recording, the state and the log.
        encoder: `minilm`, or `hashed` to exclude the cost of embedding.
        rate: Queries per second, in an open loop; 0 to send everything at once, limited only by admission.

    Raises:
        ServiceFailed: a service did not become ready.
        BenchFailed: a query has no Answer.
    """
    questions = [
        f"Question {n}: how many are {n % 97} and {n % 89} together?" for n in range(plan.queries + plan.warm)
    ]
    recorded = partial(recording, questions=questions[:50], steps=plan.steps)
    shared = settings_for(settings, broker).replace(encoder=encoder, max_in_flight=plan.in_flight)
    with running(shared, folder, recorded) as (settings, catalogue, supervisor):
        # One path per search: this measures the infrastructure, not wide searches.
        pin = f"{catalogue.smallest.name}/1/1/1"
        queries = [
            Query(query_id=f"b{n}", text=text, reference="0", pin_action=pin)
            for n, text in enumerate(questions)
        ]
        answered_s(settings, queries[: plan.warm], 0.0)
        before = {name: cpu_s(service.pid) for name, service in supervisor.services.items()}
        wall_s = answered_s(settings, queries[plan.warm :], rate)
        spent = {
            name: round(cpu_s(service.pid) - before[name], 2) for name, service in supervisor.services.items()
        }
    timelines = read_timelines(settings, catalogue.groups)
    asked = [timelines.by_id[q.query_id] for q in queries[plan.warm :]]
    steps = [len({s.step for s in timeline.steps}) for timeline in asked]
    return {
        # Four significant digits, even if the speed is low, because other figures are divided by it.
        "queries_per_s": float(f"{plan.queries / wall_s:.4g}"),
        "steps_per_query": sum(steps) / len(steps),
        "bytes_per_query": round(timelines.bytes / len(queries)),
        "cpu_s_by_service": spent,
        "latency_ms": latencies(asked),
    }


def answered_s(settings: Settings, queries: Sequence[Query], rate: float) -> float:
    """Send queries, wait for all Answers, and return the elapsed seconds."""
    with Client(settings) as client:
        asked = client.ask_all(queries, pace=SendSchedule(rate), timeout_s=900.0)
    if asked.missing:
        raise BenchFailed(f"{len(asked.missing)} queries have no Answer in {asked.wall_s:.0f} s")
    return asked.wall_s


def cpu_s(pid: int) -> float:
    """Return the CPU seconds used by a process and its ended children (Linux)."""
    return float(sum(psutil.Process(pid).cpu_times()[:4]))
