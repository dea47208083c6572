"""Policies linear in x that share A = λI + Σ x xᵀ: LinUCB, Greedy, Thompson sampling, and LinUCB with forgetting."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from agents.bandit.features import FeatureMap
from agents.bandit.learner import Learner, estimate, pack, ranked, standard_error, unpack
from agents.bandit.policy import (
    TERMS,
    Context,
    Matrix,
    Objective,
    Observation,
    Pending,
    Policy,
    Prediction,
    Traits,
    Vector,
    check_outcome,
    generator,
)
from agents.bandit.posterior import Gram
from agents.bandit.registry import Inputs, Options, register_policy

# UniScale's policy: LinUCB with one θ shared by all actions (Alg. 1, Eq. 2).
#
# a_t = argmax over a of xᵀθ̂ + α√(xᵀA⁻¹x), θ̂ = A⁻¹b, A = λI + Σ x xᵀ. α = 0 is the paper's Greedy.
#
# `reward="scalar"` is the paper's form: b = Σ r x, with r computed by the objective in force when the decision was
# made. `reward="terms"` keeps b as columns (Correct, Score, log C, 1) over the same A⁻¹. The reward of Eq. 4 is
# linear in them, so θ(w) = A⁻¹Bw equals the θ̂ of a learner that has always used those weights and bounds.
#
# `widths="decided"` departs from the paper because rewards are delayed: decisions whose reward is outstanding already
# count in the confidence width, so that a burst of decisions does not keep exploring the same action. They do not
# affect means.


@dataclass(frozen=True, slots=True)
class LinUCBSettings:
    """α and λ from App. B.3, and the two departures described above."""

    alpha: float = 1.0
    ridge: float = 1.0
    reward: Literal["terms", "scalar"] = "terms"
    widths: Literal["rewarded", "decided"] = "rewarded"


class LinUCB(Learner):
    """Exact LinUCB over joint features x = [s_q; f_a], with one θ shared by all actions."""

    def __init__(
        self, features: FeatureMap, settings: LinUCBSettings | None = None, *, name: str = "linucb"
    ) -> None:
        super().__init__(features)
        self.name = name
        self.settings = settings or LinUCBSettings()
        self.traits = replace(self.traits, counts_decisions=self.settings.widths == "decided")
        self._pending: dict[str, None] = {}
        s, q = self.settings, features.settings.query_dim
        columns = len(TERMS) if s.reward == "terms" else 1
        self.gram = Gram(q, features.action_dim, columns, s.ridge)
        self.decided_gram = Gram(q, features.action_dim, 0, s.ridge) if s.widths == "decided" else None
        self._attach()

    def grown(self, kept: Sequence[int]) -> None:
        """Add one dimension, with λ on the diagonal of A, for each description outside the span."""
        if self.features.action_dim != self.gram.e:
            for _, gram in self._grams():
                gram.widen(self.features.action_dim, kept)
        self._attach()

    @property
    def alpha(self) -> float:
        """Return α, the factor of the confidence widths."""
        return self.settings.alpha

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Return every allowed action's mean, confidence width and score for every context."""
        f = self.features
        rows = [f.choosable(c.query_id, c.allowed) for c in contexts]
        queries = f.queries([(c.query_id, c.embedding) for c in contexts])
        blocks = f.blocks(queries)
        widths = self.alpha * (self.decided_gram or self.gram).widths(queries, blocks)
        q, theta, out = f.settings.query_dim, self.gram.theta, []
        for i, (context, objective, keep) in enumerate(zip(contexts, objectives, rows, strict=True)):
            block = f.coordinates if blocks is None else blocks[i]
            w = objective.coefficients if self.settings.reward == "terms" else np.ones(1)
            mean, width, ids = queries[i] @ theta[:q] @ w + block @ (theta[q:] @ w), widths[i], f.ids
            if len(keep) < len(mean):
                mean, width, ids = mean[keep], width[keep], [ids[j] for j in keep]
            made = ranked(context.query_id, ids, mean, width, seed)
            if self.settings.reward == "terms":
                made.predicted = self._terms_of(queries[i], block[keep[made.chosen]])
                made.terms = partial(self._terms, queries[i], block, keep)
            out.append(made)
        return out

    def _terms(self, query: Vector, block: Matrix, keep: np.ndarray) -> Matrix:
        """Return the predicted terms of some actions, shape (n, 3). The rows of `block` are all actions' f_a."""
        q = self.features.settings.query_dim
        return np.asarray((query @ self.gram.theta[:q] + block[keep] @ self.gram.theta[q:])[:, :3])

    def _terms_of(self, query: Vector, row: Vector) -> tuple[float, float, float]:
        """Return the predicted terms of one action."""
        q = self.features.settings.query_dim
        correct, score, log_cost, _ = (query @ self.gram.theta[:q] + row @ self.gram.theta[q:]).tolist()
        return correct, score, log_cost

    def decided(self, decisions: Sequence[Pending]) -> None:
        """If `widths` is `decided`, count decisions in the confidence width until they are rewarded or abandoned."""
        if self.decided_gram is None:
            return
        fresh = [d for d in decisions if not d.abandoned and d.observation_id not in self._pending]
        self._widen_by(fresh, 1.0)
        self._pending.update(dict.fromkeys(d.observation_id for d in fresh))
        gone = [d for d in decisions if d.abandoned and d.observation_id in self._pending]
        self._widen_by(gone, -1.0)
        for d in gone:
            del self._pending[d.observation_id]

    def take(self, observations: Sequence[Observation]) -> None:
        """Add x once per observation, with its reward terms (Alg. 1, Lines 3-5)."""
        x, targets = self.rows(observations)
        self.gram.add(x, targets)
        if self.decided_gram is not None:
            self._widen_by([o for o in observations if o.observation_id not in self._pending], 1.0)
            for o in observations:
                self._pending.pop(o.observation_id, None)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Add (correct - imputed)·x to the column that contains Correct; A does not change."""
        x, _ = self.rows(observations)
        self.gram.adjust(x, 0, self.corrections(observations))

    def rows(self, observations: Sequence[Observation]) -> tuple[Matrix, Matrix]:
        """Return x, shape (m, q + e), and the rows for B, shape (m, columns), from validated observations."""
        for o in observations:
            check_outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
        x = self._joint(observations)
        terms = np.array([o.terms() for o in observations]).reshape(-1, len(TERMS))
        if self.settings.reward == "terms":
            return x, terms
        w = np.array([o.objective.coefficients for o in observations]).reshape(-1, len(TERMS))
        return x, np.einsum("mt,mt->m", terms, w)[:, None]

    def corrections(self, observations: Sequence[Observation]) -> Vector:
        """Return the factor that each correction applies to its x."""
        late = np.array([o.entered - o.imputed for o in observations])
        if self.settings.reward == "scalar":
            late = late * np.array([o.objective.correct for o in observations])
        return late

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return A (one triangle), B and the pending decisions; recompute everything else as `restored` would."""
        arrays: dict[str, np.ndarray] = {}
        for name, gram in self._grams():
            gram.settle()
            arrays |= {f"{name}.a": gram.a[np.tril_indices(gram.dim)], f"{name}.b": gram.b}
        return {"pending": list(self._pending)}, arrays

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore what `saved` returned, and recompute A⁻¹ from A."""
        self._pending = dict.fromkeys(meta["pending"])
        for name, gram in self._grams():
            gram.restore(self.features.action_dim, arrays[f"{name}.a"], arrays[f"{name}.b"])
        self._attach()

    def identity(self) -> dict[str, Any]:
        """Return the policy and feature settings."""
        return {"policy": asdict(self.settings), **super().identity()}

    def _attach(self) -> None:
        if self.features.static:
            for _, gram in self._grams():
                gram.attach(self.features.coordinates)

    def _grams(self) -> list[tuple[str, Gram]]:
        named = [("rewarded", self.gram)]
        return named if self.decided_gram is None else [*named, ("decided", self.decided_gram)]

    def _joint(self, items: Sequence[Pending] | Sequence[Observation]) -> Matrix:
        places = [self.features.position(i.observation_id, i.action_id) for i in items]
        return self.features.joint(
            self.features.queries([(i.observation_id, i.embedding) for i in items]), places
        )

    def _widen_by(self, items: Sequence[Pending] | Sequence[Observation], sign: float) -> None:
        if self.decided_gram is not None and items:
            x = self._joint(items)
            self.decided_gram.add(x, np.zeros((len(x), 0)), sign)


def greedy(features: FeatureMap, settings: LinUCBSettings | None = None) -> LinUCB:
    """Return the paper's Greedy baseline: LinUCB with α = 0."""
    base = settings or LinUCBSettings()
    return LinUCB(features, LinUCBSettings(0.0, base.ridge, base.reward, base.widths), name="greedy")


