"""A prior from history: a complete state of the contextual policy, to begin from.

History is a table in which every configuration answered every question, or what users have: logged decisions, one
configuration each, with its propensity. From it come, in this order:

1. the anchors: each action's mean cost;
2. the query transform: ridge from the whole embedding and the counts to how much better or worse, and at what
   relative cost, each kind of action does on a question, reduced to its leading directions (reduced-rank regression);
3. A₀ and B₀: the regression's rows on these directions. A question's directions are fitted without it, or what was
   learned of it by heart would pass for skill.

A question weighs as one observation however many configurations answered it, and all of them together as `cap` at
most: history is a start, and traffic may differ from it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from agents.decider.errors import CorruptState, InvalidObservation
from agents.decider.policies.base import Matrix, Vector
from agents.decider.policies.contextual.design import CORRECT, COST, ONE
from agents.decider.policies.contextual.ridge import Ridge
from agents.decider.surface import COUNTS

if TYPE_CHECKING:
    from agents.decider.policies.contextual.policy import Contextual

FOLDS: Final = 10
"""Parts of the questions, each transformed by what was fitted on the others."""

RIDGES: Final = tuple(10.0 ** (k / 2) for k in range(0, 11))
"""λ of the transform, chosen by generalised cross-validation."""

MOST_WEIGHT: Final = 10.0
"""Bound of 1/propensity: a rare action's rows must not be all that is seen."""

DOUBT: Final = 10.0
"""Rows at which an action's own mean cost and its guess count alike."""

CAP: Final = 2000.0
"""Questions that history counts as, at most."""


@dataclass(frozen=True)
class History:
    """Rows of history: one outcome each.

    Attributes:
        queries: Embedding and surface counts of every question, shape (Q, d).
        question: Which question, shape (m,).
        action: Which action, as an index into the policy's, shape (m,).
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
        """Refuse what would poison A or B, naming the field."""
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
        """Return the weight of each row: a question's rows sum to 1 on average, and propensities are corrected."""
        inverse = np.minimum(1.0 / self.propensity, MOST_WEIGHT)
        return np.asarray(inverse * len(self.queries) / inverse.sum())


def teach(policy: Contextual, history: History, cap: float = CAP) -> bytes:
    """Let a fresh policy begin from history; return its state, the prior.

    Args:
        policy: With its actions added, and nothing learned.
        history: What was seen.
        cap: Questions that history counts as, at most.

    Raises:
        CorruptState: The policy has learned already.
    """
    if policy.version or policy.totals.any():
        raise CorruptState("the policy", "rewards learned", "a fresh policy")
    relearn(policy, history, cap)
    # What history taught is not unlearned for the few outcomes that come first.
    policy.lessons = ()
    return policy.state()


def relearn(policy: Contextual, history: History, cap: float = math.inf) -> None:
    """Fit anchors and query transform to history, and relearn it on them.

    A policy without a prior does this to itself, with its own outcomes for history (`Contextual.take`).

    Args:
        policy: Its regression, its window and its transform are replaced.
        history: What was seen.
        cap: Questions that history counts as, at most.
    """
    design = policy.design
    _set_anchors(policy, history)
    terms = zip(
        history.correct.tolist(),
        history.score.tolist(),
        history.log_cost.tolist(),
        history.action.tolist(),
        strict=True,
    )
    targets = np.array([policy.targets(*row) for row in terms])
    out_of_fold = _fit_transform(policy, history, targets)
    weights = history.weights * min(1.0, cap / len(history.queries))
    policy.ridge = Ridge(design.dim, targets.shape[1], policy.settings.ridge)
    policy.ridge.add_all(design.rows(out_of_fold[history.question], history.action), targets, weights)
    policy.totals = weights @ targets
    policy.window.clear()
    policy.window.extend(out_of_fold)


def digest(prior: bytes) -> str:
    """Return the SHA-256 of a prior: what a log says it began from."""
    return hashlib.sha256(prior).hexdigest()


def _set_anchors(policy: Contextual, history: History) -> None:
    """Take each action's mean cost for its anchor, drawn towards its guess where few rows say it.

    The guess is what the anchor was, brought to the scale of what was seen; an action without a row keeps it.
    """
    design = policy.design
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


def _fit_transform(policy: Contextual, history: History, targets: Matrix) -> Matrix:
    """Fit the query transform; return z of every question, fitted without it, shape (Q, rank)."""
    design = policy.design
    inputs, offset, scale = _standardised(history.queries)
    wanted = _wanted(policy, history, targets)
    shrink = _chosen_ridge(inputs, wanted)
    whole = _ridge(inputs, wanted, shrink)
    own = design.settings.query_rank - len(COUNTS)
    rank = max(1, min(own, wanted.shape[1]))
    _, _, axes = np.linalg.svd(inputs @ whole, full_matrices=False)
    held_out = np.empty((len(inputs), rank))
    fold = np.arange(len(inputs)) % FOLDS
    for k in range(FOLDS):
        mine = fold == k
        held_out[mine] = inputs[mine] @ _ridge(inputs[~mine], wanted[~mine], shrink) @ axes[:rank].T
    spread = np.maximum(held_out.std(axis=0), 1e-12)
    directions = np.zeros((design.settings.query_rank, design.settings.query_dim))
    directions[:rank] = ((whole @ axes[:rank].T) / spread).T / scale
    # The counts stay beside: the learner may find other uses for them than history did.
    at = np.arange(len(COUNTS))
    directions[rank + at, design.settings.query_dim - len(COUNTS) + at] = 1.0 / scale[-len(COUNTS) :]
    design.transform(offset, directions)
    z = np.array([design.short(query) for query in history.queries])
    z[:, 1 : 1 + rank] = np.clip(held_out / spread, -3.0, 3.0)
    return z


def _standardised(queries: Matrix) -> tuple[Matrix, Vector, Vector]:
    """Return centred inputs in one scale for the embedding and one for each count, with offset and scale."""
    offset = queries.mean(axis=0)
    spread = queries.std(axis=0)
    embedded = len(offset) - len(COUNTS)
    scale = np.maximum(spread, 1e-6)
    scale[:embedded] = max(float(np.sqrt(np.mean(spread[:embedded] ** 2))), 1e-6)
    return (queries - offset) / scale, offset, scale


def _wanted(policy: Contextual, history: History, targets: Matrix) -> Matrix:
    """Return what the transform is to predict of each question, shape (Q, outputs), each of unit spread.

    For Correct and for cost: how the question's rows depart from what is usual for their actions, on every
    interacting feature of the actions.
    """
    design = policy.design
    sides = design.sides[:, design.meets]
    weights = history.weights
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
        out.append(projected)
    wanted = np.concatenate(out, axis=1)
    spread = wanted.std(axis=0)
    return np.asarray((wanted / np.where(spread > 1e-9, spread, 1.0))[:, spread > 1e-9])


def _chosen_ridge(inputs: Matrix, wanted: Matrix) -> float:
    """Return λ of least generalised cross-validation error."""
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
