"""The contextual policy: a hierarchical linear model of accuracy and cost that ranks the actions for each query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import msgspec
import numpy as np

from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.drift import SETTLED, STEP, AccuracyDrift, CostDrift
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
from agents.bandit.posterior import Ridge, marginal
from agents.bandit.registry import Inputs, Options, register_policy
from agents.bandit.variances import (
    CLEAR,
    FLAT,
    Variances,
    estimated_last,
    estimated_with_last,
    estimated_without_last,
    evidence_of,
    gain_of_last,
    usual_mean,
    usual_variance,
)
from schemas.objective import CostUnit
from schemas.prices import MILLION, Prices, Rate

CORRECT, SCORE, LOG_COST, ONE, COST = range(5)
"""Columns of the predicted terms: the reward's (`policy.TERMS`), followed by the cost itself."""

# One regression: coefficients with their block's prior N(μ, τ²), observed through outcomes with noise variance σ².
#
# In units of the noise, A = diag(σ²/τ²) + Σ x xᵀ and θ - μ = A⁻¹ Σ x·(y - xᵀμ). The variance of xᵀθ is σ² xᵀA⁻¹x.


STORED: Final = ("variances", "noise", "outcomes")
"""Attributes of `Regression` that a snapshot stores as plain values."""


class Regression:
    """Bayesian linear regression with several targets that share A.

    Args:
        features: The features, which compute x. Their columns change with the actions and the categories; call
            `arrange` after each change.
        term: Selects the default means and variances: accuracy (0) or cost (1). Variances are estimated for the first
            target.
        centre: Prior mean of the targets, shape (T,).
        noise: Prior variance of the first target around its prediction.

    Attributes:
        variances: τ² of each block.
        noise: σ².
        outcomes: Number of rows learned one at a time, plus the history's weight in rows.
    """

    def __init__(self, features: ContextualFeatures, term: int, centre: Vector, noise: float) -> None:
        self._features, self._term = features, term
        self.centre, self.noise = centre, noise
        self.variances: dict[str, float] = {}
        self._means: Vector = np.zeros(0)
        self.ridge = Ridge(np.zeros(0), len(centre))
        self.outcomes = 0.0
        self._columns: list[tuple[str, int | str]] = []

    def arrange(self) -> None:
        """Match the features' columns. Each new block gets its default variance.

        The result is as if a removed column had never existed: the other columns take over its effect.
        """
        blocks, columns = self._features.column_blocks, self._features.columns
        if columns == self._columns:
            return
        for block in blocks:
            self.variances.setdefault(block, usual_variance(block, self._term))
        place = {column: at for at, column in enumerate(columns)}
        kept = [at for at, column in enumerate(self._columns) if column in place]
        self.ridge.arrange(
            kept,
            [place[self._columns[at]] for at in kept],
            np.array([self.noise / self.variances[block] for block in blocks]),
        )
        self._columns = columns
        self._means = self._usual_means()

    @property
    def theta(self) -> Matrix:
        """Return θ, shape (D, T)."""
        return np.asarray(self.ridge.theta + self._means[:, None])

    def _usual_means(self) -> Vector:
        d = self._features
        pairs = zip(d.column_blocks, d.columns, strict=True)
        return np.array([usual_mean(name, block, self._term) for block, (name, _) in pairs])

    def predicted(self, z: Vector) -> Matrix:
        """Return the predicted targets for every action, shape (n, T)."""
        d = self._features
        return np.asarray(self.centre + d.sides @ d.project(z, self.theta))

    def parts(self, x: Vector) -> list[Contribution]:
        """Return the centre, followed by each block's contribution to the first target's prediction and its variance.

        A category block is split by category, as in `model × route=code`. Only categories present in x are included.
        """
        d = self._features
        blocks = [
            block if isinstance(part, int) else block.replace("category", part)
            for block, (_, part) in zip(d.column_blocks, d.columns, strict=True)
        ]
        means, variances = x * self.theta[:, 0], self.noise * x * self.ridge.solve(x)
        of = {block: np.array([name == block for name in blocks]) for block in dict.fromkeys(blocks)}
        plain = set(blocks[: d.plain_dim])
        return [
            Contribution("centre", float(self.centre[0]), 0.0),
            *(
                Contribution(b, float(means[own].sum()), float(variances[own].sum()))
                for b, own in of.items()
                if b in plain or x[own].any()
            ),
        ]

    def widths(self, z: Vector, sides: Matrix) -> Vector:
        """Return the standard deviation of the first target's prediction for each action, shape (n,)."""
        q = self._features.compress(z, self.ridge.half)
        return np.asarray(np.sqrt(self.noise * np.maximum(np.sum((sides @ q) * sides, axis=1), 0.0)))

    @property
    def any_category(self) -> bool:
        """Return whether any category counts, that is, has more than next to no variance."""
        of_categories = self._features.column_blocks[self._features.plain_dim :]
        return any(self.variances[block] > FLAT for block in of_categories)

    def add(self, x: Vector, targets: Vector) -> None:
        """Learn one outcome, given x, shape (D,), and its targets, shape (T,)."""
        self.ridge.add(x, targets - self.centre - x @ self._means)
        self.outcomes += 1.0

    def amend(self, x: Vector, before: float, after: float) -> None:
        """Replace the first target of a learned outcome; A does not change."""
        self.ridge.adjust(x, 0, after - before)

    def loosen(self, column: int, variance: float) -> None:
        """Allow one coefficient to change: increase its variance without changing the predictions."""
        self.ridge.loosen(column, variance / self.noise)

    def replace(
        self, history: History, z: Matrix, targets: Matrix, cap: float, known: Variances | None = None
    ) -> Variances:
        """Discard everything learned, and learn a history with variances estimated from it; return those variances.

        Args:
            history: The history.
            z: [z; c] for each question, shape (Q, rank + K).
            targets: Targets for each row, shape (m, T).
            cap: Maximum weight of the history, in rows.
            known: The variances from an earlier call with this history; None to estimate them again.
        """
        self._columns = self._features.columns
        self._means = self._usual_means()  # the features may have new columns or a new transform
        # Only the coefficients for z's constant, which is 1, have non-zero default means.
        d = self._features
        targets = targets - (d.sides @ self._means[: d.plain_dim : d.rank])[history.action, None]
        self.centre = np.average(targets, axis=0, weights=history.weights)
        levels = evidence_of(d, history, z, targets - self.centre)
        blocks, plain = d.column_blocks, d.plain_dim
        self.variances, noises = known or estimated_with_last(levels, blocks, plain, self._term)
        if known is None and plain < len(blocks) and history.full:
            found = self.variances, noises
            if gain_of_last(d, history, z, targets - self.centre, found) < CLEAR:
                self.variances, noises = estimated_without_last(levels, blocks, plain, self._term)
        for block in set(blocks) - self.variances.keys():  # those of actions newer than `known`
            self.variances[block] = usual_variance(block, self._term)
        # A row learned on its own carries its own noise, plus a share of its model's and its question's variance.
        rows = len(history.question)
        self.noise, left = noises[0], float(rows)
        for at in range(1, len(noises)):
            left -= levels[at - 1].count  # number of means at this level
            self.noise += max(noises[at] - noises[at - 1], 0.0) * left / rows
        a, b = np.zeros_like(levels[0].gram), np.zeros((len(blocks), targets.shape[1]))
        for each, noise in zip(levels, noises, strict=True):
            a += each.gram * (self.noise / noise)
            b += each.moment * (self.noise / noise)
        # The cap reduces certainty and leaves the predictions unchanged.
        weight = min(1.0, cap / rows)
        self.outcomes = weight * rows
        tau = np.array([self.variances[block] for block in blocks])
        self.ridge.enter(weight * a, weight * self.noise / tau, weight * b)
        return self.variances, noises

    def estimate_categories(self, known: Mapping[str, float] | None = None) -> dict[str, float]:
        """Estimate the category blocks' variances from the learned rows, with all others fixed; return them.

        Args:
            known: The result of an earlier call with the same rows; None to estimate again.
        """
        plain, blocks = self._features.plain_dim, self._features.column_blocks[self._features.plain_dim :]
        before = np.array([self.noise / self.variances[block] for block in blocks])
        if known is None:
            a, b = self.ridge.a / self.noise, self.ridge.b[:, 0] / self.noise
            gram, moment = marginal(a, b, plain)
            gram[np.diag_indices(len(gram))] -= before / self.noise
            known = estimated_last(gram, moment, blocks, self._term, self.variances)
        self.variances |= {block: known[block] for block in known if block in self.variances}
        after = np.array([self.noise / self.variances[block] for block in blocks])
        self.ridge.repenalise(plain, after - before)
        return dict(known)

    def snapshot(self, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays with names prefixed by `name`); `restore` then continues bit for bit."""
        meta = {"rows": self.ridge.rows} | {stored: getattr(self, stored) for stored in STORED}
        arrays = self.ridge.snapshot() | {"centre": self.centre}
        return meta, {f"{name}.{key}": array for key, array in arrays.items()}

    def restore(self, name: str, meta: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restore what `snapshot` returned for the same name."""
        for stored in STORED:
            setattr(self, stored, meta[stored])
        own = {k.removeprefix(f"{name}."): v for k, v in arrays.items() if k.startswith(f"{name}.")}
        self.centre = own["centre"]
        self.ridge.restore(own, meta["rows"])
        self._columns = self._features.columns
        self._means = self._usual_means()


