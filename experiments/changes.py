"""Measures how many queries the policy needs to adapt when a model degrades silently, and when one is added.

The policy starts from a prior, at the highest price at which choices on history reach 95 % of the best arm's accuracy.
The model that changes is the one chosen most often before the change. Each count of queries ends with the first window
of rounds whose mean, over its rounds and all orders, crosses the threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.bandit.contextual import Contextual
from agents.bandit.drift import AccuracyDrift
from agents.bandit.policy import Objective
from agents.bandit.prior import begin
from experiments.contenders import SERVICE, Fitted, solved_prices, with_prior
from experiments.frontier import Terms, most_accurate, points_of
from experiments.loop import FeedbackChannel, Stage, Trial, stream
from experiments.outcomes import Array, BanditWorld

BEFORE, AFTER = 1_000, 1_000  # queries
USUAL = 200  # a model's usual share is measured over this many queries just before the change
WINDOW = 50
TARGET = 0.95


@dataclass(frozen=True)
class Changed:
    """The setting that the policy is run in, common to both changes.

    Attributes:
        world: The world, with surface counts.
        live: The questions to ask, which are repeated if there are too few.
        price: The price of linear cost.
        batch: Number of queries per batch of decisions.
    """

    world: BanditWorld
    live: tuple[int, ...]
    price: float
    batch: int

    def order(self, seed: int) -> tuple[int, ...]:
        """Return the question of every round."""
        rng = np.random.default_rng([seed, 7])
        order: list[int] = []
        while len(order) < BEFORE + AFTER:
            order += rng.permutation(self.live).tolist()
        return tuple(order[: BEFORE + AFTER])

    def sample(self, seed: int) -> np.ndarray:
        """Return the recorded sample realised by each question and arm, shape (Q, A)."""
        o = self.world.outcomes
        return np.random.default_rng([seed, 1]).integers(o.samples, size=(len(o.questions), len(o.arms)))

    def run(
        self,
        seed: int,
        prior: bytes,
        before: Sequence[int],
        after: Sequence[int],
        worse: Array | None = None,
        watched: bool = True,
    ) -> Array:
        """Return the arm of every round, shape (rounds,).

        Args:
            seed: The seed for the order.
            prior: The prior for the arms available before the change.
            before: The arms available before the change.
            after: The arms available after the change.
            worse: Correctness after the change, shape (Q, A); None if it stays the same.
            watched: Whether the policy detects degraded models.
        """
        objective = Objective(1.0, 0.0, 0.0, *self.world.bounds, shadow_price=self.price)
        stages = {1: Stage(tuple(before), objective), BEFORE + 1: Stage(tuple(after), objective)}
        trial = Trial(
            self.world, seed, self.order(seed), self.sample(seed), stages, FeedbackChannel(), warm_up=0
        )
        policy = SERVICE["default"](self.world, seed)
        if not watched:
            assert isinstance(policy, Contextual)
            policy.estimates.accuracy = _Unwatched()
        begin(policy, prior, [self.world.vectors[i] for i in before])
        return np.array(stream(policy, trial, self.batch, None if worse is None else (BEFORE + 1, worse)))

    def rewards(self, seed: int, arms: Array) -> Array:
        """Return accuracy minus price times cost for every round, shape (rounds,)."""
        o, questions = self.world.outcomes, np.array(self.order(seed))
        at = (self.sample(seed)[questions, arms], questions, arms)
        return np.asarray(o.correct[at] - self.price * np.exp(o.log_cost[at]))


class _Unwatched(AccuracyDrift):
    """Drift detection that never detects anything."""

    def learn(
        self, model: str, correct: float, predicted: float, *, share: float = 0.0, seq: int = 0
    ) -> bool:
        """Detect nothing."""
        return False


def changes(
    world: BanditWorld, seeds: Sequence[int], batch: int = 1, half: int | None = None
) -> dict[str, Any]:
    """Return how the policy reacts to both changes.

    Args:
        world: The world, without surface counts; a third of its questions are history.
        seeds: Seeds for the orders.
        batch: Number of queries per batch of decisions.
        half: If given, history is split into two halves; this one is asked, and the other one serves as history. None
            asks the live questions.

    Returns:
        `model`, the model that changes; `its_share`, its share of the queries before the change;
        `queries_until_halved`, the number of queries from the change until that share has halved; `share_at_the_end`;
        `saving`, the difference in reward per query between having the model from the start and never having it;
        `queries_until_half_the_saving`, the number of queries from its addition until the policy gains half of that;
        and `loss_without_a_change`, the loss due to drift detection when nothing changes, divided by the policy's lead
        over the best single arm. A count is None if the threshold is never reached.
    """
    counted = world.lean().with_counts()
    o = counted.outcomes
    history, live = Terms(half=half).split([each.question_id for each in o.questions])
    best = most_accurate(points_of(counted, history))
    (price,) = solved_prices(Fitted.of(counted, history), best, [TARGET])
    changed = Changed(counted, tuple(live), price, batch)
    everything = list(range(len(o.arms)))
    prior = with_prior(counted, history)
    steady = {seed: changed.run(seed, prior, everything, everything) for seed in seeds}
    usual = np.concatenate([arms[BEFORE - USUAL : BEFORE] for arms in steady.values()])
    models = [arm.model for arm in o.arms]
    counts = {
        model: float(np.mean([models[arm] == model for arm in usual])) for model in dict.fromkeys(models)
    }
    model = max(counts, key=lambda each: counts[each])
    own = [i for i in everything if models[i] == model]
    others = [i for i in everything if models[i] != model]
    shares = []
    for seed in seeds:
        right = counted.outcomes.correct[0].copy()
        right[:, own] *= np.random.default_rng([seed, 11]).random((len(right), len(own))) < 0.5
        arms = changed.run(seed, prior, everything, everything, right)
        shares.append(np.isin(arms[BEFORE:], own))
    share = _windows(np.mean(shares, axis=0))
    without = with_prior(counted.restrict(others, o.name), history)
    alone, joined, known = [], [], []
    for seed in seeds:
        alone.append(changed.rewards(seed, changed.run(seed, without, others, others))[BEFORE:])
        joined.append(changed.rewards(seed, changed.run(seed, without, others, everything))[BEFORE:])
        known.append(changed.rewards(seed, steady[seed])[BEFORE:])
    unwatched = [
        changed.rewards(seed, changed.run(seed, prior, everything, everything, watched=False))
        for seed in seeds
    ]
    watched = [changed.rewards(seed, arms) for seed, arms in steady.items()]
    single = max(
        float(np.mean([changed.rewards(seed, np.full(BEFORE + AFTER, arm)) for seed in seeds]))
        for arm in everything
    )
    gained = np.mean(joined, axis=0) - np.mean(alone, axis=0)
    saving = float(np.mean(known) - np.mean(alone))
    return {
        "model": model,
        "its_share": counts[model],
        "queries_until_halved": _first(share <= counts[model] / 2),
        "share_at_the_end": float(share[-1]),
        "saving": saving,
        "queries_until_half_the_saving": _first(_windows(gained) >= saving / 2) if saving > 0 else None,
        "loss_without_a_change": float(np.mean(unwatched) - np.mean(watched))
        / (float(np.mean(watched)) - single),
    }


def _windows(values: Array) -> Array:
    """Return the mean of every window of `WINDOW` rounds."""
    return np.asarray(np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid"), dtype=np.float64)


def _first(there: np.ndarray) -> int | None:
    """Return the last round of the first window that meets the condition; None if no window does."""
    return int(there.argmax()) + WINDOW if there.any() else None
