"""Off-policy evaluation on logged traffic: replay, IPS, SNIPS and DR.

A log contains the action, propensity and reward of each decision. If the logged policy rarely chose what the evaluated
policy would choose, an estimate depends on few decisions. The effective sample size (Σw)²/Σw² measures this; if it is
below a floor, no estimate is given. The interval for SNIPS is from a bootstrap, because the usual formula normalises
each decision separately, which makes the interval too narrow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.outcomes import Array
from experiments.ridge import predictions
from schemas.errors import UniscaleError

FLOOR = 50.0  # minimum effective sample size
DRAWS = 1_000


class EvaluationError(UniscaleError):
    """A log does not support an estimate. The message says why, and what to log instead."""


@dataclass(frozen=True)
class LoggedDecisions:
    """n logged decisions over A actions.

    Attributes:
        actions: The chosen actions, shape (n,).
        propensities: The probabilities they were chosen with, in (0, 1], shape (n,).
        rewards: Their rewards, shape (n,).
    """

    actions: npt.NDArray[np.int64]
    propensities: Array
    rewards: Array

    def __post_init__(self) -> None:
        """Reject propensities outside (0, 1] and rewards that are not finite."""
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
                f"decision {at}: reward {self.rewards[at]} is not a number; leave it out of the log"
            )


@dataclass(frozen=True)
class Estimate:
    """An estimate of a policy's mean reward, with a 95 % bootstrap interval over decisions.

    Attributes:
        effective: The effective sample size.
    """

    value: float
    low: float
    high: float
    effective: float


def replay(log: LoggedDecisions, chosen: Sequence[int], *, floor: float = FLOOR) -> Estimate:
    """Return the mean reward of the decisions where a deterministic policy agrees with a uniform policy's log.

    Args:
        log: A uniform policy's log.
        chosen: The evaluated policy's action for each decision.
        floor: Minimum number of agreeing decisions.

    Raises:
        EvaluationError: The logging was not uniform, or too few decisions agree.
    """
    if np.ptp(log.propensities) > 1e-9:
        raise EvaluationError("replay needs uniform logging; use SNIPS or DR with the logged propensities")
    agree = (log.actions == np.asarray(chosen)).astype(np.float64)
    _enough(float(agree.sum()), floor)
    return _bootstrap(
        lambda i: float((agree[i] * log.rewards[i]).sum() / max(agree[i].sum(), 1)), log, agree.sum()
    )


def ips(log: LoggedDecisions, probabilities: Array, *, floor: float = FLOOR) -> Estimate:
    """Return the inverse-propensity estimate, which is unbiased but has high variance if weights are large.

    Args:
        log: The log.
        probabilities: π(a|x) of the evaluated policy, shape (n, A).
        floor: Minimum effective sample size.

    Raises:
        EvaluationError: The sample size is below the floor, or the probabilities are not a distribution.
    """
    w = _weights(log, probabilities, floor)
    return _bootstrap(lambda i: float((w[i] * log.rewards[i]).mean()), log, effective(w))


def snips(log: LoggedDecisions, probabilities: Array, *, floor: float = FLOOR) -> Estimate:
    """Return the self-normalised estimate, which is slightly biased but varies much less. Arguments as for `ips`."""
    w = _weights(log, probabilities, floor)
    return _bootstrap(
        lambda i: float((w[i] * log.rewards[i]).sum() / max(w[i].sum(), 1e-12)), log, effective(w)
    )


def doubly_robust(
    log: LoggedDecisions, probabilities: Array, predicted: Array, *, floor: float = FLOOR
) -> Estimate:
    """Return the doubly robust estimate, which is consistent if either the propensities or the model is correct.

    Args:
        log: The log.
        probabilities: π(a|x) of the evaluated policy, shape (n, A).
        predicted: Rewards predicted by a model fitted on other decisions, shape (n, A).
        floor: Minimum effective sample size.

    Raises:
        EvaluationError: As for `ips`.
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
    """Return the distribution for a policy that always chooses `chosen`, shape (n, A)."""
    return np.asarray(np.eye(actions)[np.asarray(chosen)])


def cross_fitted(
    features: Array, log: LoggedDecisions, actions: int, *, folds: int = 5, ridge: float = 1.0
) -> Array:
    """Return predicted rewards, shape (n, A), from one ridge regression per action, fitted on the other folds.

    Args:
        features: Features of each decision, shape (n, d).
        log: The log.
        actions: Number of actions, A.
        folds: Number of folds; decision i is in fold i mod `folds`.
        ridge: The penalty λ.
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
        raise EvaluationError("probabilities: a row is not a distribution; each must sum to 1")
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