@dataclass(frozen=True)
class Refit:
    """Parameters estimated from a history, except the features'. Everything else learned from it is a sum over rows.

    Attributes:
        z: z for each of the history's questions, without categories, shape (Q, rank). The directions used for a
            question are fitted without that question.
        right, paid: The two regressions' variances.
    """

    z: Matrix
    right: Variances
    paid: Variances


# The contextual policy's learned model: every action's expected terms for a query.
#
# One regression predicts correctness and score, the other the logarithm of cost. They are separate because only the
# cost is known when a client cuts an answer short. Costs are measured in units of each action's anchor, so that
# expensive and cheap actions share a scale. They are learned in eFLOPs and multiplied by the price factor at prediction
# time, so a new factor takes effect at once and nothing has to be relearned. For the same reason, generated and prompt
# tokens are learned if costs are in USD: the regression then has two targets, each with its own anchor.

BOUNDS: Final = (0.2, 5.0)
"""Bounds on a predicted cost, in units of the anchor. Without them, an unusual question could look far too cheap. They
widen for a model that joined after the last refit, whose anchors are guesses, if its outcomes cost far more or less."""

PROMPT_BOUNDS: Final = (0.02, 50.0)
"""The same bounds, for prompt tokens. They are wider because prompt lengths vary more and can be seen in the
question."""

