"""Every policy in worlds that teach nothing, or only one thing: it decides, learns, recovers and can be verified.

A world fixes one or two traits that leave a regression nothing to go by; the others are drawn, as they usually are.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from agents.bandit.learner import header, unpack
from agents.bandit.registry import build_policy, kinds
from agents.decider.decisions import DecisionResult
from agents.decider.preview import preview
from agents.decider.verify import load_replay, mismatches
from schemas.decision import Decision
from schemas.record import decode
from schemas.reward import Kind
from tests.support.shard import Shard

BATCH = 10
PAIRS = ((1, 1), (4, 1), (4, 4))

OPTIONS: dict[str, dict[str, Any]] = {
    "thompson": {"propensity_draws": 8},
    "sliding-window": {"window": 100},
    "discounted": {"gamma": 0.98},
    "mlp": {"iterations": 5},
    "neural-ucb": {"iterations": 5},
}
OUTCOMES = {"knn": 1000, "mlp": 60, "neural-ucb": 60}
"""Outcomes in any run; of the others 600 in everyday runs, and 5,000 in long ones."""
EVERYDAY = ("contextual", "linucb")
"""Policies that meet every world in everyday runs: the default and the paper's. The others meet `ENOUGH` of them."""

FINAL: tuple[Kind, ...] = ("final",)


@dataclass(frozen=True)
class World:
    """What queries are like and what becomes of them.

    Attributes:
        questions: Different questions.
        right: Probability of a right answer, by place of the model.
        models: Models on offer.
        log_cost: Range of ln(eFLOPs).
        scored: Probability that a reward has a score. Without one, nothing may be learned from it.
        kinds: The rewards of a query, one of these. Until correctness is known, the score stands for it.
        late: Queries between a decision and its reward.
        target: What queries ask for, where the policy paces.
    """

    questions: int
    right: tuple[float, ...]
    models: int
    log_cost: tuple[float, float]
    scored: float
    kinds: tuple[tuple[Kind, ...], ...]
    late: int
    target: Mapping[str, Any]

    @classmethod
    def drawn(cls, name: str) -> World:
        """Draw an ordinary world."""
        rng = random.Random(name)
        low = rng.uniform(20.0, 30.0)
        return cls(
            questions=rng.choice((12, 100, 10_000)),
            right=tuple(rng.uniform(0.2, 0.9) for _ in range(3)),
            models=rng.choice((2, 3)),
            log_cost=(low, low + rng.uniform(1.0, 8.0)),
            scored=rng.choice((0.9, 1.0)),
            kinds=(FINAL, FINAL, ("provisional", "correction"), ("provisional", "default")),
            late=rng.choice((0, 5)),
            target=rng.choice(({"accuracy": 0.98}, {"accuracy": 0.5}, {"mean_cost": float(np.exp(low + 2))})),
        )


TRAITS: dict[str, dict[str, Any]] = {
    "all wrong": {"right": (0.0, 0.0, 0.0), "kinds": (FINAL,), "target": {"accuracy": 0.98}},
    "all right": {"right": (1.0, 1.0, 1.0)},
    "one question": {"questions": 1, "scored": 1.0},
    "two questions": {"questions": 2},
    "one model": {"models": 1},
    "equal costs": {"log_cost": (25.0, 25.0)},
    "tiny costs": {"log_cost": (-200.0, -190.0)},
    "huge costs": {"log_cost": (190.0, 200.0)},
    "any costs": {"log_cost": (-200.0, 200.0)},
    "scores missing": {"scored": 0.0},
    "rewards only late": {"late": 400},
    "grades only late": {"kinds": (("provisional", "correction"),)},
    "out of reach": {"target": {"mean_cost": 1e-300}},
}
WORLDS = [
    *((trait,) for trait in TRAITS),
    ("all wrong", "one model"),
    ("all wrong", "one question"),
    ("all wrong", "any costs"),
    ("all wrong", "grades only late"),
    ("one question", "one model"),
    ("one question", "equal costs"),
    ("two questions", "all wrong"),
]
ENOUGH = (("all wrong", "one question"), ("two questions",), ("any costs",))


def world_of(traits: tuple[str, ...]) -> World:
    world = World.drawn(" ".join(traits))
    for trait in traits:
        world = replace(world, **TRAITS[trait])
    return world


def test_every_trait_is_one_of_a_world() -> None:
    assert {name for trait in TRAITS.values() for name in trait} <= {field.name for field in fields(World)}


