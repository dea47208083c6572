"""Estimates the prior variances of the contextual policy's coefficients, one for each block of columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
from scipy.linalg import lapack, solve_triangular

from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.history import History
from agents.bandit.policy import Matrix, Vector
from agents.bandit.posterior import inverted

# Every coefficient has the prior N(0, τ²), with its block's τ², so coefficients that do not help shrink to zero while
# others do not. The variances maximise the marginal likelihood of the outcomes (MacKay's fixed point), with defaults
# from other fleets weighing as much as three coefficients.
#
# Outcomes for the same question share a question effect, and those that also have the same model share an effect for
# the pair. Such outcomes say more about differences between actions than independent outcomes would, and less about
# each action's level. Rows, pairs and questions therefore have separate noise variances.

BELIEF: Final = 3.0
"""Weight of a block's default variance, as a number of coefficients."""

BELIEF_NOISE: Final = 20.0
"""Weight of the prior noise, as a number of outcomes."""

ROUNDS: Final = 20
"""Number of fixed-point iterations per history. Each inverts A once."""

ROUNDS_OF_LAST: Final = 10
"""Number of fixed-point iterations for the variances of the last blocks, given the others."""

CLEAR: Final = 2.0
"""How many standard errors categories must gain on a full table's questions (`gain_of_last`) to get any variance. On
histories, meaningless ones gain up to 1.8 (`experiments/CRITERIA.md`)."""

FOLDS: Final = 5
"""Number of parts of a table's questions, each held out once."""

FLAT: Final = 1e-7
"""Lower bound on every block variance and every noise variance."""

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
    "one × category": (0.01 / 16, 0.05 / 16),
    "coordinate × category": (0.001 / 16, 0.01 / 16),
    "model × category": (0.02 / 16, 0.02 / 16),
}
"""Generic prior: default variances for each block's coefficients, for accuracy and for cost in units of the anchors.
For categories, the factor 1/16 was chosen on halves of a history (`experiments/CRITERIA.md`)."""


MEANS: Final[Mapping[str, tuple[float, float]]] = {"size": (0.12, 0.0)}
"""Default means for the query-independent coefficients of plain coordinates: how accuracy, and cost in units of the
anchors, typically grow along them."""


def usual_mean(feature: str, block: str, term: int) -> float:
    """Return the default mean for a feature's coefficients in a block, for accuracy (0) or cost (1)."""
    return MEANS[feature][term] if feature in MEANS and block.endswith("constant") else 0.0


def usual_variance(block: str, term: int) -> float:
    """Return the default variance for a block from `ContextualFeatures.column_blocks`, for accuracy (0) or cost (1)."""
    return USUAL[usual_block(block)][term]


def usual_block(block: str) -> str:
    """Return the kind of a block. All plain coordinates have the same kind, and efforts that of models."""
    kind, part = block.split(" × ")
    if kind == "effort":
        return f"model × {part}"
    return block if kind in ("one", "model", "shape") else f"coordinate × {part}"


@dataclass(frozen=True)
class Evidence:
    """Sums over rows that share one noise variance.

    Attributes:
        gram, moment: Σ x xᵀ, shape (D, D), and Σ x·yᵀ over all targets, shape (D, T).
        square: Σ y² for the first target, whose variances are estimated.
        count: Number of rows.
        noise: The current estimate of the noise variance.
        leaves: Columns of features that exclude each other, such as the models', shape (M, r): no row except those of
            `mixed` has non-zero values in two of these M groups. Empty if there are no such columns.
        mixed: Rows x that may have non-zero values in several leaves, shape (k, D). They are part of the sums.
    """

    gram: Matrix
    moment: Matrix
    square: float
    count: float
    noise: float
    leaves: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.intp))
    mixed: Matrix = field(default_factory=lambda: np.zeros((0, 0)))

    def of(self, columns: int) -> Evidence:
        """Return the same sums, restricted to the first `columns` columns of x."""
        if columns == len(self.gram):
            return self
        gram = np.ascontiguousarray(self.gram[:columns, :columns])
        leaves = self.leaves[:, (self.leaves < columns).all(axis=0)]
        mixed = np.ascontiguousarray(self.mixed[:, :columns])
        return replace(self, gram=gram, moment=self.moment[:columns], leaves=leaves, mixed=mixed)

    def noise_given(self, theta: Vector, predicted: float) -> float:
        """Return the noise variance, given the posterior means, and Σ E[(xᵀθ)²] under the posterior."""
        rest = self.square - 2.0 * float(theta @ self.moment[:, 0]) + predicted
        return max((rest + BELIEF_NOISE * self.noise) / (self.count + BELIEF_NOISE), FLAT)


