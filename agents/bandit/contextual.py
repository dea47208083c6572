"""The contextual policy: one hierarchical linear model of accuracy and cost; each query has its own ranking."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.errors import CorruptState
from agents.bandit.features import COUNTS, FeatureSettings
from agents.bandit.history import REFITS, History, RefitSchedule, fit_directions, set_anchors
from agents.bandit.learner import Learner, pack, ranked, unpack
from agents.bandit.pacing import Forecast, Pacer
from agents.bandit.policy import (
    UNPRICED,
    ActionVector,
    Context,
    Contribution,
    Drift,
    Matrix,
    Objective,
    Observation,
    Pending,
    Policy,
    Prediction,
    Reason,
    Traits,
    Vector,
    check_outcome,
    generator,
)
from agents.bandit.registry import Inputs, Options, register_policy
from agents.bandit.ridge import Ridge
from agents.bandit.variances import Variances, estimated, evidence_of, usual_mean, usual_variance

CORRECT, SCORE, LOG_COST, ONE, COST = range(5)
"""Columns of what is predicted: the reward's terms (`policy.TERMS`), and the cost itself."""

# One regression: coefficients with the prior N(μ, τ²) of their blocks, given outcomes with the noise σ².
#
# In units of the noise, A = diag(σ²/τ²) + Σ x xᵀ, θ - μ = A⁻¹ Σ x·(y - xᵀμ), and xᵀθ has the variance σ² xᵀA⁻¹x.


STORED: Final = ("variances", "noise", "outcomes")
"""Attributes of `Regression` that a snapshot has as plain values."""


