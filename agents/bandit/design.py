"""The design of the contextual policy, x = z_q ⊗ g_a, and what it takes from history: anchors, query transform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from agents.bandit.errors import InvalidObservation
from agents.bandit.features import COUNTS, FeatureMap, FeatureSettings, checked
from agents.bandit.policy import ActionVector, Matrix, Vector
from schemas.action import Action
from schemas.errors import InvalidField

# The design of the contextual policy: x = z_q ⊗ g_a, of 20 to 150 dimensions.
#
# z_q = [1, a short projection of the embedding and the surface counts] is the query's side. g_a, the action's side,
# has two parts. *Interacting* features are multiplied with every coordinate of z_q: plain coordinates of the action
# (size, log QP, log CP, size·width), and an indicator for each model if there are few or if sizes are not known.
# *Effects* are multiplied with the constant only: indicators of model and shape, for what no smooth coordinate
# explains.
#
# New actions may bring new features, which append columns. Existing columns keep their position and meaning.

CORRECT, SCORE, LOG_COST, ONE, COST = range(5)
"""Columns of B in the contextual policy."""

FEW_MODELS: Final = 4
"""Most models for which each one gets its own coordinate in every direction of z: 4 × 21 columns."""

DETAILS: Final = ("size²", "width", "drafts", "size·width")
"""Features whose dependence on the query is a matter of detail."""

CLIP: Final = 3.0
"""Bound of each coordinate of z, which have unit scale: a question unlike all others must not weigh like twenty."""

# Mean and standard deviation of the counts' logarithms over GSM8K's training questions. They are fixed, so that a
# learner without history has a scale. In order: numbers, digits, words, letters, sentences, lines, symbols, capitals,
# longest number.
_USUAL: Final = np.array([1.38, 1.81, 3.77, 5.1, 1.46, 0.69, 0.53, 1.72, 1.18])
_SPREAD: Final = np.array([0.41, 0.52, 0.36, 0.4, 0.27, 0.3, 0.61, 0.4, 0.33])


class Design(FeatureMap):
    """The known actions with their features, and the projection of queries.

    Args:
        settings: `query_dim` counts embedding and surface counts; `query_rank` is the length of z without its
            constant.

    Attributes:
        sides: G, shape (n, J): every action's features.
        meets: For each feature, whether it meets all of z or the constant alone, shape (J,).
        kinds: For each column of x, shape (D,): 0 where it does not depend on the query, 1 where it says how the query
            meets a model or its size, 2 how it meets a detail.
        anchors: A cost for each action, shape (n,): what costs are measured in, so that dear and cheap actions
        share a scale. offset, directions: The projection, shapes (query_dim,) and (rank, query_dim).
    """

    def __init__(self, settings: FeatureSettings) -> None:
        super().__init__(settings)
        self.offset, self.directions = _usual_projection(settings)
        self.names: list[str] = []
        self.meets: np.ndarray = np.zeros(0, dtype=bool)
        self.sizes: list[float] = []
        self.anchors: Vector = np.zeros(0)
        self._size_range = (0.0, 0.0)
        self._shape()

    @property
    def rank(self) -> int:
        """Return the length of z, its constant included."""
        return 1 + len(self.directions)

    @property
    def dim(self) -> int:
        """Return D, the length of x."""
        return int(self.starts[-1])

    def queries(self, pairs: Sequence[tuple[str, Vector]]) -> Matrix:
        """Return the checked vectors of (id, vector) pairs as rows; an empty embedding is refused even with counts."""
        out = super().queries(pairs)
        for (subject, _), row in zip(pairs, out, strict=True):
            checked(subject, row[: -len(COUNTS)], len(row) - len(COUNTS), "embedding")
        return out

    def short(self, query: Vector) -> Vector:
        """Return z of one checked query, shape (rank,): the same bits alone and in a batch."""
        z = self.directions @ (query - self.offset)
        return np.concatenate([[1.0], np.clip(z, -CLIP, CLIP)])

    def project(self, z: Vector, columns: Matrix) -> Matrix:
        """Return the contribution of each feature to xᵀΘ for one query.

        Args:
            z: Shape (rank,).
            columns: Θ, shape (D, T).

        Returns:
            Shape (J, T): `sides @ project(z, Θ)` is xᵀΘ for every action.
        """
        weighed = columns * z[self.which][:, None]
        return np.asarray(np.add.reduceat(weighed, self.starts[:-1], axis=0))

    def compress(self, z: Vector, inverse: Matrix) -> Matrix:
        """Return the (J, J) matrix Q of one query with g_aᵀQg_a = xᵀA⁻¹x for every action."""
        scale = z[self.which]
        weighed = inverse * scale[:, None] * scale
        rows = np.add.reduceat(weighed, self.starts[:-1], axis=0)
        return np.asarray(np.add.reduceat(rows, self.starts[:-1], axis=1))

    def quadratic(self, inverse: Matrix) -> Matrix:
        """Return A⁻¹ by pairs of features and pairs of coordinates of z, shape (J², rank²).

        `quadratic(A⁻¹) @ (z ⊗ z)` is `compress(z, A⁻¹)`, flattened: one product serves many queries.
        """
        features, rank = len(self.names), self.rank
        at = self.feature * rank + self.which
        whole = np.zeros((features * rank, features * rank))
        whole[np.ix_(at, at)] = inverse
        pairs = whole.reshape(features, rank, features, rank).transpose(0, 2, 1, 3)
        return np.asarray(pairs.reshape(features * features, rank * rank))

    def row(self, z: Vector, action: int) -> Vector:
        """Return x of one query and one action, shape (D,)."""
        return np.asarray(z[self.which] * self.sides[action][self.feature])

    def rows(self, z: Matrix, actions: np.ndarray) -> Matrix:
        """Return x of each pair, shape (m, D)."""
        return np.asarray(z[:, self.which] * self.sides[actions][:, self.feature])

    def transform(self, offset: Vector, directions: Matrix) -> None:
        """Replace the projection; only before anything is learned, because x changes its meaning."""
        self.offset, self.directions = offset, directions
        self._shape()

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) from which `restore` rebuilds this map exactly."""
        meta = {
            "ids": self.ids,
            "models": self.models,
            "active": self.active,
            "sizes": self.sizes,
            "names": self.names,
            "size_range": self._size_range,
        }
        arrays = {
            "sides": self.sides,
            "meets": self.meets,
            "anchors": self.anchors,
            "offset": self.offset,
            "directions": self.directions,
        }
        return meta, arrays

    def restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Become the design that `snapshot` saved."""
        self.ids, self.models, self.active = list(meta["ids"]), list(meta["models"]), list(meta["active"])
        self.sizes, self.names = list(meta["sizes"]), list(meta["names"])
        self._size_range = tuple(meta["size_range"])
        self.index = {action_id: i for i, action_id in enumerate(self.ids)}
        self.sides, self.meets, self.anchors = arrays["sides"], arrays["meets"], arrays["anchors"]
        self.offset, self.directions = arrays["offset"], arrays["directions"]
        self.coordinates = np.zeros((len(self.ids), 0))
        self._choosable.clear()
        self._shape()

    def _register(self, actions: list[ActionVector], units: Matrix) -> None:
        first = not self.ids
        for action in actions:
            self.index[action.action_id] = len(self.ids)
            self.ids.append(action.action_id)
            self.models.append(action.model)
            self.active.append(True)
            self.sizes.append(action.size)
        if first:
            known = [math.log(size) for size in self.sizes if size > 0]
            self._size_range = (min(known, default=0.0), max(known, default=0.0))
            few = len(set(self.models)) <= FEW_MODELS
            for name in ("one", *self._varying(few)):
                self._append(name, meets=True)
            for model in dict.fromkeys(self.models):
                self._append(f"model {model}", meets=few)
        for model in dict.fromkeys(self.models):
            self._append(f"model {model}", meets=False)
        if len(set(map(_shape, self.ids))) > 1:
            for shape in dict.fromkeys(map(_shape, self.ids)):
                self._append(f"shape {shape}", meets=False)
        self.sides = np.array([self._features(i) for i in range(len(self.ids))]).reshape(len(self.ids), -1)
        fresh = [self._anchor(i) for i in range(len(self.anchors), len(self.ids))]
        self.anchors = np.concatenate([self.anchors, fresh])
        self.coordinates = np.zeros((len(self.ids), 0))
        self._shape()

    def _varying(self, few: bool) -> list[str]:
        """Return the plain coordinates that differ among the first actions; a constant one would be redundant."""
        widths = [_widths(action_id) for action_id in self.ids]
        found = []
        if sized := self._size_range[0] < self._size_range[1] and not few:
            found += ["size", "size²"]
        if wide := len({qp * cp for qp, cp in widths}) > 1:
            found.append("width")
        if len({cp for _, cp in widths}) > 1:
            found.append("drafts")
        return [*found, "size·width"] if sized and wide else found

    def _append(self, name: str, *, meets: bool) -> None:
        if name not in self.names:
            self.names.append(name)
            self.meets = np.append(self.meets, meets)

    def _features(self, at: int) -> list[float]:
        low, high = self._size_range
        log_size = math.log(self.sizes[at]) if self.sizes[at] > 0 else low
        size = 2.0 * (log_size - low) / (high - low) - 1.0 if high > low else 0.0
        qp, cp = _widths(self.ids[at])
        width, drafts = math.log2(qp * cp) / 3.0 - 1.0, math.log2(cp) / 3.0 - 1.0
        plain = {
            "one": 1.0,
            "size": size,
            "size²": size * size,
            "width": width,
            "drafts": drafts,
            "size·width": size * width,
            f"model {self.models[at]}": 1.0,
            f"shape {_shape(self.ids[at])}": 1.0,
        }
        return [plain.get(name, 0.0) for name in self.names]

    def _anchor(self, at: int) -> float:
        """Return a guess of an action's cost: parameters times paths, in the unit of the existing anchors."""
        qp, cp = _widths(self.ids[at])
        guess = max(self.sizes[at], 1.0) * qp * cp
        before = range(len(self.anchors))
        if not before:
            return guess
        # A prior's anchors are measured: the new action's guess is brought to their scale.
        guesses = [max(self.sizes[i], 1.0) * math.prod(_widths(self.ids[i])) for i in before]
        return guess * math.exp(float(np.median(np.log(self.anchors) - np.log(guesses))))

    def _shape(self) -> None:
        """Lay out the columns: feature by feature, each with all of z or with its constant only."""
        lengths = [self.rank if meets else 1 for meets in self.meets]
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.intp)
        self.feature = np.repeat(np.arange(len(lengths)), lengths)
        self.which = np.concatenate([np.arange(n) for n in [*lengths, 0]]).astype(np.intp)
        detail = np.array([name in DETAILS for name in self.names], dtype=bool)
        self.kinds = np.where(self.which == 0, 0, 1 + detail[self.feature])