class Posterior:
    """The coefficients' posterior, given evidence, for any noise and prior variances.

    If the last kind of evidence has leaves (`Evidence.leaves`), A is a block arrowhead matrix, in which the products of
    two leaves are zero, plus the products of a few rows (`Evidence.mixed`). Its inverse then costs little more than
    that of the remaining columns.

    Args:
        evidence: The sums of each kind of evidence. If the last one has leaves, all others consist of mixed rows.
    """

    def __init__(self, evidence: Sequence[Evidence]) -> None:
        self._evidence = evidence
        # Reused in every iteration, because allocating memory takes longer than the division.
        self._scaled = np.empty_like(evidence[0].gram)
        last = evidence[-1]
        self._leaves = last.leaves
        self._arrowhead = self._leaves.size > 0
        if self._arrowhead:
            gram = last.gram - last.mixed.T @ last.mixed if len(last.mixed) else last.gram
            rest = self._rest = np.setdiff1d(np.arange(len(gram)), self._leaves)
            self._own = gram[self._leaves[:, :, None], self._leaves[:, None, :]]  # (M, r, r)
            self._cross = gram[self._leaves[:, :, None], rest]  # (M, r, s)
            self._among = gram[np.ix_(rest, rest)]

    def given(self, noises: Sequence[float], penalties: Vector) -> tuple[Vector, Vector, list[float]]:
        """Return the coefficients' means and variances, and the next estimate of each noise variance.

        Args:
            noises: The noise variance for each kind of evidence.
            penalties: The prior precisions, shape (D,).
        """
        pairs = list(zip(self._evidence, noises, strict=True))
        b = np.zeros(len(penalties))
        for each, noise in pairs:
            b += each.moment[:, 0] / noise
        if self._arrowhead:
            theta, variances, predicted = self._with_mixed(noises, penalties, b)
        else:
            a = np.diag(penalties)
            for each, noise in pairs:
                a += np.divide(each.gram, noise, out=self._scaled)
            inverse = inverted(a)
            theta, variances = inverse @ b, np.diag(inverse)
            predicted = [
                float(theta @ each.gram @ theta) + float(np.sum(inverse * each.gram))
                for each in self._evidence
            ]
        found = [each.noise_given(theta, of) for each, of in zip(self._evidence, predicted, strict=True)]
        return theta, variances, found

    def _with_mixed(
        self, noises: Sequence[float], penalties: Vector, b: Vector
    ) -> tuple[Vector, Vector, list[float]]:
        """Return A⁻¹b, the diagonal of A⁻¹, and each kind's Σ E[(xᵀθ)²], without the other entries of A⁻¹."""
        counts = [len(each.mixed) for each in self._evidence]
        scaled = [each.mixed / noise**0.5 for each, noise in zip(self._evidence, noises, strict=True)]
        u = np.concatenate([each for each in scaled if len(each)]) if any(counts) else np.zeros((0, len(b)))
        solved, variances = self._of_arrowhead(noises[-1], penalties, np.column_stack([b, u.T]))
        theta, along, of_rows = solved[:, 0], solved[:, 1:], np.zeros(0)
        if len(u):
            # Woodbury: A = A₀ + UᵀU, and with S = I + UA₀⁻¹Uᵀ, A⁻¹ = A₀⁻¹ - A₀⁻¹UᵀS⁻¹UA₀⁻¹ and UA⁻¹Uᵀ = I - S⁻¹.
            right = np.column_stack([along.T, u @ theta, np.eye(len(u))])
            low = np.linalg.cholesky(np.eye(len(u)) + u @ along)
            solved = solve_triangular(low, right, lower=True, check_finite=False)
            half, first, inverse = np.split(solved, [len(b), len(b) + 1], axis=1)
            theta = theta - half.T @ first[:, 0]
            variances = variances - np.sum(half**2, axis=0)
            of_rows = (u @ theta) ** 2 + 1.0 - np.sum(inverse**2, axis=0)
        shares = [float(each.sum()) for each in np.split(of_rows, np.cumsum(counts)[:-1])]
        # Over their noise, those of all kinds add up to θᵀ(A - Λ)θ plus the trace of A⁻¹(A - Λ).
        whole = float(theta @ b) + len(b) - float(penalties @ (theta**2 + variances))
        shares[-1] = whole - sum(shares[:-1])
        return theta, variances, [noise * share for noise, share in zip(noises, shares, strict=True)]

    def _of_arrowhead(self, noise: float, penalties: Vector, b: Matrix) -> tuple[Matrix, Vector]:
        """Return A₀⁻¹b, shape (D, k), and the diagonal of A₀⁻¹, where A₀ is A without the mixed rows."""
        leaves, rest, (count, size) = self._leaves, self._rest, self._leaves.shape
        columns = b.shape[1]
        own, diagonal = self._own / noise, np.arange(size)
        own[:, diagonal, diagonal] += penalties[leaves]
        # The leaves are eliminated by Cholesky, because products with an inverse would lose all digits if the noise is
        # small.
        right = np.empty((count, size, len(rest) + columns + size))
        np.divide(self._cross, noise, out=right[:, :, : len(rest)])
        right[:, :, len(rest) : -size], right[:, :, -size:] = b[leaves], np.eye(size)
        solved = np.empty_like(right)
        for place, low in enumerate(np.linalg.cholesky(own)):
            solved[place] = lapack.dtrtrs(low, right[place], lower=1)[0]
        along, first, half = np.split(solved, [len(rest), len(rest) + columns], axis=2)
        cross = along.reshape(-1, len(rest))
        among = inverted(self._among / noise - cross.T @ cross + np.diag(penalties[rest]))
        theta, variances = np.empty_like(b), np.empty(len(b))
        theta[rest] = among @ (b[rest] - cross.T @ first.reshape(-1, columns))
        back = half.transpose(0, 2, 1)
        theta[leaves] = back @ (first - along @ theta[rest])
        along = (back @ along).reshape(count * size, -1)
        variances[rest] = np.diag(among)
        variances[leaves] = np.sum((along @ among) * along, axis=1).reshape(leaves.shape)
        variances[leaves] += np.sum(half**2, axis=1)
        return theta, variances