class Regression:
    """Targets that share A.

    Args:
        features: Compute x. They grow with the actions; call `grow` after they have grown.
        term: Which of the usual means and variances hold: accuracy's (0) or cost's (1). The first target is the one
            whose variances are estimated.
        centre: What the targets are before anything is known, shape (T,).
        noise: Variance of the first target around its prediction, before anything is known.

    Attributes:
        variances: τ² of every block.
        noise: σ².
        outcomes: Rows entered one by one, and what those of a history count.
    """

    def __init__(self, features: ContextualFeatures, term: int, centre: Vector, noise: float) -> None:
        self._features, self._term = features, term
        self.centre, self.noise = centre, noise
        self.variances: dict[str, float] = {}
        self._means: Vector = np.zeros(0)
        self.ridge = Ridge(np.zeros(0), len(centre))
        self.outcomes = 0.0

    def grow(self) -> None:
        """Append the columns of new features; a block that is new has its usual variance."""
        blocks = self._features.column_blocks[self.ridge.dim :]
        for block in blocks:
            self.variances.setdefault(block, usual_variance(block, self._term))
        self.ridge.grow(np.array([self.noise / self.variances[block] for block in blocks]))
        self._means = self._usual_means()

    @property
    def theta(self) -> Matrix:
        """Return θ, shape (D, T)."""
        return np.asarray(self.ridge.theta + self._means[:, None])

    def _usual_means(self) -> Vector:
        d = self._features
        names = zip(d.column_blocks, np.repeat(d.names, d.rank).tolist(), strict=True)
        return np.array([usual_mean(name, block, self._term) for block, name in names])

    def predicted(self, z: Vector) -> Matrix:
        """Return the targets of every action, shape (n, T)."""
        d = self._features
        return np.asarray(self.centre + d.sides @ d.project(z, self.theta))

    def parts(self, x: Vector) -> list[Contribution]:
        """Return what each block contributes to the first target's prediction and variance, after its centre."""
        blocks = self._features.column_blocks
        means, variances = x * self.theta[:, 0], self.noise * x * self.ridge.solve(x)
        of = {block: [name == block for name in blocks] for block in dict.fromkeys(blocks)}
        return [
            Contribution("centre", float(self.centre[0]), 0.0),
            *(Contribution(b, float(means[own].sum()), float(variances[own].sum())) for b, own in of.items()),
        ]

    def widths(self, z: Vector, sides: Matrix) -> Vector:
        """Return the standard deviation of the first target's prediction for some actions, shape (n,)."""
        q = self._features.compress(z, self.ridge.half)
        return np.asarray(np.sqrt(self.noise * np.maximum(np.sum((sides @ q) * sides, axis=1), 0.0)))

    def add(self, x: Vector, targets: Vector) -> None:
        """Learn one outcome: x of shape (D,), targets of shape (T,)."""
        self.ridge.add(x, targets - self.centre - x @ self._means)
        self.outcomes += 1.0

    def amend(self, x: Vector, before: float, after: float) -> None:
        """Replace the first target of an outcome that was learned; A does not change."""
        self.ridge.adjust(x, 0, after - before)

    def loosen(self, column: int, variance: float) -> None:
        """Let one coefficient have moved: its variance grows, and what is predicted stays."""
        self.ridge.loosen(column, variance / self.noise)

    def replace(
        self, history: History, z: Matrix, targets: Matrix, cap: float, known: Variances | None = None
    ) -> Variances:
        """Forget everything; learn a history with variances that are estimated from it, and return these.

        Args:
            history: Its rows.
            z: Of its questions, shape (Q, rank).
            targets: Of its rows, shape (m, T).
            cap: Rows as which the history counts at most.
            known: What was returned for this history before; None to estimate it.
        """
        self._means = self._usual_means()  # of features that have grown, and of another transform
        # The constant of z is 1, and nothing else has a usual mean.
        targets = targets - (self._features.sides @ self._means[:: self._features.rank])[history.action, None]
        self.centre = np.average(targets, axis=0, weights=history.weights)
        levels = evidence_of(self._features, history, z, targets - self.centre)
        blocks = self._features.column_blocks
        self.variances, noises = known or estimated(levels, blocks, self._term)
        for block in set(blocks) - self.variances.keys():  # of actions that a known estimate had not
            self.variances[block] = usual_variance(block, self._term)
        # A row alone has the noise of a row, and of its share of what its model and its question have of their own.
        rows = len(history.question)
        self.noise, left = noises[0], float(rows)
        for at in range(1, len(noises)):
            left -= levels[at - 1].count  # means at this level
            self.noise += max(noises[at] - noises[at - 1], 0.0) * left / rows
        a, b = np.zeros_like(levels[0].gram), np.zeros((len(blocks), targets.shape[1]))
        for each, noise in zip(levels, noises, strict=True):
            a += each.gram * (self.noise / noise)
            b += each.moment * (self.noise / noise)
        # What is predicted stays as it is without a cap, and how certain it is does not.
        weight = min(1.0, cap / rows)
        self.outcomes = weight * rows
        tau = np.array([self.variances[block] for block in blocks])
        self.ridge.enter(weight * a, weight * self.noise / tau, weight * b)
        return self.variances, noises

    def snapshot(self, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays under a name) from which `restore` continues to the bit."""
        meta = {"rows": self.ridge.rows} | {stored: getattr(self, stored) for stored in STORED}
        arrays = self.ridge.snapshot() | {"centre": self.centre}
        return meta, {f"{name}.{key}": array for key, array in arrays.items()}

    def restore(self, name: str, meta: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Become what `snapshot` returned under a name."""
        for stored in STORED:
            setattr(self, stored, meta[stored])
        own = {k.removeprefix(f"{name}."): v for k, v in arrays.items() if k.startswith(f"{name}.")}
        self.centre = own["centre"]
        self.ridge.restore(own, meta["rows"])
        self._means = self._usual_means()


# Changes that nobody announces: a model's searches cost something else than was learned, or its answers are wrong
# more often. After a long history a regression takes hundreds of outcomes to follow. A price needs none of this:
# the policy is told of it.

FADING: Final = 0.95
"""Weight of an outcome relative to the model's next one: the last 20 make up two thirds of the total."""

TRUST: Final = 5.0
"""Weight of the regression of costs, in outcomes."""

LEAST: Final = 0.5
"""Least mean of ln(cost / prediction) that counts: below a factor of 1.65, up or down, it may well be chance."""

SURPRISE: Final = 4.0
"""Standard deviations by which a model's latest answers must be off until its own accuracy is relearned."""

STEP: Final = 0.3
"""Standard deviation by which a model's accuracy may have moved then."""

SETTLED: Final = 1000
"""Outcomes, a prior's among them, before changes of cost are followed: a regression that knows fewer errs for other
reasons."""