def _usual_projection(settings: FeatureSettings) -> tuple[Vector, Matrix]:
    """Return the projection of a learner without history: the counts, and random directions of the embedding."""
    counts, dim = len(COUNTS), settings.query_dim
    embedded = dim - counts
    offset = np.concatenate([np.zeros(embedded), _USUAL])
    directions = np.zeros((settings.query_rank, dim))
    own = min(counts, settings.query_rank)
    directions[np.arange(own), embedded + np.arange(own)] = 1.0 / _SPREAD[:own]
    if (rest := settings.query_rank - own) > 0:
        draws = np.random.default_rng(settings.basis_seed).standard_normal((embedded, rest))
        # Orthonormal directions of a unit vector have a spread of 1/√d each.
        directions[own:, :embedded] = np.linalg.qr(draws)[0].T * math.sqrt(embedded)
    return offset, directions * settings.interaction_scale


def _widths(action_id: str) -> tuple[int, int]:
    try:
        action = Action.parse(action_id)
    except InvalidField:
        return 1, 1
    return action.qp, action.cp


def _shape(action_id: str) -> str:
    try:
        action = Action.parse(action_id)
    except InvalidField:
        return ""
    return f"{action.qp}/{action.cp}/{action.bs}"


# History as a table of outcomes of configurations, one per row.
#
# Either every configuration answered every question, or the rows are logged decisions with one configuration each
# and its propensity. Every outcome is an observation, except that a rare action's may count for several.