Variances: TypeAlias = tuple[dict[str, float], list[float]]
"""The variance of each of a regression's blocks, and the noise variance of each kind of evidence."""


def estimated(
    evidence: Sequence[Evidence], blocks: Sequence[str], term: int, known: Variances | None = None
) -> Variances:
    """Estimate each block's variance, and the noise variance for each kind of evidence.

    Args:
        evidence: The sums for each kind of evidence.
        blocks: The block of each column.
        term: Which defaults apply: those for accuracy (0) or cost (1).
        known: Block variances to keep, and noise variances to start from; None to estimate all of them.
    """
    names = list(dict.fromkeys(blocks))
    place = {name: i for i, name in enumerate(names)}
    of = np.array([place[name] for name in blocks])
    usual = np.array([usual_variance(name, term) for name in names])
    kept, noises = known or ({}, [each.noise for each in evidence])
    free = np.array([name not in kept for name in names])
    tau = np.array([kept.get(name, each) for name, each in zip(names, usual.tolist(), strict=True)])
    posterior = Posterior(evidence)
    for _ in range(ROUNDS_OF_LAST if known else ROUNDS):
        theta, variances, noises = posterior.given(noises, (1.0 / tau)[of])
        tau = np.where(free, _maximised(tau, of, theta, variances, usual), tau)
    return dict(zip(names, tau.tolist(), strict=True)), noises


