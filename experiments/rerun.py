"""Reruns recorded searches: latency by component, and both readings of the depth limit (§3.3).

Latency is split into the components of the paper's table: embedding the query, the bandit (choice and update),
generation, verification, and the rest of a search (control, cost and grading). The actions are embedded beforehand.
Drafts use the recording's seeds, so outcomes and choices are the same as in its tables.

A path cut off at the depth limit either stays out of P_done or is treated as completed. H_max stops all live paths in
the same step, so a search that reaches it ends there under both readings, with the same drafts and cost; only the
answer may differ. This assumes that no path filled its model's context, which would also cut it off.
"""

import asyncio
import hashlib
import math
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agents.bandit.learner import choose
from agents.bandit.policy import Context, Observation, Pending
from agents.catalogue.action_space import MAX_DRAFTS, PAIRS
from agents.catalogue.models import Catalogue, Sampling
from agents.embedding import Encoder
from agents.grading.grade import AskGrader
from agents.search.early_exit import h_max
from agents.search.search import SearchRules, limits
from experiments.contenders import PAPER
from experiments.loop import QUALITY_PRIORITY, SEEDS, WARM_UP, make_trial, play, steady, warm_up_arm
from experiments.outcomes import Arm, BanditWorld, OutcomeError, Outcomes
from experiments.record.plan import search_id
from experiments.record.searches import Bench, Found, SearchMemory, Variant, open_bench, search, weights
from experiments.record.table import SCHEMA, Question, questions_in, settings_of
from experiments.runs import TERA, summed, tidy
from schemas.action import Action

T = TypeVar("T")


@dataclass(frozen=True)
class Reopened:
    """A recording, with its searches' engines and verifiers.

    Attributes:
        questions: The questions by id.
        settings: The recording's settings.
        bench: Engines, verifiers and rules, as in the recording.
    """

    questions: Mapping[str, Question]
    settings: Mapping[str, Any]
    bench: Bench

    @property
    def verifier(self) -> str:
        """Return the verifier in use."""
        return str(self.settings["verifiers"][0])

    def search_id(self, question: Question, arm: Arm, sample: int) -> str:
        """Return the id that a search's drafts derive from; a derived best of N has the id of its 64-path search."""
        known = (arm.qp, arm.cp) in {tuple(pair) for pair in self.settings.get("searched", PAIRS)}
        source = action_of(arm) if known else Action(model=arm.model, qp=MAX_DRAFTS, cp=1, bs=1)
        return search_id(question, source, sample, self.settings["seed"])


def action_of(arm: Arm) -> Action:
    """Return an arm's configuration."""
    return Action(model=arm.model, qp=arm.qp, cp=arm.cp, bs=arm.bs)


async def reopen(recording: Path, catalogue: Catalogue, ask: AskGrader, folder: Path = Path()) -> Reopened:
    """Load a recording's engines and verifiers.

    Args:
        recording: The Parquet file, made by the plain sampler.
        catalogue: The catalogue it was made with.
        ask: Asks a grading process.
        folder: The folder that the catalogue's paths are relative to.

    Raises:
        OutcomeError: The file is not one of our recordings, or was made with a different engine or different weights.
    """
    settings = settings_of(recording)
    if settings["engine"] != "torch":
        raise OutcomeError(
            f"{recording}: made with {settings['engine']!r}, whose drafts cannot be made again; only torch's can"
        )
    now = weights(catalogue, folder)
    for name, digest in settings["weights"].items():
        if now.get(name) != digest:
            raise OutcomeError(
                f"{recording}: made with weights {digest} of {name}, here are {now.get(name, 'none')}; record it again"
            )
    questions = {question.question_id: question for question in questions_in(recording)}
    bench = await open_bench(catalogue, "torch", ask, folder=folder, verifiers=1)
    return Reopened(questions, settings, replace(bench, rules=SearchRules(eta=settings["eta"])))


COMPONENTS = ("query_embedding", "bandit", "generation", "verification", "rest_of_search")


class Stopwatch:
    """Adds up durations by name, in seconds."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*COMPONENTS, "search"), 0.0)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the block's duration to a name's total."""
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began


def timed(served: T, call: str, watch: Stopwatch, name: str) -> T:
    """Return an engine or a verifier with one of its methods timed."""
    own, inner = copy(served), getattr(served, call)

    async def counted(*given: Any) -> Any:
        with watch.of(name):
            return await inner(*given)

    setattr(own, call, counted)
    return own