class LinearOptions(Options, frozen=True, kw_only=True):
    """Options for the linear policies.

    Attributes:
        alpha, ridge, reward, widths: See LinUCBSettings.
    """

    alpha: float = 1.0
    ridge: float = 1.0
    reward: Literal["terms", "scalar"] = "terms"
    widths: Literal["rewarded", "decided"] = "rewarded"

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        self.not_negative("alpha")
        self.positive("ridge")

    @property
    def linear(self) -> LinUCBSettings:
        """Return LinUCB's settings."""
        return LinUCBSettings(self.alpha, self.ridge, self.reward, self.widths)


@register_policy("linucb", LinearOptions)
def _linucb(options: LinearOptions, on: Inputs) -> Policy:
    return LinUCB(on.features(options), options.linear)


@register_policy("greedy", LinearOptions)
def _greedy(options: LinearOptions, on: Inputs) -> Policy:
    return greedy(on.features(options), options.linear)


# Linear Thompson sampling (App. B.3): one draw θ̃ ~ N(θ̂, α²A⁻¹) per round, then the argmax of xᵀθ̃.
#
# A draw of θ̃ in d dimensions is not needed: xᵀθ̃ = s_qᵀθ̃_q + f_aᵀθ̃_a, and (s_qᵀθ̃_q, θ̃_a) is Gaussian in 1 + e
# dimensions, with covariance ((s_qᵀP s_q, s_qᵀQ), (Qᵀs_q, R)). Sampling the latter gives exactly the same distribution
# at a thousandth of the cost. The propensity has no closed form; it is estimated from additional draws and marked as an
# estimate.