FIRST_RATIO: Final = (2, 0.0)
"""Number and mean that a model's ln(cost / anchor) begins with."""

MOST_RATIOS: Final = 80
"""Maximum number of outcomes in that mean; from then on, it forgets older ones."""

UNKNOWN: Final = Prices(input=1.0, output=1.0)
"""Placeholder prices for an unavailable model. They never affect a choice."""


class Estimates:
    """The two regressions, and their drift corrections.

    Args:
        features: The features, which compute x.

    Attributes:
        right: The regression of Correct and Score.
        paid: The regression of ln(cost); in USD, of ln(generated tokens) and ln(prompt tokens). Targets are in units
            of the anchors.
        tried: Number of outcomes of each model, including a prior's.
        ratios: For each model whose anchors are guesses, the number of outcomes with a cost, and their mean
            ln(cost / anchor).
        standing: Number of each model's outcomes that have a score in place of Correct.
        distrusted: Sequence number from which on such outcomes count less; -1 for none.
        price_factors: Price factor of each model: the price of one eFLOP on it, 1 for models not listed; in USD, the
            prices of its tokens.
        factors: Each action's price factor (in USD, price of a generated token) times its drift correction, shape (n,).
        prompt_prices: In USD, the price of a prompt token for each action, shape (n,).
    """

    def __init__(self, features: ContextualFeatures) -> None:
        self.features = features
        self.right = Regression(features, 0, np.array([0.5, 0.5]), 0.2)
        self.paid = Regression(features, 1, np.zeros(2 if features.in_tokens else 1), 1.0)
        self.tried: dict[str, int] = {}
        self.ratios: dict[str, tuple[int, float]] = {}
        self.standing: dict[str, int] = {}
        self.price_factors: dict[str, Rate] = {}
        self.costs, self.accuracy = CostDrift(), AccuracyDrift()
        self.distrusted = -1
        self.factors: Vector = np.ones(0)
        self.prompt_prices: Vector = np.ones(0)

    def any(self) -> bool:
        """Return whether anything has been learned."""
        return bool(self.paid.outcomes)

    def arrange(self) -> None:
        """Match the regressions to the features' columns."""
        self.right.arrange()
        self.paid.arrange()

    def reprice(self, price_factors: Mapping[str, Rate]) -> None:
        """Set these models' price factors; an eFLOP costs 1 on all others."""
        self.price_factors = dict(price_factors)
        self._refactor()

    def predicted(self, z: Vector) -> Matrix:
        """Return every known action's predicted terms, shape (n, 5): Correct, Score, log C, 1, C.

        C is computed at the current prices.
        """
        terms = np.ones((len(self.features.ids), 5))
        terms[:, [CORRECT, SCORE]] = self.right.predicted(z)
        paid = self.paid.predicted(z)
        log_cost = np.log(self.features.anchors * self.factors) + self._bounded(paid[:, 0], slice(None))
        terms[:, LOG_COST], terms[:, COST] = log_cost, np.exp(log_cost + self._spread())
        if self.features.in_tokens:
            prompts = self._prompts(paid[:, 1], slice(None))
            terms[:, LOG_COST], terms[:, COST] = np.log(np.exp(log_cost) + prompts), terms[:, COST] + prompts
        return terms

    def _prompts(self, log_ratio: Matrix, actions: np.ndarray | slice) -> Matrix:
        """Return each action's prompt cost, shape (…, n), given ln(prompt tokens / anchor)."""
        tokens = self.features.prompts[actions] * np.exp(np.clip(log_ratio, *np.log(PROMPT_BOUNDS)))
        return np.asarray(self.prompt_prices[actions] * tokens)

    def usual(self, actions: np.ndarray) -> Vector:
        """Return each action's typical cost at the current prices, shape (n,)."""
        cost = self.features.anchors[actions] * self.factors[actions]
        if self.features.in_tokens:
            cost = cost + self._prompts(np.zeros(1), actions)
        return np.asarray(cost)

    def forecast(self, window: Matrix, actions: np.ndarray) -> Forecast:
        """Return the predictions for m queries and n actions.

        Args:
            window: [z; c] for each query, shape (m, rank + K).
            actions: Indices of the n actions.
        """
        d = self.features
        sides, found = d.sides[actions], []
        for of, target in ((self.right, 0), *((self.paid, at) for at in range(len(self.paid.centre)))):
            found.append(of.centre[target] + d.predict(window, of.theta[:, target], sides))  # (m, n)
        accuracy = np.clip(found[0], 0.0, 1.0)
        # By Jensen's inequality, the mean cost exceeds exp(mean log cost).
        cost = (
            d.anchors[actions]
            * self.factors[actions]
            * np.exp(self._bounded(found[1], actions) + self._spread())
        )
        if d.in_tokens:
            cost = cost + self._prompts(found[2], actions)
        # The variance of a mean of predictions is that of their mean row, since they are linear in x.
        x = d.rows(window, actions[accuracy.argmax(axis=1)]).mean(axis=0, keepdims=True)  # (1, D)
        variance = self.right.noise * max(float(self.right.ridge.squares(x)[0]), 0.0)
        return Forecast(accuracy, cost, math.sqrt(variance))

    def _paid(self, o: Observation, action: int) -> Vector:
        """Return the cost regression's targets for an outcome, shape (1,), or (2,) if costs are in USD."""
        anchors = (self.features.anchors, self.features.prompts)
        return np.array(
            [each - math.log(of[action]) for each, of in zip(_unpriced(o), anchors, strict=False)]
        )

    def add(self, z: Vector, action: int, o: Observation) -> None:
        """Learn one outcome."""
        x, model = self.features.row(z, action), self.features.models[action]
        paid = self._paid(o, action)
        expected = float(self.paid.centre[0] + x @ self.paid.theta[:, 0])
        if self.paid.outcomes >= SETTLED and self.costs.learn(model, float(paid[0]) - expected):
            self._refactor()
        if o.correct is None:
            self.standing[model] = self.standing.get(model, 0) + 1
        else:
            self._compare(x, model, o.correct, o.seq)
        self._add_right(x, model, o)
        self._add_paid(x, model, paid)

    def fail(self, z: Vector, action: int, o: Observation) -> None:
        """Learn that a model returned no text. This counts as a wrong answer; the cost regression is not updated."""
        x, model = self.features.row(z, action), self.features.models[action]
        self._compare(x, model, o.entered, o.seq)
        self._add_right(x, model, o)

    def _add_right(self, x: Vector, model: str, o: Observation) -> None:
        self.right.add(x, np.array([o.entered, o.score]))
        self._count_try(model)

    def _add_paid(self, x: Vector, model: str, paid: Vector) -> None:
        self.paid.add(x, paid)
        measured = self.features.scales
        # Before the first refit, all anchors are guesses, and may be wrong by one and the same factor.
        if not measured or model in measured:
            return
        count, mean = self.ratios.get(model, FIRST_RATIO)
        count = min(count + 1, MOST_RATIOS)
        self.ratios[model] = (count, mean + (float(paid[0]) - mean) / count)

    def _count_try(self, model: str) -> None:
        self.tried[model] = self.tried.get(model, 0) + 1

    def _compare(self, x: Vector, model: str, correct: float, seq: int) -> None:
        """Compare known correctness with the prediction; if the model has drifted, let its coefficient adapt."""
        told = float(self.right.centre[0] + x @ self.right.theta[:, 0])
        share = min(1.0, self.standing.get(model, 0) / max(self.tried.get(model, 0), 1))
        if self.accuracy.learn(model, correct, told, share=share, seq=seq):
            self._loosen(model)

    def _loosen(self, model: str) -> None:
        self.right.loosen(self.features.own_column(model), STEP**2)

    def distrust_scores(self, seq: int) -> None:
        """Allow for a change of every model that has outcomes with a score in place of Correct, once."""
        if seq > self.distrusted:
            self.distrusted = seq
            self._loosen_standing()

    def _loosen_standing(self) -> None:
        for model in sorted(model for model, count in self.standing.items() if count):
            self.accuracy.sums.pop(model, None)
            self._loosen(model)

    def add_cost(self, z: Vector, action: int, o: Observation) -> None:
        """Learn the cost of an outcome whose other terms are unknown.

        The cost does not count towards drift: the search was ended early by the client, not by the model.
        """
        model = self.features.models[action]
        if o.tried:
            self._count_try(model)
        self._add_paid(self.features.row(z, action), model, self._paid(o, action))

    def amend(self, z: Vector, action: int, o: Observation) -> None:
        """Replace Correct in a learned outcome.

        If the model was loosened since, A gives the outcome less weight than a correction of B would assume, so the
        outcome is learned again instead.
        """
        x, model = self.features.row(z, action), self.features.models[action]
        self._compare(x, model, o.entered, o.seq)
        if self.accuracy.is_past(model, o.learned_seq) or o.learned_seq < self.distrusted:
            self.right.add(x, np.array([o.entered, o.score]))
        else:
            self.right.amend(x, o.imputed, o.entered)
            self.standing[model] = max(0, self.standing.get(model, 0) - 1)

    def replace(self, history: History, cap: float, known: Refit | None) -> Refit:
        """Discard everything learned, and learn a history. If `known` is set, the features are already refitted."""
        d = self.features
        priced = history.priced
        if known is None:
            set_anchors(d, priced)
        # A row without a cost is assumed to have incurred its action's typical cost.
        took = [history.log_cost - np.log(d.anchors[history.action])]
        if d.in_tokens:
            took.append(history.log_prompt - np.log(d.prompts[history.action]))
        paid = np.stack([np.where(history.failed, 0.0, each) for each in took], axis=1)
        right = np.stack([history.correct, history.score], axis=1)
        firsts = np.stack([right[:, 0], paid[:, 0]], axis=1)

        def learned(plain: Matrix) -> Refit:
            # Only now, because the room for categories depends on how many directions there are.
            d.choose_categories(history.outcomes_by_category())
            z = d.with_categories(plain, history.categories)
            of_right = self.right.replace(history, z, right, cap, known.right if known else None)
            of_paid = self.paid.replace(priced, z, paid[~history.failed], cap, known.paid if known else None)
            return Refit(plain, of_right, of_paid)

        made = learned(known.z if known else fit_directions(d, history, firsts))
        if known is None and d.categories and not (self.right.any_category or self.paid.any_category):
            # Nothing is to be held out on account of categories that do not count.
            made = learned(fit_directions(d, replace(history, categories=()), firsts))
        self.costs, self.accuracy, self.ratios = CostDrift(), AccuracyDrift(), {}
        self._refactor()
        counts = np.bincount(history.action, minlength=len(d.ids))
        self.tried = {}
        for model, count in zip(d.models, counts.tolist(), strict=True):
            self.tried[model] = self.tried.get(model, 0) + count
        if self.distrusted >= 0:
            self._loosen_standing()
        return made

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays); `restore` then continues bit for bit."""
        (right, of_right), (paid, of_paid) = self.right.snapshot("right"), self.paid.snapshot("paid")
        meta: dict[str, Any] = {
            "right": right,
            "paid": paid,
            "tried": self.tried,
            "price_factors": self.price_factors,
            "cost_drift": self.costs.sums,
            "accuracy_drift": self.accuracy.sums,
            "accuracy_changed": self.accuracy.changed,
            "standing": self.standing,
        }
        if self.distrusted >= 0:  # states saved by earlier releases have no such key
            meta["distrusted"] = self.distrusted
        if self.ratios:  # likewise
            meta["ratios"] = self.ratios
        return meta, of_right | of_paid

    def restore(self, meta: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restore what `snapshot` returned."""
        self.right.restore("right", meta["right"], arrays)
        self.paid.restore("paid", meta["paid"], arrays)
        self.tried = dict(meta["tried"])
        self.costs.sums = {model: (first, second) for model, (first, second) in meta["cost_drift"].items()}
        # Earlier releases saved just two numbers per model.
        self.accuracy.sums = {model: (*sums, 0.0)[:3] for model, sums in meta["accuracy_drift"].items()}
        self.accuracy.changed = dict(meta.get("accuracy_changed", {}))
        self.standing = dict(meta.get("standing", {}))
        self.ratios = {model: (count, mean) for model, (count, mean) in meta.get("ratios", {}).items()}
        self.distrusted = meta.get("distrusted", -1)
        self.reprice(msgspec.convert(meta["price_factors"], dict[str, Rate]))

    def _spread(self) -> float:
        """Return ln(mean cost) minus the mean of ln(cost), capped."""
        return min(self.paid.noise / 2.0, math.log(BOUNDS[1]))

    def _bounded(self, log_ratio: Matrix, actions: np.ndarray | slice) -> Matrix:
        """Return ln(cost / anchor) within its bounds, shape (…, n)."""
        low, high = np.log(BOUNDS)
        if not self.ratios:
            return np.clip(log_ratio, low, high)
        usual = np.array([self.ratios.get(model, FIRST_RATIO)[1] for model in self.features.models])[actions]
        return np.clip(log_ratio, low + np.minimum(usual, 0.0), high + np.maximum(usual, 0.0))

    def _refactor(self) -> None:
        of, prompts = {}, {}
        for model in dict.fromkeys(self.features.models):
            rate = self.price_factors.get(model, UNKNOWN if self.features.in_tokens else 1.0)
            if isinstance(rate, Prices):
                prompts[model], rate = rate.input / MILLION, rate.output / MILLION
            of[model] = rate * self.costs.factor(model)
        self.factors = np.array([of[model] for model in self.features.models])
        if self.features.in_tokens:
            self.prompt_prices = np.array([prompts[model] for model in self.features.models])