async def breakdown(
    world: BanditWorld, encoder: Encoder, recording: Reopened, rounds: int | None = None
) -> dict[str, Any]:
    """Return seconds by component over the faithful learner's rounds after the warm-up, and a description of the run.

    Args:
        world: The joint space.
        encoder: Encodes the queries, one text at a time.
        recording: The recording, with its engines and verifiers.
        rounds: Number of rounds to measure, for a quick trial; None for all.
    """
    stages, watch, seed = steady(world, QUALITY_PRIORITY), Stopwatch(), SEEDS[0]
    objective, trial = stages[1].objective, make_trial(world, seed, stages)
    policy = PAPER["uniscale"](world, seed)
    policy.offer(world.vectors)
    engines, verifiers = recording.bench.engines.items(), recording.bench.verifiers.items()
    bench = replace(
        recording.bench,
        engines={name: timed(each, "generate", watch, "generation") for name, each in engines},
        verifiers={name: timed(each, "score", watch, "verification") for name, each in verifiers},
    )
    index = {vector.action_id: i for i, vector in enumerate(world.vectors)}
    o, order, ran = world.outcomes, trial.order[:rounds], Counter[str]()
    for at, q in enumerate(order, 1):
        if at == trial.warm_up + 1:
            watch.seconds = dict.fromkeys(watch.seconds, 0.0)
            ran = Counter(rounds_as_recorded=ran["rounds_as_recorded"])
        question, name = recording.questions[o.questions[q].question_id], f"{seed}/{at}"
        with watch.of("query_embedding"):
            (embedding,) = encoder.encode([question.text]).astype(np.float64)
        arm = warm_up_arm(trial, at)
        if at > trial.warm_up:
            with watch.of("bandit"):
                (choice,) = choose(policy, [Context(name, embedding)], [objective], seed)
            arm = index[choice.action_id]
        sample, variant = int(trial.sample[q, arm]), Variant(recording.verifier, early_exit=True)
        drawn = recording.search_id(question, o.arms[arm], sample)
        with watch.of("search"):
            found, _ = await search(question, action_of(o.arms[arm]), variant, drawn, bench, SearchMemory())
        right, log_cost, action_id = float(found.correct), math.log(found.eflops), o.arms[arm].arm_id
        with watch.of("bandit"):
            policy.decided([Pending(name, embedding, action_id)])
            policy.learn(
                [Observation(name, embedding, action_id, right, found.score, log_cost, right, objective, at)]
            )
        as_recorded = right == o.correct[sample, q, arm] and math.isclose(
            log_cost, o.log_cost[sample, q, arm], rel_tol=1e-6
        )
        ran.update(
            rounds_as_recorded=as_recorded,
            rounds=1,
            right=found.correct,
            steps=found.steps,
            drafts=found.drafts,
            tokens=found.tokens,
        )
    seconds = watch.seconds
    seconds["rest_of_search"] = seconds.pop("search") - seconds["generation"] - seconds["verification"]
    return {
        "seconds": {name: round(each, 4) for name, each in seconds.items()},
        "run": {
            "mode": QUALITY_PRIORITY,
            "seed": seed,
            "warm_up_before": trial.warm_up,
            **ran,
            "warm_up_and_rounds": len(order),
        },
    }


WIDE = 2_048  # the paper's d: 1,024 dimensions each for the question and the action