class Thompson(LinUCB):
    """Thompson sampling: LinUCB's state, with a posterior draw in place of the confidence width.

    Args:
        features: The feature map.
        settings: LinUCB's settings; α scales the spread of the draw.
        propensity_draws: Number of Monte Carlo draws per logged propensity; 0 to log no propensity.
    """

    def __init__(
        self, features: FeatureMap, settings: LinUCBSettings | None = None, *, propensity_draws: int = 256
    ) -> None:
        super().__init__(features, settings, name="thompson")
        self.propensity_draws = propensity_draws

    @property
    def alpha(self) -> float:
        """Return 0, because the draw replaces the confidence width."""
        return 0.0

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Draw one θ̃ per context and score by xᵀθ̃; `width` is the draw's deviation from the mean."""
        plain = super().predict(contexts, objectives, seed)
        return [self._drawn(*each, seed) for each in zip(contexts, plain, strict=True)]

    def _drawn(self, context: Context, plain: Prediction, seed: int) -> Prediction:
        query = np.asarray(context.embedding, dtype=np.float64)
        size = float(np.linalg.norm(query))
        own, cross, action = (self.decided_gram or self.gram).marginal(query / size)
        e = len(cross)
        covariance = np.empty((1 + e, 1 + e))
        covariance[0, 0], covariance[0, 1:], covariance[1:, 0], covariance[1:, 1:] = own, cross, cross, action
        # s_q/|s_q| and the action axes are orthonormal, so this compression of A⁻¹ is as well conditioned as A⁻¹.
        root = np.linalg.cholesky(covariance) * self.settings.alpha
        blocks = self.features.blocks(query[None])
        rows = self.features.coordinates if blocks is None else blocks[0]
        rows = rows[self.features.choosable(context.query_id, context.allowed)]

        def draw(purpose: str, count: int) -> Matrix:
            normal = generator(seed, context.query_id, purpose).standard_normal((1 + e, count))
            at = root @ normal
            return np.asarray(size * at[0] + rows @ at[1:])

        departure = draw("thompson", 1)[:, 0]
        score = plain.mean + departure
        chosen = int(np.argmax(score))  # a continuous draw ties with probability zero
        probability, error = None, 0.0
        if self.propensity_draws:
            winners = np.argmax(plain.mean[:, None] + draw("propensity", self.propensity_draws), axis=0)
            hits = np.bincount(winners, minlength=len(score))
            probability = estimate(hits, chosen, self.propensity_draws)
            error = standard_error(float(probability[chosen]), self.propensity_draws)
        predicted = None if plain.predicted is None else self._terms_of(query, rows[chosen])
        return replace(
            plain,
            width=departure,
            score=score,
            chosen=chosen,
            probability=probability,
            draws=self.propensity_draws,
            error=error,
            predicted=predicted,
        )


