"""What a policy is held against: lucky hindsight, the best fixed arm, the best contextual policy.

The paper's Oracle takes the best *realised* outcome of each question: with noisy outcomes nobody
can reach it. The best contextual policy is the best of ridge, boosted trees and the best fixed arm, each
fitted on other questions than those it is judged on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold

from agents.decider.policies.base import Objective
from experiments.outcomes.world import Array, World
from experiments.ridge import by_leaving_one_out
from experiments.trials.loop import Trial

Kind = Literal["fixed", "ridge", "trees"]
FOLDS = 5
PLAIN = 16  # principal directions of the question's embedding


@dataclass(frozen=True)
class Contextual:
    """The best contextual policy, cross-fitted by question.

    Attributes:
        kind: Which of them won.
        value: Its mean reward on questions it was not fitted on.
        values: Of each kind.
        per_question: Its reward a question, mean over samples, shape (Q,).
        fixed_per_question: That of the cross-fitted best fixed arm: the gap is paired.
        choices: Its arm for each question.
    """

    kind: Kind
    value: float
    values: dict[Kind, float]
    per_question: Array
    fixed_per_question: Array
    choices: tuple[int, ...]

    def gap(self, draws: int = 2_000, seed: int = 0) -> tuple[float, float, float]:
        """Return (mean, low, high) of its lead over the best fixed arm, by bootstrap over questions, 95 %."""
        lead = self.per_question - self.fixed_per_question
        rng = np.random.default_rng(seed)
        means = lead[rng.integers(len(lead), size=(draws, len(lead)))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        return float(lead.mean()), float(low), float(high)


def best_fixed(trial: Trial, objective: Objective) -> tuple[int, float]:
    """Return the arm that would have earned most after the warm-up had it been played throughout, and its mean."""
    played = list(trial.order[trial.warm_up :])
    means = trial.earned(objective)[played].mean(axis=0)
    arms = list(trial.stage(len(trial.order)).arms)
    arm = arms[int(np.argmax(means[arms]))]
    return arm, float(means[arm])


def followed(trial: Trial, choices: Sequence[int], objective: Objective) -> float:
    """Return the mean reward after the warm-up of an arm fixed for each question."""
    played = np.array(trial.order[trial.warm_up :])
    return float(trial.earned(objective)[played, np.array(choices)[played]].mean())


def best_contextual(world: World, objective: Objective, *, trees: bool = True, seed: int = 0) -> Contextual:
    """Fit and judge the contextual policies.

    Args:
        world: Its arms are all on offer.
        objective: What is earned.
        trees: Whether boosted trees compete (seconds to minutes).
        seed: Of the folds.
    """
    rewards = world.rewards(objective).mean(axis=0)
    kinds: list[Kind] = ["fixed", "ridge", *(["trees"] if trees else [])]  # type: ignore[list-item]
    choices = {kind: np.zeros(len(rewards), dtype=int) for kind in kinds}
    for fit, judge in KFold(FOLDS, shuffle=True, random_state=seed).split(rewards):
        pca = PCA(min(PLAIN, len(fit) - 1, world.queries.shape[1]), random_state=seed).fit(world.queries[fit])
        seen, new = pca.transform(world.queries[fit]), pca.transform(world.queries[judge])
        for kind in kinds:
            choices[kind][judge] = _predict(kind, world, seen, rewards[fit], new).argmax(axis=1)
    rows = np.arange(len(rewards))
    earned = {kind: rewards[rows, chosen] for kind, chosen in choices.items()}
    values = {kind: float(each.mean()) for kind, each in earned.items()}
    kind = max(kinds, key=lambda each: values[each])
    return Contextual(
        kind, values[kind], values, earned[kind], earned["fixed"], tuple(choices[kind].tolist())
    )


def _predict(kind: Kind, world: World, seen: Array, rewards: Array, new: Array) -> Array:
    """Return predicted rewards of new questions, shape (new, A)."""
    if kind == "fixed":
        return np.broadcast_to(rewards.mean(axis=0), (len(new), rewards.shape[1]))
    if kind == "ridge":
        return by_leaving_one_out(seen, rewards, new)
    arms = _arm_features(world)
    tree = HistGradientBoostingRegressor(max_iter=150, max_leaf_nodes=15, learning_rate=0.08, random_state=0)
    tree.fit(_joined(seen, arms), rewards.ravel())
    return np.asarray(tree.predict(_joined(new, arms))).reshape(len(new), -1)


def _arm_features(world: World) -> Array:
    arms = world.outcomes.arms
    models = {model: at for at, model in enumerate(dict.fromkeys(arm.model for arm in arms))}
    mean = world.outcomes.log_cost.mean(axis=(0, 1))
    return np.array(
        [[models[a.model], np.log2(a.qp), np.log2(a.cp), a.bs, mean[i]] for i, a in enumerate(arms)]
    )


def _joined(queries: Array, arms: Array) -> Array:
    left = np.repeat(queries, len(arms), axis=0)
    return np.concatenate([left, np.tile(arms, (len(queries), 1))], axis=1)
