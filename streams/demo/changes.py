"""The second act: three changes on the running deployment, and after how many queries the choices follow each.

An objective is changed by a command. Then a model becomes worse without notice: the files behind its name are replaced
by those of the smallest model, and the executor is started again, as after a mistaken roll-out; no record says so.
Last, a model joins by its description: the original files, under a name that the policy has no history of.
"""

import math
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import yaml

from agents.catalogue.file import beside_catalogue, entry_of, load_catalogue
from agents.catalogue.models import Catalogue, Model
from schemas.control import Heartbeat
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.reward import Reward
from streams.client.client import Client
from streams.client.events import Timelines
from streams.client.questions import renamed
from streams.demo.following import WINDOW, Change, Choice, Condition, choices_of, observed
from streams.demo.paired import baseline_for, compared, named
from streams.demo.summary import thirds
from streams.local.deployment import Deployment, ServiceFailed, Supervisor, python

OBJECTIVE = "demo"
"""Name of the objective of all queries of the demo."""

LEEWAY = 1.1
"""Mean cost over the target's at which the choices count as following it."""

SPENDS = 0.5
"""The new target for the mean cost, as a share of what the policy spent before."""

GOOD_AT = ("quick", "procedures")
"""Families in which the mean of the new model's anchors is at least ten points above every other unchanged model's."""

SERVED_S = 600.0
"""Maximum seconds until the executor serves a model that has been added or replaced."""


class ChangeFailed(UniscaleError):
    """A change could not be made. The message says which, and why."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Number of the policy's queries after each change."""

    objective: int = 60
    worse: int = 140
    joined: int = 160


def why_not(catalogue: Catalogue, control: str, recording: str) -> str:
    """Return why the changes cannot be shown on a deployment; empty if they can.

    Args:
        catalogue: Its catalogue.
        control: The action of the main baseline, whose model becomes worse; empty if there is none.
        recording: The recording that answers; empty if engines do.
    """
    if recording:
        return "a recording answers as it did, whatever changes"
    name = control.partition("/")[0]
    if name not in catalogue.model_names:
        return "they need a baseline, whose model becomes worse"
    for model in (catalogue.model(name), smallest(catalogue)):
        if model.endpoint.kind != "in-process" or not Path(model.checkpoint).is_dir():
            return f"the files of {model.name} are not on this machine"
    return ""


def with_link(path: Path, name: str, folder: Path) -> Path:
    """Write a catalogue in which one model is read through a link, which can be turned to other files later.

    Args:
        path: The catalogue file.
        name: The model.
        folder: Where to write the catalogue and the link.

    Returns:
        The new catalogue file. It is the same as the old one in everything else.
    """
    catalogue, beside = load_catalogue(path), beside_catalogue(path)
    content = msgspec.to_builtins(catalogue)
    del content["version"]
    extras = {**beside._asdict(), "parallelism": list(beside.parallelism)}
    extras["prior"] = None if beside.prior is None else str(beside.prior)
    content |= {name: value for name, value in extras.items() if value is not None}
    for model in content["models"]:
        if model["name"] == name:
            link = folder.resolve() / "served" / name
            turn(link, Path(model["checkpoint"]))
            model["checkpoint"] = str(link)
    written = folder.resolve() / "catalogue.yaml"
    written.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return written