def _maximised(tau: Vector, of: np.ndarray, theta: Vector, variances: Vector, usual: Vector) -> Vector:
    """Return the variances for the next fixed-point iteration.

    Args:
        tau: The current variances, one per block.
        of: Index of each column's block.
        theta: Posterior means of the coefficients, given the current variances.
        variances: Posterior variances of the coefficients, given the current variances.
        usual: The default variances.
    """
    effective = np.maximum(np.bincount(of) - np.bincount(of, variances) / tau, 0.0)
    return np.maximum((np.bincount(of, theta**2) + BELIEF * usual) / (effective + BELIEF), FLAT)


def estimated_with_last(
    evidence: Sequence[Evidence], blocks: Sequence[str], first: int, term: int
) -> Variances:
    """Estimate the noise variances and all block variances, those of the last blocks given the others.

    Effects that the other blocks can explain are attributed to those blocks. Columns that add nothing, such as those
    for categories that are irrelevant or already evident from the text, therefore get next to no variance.

    Args:
        evidence: The sums for each kind of evidence.
        blocks: The block of each column.
        first: Index of the first column in the last blocks.
        term: As for `estimated`.
    """
    found = estimated([each.of(first) for each in evidence], blocks[:first], term)
    return found if first == len(blocks) else estimated(evidence, blocks, term, found)


def estimated_without_last(
    evidence: Sequence[Evidence], blocks: Sequence[str], first: int, term: int
) -> Variances:
    """Estimate what `estimated_with_last` does as if there were no last blocks, which get next to no variance.

    Args:
        evidence: As for `estimated_with_last`.
        blocks: As for `estimated_with_last`.
        first: As for `estimated_with_last`.
        term: As for `estimated`.
    """
    found, noises = estimated([each.of(first) for each in evidence], blocks[:first], term)
    return found | dict.fromkeys(blocks[first:], FLAT), noises


def estimated_last(
    gram: Matrix, moment: Vector, blocks: Sequence[str], term: int, known: Mapping[str, float]
) -> dict[str, float]:
    """Estimate the last blocks' variances, given the other blocks' variances and the noise.

    Args:
        gram: A for these blocks' columns, with the others integrated out (`marginal`), without these blocks' penalties.
        moment: b for the same columns.
        blocks: The block of each of these columns.
        term: As for `estimated`.
        known: Variances to start from. A block not listed starts from its default.
    """
    names = list(dict.fromkeys(blocks))
    of = np.array([names.index(name) for name in blocks])
    usual = np.array([usual_variance(name, term) for name in names])
    tau = np.array([known.get(name, each) for name, each in zip(names, usual.tolist(), strict=True)])
    for _ in range(ROUNDS_OF_LAST):
        inverse = inverted(gram + np.diag((1.0 / tau)[of]))
        tau = _maximised(tau, of, inverse @ moment, np.diag(inverse), usual)
    return dict(zip(names, tau.tolist(), strict=True))


def gain_of_last(
    features: ContextualFeatures, history: History, z: Matrix, targets: Matrix, found: Variances
) -> float:
    """Return how clearly the last blocks lower the squared error on questions held out, in standard errors.

    The marginal likelihood takes a question's rows as independent but for the effects of `evidence_of`. They share
    more, such as what a wider search gains on it, so meaningless categories seem likely. Questions are independent.

    Args:
        features: As for `evidence_of`.
        history: As for `evidence_of`.
        z: As for `evidence_of`.
        targets: As for `evidence_of`.
        found: The variances to predict with, estimated from all questions.
    """
    asked, place = np.unique(history.question, return_inverse=True)
    if len(asked) < FOLDS:
        return 0.0
    tau = np.array([found[0][block] for block in features.column_blocks])
    gains = np.zeros(len(asked))
    for fold in range(FOLDS):
        out = place % FOLDS == fold
        levels = evidence_of(features, history.of_rows(~out), z, targets[~out])
        a = np.diag(1.0 / tau)
        b = np.zeros(len(tau))
        for each, noise in zip(levels, found[1], strict=True):
            a += each.gram / noise
            b += each.moment[:, 0] / noise
        x, y = features.rows(z[history.question[out]], history.action[out]), targets[out, 0]
        errors = [
            (y - x[:, :columns] @ np.linalg.solve(a[:columns, :columns], b[:columns])) ** 2
            for columns in (features.plain_dim, features.dim)
        ]
        np.add.at(gains, place[out], history.weights[out] * (errors[0] - errors[1]))
    spread = float(gains.std()) / math.sqrt(len(gains))
    return float(gains.mean()) / spread if spread > 0.0 else 0.0