MOST_WEIGHT: Final = 10.0
"""Bound of 1/propensity, so that the rows of a rare action do not dominate."""


@dataclass(frozen=True)
class History:
    """Rows of history, each with one outcome.

    Attributes:
        queries: Embedding and surface counts of every question, shape (Q, d).
        question: Index of the question, shape (m,).
        action: Index of the action among the policy's, shape (m,).
        correct, score, log_cost: The terms, shape (m,).
        propensity: Probability with which the action was drawn; ones for a full table.
    """

    queries: Matrix
    question: np.ndarray
    action: np.ndarray
    correct: Vector
    score: Vector
    log_cost: Vector
    propensity: Vector

    def __post_init__(self) -> None:
        """Refuse values that would poison A or B; the message names the field."""
        for name in ("correct", "score", "propensity"):
            values = getattr(self, name)
            if not (np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()):
                raise InvalidObservation("history", name, "outside 0 to 1", "correct the table")
        if not np.isfinite(self.log_cost).all() or not np.isfinite(self.queries).all():
            raise InvalidObservation("history", "log_cost", "not finite", "give what each search cost")
        if not (self.propensity > 0).all():
            raise InvalidObservation("history", "propensity", 0.0, "log with exploration, above 0 everywhere")

    @property
    def weights(self) -> Vector:
        """Return the weight of each row, corrected for its propensity: 1 on average."""
        inverse = np.minimum(1.0 / self.propensity, MOST_WEIGHT)
        return np.asarray(inverse / inverse.mean())


