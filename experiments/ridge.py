"""Ridge regression as the lab judges with it: nothing of the product's, whose learners it is the yardstick of."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold

Array = npt.NDArray[np.float64]

STRENGTHS = np.logspace(-2, 4, 13)
INNER = 4  # folds in which the strength is chosen


def predictions(
    seen: Array,
    values: Array,
    new: Array,
    strengths: Array,
    *,
    arms: Array | None = None,
    centred: bool = True,
) -> Iterator[Array]:
    """Yield predictions at each strength, shape (new, A): W of values ≈ mean + X W Zᵀ in the singular bases of X and Z.

    Args:
        seen: X, features of the questions fitted on, shape (n, d).
        values: Of every arm on them, shape (n, A).
        new: Features of the questions asked about, shape (m, d).
        strengths: λ; each penalises W alike.
        arms: Z, features of the arms, shape (A, k); without them every arm has weights of its own.
        centred: Whether each arm has a mean that is not penalised.
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
    """Return predictions at the strength best in folds of the questions: arms of one question share its noise."""
    errors = np.zeros(len(STRENGTHS))
    for fitted, judged in KFold(INNER, shuffle=True, random_state=1).split(seen):
        told = predictions(seen[fitted], values[fitted], seen[judged], STRENGTHS, arms=arms)
        for k, predicted in enumerate(told):
            errors[k] += float(((predicted - values[judged]) ** 2).sum())
    (best,) = predictions(seen, values, new, STRENGTHS[[int(errors.argmin())]], arms=arms)
    return best


def by_leaving_one_out(seen: Array, values: Array, new: Array) -> Array:
    """Return predictions at the strength that is best on each question when all others are fitted."""
    (best,) = predictions(seen, values, new, np.array([strength_left_out(seen, values)]))
    return best


def strength_left_out(seen: Array, values: Array) -> float:
    """Return the strength that is best on each question when all others are fitted."""
    u, s, _ = np.linalg.svd(seen - seen.mean(axis=0), full_matrices=False)
    shrunk = [s**2 / (s**2 + strength) for strength in STRENGTHS]
    # What a question's own value counts in its prediction; the mean has 1/n of it.
    own = np.array([(u**2) @ each for each in shrunk]) + 1 / len(seen)
    fitted = predictions(seen, values, seen, STRENGTHS)
    errors = [
        float((((values - predicted) / (1 - of_own[:, None])) ** 2).mean())
        for predicted, of_own in zip(fitted, own, strict=True)
    ]
    return float(STRENGTHS[int(np.argmin(errors))])