def finite(state: bytes) -> bool:
    """Return whether every number that a policy has learned is finite."""
    _, arrays = unpack(state, *header(state))
    return all(
        finite(array.tobytes()) if name == "inner" else bool(np.isfinite(array).all())
        for name, array in arrays.items()
    )


class Life:
    """One policy in one world, as the decider's service runs it."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.rng = random.Random(f"{name} {world}")
        self.vectors: dict[int, bytes] = {}
        self.shard = Shard(lambda _: self.policy(), pairs=PAIRS, models=world.models)
        self.waiting: deque[Any] = deque()
        self.target = world.target if self.policy().pacer else {}

    def policy(self) -> Any:
        return build_policy(
            self.name, {"warm_up": 20, **OPTIONS.get(self.name, {})}, query_dim=12, action_dim=10
        )

    def context(self) -> Any:
        record, origin = self.shard.context(**self.target)
        which = self.rng.randrange(self.world.questions)
        if which not in self.vectors:
            self.vectors[which] = record.embedding
        query = msgspec.structs.replace(record.query, text="1 + 1?" + " Or 22?" * (which % 5))
        return msgspec.structs.replace(record, query=query, embedding=self.vectors[which]), origin

    def ask(self) -> None:
        offer = {action.id for action in self.shard.space}
        made = self.shard.ask(*(self.context() for _ in range(BATCH)))
        for one in made:
            assert one.error is None, one.error
            decision = decode(one.value, Decision)
            assert decision.action.id in offer
            numbers = [decision.mean, decision.width, decision.score, decision.propensity]
            numbers += [decision.objective.price, *(each.score for each in decision.runners_up)]
            assert all(np.isfinite(number) for number in numbers if number is not None)
        self.waiting.extend(made)

    def rewards(self, decided: DecisionResult) -> list[Any]:
        """Return the rewards of a decision: all at once, or in two stages with correctness last."""
        world, decision = self.world, decode(decided.value, Decision)
        place = self.shard.space.models.index(decision.action.model)
        correct = float(self.rng.random() < world.right[place])
        score = float(correct or self.rng.random() / 2) if self.rng.random() < world.scored else None
        terms = {"score": score, "log_cost": self.rng.uniform(*world.log_cost)}
        return [
            self.shard.reward(
                decided, kind, **terms, correct=correct if kind in ("final", "correction") else None
            )
            for kind in self.rng.choice(world.kinds)
        ]

    def tell(self, keep: int) -> None:
        told = []
        while len(self.waiting) > keep:
            told += self.rewards(self.waiting.popleft())
        for one in self.shard.tell(*told):
            assert one.error is None, one.error
            assert one.verdict in ("learned", "corrected", "closed", "abandoned", "unlearnable"), one.verdict

    def run(self, outcomes: int) -> None:
        restarts = {outcomes // 3 // BATCH, 2 * outcomes // 3 // BATCH}
        for at in range(outcomes // BATCH):
            self.ask()
            self.tell(self.world.late)
            if at % 10 == 0:
                shown = preview(self.shard.decider, self.context()[0], self.shard.environment)
                assert shown.action in {action.id for action in self.shard.space}
            if at in restarts:
                self.restart()
        self.tell(0)
        self.ask()
        self.restart()
        self.verify()

    def restart(self) -> None:
        live = self.shard.decider
        self.shard.apply(self.shard.snapshot())
        self.shard.crash()
        self.shard.same_as(live)
        assert finite(live.policy.state())

    def verify(self) -> None:
        policy = self.policy()
        rows, after = load_replay(policy, self.shard.table)
        assert list(mismatches(policy, rows, self.shard.decider.seed, after)) == []


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "traits"),
    [(name, traits) for name in sorted(kinds()) for traits in (WORLDS if name in EVERYDAY else ENOUGH)],
    ids=lambda each: each if isinstance(each, str) else ", ".join(each),
)
def test_a_world_that_teaches_little_ends_no_policy(name: str, traits: tuple[str, ...]) -> None:
    Life(name, world_of(traits)).run(OUTCOMES.get(name, 600))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("traits", WORLDS, ids=", ".join)
@pytest.mark.parametrize("name", sorted(kinds()))
def test_nor_does_it_in_the_long_run(name: str, traits: tuple[str, ...]) -> None:
    Life(name, world_of(traits)).run(OUTCOMES.get(name, 5000))