# What the design takes from history: each action's anchor, and the query transform.
#
# An action's anchor is its mean cost. The transform is a ridge regression from the embedding and the counts to how
# much better or worse, and at what relative cost, each kind of action does on a question, reduced to its leading
# directions (reduced-rank regression). The directions used for a question are fitted without it; otherwise
# memorising the question would look like skill.

FOLDS: Final = 10
"""Number of folds of the questions; each is transformed by a fit on the others."""

RIDGES: Final = tuple(10.0 ** (k / 2) for k in range(0, 11))
"""Candidates for λ of the transform; generalised cross-validation chooses one."""

DOUBT: Final = 10.0
"""Number of rows at which an action's mean cost and its guess have the same weight."""


def set_anchors(design: Design, history: History) -> None:
    """Set each action's anchor to its mean cost, shrunk towards a guess if it has few rows.

    The guess is the previous anchor, rescaled to the costs that were seen. An action without rows keeps the guess.
    """
    guess = design.anchors.copy()
    counts = np.bincount(history.action, minlength=len(guess))
    seen = counts > 0
    for action in np.flatnonzero(seen):
        rows = history.action == action
        inverse = 1.0 / history.propensity[rows]
        design.anchors[action] = float(np.average(np.exp(history.log_cost[rows]), weights=inverse))
    found = np.log(np.where(seen, design.anchors, guess))
    scaled = np.log(guess) + np.average((found - np.log(guess))[seen], weights=counts[seen])
    trust = counts / (counts + DOUBT)
    design.anchors = np.exp(scaled + trust * (found - scaled))