def _unpriced(o: Observation) -> tuple[float, ...]:
    """Return an outcome's unpriced log cost: ln(eFLOPs), or ln(generated tokens) and ln(prompt tokens)."""
    if o.tokens is None:
        return (o.log_cost - math.log(o.price_factor),)
    return tuple(math.log(max(count, 1)) for count in o.tokens)


# The contextual policy.
#
# LinUCB on the paper's joint vector ranks the actions' means in the same order for every query, and with 552 dimensions
# it learns little in a few hundred rounds. Here x = g_a ⊗ z_q, so each query has its own ranking, and the variance of
# each kind of difference is estimated. This is not Algorithm 1; the paper's policy is `linucb`.
#
# - Optimism is priced: let w = α·σ√(xᵀA⁻¹x) be an action's confidence width, and e its extra cost over the best
#   predicted action, times the current λ. The width becomes w² / (w + e), so very expensive actions are explored less.
# - Models with hardly any outcomes are tried: each gets 1 / (number of models) of the queries. At the start, these
#   shares add up to all queries. A model that joins others that have outcomes also gets more optimism at first.
# - A prior learned from a history (`prior`) is a complete initial state. Without one, the policy is refitted to its own
#   first outcomes each time their number has doubled (`RefitSchedule`).
# - The pacer (`pacing`) determines λ for objectives with a mean-cost or accuracy target.