def turn(link: Path, to: Path) -> None:
    """Point a link at a folder, at once for every reader."""
    link.parent.mkdir(parents=True, exist_ok=True)
    beside = link.with_name(f"{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(to.resolve(), target_is_directory=True)
    beside.replace(link)


@dataclass(frozen=True)
class Plan:
    """What the second act needs to know.

    Attributes:
        catalogue: The models, before `with_link`.
        control: The action of the main baseline. Its model becomes worse, and joins again under another name.
        accuracy: The objective's share of the accuracy within reach.
        counts: The number of queries after each change.
        questions: The questions to ask.
        first: The policy's choices in the first act.
        unit: Mean cost of the main baseline in the first act, as multiples of which costs are told.
        timeout_s: Maximum seconds that the queries after a change may take.
    """

    catalogue: Catalogue
    control: str
    accuracy: float
    counts: Counts
    questions: Iterator[Query]
    first: Sequence[Choice]
    unit: float
    timeout_s: float

    @property
    def model(self) -> str:
        """The model of the main baseline."""
        return self.control.partition("/")[0]

    @property
    def joining(self) -> str:
        """The name under which the model joins again."""
        return f"{self.model}-2"

    def share(self) -> float:
        """Return the model's share of the choices of the first act."""
        return fmean(choice.model == self.model for choice in self.first)


class SecondAct:
    """The three changes, made one after the other.

    Args:
        deployment: The running deployment, with a catalogue of `with_link`.
        client: Its client.
        plan: What to do.
        say: Called with a line of text for each step.
        progress: Called with the changes so far.

    Attributes:
        missing: Ids of the queries without an Answer.
    """

    def __init__(
        self,
        deployment: Deployment,
        client: Client,
        plan: Plan,
        say: Callable[[str], None],
        progress: Callable[[Sequence[Change]], None],
    ) -> None:
        self._deployment, self._client, self._plan = deployment, client, plan
        self._say, self._progress = say, progress
        self._folder = Path(deployment.settings.catalogue).parent
        self._changes: list[Change] = []
        self._pairs: dict[str, list[tuple[str, str]]] = {}
        self.missing: list[str] = []

    def run(self) -> None:
        """Make the changes, and ask after each.

        Raises:
            ChangeFailed: a change could not be made.
        """
        self._objective()
        self._worse()
        self._joined()

    def results(self, timelines: Timelines, seed: int) -> list[dict[str, Any]]:
        """Return the changes made, as plain values, with the policy's queries compared with the baseline's."""
        return [
            msgspec.to_builtins(change)
            | {
                "comparison": compared(timelines, pairs, action=self._plan.control, seed=seed)
                if (pairs := self._pairs.get(change.name))
                else None
            }
            for change in self._changes
        ]

    def _objective(self) -> None:
        plan = self._plan
        spent = fmean(choice.cost for choice in plan.first)
        target = float(f"{SPENDS * spent:.3g}")
        line = self._command("objective", "set", OBJECTIVE, "--mean-cost", f"{target:.3g}")
        most = LEEWAY * target / plan.unit
        condition = Condition(
            f"the last {WINDOW} cost at most {most:.2f} times {named(plan.control)}",
            lambda choice: choice.cost / plan.unit,
            most,
            at_most=True,
        )
        title = f"The objective becomes {SPENDS:.0%} of the cost"
        self._ask("objective", title, line, condition, plan.counts.objective)
        self._command("objective", "set", OBJECTIVE, "--accuracy", f"{plan.accuracy:g}")

    def _worse(self) -> None:
        plan, other = self._plan, smallest(self._plan.catalogue)
        most = plan.share() / 2
        turn(self._folder / "served" / plan.model, Path(other.checkpoint))
        did = f"the files behind {plan.model} are now those of {other.name}, and its executor has been started again"
        self._say(did)
        _restart(self._deployment.supervisor, f"executor.{plan.catalogue.model(plan.model).group}")
        self._served(plan.model)
        condition = Condition(
            f"{plan.model} has at most {most:.0%} of the last {WINDOW}, half of its share before",
            lambda choice: float(choice.model == plan.model),
            most,
            at_most=True,
        )
        title = f"{plan.model} becomes worse without notice"
        self._ask("worse", title, did, condition, plan.counts.worse, beside=True)

    def _joined(self) -> None:
        plan = self._plan
        least, name = plan.share() / 2, plan.joining
        model = plan.catalogue.model(plan.model)
        entry = msgspec.structs.replace(model, name=name, checkpoint=str(Path(model.checkpoint).resolve()))
        file = self._folder / f"{name}.yaml"
        file.write_text(entry_of(entry), encoding="utf-8")
        line = self._command("catalogue", "add", os.path.relpath(file))
        self._served(name)
        condition = Condition(
            f"{name} has at least {least:.0%} of the last {WINDOW}, half of what {plan.model} had before",
            lambda choice: float(choice.model == name),
            least,
            at_most=False,
        )
        title = f"{name} joins by its description"
        choices = self._ask("joined", title, line, condition, plan.counts.joined)
        late = choices[len(choices) // 2 :]
        good = [choice.model == name for choice in late if choice.family in GOOD_AT]
        other = [choice.model == name for choice in late if choice.family not in GOOD_AT]
        if good and other:
            note = (
                f"in the second half, {name} got {fmean(good):.0%} of {' and '.join(GOOD_AT)}, where its description "
                f"is at least ten points above all others', and {fmean(other):.0%} of the rest."
            )
            self._changes[-1] = msgspec.structs.replace(self._changes[-1], notes=(note,))

    def _ask(
        self, name: str, title: str, did: str, condition: Condition, count: int, beside: bool = False
    ) -> list[Choice]:
        """Send queries after a change, and record how the choices followed; return the choices.

        Args:
            name: The change, as in Change.
            title: What changed.
            did: How.
            condition: When the choices follow.
            count: The number of queries.
            beside: Whether each question also goes to the main baseline.
        """
        plan = self._plan
        queries = [
            msgspec.structs.replace(query, objective=OBJECTIVE) for query in islice(plan.questions, count)
        ]
        baselines = [baseline_for(query, plan.control) for query in queries] if beside else []
        self._pairs[name] = [(a.query_id, b.query_id) for a, b in zip(queries, baselines, strict=False)]
        change = Change(
            name=name,
            title=title,
            did=did,
            condition=condition.words,
            threshold=condition.threshold,
            at_most=condition.at_most,
            asked=count,
            without_change=None if name == "joined" else condition.first(plan.first),
        )
        self._changes.append(change)

        def show(rewards: Mapping[str, Reward]) -> None:
            self._changes[-1] = observed(change, condition, choices_of(queries, rewards))
            self._progress(self._changes)

        every = (
            [each for pair in zip(queries, baselines, strict=True) for each in pair] if beside else queries
        )
        asked = self._client.ask_all(
            every, rewards=True, timeout_s=plan.timeout_s, progress=lambda sent: show(sent.rewards)
        )
        show(asked.rewards)
        self.missing += asked.missing
        return choices_of(queries, asked.rewards)

    def _command(self, *words: str) -> str:
        """Run a command of the command line on the deployment; return it as it was typed.

        Raises:
            ChangeFailed: the command failed.
        """
        line = shlex.join(["python", "-m", "streams", *words])
        self._say(f"$ {line}")
        done = subprocess.run(
            [*python(), *words],
            env=self._deployment.settings.environ(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ChangeFailed(f"{line}: {done.stderr.strip() or done.stdout.strip()}")
        return line

    def _served(self, model: str) -> None:
        """Wait until the executor says that it serves a model.

        Raises:
            ChangeFailed: it does not in time.
        """
        deadline = time.monotonic() + SERVED_S
        with self._client.follow("heartbeat") as beats:
            while time.monotonic() < deadline:
                for event in beats.poll(1.0):
                    beat: Any = event.record
                    if isinstance(beat, Heartbeat) and not beat.stopping and model in beat.models:
                        return
        raise ChangeFailed(f"{model} is not served after {SERVED_S:.0f} s; services.log says why")


def smallest(catalogue: Catalogue) -> Model:
    """Return the model with the fewest parameters."""
    return min(catalogue.models, key=lambda model: model.parameters or math.inf)


def endless(questions: Sequence[Query], asked: Sequence[Query], seed: int) -> Iterator[Query]:
    """Yield the questions that have not been asked, then all of them over and over, each time under new ids.

    Their levels are spread evenly, as in the first act.
    """
    known = {query.query_id for query in asked}
    left = [query for query in questions if query.query_id not in known]
    yield from thirds(left, len(left), seed)
    for again in numbers(2):
        yield from renamed(thirds(questions, len(questions), seed + again), f"again-{again}")


def _restart(supervisor: Supervisor, name: str) -> None:
    """Stop a service as a roll-out does, and wait until its successor is ready.

    Raises:
        ChangeFailed: it is not ready in time.
    """
    service = supervisor.services[name]
    service.ready.clear()
    os.killpg(service.pid, signal.SIGTERM)
    try:
        supervisor.wait_ready(SERVED_S)
    except ServiceFailed as error:
        raise ChangeFailed(str(error)) from error