class CostDrift:
    """The mean of ln(cost / prediction) of each model's latest outcomes.

    Attributes:
        sums: For each model the faded number of its outcomes, and the faded sum.
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def learn(self, model: str, surprise: float) -> bool:
        """Add an outcome; return whether the model's factor is another one now.

        Args:
            model: Its model.
            surprise: ln(cost / prediction), without price and without this correction.
        """
        before = self.factor(model)
        count, total = self.sums.get(model, (0.0, 0.0))
        self.sums[model] = (FADING * count + 1.0, FADING * total + surprise)
        return self.factor(model) != before

    def factor(self, model: str) -> float:
        """Return what to multiply a model's predicted costs by.

        >>> drift = CostDrift()
        >>> drift.factor("mini-1m")
        1.0
        >>> for _ in range(60):
        ...     _ = drift.learn("mini-1m", math.log(3))
        >>> round(drift.factor("mini-1m"), 1)
        2.4
        """
        count, total = self.sums.get(model, (0.0, 0.0))
        mean = total / (count + TRUST)
        return math.exp(mean) if abs(mean) > LEAST else 1.0


class AccuracyDrift:
    """Whether the latest answers of a model are right as often as predicted, as far as that is known.

    A score that stands in for Correct says nothing of it: scores that are not calibrated would look like drift.

    Attributes:
        sums: For each model the faded sum of (correct - predicted), that of its variance, and that of what scores which
            stand in may account for.
        changed: For each model that was not what was learned, the sequence number of the outcome that showed it.
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float, float]] = {}
        self.changed: dict[str, int] = {}

    def learn(
        self, model: str, correct: float, predicted: float, *, share: float = 0.0, seq: int = 0
    ) -> bool:
        """Add an outcome; return whether the model is not what was learned, and then begin anew.

        Args:
            model: Its model.
            correct: Its correctness, as somebody has told it.
            predicted: What is predicted of it.
            share: Of the model's outcomes, those of which a score stands in for Correct: predictions may be off by it.
            seq: Sequence number of the outcome.

        >>> drift = AccuracyDrift()
        >>> [drift.learn("mini-1m", 0.0, 0.8) for _ in range(6)]
        [False, False, False, False, True, False]
        """
        chance = min(max(predicted, 0.05), 0.95)
        total, variance, slack = self.sums.get(model, (0.0, 0.0, 0.0))
        total = FADING * total + correct - predicted
        variance = FADING**2 * variance + chance * (1.0 - chance)
        slack = FADING * slack + share
        changed = abs(total) - slack > SURPRISE * math.sqrt(variance)
        self.sums[model] = (0.0, 0.0, 0.0) if changed else (total, variance, slack)
        if changed:
            self.changed[model] = seq
        return changed

    def is_past(self, model: str, seq: int) -> bool:
        """Return whether an outcome was learned before its model changed: A holds less of it now."""
        return seq < self.changed.get(model, 0)


@dataclass(frozen=True)
class Refit:
    """What is estimated of a history, besides what the features take from it; all else are sums over its rows.

    Attributes:
        z: Of its questions, each by directions fitted without it, shape (Q, rank).
        right, paid: The variances of the two regressions.
    """

    z: Matrix
    right: Variances
    paid: Variances


# What the contextual policy has learned: the expected terms of every action for a query.
#
# Correctness and score are one regression, cost and its logarithm the other: of a search whose answer was cut by its
# client, only the cost is known. Costs are measured in units of each action's anchor, so that expensive and cheap
# actions share a scale, and learned in eFLOPs: a price multiplies what is predicted, so a new one takes effect at once
# and nothing has to be relearned.

BOUNDS: Final = (0.2, 5.0)
"""Bounds of a predicted cost, in units of the anchor: a question unlike all others must not look like a bargain."""


