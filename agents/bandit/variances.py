"""Estimates of the variances of the contextual policy's coefficients, one for each block of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.history import History
from agents.bandit.policy import Matrix, Vector
from agents.bandit.posterior import inverted

# Every coefficient has the prior N(0, τ²) with the τ² of its block, so coefficients that do not help shrink to zero and
# others do not. The variances maximise the marginal likelihood of the outcomes (MacKay's fixed point), with defaults
# from other fleets weighing as much as three coefficients.
#
# Outcomes of one question share an effect of the question, and those of one model on it share an effect of the pair.
# They say more about differences between actions than independent outcomes would, and less about the level of each. So
# each of these levels has a noise variance of its own.

BELIEF: Final = 3.0
"""Weight of a block's default variance, in coefficients."""

BELIEF_NOISE: Final = 20.0
"""Weight of the prior noise, in outcomes."""

ROUNDS: Final = 20
"""Iterations of the fixed point for a history; each inverts A once."""

AGAIN: Final = 2
"""Iterations between the variances of the last blocks and the noise."""

FLAT: Final = 1e-7
"""Smallest variance of a block, and smallest noise."""

USUAL: Final[Mapping[str, tuple[float, float]]] = {
    "one × constant": (0.1, 0.1),
    "one × counts": (0.05, 0.5),
    "one × directions": (0.02, 0.1),
    "one × kernel": (0.06, 0.1),
    "coordinate × constant": (0.02, 0.05),
    "coordinate × counts": (0.002, 0.03),
    "coordinate × directions": (0.0005, 0.005),
    "coordinate × kernel": (0.002, 0.005),
    "model × constant": (0.03, 0.5),
    "model × counts": (0.002, 0.02),
    "model × directions": (0.002, 0.02),
    "model × kernel": (0.01, 0.02),
    "shape × constant": (0.0005, 0.1),
    "shape × counts": (0.0001, 0.005),
    "shape × directions": (0.00001, 0.0001),
    "shape × kernel": (0.00001, 0.0001),
    "one × category": (0.01, 0.05),
    "coordinate × category": (0.001, 0.01),
    "model × category": (0.02, 0.02),
}
"""Default variances of accuracy, and of cost in units of the anchors: the generic prior."""


MEANS: Final[Mapping[str, tuple[float, float]]] = {"size": (0.12, 0.0)}
"""Default means of the query-independent coefficients of plain coordinates: how accuracy, and cost in units of the
anchors, typically grow along them."""


def usual_mean(feature: str, block: str, term: int) -> float:
    """Return the default mean of a feature's coefficients in a block, for accuracy (0) or cost (1)."""
    return MEANS[feature][term] if feature in MEANS and block.endswith("constant") else 0.0


def usual_variance(block: str, term: int) -> float:
    """Return the default variance of a block of `ContextualFeatures.column_blocks`, for accuracy (0) or cost (1)."""
    return USUAL[usual_block(block)][term]


def usual_block(block: str) -> str:
    """Return the kind of a block; all plain coordinates have the same kind."""
    kind, part = block.split(" × ")
    return block if kind in ("one", "model", "shape") else f"coordinate × {part}"


@dataclass(frozen=True)
class Evidence:
    """Sums over rows with one noise.

    Attributes:
        gram, moment: Σ x xᵀ, shape (D, D), and Σ x·yᵀ of all targets, shape (D, T).
        square: Σ y² of the first target, whose variances are estimated.
        count: Rows.
        noise: The current estimate of its variance.
    """

    gram: Matrix
    moment: Matrix
    square: float
    count: float
    noise: float

    def of(self, columns: int) -> Evidence:
        """Return the same of the first columns of x alone."""
        if columns == len(self.gram):
            return self
        gram = np.ascontiguousarray(self.gram[:columns, :columns])
        return replace(self, gram=gram, moment=self.moment[:columns])

    def noise_given(self, theta: Vector, inverse: Matrix) -> float:
        """Return the variance of its noise, given the posterior mean and covariance of the coefficients."""
        rest = self.square - 2.0 * float(theta @ self.moment[:, 0]) + float(theta @ self.gram @ theta)
        rest += float(np.sum(inverse * self.gram))
        return max((rest + BELIEF_NOISE * self.noise) / (self.count + BELIEF_NOISE), FLAT)