TINY: Final = 1e-12
"""Lower bound on the divisor of a priced confidence width."""

FIRST: Final = 2
"""A model with fewer outcomes than this is tried in order to learn about it."""

OPTIMISM: Final = 4.0
"""Factor of `alpha` for a model that joins others that have outcomes, until it is familiar.

What is predicted of it rests on theirs, so it may look worse than it is, and would then hardly ever be chosen again.
"""

FAMILIAR: Final = 80
"""Number of outcomes from which on such a model is familiar; chosen with the factor (`experiments/CRITERIA.md`)."""


@dataclass(frozen=True, slots=True)
class ContextualSettings:
    """Settings for the contextual policy.

    Attributes:
        alpha: Exploration factor, in standard deviations of the prediction.
        accuracy_of: The accuracy that an objective's target is a share of. `reachable` is the accuracy of the best
            action for each query, minus its uncertainty; `best` is the accuracy of the action that is best on average.
        encoder: Identity of the query encoder; a state from a different encoder is rejected.
        refits: A policy without a prior is refitted when it reaches each of these numbers of outcomes.
        unit: Unit of costs; a state with a different unit is rejected.
    """

    alpha: float = 0.25
    accuracy_of: Literal["reachable", "best"] = "reachable"
    encoder: str = ""
    refits: tuple[int, ...] = REFITS
    unit: CostUnit = "eflops"


