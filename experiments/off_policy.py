"""What would another policy have earned on logged traffic? Replay, IPS, SNIPS and DR.

A log says, for each decision, which action was taken, with what probability, and what came of it. An estimate rests
on few decisions when the logged policy seldom did what the other would do; the effective sample size (Σw)²/Σw² says
how few, and below a floor none is given. SNIPS and its interval are by bootstrap: the usual formula normalises round
by round and is too narrow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.outcomes import Array
from experiments.ridge import predictions
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