class ThompsonOptions(LinearOptions, frozen=True, kw_only=True):
    """Options for Thompson sampling.

    Attributes:
        propensity_draws: Number of Monte Carlo draws per logged propensity; 0 to log no propensity.
    """

    propensity_draws: int = 256

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        self.not_negative("propensity_draws")


@register_policy("thompson", ThompsonOptions)
def _thompson(options: ThompsonOptions, on: Inputs) -> Policy:
    return Thompson(on.features(options), options.linear, propensity_draws=options.propensity_draws)


# LinUCB with forgetting, for drifting traffic. It is not the default, because the paper keeps every observation.
#
# `SlidingWindow` removes the oldest row exactly: A - x xᵀ, by a downdate of A⁻¹. `Discounted` weights a row by
# γ^(age in decisions). Age counts decisions, not rewards, so that a burst of late rewards does not age earlier rows (as
# in ParetoBandit). The confidence width stays α√(xᵀA⁻¹x); the second matrix of D-LinUCB is not kept.

RIDGE_FLOOR: Final = 0.9
"""The full λ is restored once it has shrunk to this share. The discount also shrinks the regulariser. Restoring it is a
full-rank change that takes O(d³), so it is done only about every ln(0.9)/ln(γ) decisions (105 at γ = 0.999)."""


