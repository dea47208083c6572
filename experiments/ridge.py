"""The lab's own ridge regression. It shares no code with the product, because it judges the product's learners."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold

Array = npt.NDArray[np.float64]

STRENGTHS = np.logspace(-2, 4, 13)
INNER = 4  # folds for choosing the penalty


def predictions(
    seen: Array,
    values: Array,
    new: Array,
    strengths: Array,
    *,
    arms: Array | None = None,
    centred: bool = True,
) -> Iterator[Array]:
    """Yield predictions for each penalty, shape (m, A), with W fitted so that values ≈ mean + X W Zᵀ.

    W is fitted in the singular bases of X and Z.

    Args:
        seen: X, features of the questions that W is fitted on, shape (n, d).
        values: Every arm's values on these questions, shape (n, A).
        new: Features of the questions to predict, shape (m, d).
        strengths: Values of the penalty λ.
        arms: Z, features of the arms, shape (A, k); with None, every arm has its own weights.
        centred: Whether each arm has an unpenalised mean.
    """
    centre = seen.mean(axis=0) if centred else np.zeros(seen.shape[1])
    mean = values.mean(axis=0) if centred else np.zeros(values.shape[1])
    u, s, vt = np.linalg.svd(seen - centre, full_matrices=False)
    right = u.T @ (values - mean)
    basis, t = None, np.ones(values.shape[1])
    if arms is not None:
        basis, t, _ = np.linalg.svd(arms, full_matrices=False)
        right = right @ basis
    scale = np.outer(s, t)
    at = (new - centre) @ vt.T
    for strength in strengths:
        fitted = at @ (scale / (scale**2 + strength) * right * t)
        yield mean + (fitted if basis is None else fitted @ basis.T)


def by_folds(seen: Array, values: Array, new: Array, arms: Array | None = None) -> Array:
    """Return predictions with the penalty chosen by cross-validation over whole questions, whose arms share noise."""
    errors = np.zeros(len(STRENGTHS))
    for fitted, judged in KFold(INNER, shuffle=True, random_state=1).split(seen):
        told = predictions(seen[fitted], values[fitted], seen[judged], STRENGTHS, arms=arms)
        for k, predicted in enumerate(told):
            errors[k] += float(((predicted - values[judged]) ** 2).sum())
    (best,) = predictions(seen, values, new, STRENGTHS[[int(errors.argmin())]], arms=arms)
    return best


def by_leaving_one_out(seen: Array, values: Array, new: Array) -> Array:
    """Return predictions with the penalty chosen by leave-one-out cross-validation."""
    (best,) = predictions(seen, values, new, np.array([strength_left_out(seen, values)]))
    return best


def strength_left_out(seen: Array, values: Array) -> float:
    """Return the penalty chosen by leave-one-out cross-validation."""
    u, s, _ = np.linalg.svd(seen - seen.mean(axis=0), full_matrices=False)
    shrunk = [s**2 / (s**2 + strength) for strength in STRENGTHS]
    # The leverage of each question, including 1/n from the mean.
    own = np.array([(u**2) @ each for each in shrunk]) + 1 / len(seen)
    fitted = predictions(seen, values, seen, STRENGTHS)
    errors = [
        float((((values - predicted) / (1 - of_own[:, None])) ** 2).mean())
        for predicted, of_own in zip(fitted, own, strict=True)
    ]
    return float(STRENGTHS[int(np.argmin(errors))])
