"""What the design takes from history: each action's anchor, and the query transform.

An action's anchor is its mean cost. The transform is a ridge regression from the embedding and the counts to how much
better or worse, and at what relative cost, each kind of action does on a question, reduced to its leading directions
(reduced-rank regression). The directions used for a question are fitted without it; otherwise memorising the question
would look like skill.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from agents.decider.policies.base import Matrix, Vector
from agents.decider.policies.contextual.design import CORRECT, COST, ONE, Design
from agents.decider.policies.contextual.history.table import History
from agents.decider.surface import COUNTS

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
