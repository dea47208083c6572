"""Where the time goes, measured: the joint space, one query after another, every search run for real.

Components as in the paper's latency table: embedding the query, the bandit (choice and update), generation,
verification, and what is left of a search: its control, price and grading. Embeddings of the actions are made
beforehand. Drafts have the seeds of the recording, so outcomes and choices are those of its tables.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from agents.decider.policies.base import Context, Observation, Pending
from agents.embedder.encoder import Encoder
from agents.executor.engine import Drafted, Engine, Prefix
from agents.space.models import Sampling
from agents.verifier.prm import Verifier
from experiments.outcomes.world import World
from experiments.record.searches import Memory, Variant, search
from experiments.rerun.reopen import Reopened, action_of
from experiments.trials.contenders import PAPER
from experiments.trials.loop import WARM_UP, make_trial, play, warm_up_arm
from experiments.trials.scenarios import steady
from schemas.search import Scored

COMPONENTS = ("query_embedding", "bandit", "generation", "verification", "rest_of_search")


class Watch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*COMPONENTS, "search"), 0.0)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count what is run inside."""
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began


class TimedEngine:
    """An engine whose drafting is timed."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self.model, self.served, self.counts = engine.model, engine.served, engine.counts
        self._engine, self._watch = engine, watch

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` drafts for each prefix; see `Engine.generate`."""
        with self._watch.of("generation"):
            return await self._engine.generate(step_id, prefixes, n, seeds, sampling)

    async def close(self) -> None:
        """Free what the engine holds."""
        await self._engine.close()


class TimedVerifier:
    """A verifier whose scoring is timed."""

    def __init__(self, verifier: Verifier, watch: Watch) -> None:
        self.served, self.counts = verifier.served, verifier.counts
        self._verifier, self._watch = verifier, watch

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        """Return a score for the last step of each path; see `Verifier.score`."""
        with self._watch.of("verification"):
            return await self._verifier.score(question, paths)

    async def close(self) -> None:
        """Free what the verifier holds."""
        await self._verifier.close()


async def breakdown(
    world: World, mode: str, seed: int, encoder: Encoder, recording: Reopened, rounds: int | None = None
) -> dict[str, Any]:
    """Return seconds by component over the rounds after the warm-up of the faithful learner, and what was run.

    Args:
        world: The joint space.
        mode: Of the objective.
        seed: Of the order of questions, and of the warm-up.
        encoder: Of the queries, one text at a time.
        recording: What searches run on.
        rounds: Fewer than all, for a trial of the measurement.
    """
    stages, watch = steady(world, mode), Watch()
    objective, trial = stages[1].objective, make_trial(world, seed, stages)
    policy = PAPER["uniscale"](world, seed)
    policy.add_actions(world.vectors)
    bench = replace(
        recording.bench,
        engines={name: TimedEngine(each, watch) for name, each in recording.bench.engines.items()},
        verifiers={name: TimedVerifier(each, watch) for name, each in recording.bench.verifiers.items()},
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
                (choice,) = policy.select([Context(name, embedding)], [objective], seed)
            arm = index[choice.action_id]
        sample, variant = int(trial.sample[q, arm]), Variant(recording.verifier, early_exit=True)
        drawn = recording.search_id(question, o.arms[arm], sample)
        with watch.of("search"):
            found, _ = await search(question, action_of(o.arms[arm]), variant, drawn, bench, Memory())
        right, log_cost, action_id = float(found.correct), math.log(found.eflops), o.arms[arm].arm_id
        with watch.of("bandit"):
            policy.expect([Pending(name, embedding, action_id)])
            policy.update(
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
            "mode": mode,
            "seed": seed,
            "warm_up_before": trial.warm_up,
            **ran,
            "warm_up_and_rounds": len(order),
        },
    }


WIDE = 2_048  # the paper's d: 1,024 dimensions of the question and 1,024 of the action


def bandit_alone(world: World, mode: str, seed: int, dim: int = WIDE) -> float:
    """Return the seconds that choosing and updating take over the rounds after the warm-up, at another dimension.

    Vectors are random ones of unit length: what the arithmetic takes depends on their length and number alone.

    Args:
        world: For the number of questions and arms, and the recorded outcomes.
        mode: Of the objective.
        seed: Of order and vectors.
        dim: Length of [s_q; s_a].
    """
    rng, half = np.random.default_rng(seed), dim // 2
    queries = rng.normal(size=(len(world.queries), half))
    actions = rng.normal(size=(len(world.vectors), half))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    actions /= np.linalg.norm(actions, axis=1, keepdims=True)
    vectors = tuple(replace(v, embedding=row) for v, row in zip(world.vectors, actions, strict=True))
    wide = replace(world, queries=queries, vectors=vectors)
    stages = steady(wide, mode)
    steps = play(PAPER["uniscale"](wide, seed), make_trial(wide, seed, stages))
    for step in steps:
        if step.round == WARM_UP:
            break
    began = time.perf_counter()
    for _ in steps:
        pass
    return time.perf_counter() - began


def table(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return seconds and percent of each component and of all, of a measured file."""
    seconds = dict(measured["seconds"])
    total = seconds["total"] = sum(seconds.values())
    if "bandit_at_2048" in measured:
        seconds["bandit_at_2048"] = measured["bandit_at_2048"]  # measured apart: no part of the total
    return {
        name: {"seconds": float(f"{each:.9g}"), "percent": float(f"{100 * each / total:.9g}")}
        for name, each in seconds.items()
    }