def evidence_of(features: ContextualFeatures, history: History, z: Matrix, targets: Matrix) -> list[Evidence]:
    """Return separate sums for the effects of rows, of models within questions, and of questions.

    Args:
        features: The features, which compute x.
        history: The history.
        z: [z; c] for each question, shape (Q, rank + K).
        targets: Centred targets for each row, shape (m, T). Variances are estimated for the first target.

    Returns:
        The sums for the rows' deviations from the mean of their question and model, for those means' deviations from
        the mean of their question, and for the question means. Empty levels are omitted.
    """
    models = list(dict.fromkeys(features.models))
    model = np.array([models.index(name) for name in features.models])[history.action]
    order = np.lexsort((model, history.question))
    asked, group = history.question[order], (history.question * len(models) + model)[order]
    begins = np.flatnonzero(np.diff(asked, prepend=-1))
    sizes = np.diff(np.append(begins, len(order)))
    again = np.repeat(sizes > 1, sizes)
    if np.count_nonzero(again) <= features.dim * MIXED and not again.all():
        separate = _evidence_of_separate(features, history, z, targets, np.sort(order[~again]))
        if not again.any():
            return [separate]
        return _with_repeated(features, history, z, targets, separate, order[again], group[again])
    dim, terms = features.dim, targets.shape[1]
    sums = [(np.zeros((dim, dim)), np.zeros((dim, terms)), np.zeros(terms)) for _ in range(3)]
    counts = [len(order), int(np.count_nonzero(np.diff(group, prepend=-1))), len(begins)]
    # The first level is skipped if its rows do not deviate from the second.
    held = (counts[0] > counts[1], True, True)
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


def _with_repeated(
    features: ContextualFeatures,
    history: History,
    z: Matrix,
    targets: Matrix,
    separate: Evidence,
    rows: np.ndarray,
    group: np.ndarray,
) -> list[Evidence]:
    """Return the sums of `evidence_of`, if only a few rows share their question with others.

    Args:
        features: As for `evidence_of`.
        history: As for `evidence_of`.
        z: As for `evidence_of`.
        targets: As for `evidence_of`.
        separate: The sums over rows that each have their own question.
        rows: The other rows, in order of their question and model.
        group: Number of the question and model of each of these rows.
    """
    root, dim = np.sqrt(history.weights)[rows, None], features.dim
    x = features.rows(z[history.question[rows]], history.action[rows])
    means, weights, found = np.hstack([x, targets[rows]]) * root, np.ones(len(rows)), []
    of_models = np.flatnonzero(np.diff(group, prepend=-1))
    of_questions = np.flatnonzero(np.diff(history.question[rows[of_models]], prepend=-1))
    for starts in (of_models, of_questions):
        apart, means, weights = _contrasts(means, weights, starts)
        if len(apart):
            found.append(_evidence_of_mixed(apart, dim))
    rest = _evidence_of_mixed(means * np.sqrt(weights)[:, None], dim)
    square, count = separate.square + rest.square, separate.count + rest.count
    last = replace(
        separate,
        gram=separate.gram + rest.gram,
        moment=separate.moment + rest.moment,
        square=square,
        count=count,
        noise=max(square / count, FLAT),
        mixed=rest.mixed,
    )
    return [*found, last]