class Estimates:
    """The regressions, and what corrects them.

    Args:
        features: Compute x.

    Attributes:
        right: The regression of Correct and Score.
        paid: That of ln(cost), in units of the anchor.
        tried: Outcomes of each model, a prior's among them.
        standing: Those of them of which a score stands in for Correct.
        price_factors: Price of an eFLOP on each model; models left out have 1.
        factors: Price times drift of each action, shape (n,).
    """

    def __init__(self, features: ContextualFeatures) -> None:
        self.features = features
        self.right = Regression(features, 0, np.array([0.5, 0.5]), 0.2)
        self.paid = Regression(features, 1, np.array([0.0]), 1.0)
        self.tried: dict[str, int] = {}
        self.standing: dict[str, int] = {}
        self.price_factors: dict[str, float] = {}
        self.costs, self.accuracy = CostDrift(), AccuracyDrift()
        self.factors: Vector = np.ones(0)

    def any(self) -> bool:
        """Return whether anything has been learned."""
        return bool(self.paid.outcomes)

    def grow(self) -> None:
        """Append the columns of new features."""
        self.right.grow()
        self.paid.grow()
        self.reprice(self.price_factors)

    def reprice(self, price_factors: Mapping[str, float]) -> None:
        """Set the price of an eFLOP on each of these models, and 1 on all others."""
        self.price_factors = dict(price_factors)
        self._refactor()

    def predicted(self, z: Vector) -> Matrix:
        """Return the predicted terms of every known action, shape (n, 5): Correct, Score, log C, 1, C.

        C is in eFLOPs at the prices in force.
        """
        terms = np.ones((len(self.features.ids), 5))
        terms[:, [CORRECT, SCORE]] = self.right.predicted(z)
        log_cost = np.log(self.features.anchors * self.factors) + self._bounded(self.paid.predicted(z)[:, 0])
        terms[:, LOG_COST], terms[:, COST] = log_cost, np.exp(log_cost + self._spread())
        return terms

    def forecast(self, window: Matrix, actions: np.ndarray) -> Forecast:
        """Return what is predicted of some actions for many queries.

        Args:
            window: The queries, shape (m, rank).
            actions: Indices of the n actions.
        """
        d = self.features
        sides, found = d.sides[actions], []
        for of in (self.right, self.paid):
            theta = of.theta[:, 0].reshape(len(d.names), d.rank)  # (J, rank)
            found.append(of.centre[0] + window @ theta.T @ sides.T)  # (m, n)
        accuracy = np.clip(found[0], 0.0, 1.0)
        # What is spread about its logarithm costs more on average than that says.
        cost = d.anchors[actions] * self.factors[actions] * np.exp(self._bounded(found[1]) + self._spread())
        best, some = accuracy.argmax(axis=1), slice(None, None, SOME)
        x = d.rows(window[some], actions[best[some]])
        doubt = np.sqrt(self.right.noise * np.maximum(self.right.ridge.squares(x), 0.0))
        return Forecast(accuracy, cost, float(doubt.mean()))

    def _paid(self, o: Observation, action: int) -> float:
        """Return what the regression of costs learns of an outcome."""
        return _unpriced(o) - math.log(self.features.anchors[action])

    def add(self, z: Vector, action: int, o: Observation) -> None:
        """Learn one outcome."""
        x, model = self.features.row(z, action), self.features.models[action]
        paid = self._paid(o, action)
        expected = float(self.paid.centre[0] + x @ self.paid.theta[:, 0])
        if self.paid.outcomes >= SETTLED and self.costs.learn(model, paid - expected):
            self._refactor()
        if o.correct is None:
            self.standing[model] = self.standing.get(model, 0) + 1
        else:
            self._compare(x, model, o.correct, o.seq)
        self._add_right(x, model, o)
        self.paid.add(x, np.array([paid]))

    def fail(self, z: Vector, action: int, o: Observation) -> None:
        """Learn that a model gave no text: that is wrong, and says nothing of what an answer costs."""
        x, model = self.features.row(z, action), self.features.models[action]
        self._compare(x, model, o.entered, o.seq)
        self._add_right(x, model, o)

    def _add_right(self, x: Vector, model: str, o: Observation) -> None:
        self.right.add(x, np.array([o.entered, o.score]))
        self._count_try(model)

    def _count_try(self, model: str) -> None:
        self.tried[model] = self.tried.get(model, 0) + 1

    def _compare(self, x: Vector, model: str, correct: float, seq: int) -> None:
        """Compare what turned out to be right with what is predicted, and let the model have changed if need be."""
        told = float(self.right.centre[0] + x @ self.right.theta[:, 0])
        share = min(1.0, self.standing.get(model, 0) / max(self.tried.get(model, 0), 1))
        if self.accuracy.learn(model, correct, told, share=share, seq=seq):
            self.right.loosen(self.features.names.index(f"model {model}") * self.features.rank, STEP**2)

    def add_cost(self, z: Vector, action: int, o: Observation) -> None:
        """Learn the cost of one outcome of which nothing else is known.

        It says nothing about drift: the client ended the search early, which is no property of the model.
        """
        if o.tried:
            self._count_try(self.features.models[action])
        self.paid.add(self.features.row(z, action), np.array([self._paid(o, action)]))

    def amend(self, z: Vector, action: int, o: Observation) -> None:
        """Replace Correct of an outcome that was learned.

        Where its model has changed since, A holds less of the outcome than B would get: it is learned once more then.
        """
        x, model = self.features.row(z, action), self.features.models[action]
        self._compare(x, model, o.entered, o.seq)
        if self.accuracy.is_past(model, o.learned_seq):
            self.right.add(x, np.array([o.entered, o.score]))
        else:
            self.right.amend(x, o.imputed, o.entered)
            self.standing[model] = max(0, self.standing.get(model, 0) - 1)

    def replace(self, history: History, cap: float, known: Refit | None) -> Refit:
        """Forget everything and learn a history; the features have been refitted already where a refit is known."""
        d = self.features
        priced = history.priced
        if known is None:
            set_anchors(d, priced)
        # What a row without a cost would have cost is taken to be usual: of that, it says nothing.
        paid = np.where(history.failed, 0.0, history.log_cost - np.log(d.anchors[history.action]))[:, None]
        right = np.stack([history.correct, history.score], axis=1)
        firsts = np.stack([right[:, 0], paid[:, 0]], axis=1)
        z = known.z if known else fit_directions(d, history, firsts)
        of_right = self.right.replace(history, z, right, cap, known.right if known else None)
        of_paid = self.paid.replace(priced, z, paid[~history.failed], cap, known.paid if known else None)
        self.costs, self.accuracy = CostDrift(), AccuracyDrift()
        self._refactor()
        counts = np.bincount(history.action, minlength=len(d.ids))
        self.tried = {}
        for model, count in zip(d.models, counts.tolist(), strict=True):
            self.tried[model] = self.tried.get(model, 0) + count
        return Refit(z, of_right, of_paid)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) from which `restore` continues to the bit."""
        (right, of_right), (paid, of_paid) = self.right.snapshot("right"), self.paid.snapshot("paid")
        meta = {
            "right": right,
            "paid": paid,
            "tried": self.tried,
            "price_factors": self.price_factors,
            "cost_drift": self.costs.sums,
            "accuracy_drift": self.accuracy.sums,
            "accuracy_changed": self.accuracy.changed,
            "standing": self.standing,
        }
        return meta, of_right | of_paid

    def restore(self, meta: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Become what `snapshot` returned."""
        self.right.restore("right", meta["right"], arrays)
        self.paid.restore("paid", meta["paid"], arrays)
        self.tried = dict(meta["tried"])
        self.costs.sums = {model: (first, second) for model, (first, second) in meta["cost_drift"].items()}
        # Two numbers, and no more of it, in what an earlier release wrote.
        self.accuracy.sums = {model: (*sums, 0.0)[:3] for model, sums in meta["accuracy_drift"].items()}
        self.accuracy.changed = dict(meta.get("accuracy_changed", {}))
        self.standing = dict(meta.get("standing", {}))
        self.reprice(meta["price_factors"])

    def _spread(self) -> float:
        """Return by how much the logarithm of the mean cost exceeds the mean of its logarithm, at most a bound."""
        return min(self.paid.noise / 2.0, math.log(BOUNDS[1]))

    def _bounded(self, log_ratio: Matrix) -> Matrix:
        return np.clip(log_ratio, *np.log(BOUNDS))

    def _refactor(self) -> None:
        of = {
            m: self.price_factors.get(m, 1.0) * self.costs.factor(m)
            for m in dict.fromkeys(self.features.models)
        }
        self.factors = np.array([of[model] for model in self.features.models])


