"""What is compared with policies in hindsight: the best fixed arm, the best contextual policy, and a ridge regression.

The paper's Oracle takes the best *realised* outcome of each question, which no policy can reach if outcomes are noisy.
The best contextual policy (for reward) and the ridge in hindsight (for cost at equal accuracy) are cross-fitted: they
are judged on questions other than those on whose outcomes they are fitted. They see the outcomes of every arm on these
questions, whereas a learner sees only those of its own choices. Neither is an upper bound: another model of the same
questions may do better, and the default policy does on two tables (`docs/results/fleets`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.decomposition import PCA
from sklearn.model_selection import KFold

from agents.bandit.features import counts
from agents.bandit.policy import Objective
from experiments.contenders import plain_coordinates
from experiments.loop import Trial
from experiments.outcomes import Array, BanditWorld
from experiments.ridge import by_folds, by_leaving_one_out
from experiments.yardstick import Points, Yardstick

Kind = Literal["fixed", "ridge"]
FOLDS = 5
DIRECTIONS = 16  # principal directions of the question's embedding


@dataclass(frozen=True)
class ContextualOracle:
    """The best contextual policy, cross-fitted by question.

    Attributes:
        kind: The best kind of policy.
        value: Its mean reward on questions it was not fitted on.
        values: The mean reward of each kind.
        per_question: Its reward per question, averaged over samples, shape (Q,).
        fixed_per_question: The cross-fitted best fixed arm's reward per question, which the gap is paired with.
        choices: Its arm for each question.
    """

    kind: Kind
    value: float
    values: dict[Kind, float]
    per_question: Array
    fixed_per_question: Array
    choices: tuple[int, ...]

    def gap(self, draws: int = 2_000, seed: int = 0) -> tuple[float, float, float]:
        """Return the mean lead over the best fixed arm with its 95 % bootstrap interval over questions."""
        lead = self.per_question - self.fixed_per_question
        rng = np.random.default_rng(seed)
        means = lead[rng.integers(len(lead), size=(draws, len(lead)))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        return float(lead.mean()), float(low), float(high)


def best_fixed(trial: Trial, objective: Objective) -> tuple[int, float]:
    """Return the single arm with the highest mean reward after the warm-up, in hindsight, and that mean."""
    played = list(trial.order[trial.warm_up :])
    means = trial.earned(objective)[played].mean(axis=0)
    arms = list(trial.stage(len(trial.order)).arms)
    arm = arms[int(np.argmax(means[arms]))]
    return arm, float(means[arm])


def followed(trial: Trial, choices: Sequence[int], objective: Objective) -> float:
    """Return the mean reward after the warm-up if each question always gets its arm in `choices`."""
    played = np.array(trial.order[trial.warm_up :])
    return float(trial.earned(objective)[played, np.array(choices)[played]].mean())


def best_contextual(world: BanditWorld, objective: Objective) -> ContextualOracle:
    """Fit and judge the contextual policies; return the best.

    Args:
        world: The world, with all its arms available.
        objective: The objective, which defines the reward.
    """
    rewards = world.rewards(objective).mean(axis=0)
    kinds: tuple[Kind, ...] = ("fixed", "ridge")
    choices = {kind: np.zeros(len(rewards), dtype=int) for kind in kinds}
    for fit, judge in KFold(FOLDS, shuffle=True, random_state=0).split(rewards):
        pca = PCA(min(DIRECTIONS, len(fit) - 1, world.queries.shape[1]), random_state=0).fit(
            world.queries[fit]
        )
        seen, new = pca.transform(world.queries[fit]), pca.transform(world.queries[judge])
        for kind in kinds:
            choices[kind][judge] = _predict(kind, seen, rewards[fit], new).argmax(axis=1)
    rows = np.arange(len(rewards))
    earned = {kind: rewards[rows, chosen] for kind, chosen in choices.items()}
    values = {kind: float(each.mean()) for kind, each in earned.items()}
    kind = max(kinds, key=lambda each: values[each])
    return ContextualOracle(
        kind, values[kind], values, earned[kind], earned["fixed"], tuple(choices[kind].tolist())
    )


def _predict(kind: Kind, seen: Array, rewards: Array, new: Array) -> Array:
    """Return the predicted rewards for new questions, shape (new, A)."""
    if kind == "fixed":
        return np.broadcast_to(rewards.mean(axis=0), (len(new), rewards.shape[1]))
    return by_leaving_one_out(seen, rewards, new)


PLAIN = 8  # principal directions of the question's embedding if arms are pooled
PRICES = np.concatenate([[0.0], np.logspace(-4, 4, 81)])
"""Prices of linear cost, in accuracy (0 to 1) per mean cost of the arm that was best on history."""
TOLD = 10.0  # scale of indicators relative to unit vectors, which divides their penalty by 100
CHEAPER, DEARER = 0.2, 5.0  # bounds on a question's predicted cost, as multiples of the arm's mean cost


@dataclass(frozen=True)
class HindsightRidge:
    """The ridge in hindsight: the best kind of ridge regression, and its points on the live questions."""

    kind: str
    points: Points


def ridge_in_hindsight(
    world: BanditWorld,
    history: Sequence[int],
    live: Sequence[int],
    yardstick: Yardstick,
    *,
    told: Sequence[str] | None = None,
) -> HindsightRidge:
    """Return the kind of ridge regression that is cheapest at equal accuracy on the live questions.

    Each kind predicts the accuracy and cost of every arm. A fifth of the live questions is predicted from the outcomes
    of every arm on history and on the other four fifths. The kind is chosen on the live questions, in hindsight.

    Args:
        world: The world with all questions.
        history: Indices of the questions on which all folds are fitted.
        live: Indices of the questions on which the kinds are judged.
        yardstick: The yardstick on the live questions.
        told: Further information about each of the world's questions, such as its level or family; None for none.
    """
    found: list[tuple[tuple[float, float], str, Points]] = []
    for kind, predictions in _predictions(world, history, live, told):
        points = _points(world, live, predictions, float(yardstick.arms.cost[yardstick.best].mean()))
        judged = Yardstick(yardstick.arms, yardstick.best, draws=0)
        ratios = judged.ratios(points)[0, :-1]
        worth = float(np.log(ratios).mean()) if len(ratios) else 0.0
        found.append(((worth, -float(points.accuracy.mean(axis=1).max())), kind, points))
    _, kind, points = min(found, key=lambda each: each[0])
    return HindsightRidge(kind, points)


Predicted = tuple[Array, Array]


def _predictions(
    world: BanditWorld, history: Sequence[int], live: Sequence[int], told: Sequence[str] | None
) -> Iterator[tuple[str, Predicted]]:
    """Yield each kind's predicted accuracy and cost for the live questions, shape (L, A) each."""
    o = world.outcomes
    right, cost = o.correct.mean(axis=0), o.cost.mean(axis=0)
    surface = _standard(np.array([counts(each.text) for each in o.questions]))
    arms = plain_coordinates(world)
    searched = bool(np.ptp(arms[:, 1:], axis=0).any())
    few = PCA(min(PLAIN, *world.queries.shape), random_state=0).fit_transform(world.queries)
    # Kinds that ignore the further information also compete, so having it never raises the cost.
    knowing = [("", np.zeros((len(right), 0)))]
    if told is not None:
        known = _indicators(told)
        knowing.append((" and told", known))
        yield "told", _crossed(known, None, right, cost, history, live)
    for more, known in knowing:
        kinds: dict[str, tuple[Array, Array | None]] = {
            "vector": (np.concatenate([world.queries, known], axis=1), None),
            "vector and counts": (np.concatenate([world.queries, known, surface], axis=1), None),
        }
        if searched:
            kinds["pooled"] = (np.concatenate([few, surface, known], axis=1), arms)
        for kind, (features, coordinates) in kinds.items():
            yield kind + more, _crossed(features, coordinates, right, cost, history, live)