def _evidence_of_mixed(rows: Matrix, dim: int) -> Evidence:
    """Return the sums over rows [x, y], shape (k, D + T), with D = `dim`."""
    x, y = np.ascontiguousarray(rows[:, :dim]), rows[:, dim:]
    square = float(np.sum(y[:, 0] ** 2))
    return Evidence(x.T @ x, x.T @ y, square, len(x), max(square / len(x), FLAT), mixed=x)


def _contrasts(means: Matrix, weights: Vector, starts: np.ndarray) -> tuple[Matrix, Matrix, Vector]:
    """Return contrasts within groups of consecutive means, and the means and weights of the groups.

    A contrast is the scaled difference of a mean from that of all earlier ones in its group. The sum of the contrasts'
    outer products is that of all deviations from the groups' means.

    Args:
        means: Means of rows, shape (m, ·).
        weights: Number of rows of each.
        starts: Index of the first of each group.
    """
    apart, whole, total = [], means[starts].copy(), weights[starts].copy()
    for place, (first, end) in enumerate(itertools.pairwise([*starts.tolist(), len(means)])):
        for at in range(first + 1, end):
            before, total[place] = total[place], total[place] + weights[at]
            difference = means[at] - whole[place]
            apart.append(math.sqrt(before * weights[at] / total[place]) * difference)
            whole[place] += weights[at] / total[place] * difference
    return np.array(apart).reshape(-1, means.shape[1]), whole, total


def _evidence_of_separate(
    features: ContextualFeatures, history: History, z: Matrix, targets: Matrix, rows: np.ndarray
) -> Evidence:
    """Return the sums over rows that each have their own question, as in most traffic.

    Rows with the same action share g: Σ x xᵀ = Σ_a g gᵀ ⊗ Σ z zᵀ.
    """
    root, taken = np.sqrt(history.weights)[rows, None], history.action[rows]
    z, targets = z[history.question[rows]] * root, targets[rows] * root
    actions, rank, count = np.unique(taken), features.rank, z.shape[1]
    sums, moments = np.empty((len(actions), count, count)), np.empty((len(actions), count, targets.shape[1]))
    for place, action in enumerate(actions):
        of = taken == action
        own = z[of]
        sums[place], moments[place] = own.T @ own, own.T @ targets[of]
    # All features are multiplied by z, and all except the shapes by the categories.
    sides = features.sides[actions]
    parts = [(sides, slice(0, rank))]
    if count > rank:
        parts.append((sides[:, features.crossed], slice(rank, count)))
    gram = np.block([[_crossed(sums[:, at, to], g, h) for h, to in parts] for g, at in parts])
    one = np.ones((len(actions), 1))
    terms = targets.shape[1]
    moment = np.vstack([_crossed(moments[:, at], g, one).reshape(-1, terms) for g, at in parts])
    square = float(np.sum(targets[:, 0] ** 2))
    noise = max(square / len(targets), FLAT)
    return Evidence(gram, moment, square, len(targets), noise, features.leaves)


def _crossed(sums: Matrix, left: Matrix, right: Matrix) -> Matrix:
    """Return Σ_a left_a right_aᵀ ⊗ sums_a, shape (J·p, H·q), from shapes (A, p, q), (A, J) and (A, H)."""
    (n, p, q), j, h = sums.shape, left.shape[1], right.shape[1]
    pairs = (left[:, :, None] * right[:, None, :]).reshape(n, j * h)
    found = (pairs.T @ sums.reshape(n, p * q)).reshape(j, h, p, q)
    return found.transpose(0, 2, 1, 3).reshape(j * p, h * q)


def _means(x: Matrix, y: Matrix, starts: np.ndarray) -> tuple[Matrix, Matrix]:
    """Return the means of groups of consecutive rows, each multiplied by the square root of the group's size."""
    share = np.sqrt(np.diff(np.append(starts, len(x))))[:, None]
    return np.add.reduceat(x, starts) / share, np.add.reduceat(y, starts) / share


MIXED: Final = 1 / 3
"""Maximum number of rows that share their question with others, in columns of x, for A to be treated as an arrowhead
matrix plus these rows. With more of them, this would hardly be faster than inverting A."""

CHUNK: Final = 64
"""Number of questions to process at a time, to limit the rows in memory."""