def bandit_alone(world: BanditWorld) -> float:
    """Return how many seconds choosing and updating take in the rounds after the warm-up, at the paper's dimension.

    The vectors are random unit vectors, because the time depends only on their dimension and number.

    Args:
        world: The world; only the numbers of questions and arms and the recorded outcomes matter.
    """
    rng = np.random.default_rng(SEEDS[0])
    queries, actions = (rng.normal(size=(len(each), WIDE // 2)) for each in (world.queries, world.vectors))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    actions /= np.linalg.norm(actions, axis=1, keepdims=True)
    vectors = tuple(replace(v, embedding=row) for v, row in zip(world.vectors, actions, strict=True))
    wide = replace(world, queries=queries, vectors=vectors)
    steps = play(
        PAPER["uniscale"](wide, SEEDS[0]), make_trial(wide, SEEDS[0], steady(wide, QUALITY_PRIORITY))
    )
    next(step for step in steps if step.round == WARM_UP)
    began = time.perf_counter()
    deque(steps, maxlen=0)
    return time.perf_counter() - began


def latency_table(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return seconds and percentages for each component, and in total, from a measurement file."""
    seconds = dict(measured["seconds"])
    total = seconds["total"] = sum(seconds.values())
    if "bandit_at_2048" in measured:
        seconds["bandit_at_2048"] = measured["bandit_at_2048"]  # measured separately, not part of the total
    return {
        name: {"seconds": float(f"{each:.9g}"), "percent": float(f"{100 * each / total:.9g}")}
        for name, each in seconds.items()
    }


READINGS = ("kept_out", "completed")
IN_FLIGHT = 16  # number of searches in progress at a time
NORMAL_95 = 1.96
Cell = tuple[str, str, int]  # question, arm, sample


@dataclass(frozen=True)
class DepthLimit:
    """Data on searches that reached the depth limit.

    Attributes:
        settings: The recording's settings, such as η and the sampling parameters by model.
        again: The rerun searches, keyed by early exit and cell, with correctness, score and eFLOPs under both readings;
            empty if none were rerun.
        refused: Why the file of rerun searches is not used; empty if it is used.
    """

    settings: Mapping[str, Any]
    again: Mapping[bool, Mapping[Cell, Mapping[str, Any]]] = field(default_factory=dict)
    refused: str = ""

    def table(self, o: Outcomes, early_exit: bool) -> dict[str, Any]:
        """Return how many searches reached the limit, by model, and accuracy, score and cost under both readings.

        If only some of them were rerun, accuracy, score and cost are replaced by the estimated change in accuracy, with
        an interval over questions. If none were rerun, they are replaced by an upper bound on that change.
        """
        at_limit = met(o, self.settings, early_exit)
        models = list(dict.fromkeys(arm.model for arm in o.arms))
        table: dict[str, Any] = {"met": {}}
        for name in ("all models", *models):
            arms = [i for i, arm in enumerate(o.arms) if name in ("all models", arm.model)]
            part = at_limit[:, :, arms]
            table["met"][name] = {
                "searches": int(part.size),
                "met_limit": int(part.sum()),
                "met_percent": summed((100.0 * part).mean(axis=(0, 2)).tolist()),
            }
        rows = self.again.get(early_exit, {})
        places = [(cell, (int(s), int(q), int(a))) for cell, s, q, a in _cells(o, at_limit)]
        found = [(rows[cell], place) for cell, place in places if cell in rows]
        if not found:
            table["most_that_accuracy_could_differ"] = {"points": 100.0 * float(at_limit.mean())}
            return table
        table["run_again"] = {
            "searches": len(found),
            "as_recorded": sum(row["reproduced"] for row, _ in found),
            "other_answer": sum(row["completed"] != row["kept_out"] for row, _ in found),
            "right_instead_of_wrong": sum(_gain(row) > 0 for row, _ in found),
            "wrong_instead_of_right": sum(_gain(row) < 0 for row, _ in found),
        }
        if len(found) == len(places):
            table["over_all_searches"] = {name: _over_all(o, name, found) for name in READINGS}
        else:
            table["estimated_change"] = {"points": _change(found, float(at_limit.mean()))}
        return table


def met(o: Outcomes, settings: Mapping[str, Any], early_exit: bool) -> npt.NDArray[np.bool_]:
    """Return which searches reached their depth limit, shape (samples, Q, A); only these can have a path cut off.

    Args:
        o: Outcomes with `steps`, `depth` and `complete`.
        settings: The recording's settings.
        early_exit: Whether the searches were run with early exit, in which case H_max depends on the answer's depth.
    """
    rules = SearchRules(eta=settings["eta"], early_exit=early_exit)
    found = np.zeros(o.correct.shape, dtype=bool)
    for a, arm in enumerate(o.arms):
        bounds = limits(msgspec.convert(settings["sampling"][arm.model], Sampling), rules)
        depth, whole = o.extra["depth"][:, :, a].astype(int), o.extra["complete"][:, :, a] > 0
        limit = np.array([h_max(bounds, d) for d in range(int(depth.max()) + 1)])[depth]
        found[:, :, a] = ~whole | (o.extra["steps"][:, :, a] >= limit)
    return found


async def run_again(
    o: Outcomes,
    early_exit: bool,
    recording: Reopened,
    most: int | None = None,
    done: Callable[[], Any] = lambda: None,
    known: Mapping[Cell, Mapping[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Rerun searches that reached the limit, once under each reading; the second run reuses the drafts of the first.

    Args:
        o: The recording's outcomes with the verifier in use.
        early_exit: Whether to run the searches with early exit.
        recording: The recording, with its engines and verifiers.
        most: Maximum number of searches, drawn with a fixed seed; None for all.
        done: Called after each search.
        known: Results of earlier reruns, which are returned unchanged.
    """
    bench, variant = recording.bench, Variant(recording.verifier, early_exit)
    slots = asyncio.Semaphore(IN_FLIGHT)
    literal = replace(bench, rules=replace(bench.rules, cut_completes=True))

    async def one(cell: Cell, s: int, q: int, a: int) -> dict[str, Any]:
        if cell in known:
            done()
            return dict(known[cell])
        question, arm, memory = recording.questions[cell[0]], o.arms[a], SearchMemory()
        told = (question, action_of(arm), variant, recording.search_id(question, arm, s))
        async with slots:
            kept, _ = await search(*told, bench, memory)
            completed, _ = await search(*told, literal, memory)
        done()
        recorded = (bool(o.correct[s, q, a]), float(o.score[s, q, a]), float(o.cost[s, q, a]))
        again = (kept.correct, kept.score, kept.eflops)
        return {
            "question": cell[0],
            "arm": cell[1],
            "sample": s,
            "early_exit": early_exit,
            "reproduced": all(math.isclose(x, y, rel_tol=1e-4) for x, y in zip(recorded, again, strict=True)),
            "kept_out": _told(kept),
            "completed": _told(completed),
        }

    cells = _cells(o, met(o, recording.settings, early_exit))
    if most is not None and most < len(cells):
        cells = [cells[at] for at in sorted(random.Random(0).sample(range(len(cells)), most))]
    return await asyncio.gather(*(one(*each) for each in cells))


def save_limit(path: Path, recording: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rerun searches, one per line, with a digest of their outcomes in the recording."""
    lines = b",\n".join(orjson.dumps(row) for row in rows)
    path.write_bytes(
        f'{{"recording": "{digest(recording, rows)}", "searches": [\n'.encode() + lines + b"\n]}\n"
    )


def load_limit(path: Path, recording: Path, settings: Mapping[str, Any]) -> DepthLimit:
    """Return the rerun searches in a file, or none if the file is missing or belongs to a different recording."""
    if not path.is_file():
        return DepthLimit(settings, refused=f"{path} is not there")
    told = orjson.loads(path.read_bytes())
    if told["recording"] != digest(recording, told["searches"]):
        return DepthLimit(settings, refused=f"{path} is of another recording")
    again: dict[bool, dict[Cell, Mapping[str, Any]]] = {True: {}, False: {}}
    for row in told["searches"]:
        again[row["early_exit"]][row["question"], row["arm"], row["sample"]] = row
    return DepthLimit(settings, again)


def digest(recording: Path, searches: Iterable[Mapping[str, Any]]) -> str:
    """Return a digest of a recording's settings and of the outcomes of some searches.

    Searches that are added to the recording later do not change the digest.
    """
    settings = settings_of(recording)
    in_use = settings.pop("verifiers")[0]
    found = hashlib.sha256(orjson.dumps([in_use, settings], option=orjson.OPT_SORT_KEYS))
    table = pq.read_table(recording, columns=[name for name in SCHEMA.names if name != "seconds"])
    outcomes = {
        (row["question"], "{model}/{qp}/{cp}/{bs}".format_map(row), row["sample"], row["early_exit"]): row
        for row in table.filter(pc.field("verifier") == in_use).to_pylist()
    }
    for each in searches:
        cell = (each["question"], each["arm"], each["sample"], each["early_exit"])
        found.update(orjson.dumps(outcomes.get(cell), option=orjson.OPT_SORT_KEYS))
    return found.hexdigest()[:16]


def _cells(o: Outcomes, chosen: npt.NDArray[np.bool_]) -> list[tuple[Cell, int, int, int]]:
    return [
        ((o.questions[q].question_id, o.arms[a].arm_id, int(s)), int(s), int(q), int(a))
        for s, q, a in np.argwhere(chosen)
    ]


def _gain(row: Mapping[str, Any]) -> int:
    """Return the change in a search's correctness if a cut-off path is treated as completed."""
    return int(row["completed"]["correct"] - row["kept_out"]["correct"])


def _change(found: list[tuple[Mapping[str, Any], tuple[int, int, int]]], share: float) -> dict[str, float]:
    """Return the change in accuracy over all searches, in points, if cut-off paths are treated as completed.

    Args:
        found: Searches drawn from those that reached the limit.
        share: The share of all searches that reached the limit.
    """
    gains: dict[int, list[float]] = defaultdict(list)
    for row, (_, question, _) in found:
        gains[question].append(_gain(row))
    mean = sum(map(sum, gains.values())) / len(found)
    # Searches for the same question are correlated; only different questions are independent.
    spread = math.sqrt(sum(sum(gain - mean for gain in each) ** 2 for each in gains.values())) / len(found)
    whole, half = 100.0 * share, NORMAL_95 * spread
    return tidy({"mean": whole * mean, "low": whole * (mean - half), "high": whole * (mean + half)})


def _over_all(
    o: Outcomes, reading: str, found: list[tuple[Mapping[str, Any], tuple[int, int, int]]]
) -> dict[str, dict[str, float]]:
    correct, score, cost = o.correct.copy(), o.score.copy(), o.cost.copy()
    for row, place in found:
        correct[place], score[place], cost[place] = (
            row[reading][name] for name in ("correct", "score", "eflops")
        )
    arrays = {"accuracy": 100 * correct, "score": score, "eflops": cost / TERA}
    return {name: summed(array.mean(axis=(0, 2)).tolist()) for name, array in arrays.items()}


def _told(found: Found) -> dict[str, Any]:
    return {
        "correct": int(found.correct),
        "score": round(found.score, 7),
        "eflops": float(f"{found.eflops:.7g}"),
    }