class Contextual(Learner):
    """Policy that chooses by priced optimism, using a hierarchical linear model on g_a ⊗ z_q."""

    name = "contextual"
    traits = Traits(order_free=False, surface=True)  # the pacer is a fold over events in strict order

    features: ContextualFeatures

    def __init__(self, features: ContextualFeatures, settings: ContextualSettings | None = None) -> None:
        super().__init__(features)
        self.settings = settings or ContextualSettings()
        self.estimates = Estimates(features)
        self.pacer: Pacer = Pacer(self._forecast, reachable=self.settings.accuracy_of == "reachable")
        self.refits: RefitSchedule = RefitSchedule(self.settings.refits)
        self.newcomers: set[str] = set()

    @property
    def graded(self) -> bool:
        """Return whether the correctness of any answer has been learned, from an outcome or a prior."""
        return self.estimates.right.outcomes > self._failures

    def grown(self, kept: Sequence[int]) -> None:
        """Append the new features' columns."""
        self.estimates.arrange()

    def untried(self, models: Iterable[str]) -> set[str]:
        """Return the models without outcomes, if there are outcomes of others."""
        return {name for name in models if self.estimates.any() and not self.estimates.tried.get(name)}

    def offer(
        self,
        actions: Sequence[ActionVector],
        price_factors: Mapping[str, Rate] = UNPRICED,
        newcomers: Iterable[str] = (),
    ) -> None:
        """Set the available actions and their prices, starting with the next decision; add to the newcomers."""
        super().offer(actions, price_factors)
        self.newcomers.update(newcomers)
        self.estimates.reprice(price_factors)
        self.pacer.factors = self.estimates.price_factors

    def distrust_scores(self, seq: int) -> None:
        """Allow models that were learned from scores to change; see `Policy.distrust_scores`."""
        self.estimates.distrust_scores(seq)

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Predict the reward and the priced confidence width of every allowed action for every context."""
        queries = self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return [self._predicted(*each, seed) for each in zip(queries, contexts, objectives, strict=True)]

    def _predicted(self, query: Vector, context: Context, objective: Objective, seed: int) -> Prediction:
        d = self.features
        keep = d.choosable(context.query_id, context.allowed)
        z = d.short(query, context.categories)
        terms = self.estimates.predicted(z)[keep]
        width = self._alpha(keep) * self.estimates.right.widths(z, d.sides[keep])
        mean = terms[:, :COST] @ objective.coefficients - objective.shadow_price * terms[:, COST]
        # An action's extra cost over the best predicted action is the price of exploring it, and reduces its width.
        extra = objective.shadow_price * np.maximum(terms[:, COST] - terms[int(mean.argmax()), COST], 0.0)
        width = width * width / np.maximum(width + extra, TINY)
        made = ranked(context.query_id, [d.ids[j] for j in keep], mean, width, seed)
        # An action that would be too expensive even if all its answers were correct need not be tried again.
        right = terms.copy()
        right[:, [CORRECT, SCORE]] = 1.0
        most = right[:, :COST] @ objective.coefficients - objective.shadow_price * terms[:, COST]
        made = self._tried(made, keep, most > mean[made.chosen], seed)
        correct, score, log_cost = terms[made.chosen, :ONE].tolist()
        return replace(made, predicted=(correct, score, log_cost), terms=lambda: terms[:, :ONE])

    def _alpha(self, keep: np.ndarray) -> float | Vector:
        """Return the exploration factor of each of these actions, shape (n,), or of all of them."""
        models, tried = self.features.models, self.estimates.tried
        new = {name for name in self.newcomers if tried.get(name, 0) < FAMILIAR}
        if not new:
            return self.settings.alpha
        return self.settings.alpha * np.where([models[at] in new for at in keep], OPTIMISM, 1.0)

    def _tried(self, of: Prediction, keep: np.ndarray, worth: np.ndarray, seed: int) -> Prediction:
        """Return the prediction. While some models remain to be tried, its model may be drawn at random instead.

        Args:
            of: The prediction before trials are considered.
            keep: Indices of its actions.
            worth: Whether each of these actions could be worth its cost.
            seed: The deployment's seed.
        """
        cheapest: dict[str, int] = {}
        cost = self.estimates.usual(keep)
        for place in np.argsort(-cost, kind="stable").tolist():
            cheapest[self.features.models[keep[place]]] = place
        tried = self.estimates.tried
        # A model without outcomes is always tried, because its costs are unknown.
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

    def left_out(self) -> Sequence[str]:
        """Return the categories without columns because other categories have more outcomes."""
        return self.features.left_out

    def drifted(self) -> dict[str, Drift]:
        """Return the models whose cost is corrected for drift, or whose accuracy changed since the last refit."""
        costs, accuracy = self.estimates.costs, self.estimates.accuracy
        found = {
            model: Drift(costs.factor(model), accuracy.changed.get(model)) for model in self.estimates.tried
        }
        return {model: each for model, each in found.items() if each != Drift()}

    def explain(self, context: Context, action_id: str) -> Sequence[Contribution]:
        """Return the predictions' centre, followed by the contribution of each block of columns."""
        (query,) = self.features.queries([(context.query_id, context.embedding)])
        at = self.features.position(context.query_id, action_id)
        return self.estimates.right.parts(
            self.features.row(self.features.short(query, context.categories), at)
        )

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Add decisions to their tenants' windows and their targets' accounts; settle the abandoned decisions."""
        made = [d for d in decisions if not d.abandoned]
        queries = self.features.queries([(d.observation_id, d.embedding) for d in made])
        for decision, query in zip(made, queries, strict=True):
            self._enter(decision.categories)
            z = self.features.short(query, decision.categories)
            if decision.target is not None:
                terms = self.estimates.predicted(z)[self._place(decision)]
                cost, accuracy = float(terms[COST]), float(np.clip(terms[CORRECT], 0.0, 1.0))
                self.pacer.decided(decision.target, decision.observation_id, cost, accuracy)
            self.pacer.recent.add(decision.tenant, z)
        for decision in decisions:
            if decision.abandoned:
                self.pacer.settled(decision.observation_id, decision.paid, decision.correct)

    def learn(self, outcomes: Sequence[Observation]) -> None:
        """Learn outcomes in order, after checking all of them.

        The pacer charges each outcome's cost to its account. A cost alone leaves the account's accuracy calibration
        unchanged, and a failure leaves its cost calibration unchanged.
        """
        for o in outcomes:
            check_outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
            self._place(o)
        queries = self.features.queries([(o.observation_id, o.embedding) for o in outcomes])
        for o, query in zip(outcomes, queries, strict=True):
            # z is computed here because the previous outcome may have changed the directions.
            z, at = self.features.short(query, o.categories), self._place(o)
            match o.kind:
                case "reward":
                    self.estimates.add(z, at, o)
                    self.pacer.settled(o.observation_id, float(np.exp(o.log_cost)), o.correct)
                    self._kept(o, query, at, _unpriced(o))
                case "failure":
                    self.estimates.fail(z, at, o)
                    self._failures += 1
                    self.pacer.settled(o.observation_id, o.paid, o.correct, usual=False)
                    self._kept(o, query, at, (math.nan,) * len(self.estimates.paid.centre))
                case "correction":
                    if o.target is not None:
                        # There is no recorded prediction for an action drawn by the exploration floor.
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

    def _kept(self, o: Observation, query: Vector, at: int, took: Sequence[float]) -> None:
        """Count an outcome and keep it for later refits; refit if that is now due."""
        self.features.count(o.categories)
        results = self.refits.results
        of_categories = self.features.categories and self.refits.of_categories(1)
        self._updates += 1
        self.refits.learned = self._updates
        if (history := self.refits.take(o, query, at, took)) is not None:
            rows = len(history.question)
            results[rows] = self.relearn(history, known=results.get(rows, b""))
        elif of_categories:
            results[self._updates] = self._estimate_categories(results.get(self._updates, b""))

    def _estimate_categories(self, known: bytes) -> bytes:
        """Estimate the category blocks' variances if the prior had no categories; return the estimates.

        Args:
            known: An earlier result for the same outcomes. If it is unreadable or belongs to different settings or
                columns, everything is estimated again.
        """
        try:
            meta, _ = unpack(known, self.name, self.identity())
        except CorruptState:
            meta = {}
        seen = {"categories": self.features.categories, "names": self.features.names}
        if {name: meta.get(name) for name in seen} != seen:
            meta = {}
        right = self.estimates.right.estimate_categories(meta.get("right"))
        paid = self.estimates.paid.estimate_categories(meta.get("paid"))
        return known if meta else pack(self.name, self.identity(), seen | {"right": right, "paid": paid}, {})

    def _enter(self, categories: Sequence[str]) -> None:
        """Assign columns to a decision's categories, and adapt the regressions and the recent contexts."""
        d = self.features
        if not (categories or d.categories):
            return
        before = d.categories
        if d.enter(categories):
            self.estimates.arrange()
            place = [before.index(each) if each in before else len(before) for each in d.categories]

            def rearranged(context: Vector) -> Vector:
                of_categories = np.append(context[d.rank :], 0.0)
                return np.concatenate([context[: d.rank], of_categories[place]])

            self.pacer.recent.change(rearranged)

    def relearn(self, history: History, cap: float = math.inf, known: bytes = b"") -> bytes:
        """Estimate anchors, directions and variances from a history, then learn it; return the estimates.

        A policy without a prior does this with its own outcomes; `prior.teach` does it with a table.

        Args:
            history: The outcomes. They replace everything learned and the recent contexts.
            cap: Maximum weight of the history, in rows.
            known: An earlier result for this history. If it is unreadable or belongs to a different history, different
                settings or different actions, everything is estimated again.
        """
        read = self._read_refit(known, history)
        made = self.estimates.replace(history, cap, read)
        z = self.features.with_categories(made.z, history.categories)
        # Contexts are added in the order of each tenant's traffic. Consecutive rows with the same question, as in a
        # table, count once; a question asked again later counts again.
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
        """Restore the features from an earlier `relearn` result and return the rest; None if it does not apply."""
        try:
            meta, arrays = unpack(known, self.name, self.identity())
        except CorruptState:
            return None
        # Results saved by earlier releases have no digest; `refits_of` omits those from before a repair.
        if "history" in meta and meta["history"] != history.digest:
            return None
        if len(arrays["z"]) != len(history.queries) or not self.features.refit(meta, arrays):
            return None
        right, paid = (tuple(meta[name]) for name in ("right", "paid"))
        return Refit(arrays["z"], right, paid)

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the regressions, windows, accounts and refit schedule, exact to the bit."""
        learned, arrays = self.estimates.snapshot()
        ahead, outcomes = self.refits.snapshot()
        accounts, windows = self.pacer.snapshot()
        meta = {"estimates": learned} | accounts | ahead
        if self.newcomers:  # states saved by earlier releases have no "newcomers"
            meta["newcomers"] = sorted(self.newcomers)
        return meta, arrays | windows | outcomes

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore what `saved` returned."""
        self.estimates.restore(meta["estimates"], arrays)
        self.newcomers = set(meta.get("newcomers", ()))
        self.pacer.factors = self.estimates.price_factors
        self.pacer.restore(meta, arrays)
        self.refits.restore(meta, arrays)
        self.refits.learned = self._updates

    def identity(self) -> dict[str, Any]:
        """Return the settings that must match when a state is loaded; `alpha` and `accuracy_of` may differ."""
        settings = {"encoder": self.settings.encoder}
        if self.settings.unit != "eflops":  # states saved by earlier releases have no "unit"
            settings["unit"] = self.settings.unit
        return {"contextual": settings, "features": asdict(self.features.settings)}

    def _forecast(self, window: Matrix) -> Forecast | None:
        on_offer = np.flatnonzero(self.features.active)
        if not len(on_offer) or not self.estimates.any():
            return None
        return replace(self.estimates.forecast(window, on_offer), learning=bool(self.refits.at))

    def _place(self, item: Pending | Observation) -> int:
        return self.features.position(item.observation_id, item.action_id)


# The contextual policy's options, and the factory that builds the policy from them.


class ContextualOptions(Options, frozen=True, kw_only=True):
    """Options for the contextual policy.

    Attributes:
        alpha, accuracy_of: See ContextualSettings.
        query_rank: Maximum length of z_q without its constant: the nine surface counts and the directions.
    """

    alpha: float = 0.25
    accuracy_of: Literal["reachable", "best"] = "reachable"
    query_rank: int = 48

    def __post_init__(self) -> None:
        """Reject invalid values."""
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
    settings = ContextualSettings(options.alpha, options.accuracy_of, on.encoder, unit=on.unit)
    return Contextual(ContextualFeatures(features, on.unit), settings)