def fit_transform(design: Design, history: History, targets: Matrix) -> Matrix:
    """Fit the query transform; return z of every question, fitted without it, shape (Q, rank).

    Fewer questions than folds say nothing of how questions differ: what the few do not vary in would be scaled up
    without bound, and every later question would lie at the edge. The transform then stays as it is.
    """
    if len(history.queries) < FOLDS:
        return np.array([design.short(query) for query in history.queries])
    inputs, offset, scale = _standardised(history.queries)
    wanted = _wanted(design, history, targets)
    shrink = _chosen_ridge(inputs, wanted)
    whole = _ridge(inputs, wanted, shrink)
    own = design.settings.query_rank - len(COUNTS)
    rank = max(1, min(own, wanted.shape[1], len(inputs)))
    _, _, axes = np.linalg.svd(inputs @ whole, full_matrices=False)
    held_out = np.empty((len(inputs), rank))
    fold = np.arange(len(inputs)) % FOLDS
    for k in range(FOLDS):
        mine = fold == k
        held_out[mine] = inputs[mine] @ _ridge(inputs[~mine], wanted[~mine], shrink) @ axes[:rank].T
    spread = np.maximum(held_out.std(axis=0), 1e-12)
    directions = np.zeros((design.settings.query_rank, design.settings.query_dim))
    directions[:rank] = ((whole @ axes[:rank].T) / spread).T / scale
    # The counts are kept as well: the learner may find other uses for them than history did.
    at = np.arange(min(len(COUNTS), design.settings.query_rank - rank))
    kept = design.settings.query_dim - len(COUNTS) + at
    directions[rank + at, kept] = 1.0 / scale[kept]
    design.transform(offset, directions)
    z = np.array([design.short(query) for query in history.queries])
    z[:, 1 : 1 + rank] = np.clip(held_out / spread, -3.0, 3.0)
    return z


def _standardised(queries: Matrix) -> tuple[Matrix, Vector, Vector]:
    """Return the inputs, centred and scaled (one scale for the embedding, one per count), with offset and scale."""
    offset = queries.mean(axis=0)
    spread = queries.std(axis=0)
    embedded = len(offset) - len(COUNTS)
    scale = np.maximum(spread, 1e-6)
    scale[:embedded] = max(float(np.sqrt(np.mean(spread[:embedded] ** 2))), 1e-6)
    return (queries - offset) / scale, offset, scale


def _wanted(design: Design, history: History, targets: Matrix) -> Matrix:
    """Return what the transform has to predict for each question, shape (Q, outputs), each output with unit spread.

    The outputs say, for Correct and for cost, how the question's rows deviate on average from the usual value of their
    actions, along every interacting feature of the actions.
    """
    sides = design.sides[:, design.meets]
    weights = history.weights
    # A question without a row says nothing; 0/0 would say NaN.
    rows_of = np.maximum(np.bincount(history.question, minlength=len(history.queries)), 1)
    out = []
    for term in (CORRECT, COST):
        usual = np.zeros(len(design.ids))
        for action in np.unique(history.action):
            rows = history.action == action
            usual[action] = np.average(
                targets[rows, term], weights=targets[rows, ONE] / history.propensity[rows]
            )
        rest = (targets[:, term] - usual[history.action]) * weights
        projected = np.zeros((len(history.queries), sides.shape[1]))
        np.add.at(projected, history.question, rest[:, None] * sides[history.action])
        out.append(projected / rows_of[:, None])
    wanted = np.concatenate(out, axis=1)
    spread = wanted.std(axis=0)
    varies = spread > 1e-9
    if not varies.any():
        # No outcome differs from its action's usual one: there is nothing to predict.
        return np.zeros((len(wanted), 1))
    return np.asarray(wanted[:, varies] / spread[varies])


def _chosen_ridge(inputs: Matrix, wanted: Matrix) -> float:
    """Return the λ with the least generalised cross-validation error."""
    left, sizes, _ = np.linalg.svd(inputs, full_matrices=False)
    along = left.T @ wanted
    rest = float(np.sum(wanted**2) - np.sum(along**2))
    n = len(inputs)
    errors = []
    for ridge in RIDGES:
        kept = sizes**2 / (sizes**2 + ridge * n)
        error = rest + float(np.sum(((1.0 - kept)[:, None] * along) ** 2))
        errors.append(error / (n - kept.sum()) ** 2)
    return float(RIDGES[int(np.argmin(errors))])


def _ridge(inputs: Matrix, wanted: Matrix, ridge: float) -> Matrix:
    gram = inputs.T @ inputs
    gram[np.diag_indices(len(gram))] += ridge * len(inputs)
    return np.asarray(np.linalg.solve(gram, inputs.T @ wanted))
