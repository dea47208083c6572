"""What would another policy have earned on logged traffic? Replay, IPS, SNIPS and DR, and how true they are here.

A log says, for each decision, which action was taken, with what probability, and what came of it. An estimate rests
on few decisions when the logged policy seldom did what the other would do; the effective sample size (Σw)²/Σw² says
how few, and below a floor none is given. SNIPS and its interval are by bootstrap: the usual formula normalises round
by round and is too narrow.

On recorded outcomes every policy's worth is known, so estimates from a uniform policy's log can be held against it:
repeated, this gives each estimator's bias, error and coverage of its 95 % interval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA

from experiments.ceiling import best_contextual
from experiments.loop import COST_SENSITIVE
from experiments.outcomes import Array, BanditWorld
from experiments.ridge import predictions
from experiments.runs import Scope, tidy
from schemas.errors import UniscaleError

FLOOR = 50.0  # effective decisions
DRAWS = 1_000


class EvaluationError(UniscaleError):
    """A log cannot carry an estimate. The message says why and what to log."""


@dataclass(frozen=True)
class LoggedDecisions:
    """n logged decisions over A actions.

    Attributes:
        actions: The action taken, shape (n,).
        propensities: Its probability when it was taken, in (0, 1], shape (n,).
        rewards: What it earned, shape (n,).
    """

    actions: npt.NDArray[np.int64]
    propensities: Array
    rewards: Array

    def __post_init__(self) -> None:
        """Refuse propensities nobody can divide by, and rewards that are no numbers."""
        if not len(self.actions) == len(self.propensities) == len(self.rewards) > 0:
            raise EvaluationError(
                f"{len(self.actions)} actions, {len(self.propensities)} propensities, {len(self.rewards)} rewards: "
                "give one of each for every decision, at least one"
            )
        bad = ~((self.propensities > 0) & (self.propensities <= 1))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise EvaluationError(
                f"decision {at}: propensity {self.propensities[at]} is not in (0, 1]; "
                "evaluate only traffic of a randomised policy"
            )
        if not np.isfinite(self.rewards).all():
            at = int(np.flatnonzero(~np.isfinite(self.rewards))[0])
            raise EvaluationError(
                f"decision {at}: reward {self.rewards[at]} is no number; leave it out of the log"
            )


@dataclass(frozen=True)
class Estimate:
    """A policy's mean reward as estimated, with a 95 % interval by bootstrap over decisions.

    Attributes:
        effective: Effective sample size: decisions that count.
    """

    value: float
    low: float
    high: float
    effective: float


def replay(log: LoggedDecisions, chosen: Sequence[int], *, floor: float = FLOOR) -> Estimate:
    """Return the mean reward where a deterministic policy agrees with the log; exact for uniform logging only.

    Args:
        log: Of a uniform policy.
        chosen: The other policy's action for each decision.
        floor: Fewest agreeing decisions.

    Raises:
        EvaluationError: the logging was not uniform, or too few decisions agree.
    """
    if np.ptp(log.propensities) > 1e-9:
        raise EvaluationError("replay needs uniform logging; use SNIPS or DR with the logged propensities")
    agree = (log.actions == np.asarray(chosen)).astype(np.float64)
    _enough(float(agree.sum()), floor)
    return _bootstrap(
        lambda i: float((agree[i] * log.rewards[i]).sum() / max(agree[i].sum(), 1)), log, agree.sum()
    )


def ips(log: LoggedDecisions, probabilities: Array, *, floor: float = FLOOR) -> Estimate:
    """Return the inverse-propensity estimate: unbiased, and wild where weights are.

    Args:
        log: The log.
        probabilities: π(a|x) of the other policy, shape (n, A).
        floor: Smallest effective sample size.

    Raises:
        EvaluationError: below the floor, or no distribution.
    """
    w = _weights(log, probabilities, floor)
    return _bootstrap(lambda i: float((w[i] * log.rewards[i]).mean()), log, effective(w))


def snips(log: LoggedDecisions, probabilities: Array, *, floor: float = FLOOR) -> Estimate:
    """Return the self-normalised estimate: slightly biased, much steadier. Arguments and errors as `ips`."""
    w = _weights(log, probabilities, floor)
    return _bootstrap(
        lambda i: float((w[i] * log.rewards[i]).sum() / max(w[i].sum(), 1e-12)), log, effective(w)
    )


def doubly_robust(
    log: LoggedDecisions, probabilities: Array, predicted: Array, *, floor: float = FLOOR
) -> Estimate:
    """Return the doubly robust estimate: right where either the propensities or the model is.

    Args:
        log: The log.
        probabilities: π(a|x), shape (n, A).
        predicted: Reward a model predicts for each action, shape (n, A), fitted on other decisions.
        floor: Smallest effective sample size.

    Raises:
        EvaluationError: as `ips`.
    """
    w = _weights(log, probabilities, floor)
    direct = (probabilities * predicted).sum(axis=1)
    rows = np.arange(len(w))
    terms = direct + w * (log.rewards - predicted[rows, log.actions])
    return _bootstrap(lambda i: float(terms[i].mean()), log, effective(w))


def effective(weights: Array) -> float:
    """Return the effective sample size (Σw)²/Σw².

    >>> effective(np.array([1.0, 1.0, 0.0])), effective(np.zeros(3))
    (2.0, 0.0)
    """
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def greedy_probabilities(chosen: Sequence[int], actions: int) -> Array:
    """Return the distribution of a policy that always takes `chosen`, shape (n, A)."""
    return np.asarray(np.eye(actions)[np.asarray(chosen)])


def cross_fitted(
    features: Array, log: LoggedDecisions, actions: int, *, folds: int = 5, ridge: float = 1.0
) -> Array:
    """Return rewards predicted for each action by ridge regression per action, fitted on other decisions.

    Args:
        features: Of each decision, shape (n, d).
        log: The log.
        actions: A.
        folds: Decision i is of fold i mod `folds`.
        ridge: λ.
    """
    x = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    fold = np.arange(len(x)) % folds
    out: Array = np.full((len(x), actions), float(log.rewards.mean()))
    for held in range(folds):
        for action in range(actions):
            seen = (fold != held) & (log.actions == action)
            if seen.any():
                rewards, new = log.rewards[seen][:, None], x[fold == held]
                (found,) = predictions(x[seen], rewards, new, np.array([ridge]), centred=False)
                out[fold == held, action] = found[:, 0]
    return out


def _weights(log: LoggedDecisions, probabilities: Array, floor: float) -> Array:
    n = len(log.actions)
    if probabilities.ndim != 2 or len(probabilities) != n:
        raise EvaluationError(f"probabilities: shape {probabilities.shape}, expected ({n}, actions)")
    if (probabilities < 0).any() or not np.allclose(probabilities.sum(axis=1), 1):
        raise EvaluationError("probabilities: a row is no distribution; each sums to 1")
    weights = probabilities[np.arange(n), log.actions] / log.propensities
    _enough(effective(weights), floor)
    return np.asarray(weights)


def _enough(found: float, floor: float) -> None:
    if found < floor:
        raise EvaluationError(
            f"only {found:.1f} effective decisions, fewer than {floor:g}: log more, or explore what this policy does"
        )


def _bootstrap(
    estimate: Callable[[npt.NDArray[np.int64]], float], log: LoggedDecisions, size: float
) -> Estimate:
    n = len(log.rewards)
    rng = np.random.default_rng(0)
    draws = [estimate(rng.integers(n, size=n)) for _ in range(DRAWS)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(estimate(np.arange(n)), float(low), float(high), float(size))


LOGGED = ("routing", "uis", "all")
PER_ARM, LEAST = (
    120,
    1_000,
)  # decisions of a log: uniform logging agrees with a fixed arm once in so many arms
SHORT = 200  # decisions of a log that is too short for a policy of one arm in 168
PLAIN = 8  # principal directions of the question for the doubly robust model


def against_truth(worlds: Mapping[str, BanditWorld], scope: Scope) -> dict[str, Any]:
    """Return estimates against truth, for routing and for the joint space, and what a short log is told."""
    table: dict[str, Any] = {}
    for name in LOGGED:
        if name in worlds:
            n = max(LEAST, PER_ARM * len(worlds[name].vectors))
            scope.say(f"off-policy estimates: {name}")
            table[f"{name}, {n} decisions"] = _against_truth(worlds[name], n, scope.repetitions)
    if "uis" in worlds:
        world = worlds["uis"]
        rewards = world.rewards(world.objective(COST_SENSITIVE))
        chosen = [int(rewards.mean(axis=(0, 1)).argmax())] * rewards.shape[1]
        log, seen = _logged(rewards, SHORT, np.random.default_rng(0))
        policy = greedy_probabilities(np.array(chosen)[seen].tolist(), rewards.shape[2])
        try:
            told = f"estimated {snips(log, policy).value:.4f}"
        except EvaluationError as error:
            told = f"refused: {error}"
        table["a short log"] = {f"uis, {SHORT} decisions": told}
    return table


def _against_truth(world: BanditWorld, n: int, repetitions: int) -> dict[str, Any]:
    objective = world.objective(COST_SENSITIVE)
    rewards = world.rewards(objective)
    means, arms = rewards.mean(axis=0), rewards.shape[2]
    features = PCA(min(PLAIN, *world.queries.shape), random_state=0).fit_transform(world.queries)
    best = int(means.mean(axis=0).argmax())
    softened = np.exp((means.mean(axis=0) - means.mean(axis=0).max()) / 0.05)
    targets: dict[str, Array] = {
        "best_fixed": greedy_probabilities([best] * len(means), arms),
        "contextual": greedy_probabilities(best_contextual(world, objective, trees=False).choices, arms),
        "softened": np.tile(softened / softened.sum(), (len(means), 1)),
    }
    found: dict[str, dict[str, list[Estimate]]] = {name: {} for name in targets}
    for repetition in range(repetitions):
        log, seen = _logged(rewards, n, np.random.default_rng([repetition, 1]))
        predicted = cross_fitted(features[seen], log, arms)
        for name, target in targets.items():
            policy = target[seen]
            estimates = {
                "ips": ips(log, policy),
                "snips": snips(log, policy),
                "doubly_robust": doubly_robust(log, policy, predicted),
            }
            if name != "softened":
                estimates["replay"] = replay(log, policy.argmax(axis=1).tolist())
            for estimator, estimate in estimates.items():
                found[name].setdefault(estimator, []).append(estimate)
    return {
        name: {
            estimator: _judged(each, float((targets[name] * means).sum(axis=1).mean()))
            for estimator, each in estimators.items()
        }
        for name, estimators in found.items()
    }


def _logged(rewards: Array, n: int, rng: np.random.Generator) -> tuple[LoggedDecisions, np.ndarray]:
    """Return n decisions of a uniform policy on questions drawn with replacement, and the questions."""
    samples, questions, arms = rewards.shape
    seen, taken = rng.integers(questions, size=n), rng.integers(arms, size=n)
    earned = rewards[rng.integers(samples, size=n), seen, taken]
    return LoggedDecisions(taken, np.full(n, 1 / arms), earned), seen


def _judged(estimates: list[Estimate], truth: float) -> dict[str, Any]:
    values = np.array([each.value for each in estimates])
    covered = [each.low <= truth <= each.high for each in estimates]
    found = {
        "truth": truth,
        "estimate": float(values.mean()),
        "bias": float(values.mean() - truth),
        "root_mean_square_error": float(np.sqrt(((values - truth) ** 2).mean())),
        "covered_percent": 100 * float(np.mean(covered)),
        "effective_decisions": float(np.mean([each.effective for each in estimates])),
    }
    return tidy(found)