Variances: TypeAlias = tuple[dict[str, float], list[float]]
"""The variance of every block of a regression, and the noise of every kind of evidence."""


def estimated(evidence: Sequence[Evidence], blocks: Sequence[str], term: int) -> Variances:
    """Estimate the variance of every block, and the noise of every kind of evidence.

    Args:
        evidence: The sums of each kind of evidence.
        blocks: The block of each column.
        term: Which defaults apply: those of accuracy (0) or of cost (1).
    """
    names = list(dict.fromkeys(blocks))
    place = {name: i for i, name in enumerate(names)}
    of = np.array([place[name] for name in blocks])
    usual = np.array([usual_variance(name, term) for name in names])
    tau = usual
    noises = [each.noise for each in evidence]
    # Reused in every iteration: allocating memory takes longer than the division.
    scaled = np.empty_like(evidence[0].gram)
    for _ in range(ROUNDS):
        a = np.diag(1.0 / tau[of])
        b = np.zeros(len(of))
        for each, noise in zip(evidence, noises, strict=True):
            a += np.divide(each.gram, noise, out=scaled)
            b += each.moment[:, 0] / noise
        inverse = inverted(a)
        theta = inverse @ b
        tau = _maximised(tau, of, theta, inverse, usual)
        noises = [each.noise_given(theta, inverse) for each in evidence]
    return dict(zip(names, tau.tolist(), strict=True)), noises


def _maximised(tau: Vector, of: np.ndarray, theta: Vector, inverse: Matrix, usual: Vector) -> Vector:
    """Return the variances of the next iteration of the fixed point.

    Args:
        tau: The current ones, one for each block.
        of: The block of each column, by index.
        theta: Posterior mean of the coefficients under them.
        inverse: Posterior covariance of the coefficients under them.
        usual: The defaults.
    """
    effective = np.maximum(np.bincount(of) - np.bincount(of, np.diag(inverse)) / tau, 0.0)
    return np.maximum((np.bincount(of, theta**2) + BELIEF * usual) / (effective + BELIEF), FLAT)


def estimated_with_last(
    evidence: Sequence[Evidence], blocks: Sequence[str], first: int, term: int
) -> Variances:
    """Estimate the variances of all blocks, those of the last ones given the others, and the noises.

    Args:
        evidence: The sums of each kind of evidence.
        blocks: The block of each column.
        first: The first column of the last blocks.
        term: As for `estimated`.
    """
    found, noises = estimated([each.of(first) for each in evidence], blocks[:first], term)
    if first == len(blocks):
        return found, noises
    for _ in range(AGAIN):
        a = sum((each.gram / noise for each, noise in zip(evidence, noises, strict=True)), start=np.zeros(1))
        b = sum(
            (each.moment[:, 0] / noise for each, noise in zip(evidence, noises, strict=True)),
            start=np.zeros(1),
        )
        found = found | estimated_last(a, b, found, blocks, first, term)
        inverse = inverted(a + np.diag([1.0 / found[block] for block in blocks]))
        # What the last blocks explain is not noise.
        noises = [each.noise_given(inverse @ b, inverse) for each in evidence]
    return found, noises