def _unpriced(o: Observation) -> float:
    """Return the logarithm of an outcome's cost in eFLOPs at the price of 1."""
    return o.log_cost - math.log(o.price_factor)


SOME: Final = 5
"""Of the window's queries, one in so many says how much is in doubt."""


# The contextual policy.
#
# LinUCB on the paper's joint vector ranks actions in the same order for every query as far as the mean goes, and with
# 552 dimensions it learns little in a few hundred rounds. Here x = g_a ⊗ z_q, each query has its own ranking, and how
# much each kind of difference is worth is estimated. This is not Algorithm 1; the paper's policy is `linucb`.
#
# - Optimism is priced: the width w = α·σ√(xᵀA⁻¹x) of an action that costs e more than the best predicted one, at the
#   price in force, becomes w² / (w + e), so that very expensive actions are not explored like the others.
# - A model of which hardly anything is known is tried: one query in as many as there are models goes to each such
#   model. Before anything is known, that is every query.
# - A prior from history (`prior`) is a complete state to start from. Without one, the policy is refitted to its own
#   first outcomes whenever there are twice as many (`RefitSchedule`).
# - The pacer (`pacing`) determines λ for objectives by mean cost and by accuracy.

TINY: Final = 1e-12
"""Least width to divide by."""

FIRST: Final = 2
"""Outcomes of a model below which it is tried for their sake."""