def _folds(history: Sequence[int], live: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Yield (fitted, judged) for each fold: indices into the world, and positions among the live questions."""
    own, before = np.array(live), np.array(history, dtype=int)
    for fitted, judged in KFold(FOLDS, shuffle=True, random_state=0).split(own):
        yield np.concatenate([before, own[fitted]]), judged


def _crossed(
    features: Array,
    arms: Array | None,
    right: Array,
    cost: Array,
    history: Sequence[int],
    live: Sequence[int],
) -> Predicted:
    accuracy, paid = np.empty((len(live), right.shape[1])), np.empty((len(live), right.shape[1]))
    own = np.array(live)
    for fitted, judged in _folds(history, live):
        new = features[own[judged]]
        usual = cost[fitted].mean(axis=0)
        accuracy[judged] = by_folds(features[fitted], right[fitted], new, arms)
        relative = by_folds(features[fitted], cost[fitted] / usual, new, arms)
        paid[judged] = usual * np.clip(relative, CHEAPER, DEARER)
    return accuracy, paid


def _points(world: BanditWorld, live: Sequence[int], predicted: Predicted, unit: float) -> Points:
    o, own = world.outcomes, list(live)
    right, cost = o.correct[:, own].mean(axis=0), o.cost[:, own].mean(axis=0)
    rows = np.arange(len(own))
    taken = np.unique([(predicted[0] - p * predicted[1] / unit).argmax(axis=1) for p in PRICES], axis=0)
    return Points(
        np.array([right[rows, each] for each in taken]), np.array([cost[rows, each] for each in taken])
    )


def _standard(columns: Array) -> Array:
    """Return columns centred at 0 and scaled to a total variance of 1."""
    spread = columns.std(axis=0)
    return np.asarray(
        (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / columns.shape[1] ** 0.5
    )


def _indicators(told: Sequence[str]) -> Array:
    """Return one indicator column per name, scaled up so that ridge regression hardly shrinks it."""
    names = sorted(set(told))
    return np.array([[TOLD * (each == name) for name in names] for each in told])