def estimated_last(
    a: Matrix, b: Vector, known: Mapping[str, float], blocks: Sequence[str], first: int, term: int
) -> dict[str, float]:
    """Estimate the variances of the last blocks, given those of the others and the noise.

    The other coefficients are integrated out: what they explain is theirs. So columns that can only repeat it, such as
    those of categories that the text shows, or that mean nothing, get next to no variance.

    Args:
        a: Σ x xᵀ/σ², shape (D, D).
        b: Σ x·y/σ², shape (D,).
        known: The variance of each of the other blocks.
        blocks: The block of each column.
        first: The first column of the last blocks.
        term: As for `estimated`.
    """
    names = list(dict.fromkeys(blocks[first:]))
    of = np.array([names.index(name) for name in blocks[first:]])
    usual = np.array([usual_variance(name, term) for name in names])
    others = a[:first, :first] + np.diag([1.0 / known[block] for block in blocks[:first]])
    cross = a[first:, :first]
    explained = cross @ inverted(others)
    gram, moment = a[first:, first:] - explained @ cross.T, b[first:] - explained @ b[:first]
    # Where the others explain all, rounding may leave less than nothing.
    sizes, axes = np.linalg.eigh((gram + gram.T) / 2.0)
    gram = (axes * np.maximum(sizes, 0.0)) @ axes.T
    tau = usual
    for _ in range(ROUNDS):
        inverse = inverted(gram + np.diag(1.0 / tau[of]))
        theta = inverse @ moment
        tau = _maximised(tau, of, theta, inverse, usual)
    return dict(zip(names, tau.tolist(), strict=True))


def evidence_of(features: ContextualFeatures, history: History, z: Matrix, targets: Matrix) -> list[Evidence]:
    """Return the sums over the separate effects of rows, models and questions.

    Args:
        features: They compute x.
        history: Its rows.
        z: [z; c] of its questions, shape (Q, rank + K).
        targets: Targets of its rows, centred, shape (m, T); the first is the one whose variances are estimated.

    Returns:
        Deviations of rows from the mean of their question and model, deviations of these means from the mean of their
        question, and the means of questions. Empty levels are omitted.
    """
    models = list(dict.fromkeys(features.models))
    model = np.array([models.index(name) for name in features.models])[history.action]
    order = np.lexsort((model, history.question))
    asked, group = history.question[order], (history.question * len(models) + model)[order]
    begins = np.flatnonzero(np.diff(asked, prepend=-1))
    dim, terms = features.dim, targets.shape[1]
    sums = [(np.zeros((dim, dim)), np.zeros((dim, terms)), np.zeros(terms)) for _ in range(3)]
    counts = [len(order), int(np.count_nonzero(np.diff(group, prepend=-1))), len(begins)]
    # A level without deviations from the next is left out, and so are its sums: with different questions, as in
    # traffic, only the last is left.
    held = (counts[0] > counts[1], counts[0] > counts[2], True)
    root = np.sqrt(history.weights)
    for first in range(0, len(begins), CHUNK):
        ends = begins[first + CHUNK] if first + CHUNK < len(begins) else len(order)
        span = slice(begins[first], ends)
        rows = order[span]
        x = features.rows(z[history.question[rows]], history.action[rows]) * root[rows, None]
        y = targets[rows] * root[rows, None]
        of_models = np.flatnonzero(np.diff(group[span], prepend=-1))
        of_questions = np.flatnonzero(np.diff(asked[span], prepend=-1))
        starts = (np.arange(len(rows)), of_models, of_questions)
        levels = [_means(x, y, at) if own else (x[:0], y[:0]) for at, own in zip(starts, held, strict=True)]
        for (gram, moment, square), (left, right) in zip(sums, levels, strict=True):
            gram += left.T @ left
            moment += left.T @ right
            square += np.sum(right**2, axis=0)
    found = []
    for level in range(3):
        gram, moment, square = sums[level]
        count = counts[level]
        if level < 2:  # deviations from the means of the next level
            gram, moment, square = (a - b for a, b in zip(sums[level], sums[level + 1], strict=True))
            count -= counts[level + 1]
        if count:
            noise = max(float(square[0]) / count, FLAT)
            found.append(Evidence(gram, moment, float(square[0]), count, noise))
    return found


def _means(x: Matrix, y: Matrix, starts: np.ndarray) -> tuple[Matrix, Matrix]:
    """Return the means of consecutive rows, times the square root of their number."""
    share = np.sqrt(np.diff(np.append(starts, len(x))))[:, None]
    return np.add.reduceat(x, starts) / share, np.add.reduceat(y, starts) / share


CHUNK: Final = 64
"""Number of questions whose rows are in memory at a time."""