@dataclass(frozen=True, slots=True)
class ContextualSettings:
    """Settings of the contextual policy.

    Attributes:
        alpha: Exploration factor, in standard deviations of the prediction.
        accuracy_of: Of what an objective by accuracy asks for a share: `reachable`, what the best action for each query
            would reach, less its doubt, or `best`, what the action that is best on average reaches.
        encoder: Identity of the encoder of the queries; a state from another encoder is refused.
        refits: Numbers of outcomes at which a policy without a prior is refitted.
    """

    alpha: float = 0.25
    accuracy_of: Literal["reachable", "best"] = "reachable"
    encoder: str = ""
    refits: tuple[int, ...] = REFITS


class Contextual(Learner):
    """Priced, optimistic choice by a hierarchical linear model on g_a ⊗ z_q."""

    name = "contextual"
    traits = Traits(order_free=False, surface=True)  # the pacer is a fold in strict order

    features: ContextualFeatures

    def __init__(self, features: ContextualFeatures, settings: ContextualSettings | None = None) -> None:
        super().__init__(features)
        self.settings = settings or ContextualSettings()
        self.estimates = Estimates(features)
        self.pacer: Pacer = Pacer(self._forecast, reachable=self.settings.accuracy_of == "reachable")
        self.refits: RefitSchedule = RefitSchedule(self.settings.refits)

    def grown(self, kept: Sequence[int]) -> None:
        """Append the columns of new features."""
        self.estimates.grow()

    def offer(self, actions: Sequence[ActionVector], price_factors: Mapping[str, float] = UNPRICED) -> None:
        """Choose from exactly these actions, at these prices from the next decision on."""
        super().offer(actions, price_factors)
        self.estimates.reprice(price_factors)
        self.pacer.factors = self.estimates.price_factors

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Predict the reward of every allowed action of every context, its width priced."""
        queries = self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return [self._predicted(*each, seed) for each in zip(queries, contexts, objectives, strict=True)]

    def _predicted(self, query: Vector, context: Context, objective: Objective, seed: int) -> Prediction:
        d = self.features
        keep = d.choosable(context.query_id, context.allowed)
        z = d.short(query)
        terms = self.estimates.predicted(z)[keep]
        width = self.settings.alpha * self.estimates.right.widths(z, d.sides[keep])
        mean = terms[:, :COST] @ objective.coefficients - objective.shadow_price * terms[:, COST]
        # What more an action costs than the best predicted one is what it takes to find out: it counts against hope.
        extra = objective.shadow_price * np.maximum(terms[:, COST] - terms[int(mean.argmax()), COST], 0.0)
        width = width * width / np.maximum(width + extra, TINY)
        made = ranked(context.query_id, [d.ids[j] for j in keep], mean, width, seed)
        # No answer is better than right: what is too dear even then need not be tried again.
        right = terms.copy()
        right[:, [CORRECT, SCORE]] = 1.0
        most = right[:, :COST] @ objective.coefficients - objective.shadow_price * terms[:, COST]
        made = self._tried(made, keep, most > mean[made.chosen], seed)
        correct, score, log_cost = terms[made.chosen, :ONE].tolist()
        return replace(made, predicted=(correct, score, log_cost), terms=lambda: terms[:, :ONE])

    def _tried(self, of: Prediction, keep: np.ndarray, worth: np.ndarray, seed: int) -> Prediction:
        """Return a prediction in which one model is drawn among all where some are to be tried.

        Args:
            of: What is chosen without tries.
            keep: Indices of its actions.
            worth: Which of them could be worth their cost.
            seed: Of the deployment.
        """
        cheapest: dict[str, int] = {}
        cost = self.features.anchors[keep] * self.estimates.factors[keep]
        for place in np.argsort(-cost, kind="stable").tolist():
            cheapest[self.features.models[keep[place]]] = place
        tried = self.estimates.tried
        # Of a model without any outcome it is not known what it costs.
        new = [
            name
            for name, place in cheapest.items()
            if not tried.get(name) or (tried[name] < FIRST and worth[place])
        ]
        if not new or len(cheapest) == 1:
            return of
        assert of.probability is not None
        probability = of.probability * (1.0 - len(new) / len(cheapest))
        for name in new:
            probability[cheapest[name]] += 1.0 / len(cheapest)
        names = sorted(cheapest)
        drawn = names[int(generator(seed, of.query_id, "new model").integers(len(names)))]
        chosen = cheapest[drawn] if drawn in new else of.chosen
        reason: Reason = "policy" if chosen == of.chosen else "warm-up"
        return replace(of, chosen=chosen, probability=probability, reason=reason)

    def drifted(self) -> dict[str, Drift]:
        """Return the models whose costs are corrected, or whose accuracy has been relearned since the last refit."""
        costs, accuracy = self.estimates.costs, self.estimates.accuracy
        found = {
            model: Drift(costs.factor(model), accuracy.changed.get(model)) for model in self.estimates.tried
        }
        return {model: each for model, each in found.items() if each != Drift()}

    def explain(self, context: Context, action_id: str) -> Sequence[Contribution]:
        """Return what each block of columns contributes, and first what is predicted before any of them."""
        (query,) = self.features.queries([(context.query_id, context.embedding)])
        at = self.features.position(context.query_id, action_id)
        return self.estimates.right.parts(self.features.row(self.features.short(query), at))

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Add decisions to the window and to the account of their targets; close the account of those abandoned."""
        made = [d for d in decisions if not d.abandoned]
        queries = self.features.queries([(d.observation_id, d.embedding) for d in made])
        for decision, query in zip(made, queries, strict=True):
            z = self.features.short(query)
            if decision.target is not None:
                terms = self.estimates.predicted(z)[self._place(decision)]
                cost, accuracy = float(terms[COST]), float(np.clip(terms[CORRECT], 0.0, 1.0))
                self.pacer.decided(decision.target, decision.observation_id, cost, accuracy)
            self.pacer.recent.add(decision.tenant, z)
        for decision in decisions:
            if decision.abandoned:
                self.pacer.settled(decision.observation_id, decision.paid, decision.correct)

    def learn(self, outcomes: Sequence[Observation]) -> None:
        """Learn outcomes in order, all checked first.

        With a cost alone the accounts pay, and their calibration stays as it is. With a failure they pay what it cost,
        and only that of accuracy changes.
        """
        for o in outcomes:
            check_outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
            self._place(o)
        queries = self.features.queries([(o.observation_id, o.embedding) for o in outcomes])
        for o, query in zip(outcomes, queries, strict=True):
            # z is of now: what is learned of the outcome before may have changed the directions.
            z, at = self.features.short(query), self._place(o)
            match o.kind:
                case "reward":
                    self.estimates.add(z, at, o)
                    self.pacer.settled(o.observation_id, float(np.exp(o.log_cost)), o.correct)
                    self._kept(o, query, at, _unpriced(o))
                case "failure":
                    self.estimates.fail(z, at, o)
                    self.pacer.settled(o.observation_id, o.paid, o.correct, usual=False)
                    self._kept(o, query, at, None)
                case "correction":
                    if o.target is not None:
                        # Of a draw by the floor nothing was said.
                        told = (
                            self.estimates.predicted(z)[at, CORRECT] if o.predicted is None else o.predicted
                        )
                        self.pacer.judged(o.target, float(np.clip(told, 0.0, 1.0)), o.entered)
                    self.estimates.amend(z, at, o)
                    self.refits.correct(o)
                    self._corrections += 1
                case "cost":
                    self.estimates.add_cost(z, at, o)
                    self.pacer.settled(o.observation_id, float(np.exp(o.log_cost)), None)

    def _kept(self, o: Observation, query: Vector, at: int, log_cost: float | None) -> None:
        """Count an outcome and keep it for the refits; refit where one is due."""
        if (history := self.refits.take(o, query, at, log_cost)) is not None:
            rows = len(history.question)
            results = self.refits.results
            results[rows] = self.relearn(history, known=results.get(rows, b""))
        self._updates += 1

    def relearn(self, history: History, cap: float = math.inf, known: bytes = b"") -> bytes:
        """Take anchors, directions and variances from a history, then learn it with them; return what was taken.

        A policy without a prior does this with its own outcomes; `prior.teach` does it with a table.

        Args:
            history: The outcomes. They replace what has been learned, and the recent contexts.
            cap: Rows as which the history counts at most.
            known: What was returned for this history before. What cannot be read, or belongs to another history, other
                settings or other actions, is estimated again.
        """
        read = self._read_refit(known, history)
        made = self.estimates.replace(history, cap, read)
        z = made.z
        # In the order of a tenant's traffic: a question stands once for its rows in a run, as a table has them, and
        # again where it was asked again later.
        tenants: Sequence[str | None] = history.tenants or [None] * len(history.question)
        asked: list[tuple[str | None, Vector]] = []
        last: dict[str | None, int] = {}
        for tenant, question in zip(tenants, history.question.tolist(), strict=True):
            if last.get(tenant) != question:
                asked.append((tenant, z[question]))
            last[tenant] = question
        self.pacer.recent.replace(asked)
        if read is not None:
            return known
        meta, arrays = self.features.fitted()
        meta |= {"right": made.right, "paid": made.paid, "history": history.digest}
        return pack(self.name, self.identity(), meta, arrays | {"z": made.z})

    def _read_refit(self, known: bytes, history: History) -> Refit | None:
        """Return what `relearn` returned for a history, its features in force; None for anything else."""
        try:
            meta, arrays = unpack(known, self.name, self.identity())
        except CorruptState:
            return None
        # Those of earlier releases have no digest; `refits_of` leaves out those from before a repair.
        if "history" in meta and meta["history"] != history.digest:
            return None
        if len(arrays["z"]) != len(history.queries) or not self.features.refit(meta, arrays):
            return None
        right, paid = (tuple(meta[name]) for name in ("right", "paid"))
        return Refit(arrays["z"], right, paid)

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return regressions, window, accounts and refit schedule, all bit for bit."""
        learned, arrays = self.estimates.snapshot()
        ahead, outcomes = self.refits.snapshot()
        accounts, windows = self.pacer.snapshot()
        return {"estimates": learned} | accounts | ahead, arrays | windows | outcomes

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore them."""
        self.estimates.restore(meta["estimates"], arrays)
        self.pacer.factors = self.estimates.price_factors
        self.pacer.restore(meta, arrays)
        self.refits.restore(meta, arrays)

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal when a state is loaded; α and the meaning of accuracy may change."""
        return {"contextual": {"encoder": self.settings.encoder}, "features": asdict(self.features.settings)}

    def _forecast(self, window: Matrix) -> Forecast | None:
        on_offer = np.flatnonzero(self.features.active)
        if not len(on_offer) or not self.estimates.any():
            return None
        return self.estimates.forecast(window, on_offer)

    def _place(self, item: Pending | Observation) -> int:
        return self.features.position(item.observation_id, item.action_id)


# What a user sets of the contextual policy, and how it is built from that.


class ContextualOptions(Options, frozen=True, kw_only=True):
    """Options of the contextual policy.

    Attributes:
        alpha, accuracy_of: see ContextualSettings.
        query_rank: Most that z_q has without its constant: the nine surface counts, and directions.
    """

    alpha: float = 0.25
    accuracy_of: Literal["reachable", "best"] = "reachable"
    query_rank: int = 48

    def __post_init__(self) -> None:
        """Refuse numbers it cannot run with."""
        super().__post_init__()
        self.not_negative("alpha")
        for name in ("action_features", "interactions", "interaction_scale", "basis_seed"):
            if getattr(self, name) != Options.__struct_defaults__[Options.__struct_fields__.index(name)]:
                raise ValueError(f"{name} does not apply to the contextual policy; leave it out")


@register_policy("contextual", ContextualOptions)
def _contextual(options: ContextualOptions, on: Inputs) -> Policy:
    features = FeatureSettings(
        query_dim=on.query_dim + len(COUNTS),
        action_dim=on.action_dim,
        query_rank=options.query_rank,
    )
    settings = ContextualSettings(options.alpha, options.accuracy_of, on.encoder)
    return Contextual(ContextualFeatures(features), settings)