class SlidingWindow(LinUCB):
    """LinUCB over the last `window` rewarded rows, in the order that their rewards arrived."""

    traits = Traits(order_free=False)

    def __init__(self, features: FeatureMap, settings: LinUCBSettings | None = None, *, window: int) -> None:
        if window < 1:
            raise ValueError(f"window is {window!r}; give the number of rows to keep, one or more")
        super().__init__(features, settings, name="sliding-window")
        self.window = window
        self._kept: deque[Observation] = deque()

    def take(self, observations: Sequence[Observation]) -> None:
        """Add new rows, and remove those that drop out of the window."""
        super().take(observations)
        self._kept.extend(observations)
        leaving = [self._kept.popleft() for _ in range(len(self._kept) - self.window)]
        if leaving:
            x, targets = self.rows(leaving)
            self.gram.add(x, targets, -1.0)
            self._widen_by(leaving, -1.0)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Correct the rows still in the window. Corrections to other rows are counted but have no other effect."""
        late = {o.observation_id: o for o in observations}
        inside = {o.observation_id for o in self._kept} & late.keys()
        super().amend([o for o in observations if o.observation_id in inside])
        self._kept = deque(late.get(o.observation_id, o) for o in self._kept)

    def state(self) -> bytes:
        """Serialise LinUCB's state and the window's rows."""
        rows = [
            [
                o.observation_id,
                o.action_id,
                o.correct,
                o.score,
                o.log_cost,
                o.imputed,
                o.clock,
                *_plain(o.objective),
            ]
            for o in self._kept
        ]
        queries = np.array([o.embedding for o in self._kept]).reshape(
            len(rows), self.features.settings.query_dim
        )
        inner = np.frombuffer(super().state(), dtype=np.uint8)
        return pack("window", {"window": self.window}, {"rows": rows}, {"inner": inner, "queries": queries})

    def load(self, data: bytes) -> None:
        """Restore a serialised state."""
        meta, arrays = unpack(data, "window", {"window": self.window})
        super().load(arrays["inner"].tobytes())
        self._kept = deque(
            Observation(
                observation_id=i,
                embedding=query,
                action_id=action,
                correct=correct,
                score=score,
                log_cost=log_cost,
                imputed=imputed,
                clock=clock,
                objective=Objective(*objective),
            )
            for query, (i, action, correct, score, log_cost, imputed, clock, *objective) in zip(
                arrays["queries"], meta["rows"], strict=True
            )
        )


class Discounted(LinUCB):
    """LinUCB that weights each row by γ to the power of the number of decisions made since the row's own.

    A is kept in units of an epoch t₀: A_t = γ^(t - t₀)·A. A row decided at s then enters with the fixed weight
    γ^(t₀ - s), θ̂ is the same in either unit, and only the confidence width needs the factor γ^(-(t - t₀)/2).
    """

    def __init__(self, features: FeatureMap, settings: LinUCBSettings | None = None, *, gamma: float) -> None:
        if not 0.0 < gamma < 1.0:
            raise ValueError(f"gamma is {gamma!r}; give a discount above 0 and below 1")
        super().__init__(features, settings, name="discounted")
        if self.settings.widths != "rewarded":
            raise ValueError(
                "widths is 'decided'; a discounted policy counts rewarded rows only, set 'rewarded'"
            )
        self.gamma = gamma
        self.traits = replace(self.traits, counts_decisions=True)
        self.clock = 0
        self._period = max(1, math.ceil(math.log(RIDGE_FLOOR) / math.log(gamma)))
        self._epoch = 0

    @property
    def alpha(self) -> float:
        """Return the factor of the confidence widths, converted from the epoch's units to the current time's."""
        return float(self.settings.alpha * self.gamma ** (-(self.clock - self._epoch) / 2.0))

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Advance the decision clock, and restore λ once the discount has reduced it by a tenth (`RIDGE_FLOOR`)."""
        self.clock += sum(not d.abandoned for d in decisions)
        # Epochs are multiples of the period, so that the state does not depend on batch boundaries.
        epoch = self.clock // self._period * self._period
        if epoch > self._epoch:
            self.gram.rescale(self.gamma ** (epoch - self._epoch))
            self._epoch = epoch

    def rows(self, observations: Sequence[Observation]) -> tuple[Matrix, Matrix]:
        """Return the rows, scaled by the square roots of their weights."""
        x, targets = super().rows(observations)
        root = np.array([self.gamma ** ((self._epoch - o.clock) / 2.0) for o in observations])[:, None]
        return x * root, targets * root

    def corrections(self, observations: Sequence[Observation]) -> Any:
        """Return the corrections, scaled like their rows."""
        root = np.array([self.gamma ** ((self._epoch - o.clock) / 2.0) for o in observations])
        return super().corrections(observations) * root

    def state(self) -> bytes:
        """Serialise LinUCB's state and the clock."""
        inner = np.frombuffer(super().state(), dtype=np.uint8)
        return pack(
            "discount", {"gamma": self.gamma}, {"clock": self.clock, "epoch": self._epoch}, {"inner": inner}
        )

    def load(self, data: bytes) -> None:
        """Restore a serialised state."""
        meta, arrays = unpack(data, "discount", {"gamma": self.gamma})
        super().load(arrays["inner"].tobytes())
        self.clock, self._epoch = meta["clock"], meta["epoch"]


def _plain(objective: Objective) -> tuple[float, ...]:
    o = objective
    return o.correct, o.score, o.cost, o.log_cost_min, o.log_cost_max


class WindowOptions(LinearOptions, frozen=True, kw_only=True):
    """Options for `sliding-window`.

    Attributes:
        window: Number of rows to keep.
    """

    window: int = 10_000


class DiscountOptions(LinearOptions, frozen=True, kw_only=True):
    """Options for `discounted`.

    Attributes:
        gamma: Discount factor γ per decision.
    """

    gamma: float = 0.999


@register_policy("sliding-window", WindowOptions)
def _sliding_window(options: WindowOptions, on: Inputs) -> Policy:
    return SlidingWindow(on.features(options), options.linear, window=options.window)


@register_policy("discounted", DiscountOptions)
def _discounted(options: DiscountOptions, on: Inputs) -> Policy:
    return Discounted(on.features(options), options.linear, gamma=options.gamma)
