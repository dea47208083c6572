"""UniScale's policy: LinUCB with one θ shared by all actions (Alg. 1, Eq. 2).

a_t = argmax over a of xᵀθ̂ + α√(xᵀA⁻¹x), θ̂ = A⁻¹b, A = λI + Σ x xᵀ. α = 0 is the paper's Greedy.

`reward="scalar"` is the paper's form: b = Σ r x, with r computed by the objective in force when the decision was made.
`reward="terms"` keeps b as columns (Correct, Score, log C, 1) over the same A⁻¹. The reward of Eq. 4 is linear in them,
so θ(w) = A⁻¹Bw equals the θ̂ of a learner that has always used those weights and bounds.

`widths="decided"` is a departure for delayed rewards: decisions whose reward is outstanding count in the width, so that
a burst of decisions does not repeat one exploration. They do not affect means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from agents.decider import intake
from agents.decider.features import FeatureMap
from agents.decider.policies.base import (
    TERMS,
    Context,
    Matrix,
    Objective,
    Observation,
    Pending,
    Scores,
    Vector,
)
from agents.decider.policies.choosing import pick
from agents.decider.policies.learner import Learner
from agents.decider.policies.linear.gram import Gram
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, Options, policy


@dataclass(frozen=True, slots=True)
class LinUCBSettings:
    """α and λ of App. B.3, and the two departures described above."""

    alpha: float = 1.0
    ridge: float = 1.0
    reward: Literal["terms", "scalar"] = "terms"
    widths: Literal["rewarded", "decided"] = "rewarded"


class LinUCB(Learner):
    """Exact LinUCB over joint features; see the module's docstring."""

    def __init__(
        self, features: FeatureMap, settings: LinUCBSettings | None = None, *, name: str = "linucb"
    ) -> None:
        super().__init__(features)
        self.name = name
        self.settings = settings or LinUCBSettings()
        self.counts_decisions = self.settings.widths == "decided"
        self._pending: dict[str, None] = {}
        s, q = self.settings, features.settings.query_dim
        columns = len(TERMS) if s.reward == "terms" else 1
        self.gram = Gram(q, features.action_dim, columns, s.ridge)
        self.decided = Gram(q, features.action_dim, 0, s.ridge) if s.widths == "decided" else None
        self._attach()

    def grown(self, kept: Sequence[int]) -> None:
        """Widen A by one dimension at λ for each description outside the span."""
        if self.features.action_dim != self.gram.e:
            for _, gram in self._grams():
                gram.widen(self.features.action_dim, kept)
        self._attach()

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Return mean, width and acquisition value of every allowed action of every context."""
        return self.scores_at(contexts, objectives, seed, self.settings.alpha)

    def scores_at(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int, alpha: float
    ) -> list[Scores]:
        """Score with an α other than the settings' (forgetting scales it)."""
        f = self.features
        rows = [f.choosable(c.query_id, c.allowed) for c in contexts]
        queries = f.queries([(c.query_id, c.embedding) for c in contexts])
        blocks = f.blocks(queries)
        widths = alpha * (self.decided or self.gram).widths(queries, blocks)
        q = f.settings.query_dim
        theta = self.gram.theta
        out = []
        for i, (context, objective) in enumerate(zip(contexts, objectives, strict=True)):
            block = f.coordinates if blocks is None else blocks[i]
            w = self._weights(objective)
            mean = queries[i] @ theta[:q] @ w + block @ (theta[q:] @ w)
            keep = rows[i]
            whole = len(keep) == len(mean)
            mean, width = (mean, widths[i]) if whole else (mean[keep], widths[i][keep])
            score = mean + width
            chosen, probability = pick(score, seed, context.query_id)
            predicted = self._predicted(queries[i], block[keep[chosen]])
            ids = f.ids if whole else [f.ids[j] for j in keep]
            out.append(Scores(ids, mean, width, score, chosen, probability, predicted=predicted))
        return out

    def terms(self, context: Context) -> Matrix | None:
        """Return the predicted terms of every allowed action; None for the scalar form, which has one column."""
        if self.settings.reward == "scalar":
            return None
        f, q = self.features, self.features.settings.query_dim
        rows = f.choosable(context.query_id, context.allowed)
        queries = f.queries([(context.query_id, context.embedding)])
        blocks = f.blocks(queries)
        block = (f.coordinates if blocks is None else blocks[0])[rows]
        return np.asarray((queries[0] @ self.gram.theta[:q] + block @ self.gram.theta[q:])[:, :3])

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Count outstanding decisions in the width, if the settings say so."""
        if self.decided is None:
            return
        fresh = [d for d in decisions if d.observation_id not in self._pending]
        self._widen_by(fresh, 1.0)
        self._pending.update(dict.fromkeys(d.observation_id for d in fresh))

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Take back decisions that will never be rewarded."""
        if self.decided is None:
            return
        known = [d for d in decisions if d.observation_id in self._pending]
        self._widen_by(known, -1.0)
        for d in known:
            del self._pending[d.observation_id]

    def take(self, observations: Sequence[Observation]) -> None:
        """Add x once per observation, with its reward terms (Alg. 1, Lines 3-5)."""
        x, targets = self.rows(observations)
        self.learn(x, targets, 1.0)
        if self.decided is not None:
            self._widen_by([o for o in observations if o.observation_id not in self._pending], 1.0)
            for o in observations:
                self._pending.pop(o.observation_id, None)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Add (correct - imputed)·x to the column that contains Correct; A does not change."""
        x, _ = self.rows(observations)
        self.gram.adjust(x, 0, self.corrections(observations))

    def learn(self, x: Matrix, targets: Matrix, sign: float) -> None:
        """Add rows to A and B, or subtract them again (sliding window)."""
        self.gram.add(x, targets, sign)

    def rows(self, observations: Sequence[Observation]) -> tuple[Matrix, Matrix]:
        """Return x, shape (m, q + e), and the rows for B, shape (m, columns), of checked observations."""
        for o in observations:
            intake.outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
        x = self._joint(observations)
        terms = np.array([o.terms() for o in observations]).reshape(-1, len(TERMS))
        if self.settings.reward == "terms":
            return x, terms
        w = np.array([o.objective.coefficients for o in observations]).reshape(-1, len(TERMS))
        return x, np.einsum("mt,mt->m", terms, w)[:, None]

    def corrections(self, observations: Sequence[Observation]) -> Vector:
        """Return what each correction adds to its column, per unit of x."""
        late = np.array([o.entered - o.imputed for o in observations])
        if self.settings.reward == "scalar":
            late = late * np.array([o.objective.correct for o in observations])
        return late

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return A (one triangle), B and the pending decisions."""
        arrays: dict[str, np.ndarray] = {}
        for name, gram in self._grams():
            gram.flush()
            arrays |= {f"{name}.a": gram.a[np.tril_indices(gram.dim)], f"{name}.b": gram.b}
        return {"pending": list(self._pending)}, arrays

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore them; A⁻¹ is factorised from A again."""
        self._pending = dict.fromkeys(meta["pending"])
        for name, gram in self._grams():
            gram.restore(self.features.action_dim, arrays[f"{name}.a"], arrays[f"{name}.b"])
        self._attach()

    def identity(self) -> dict[str, Any]:
        """Return the settings of policy and features."""
        return {"policy": asdict(self.settings), **super().identity()}

    def _attach(self) -> None:
        if self.features.static:
            for _, gram in self._grams():
                gram.attach(self.features.coordinates)

    def _grams(self) -> list[tuple[str, Gram]]:
        named = [("rewarded", self.gram)]
        return named if self.decided is None else [*named, ("decided", self.decided)]

    def _weights(self, objective: Objective) -> Vector:
        return objective.coefficients if self.settings.reward == "terms" else np.ones(1)

    def _predicted(self, query: Vector, block: Vector) -> tuple[float, float, float] | None:
        if self.settings.reward == "scalar":
            return None
        q = self.features.settings.query_dim
        correct, score, log_cost, _ = (query @ self.gram.theta[:q] + block @ self.gram.theta[q:]).tolist()
        return correct, score, log_cost

    def _joint(self, items: Sequence[Pending] | Sequence[Observation]) -> Matrix:
        places = [self.features.position(i.observation_id, i.action_id) for i in items]
        return self.features.joint(
            self.features.queries([(i.observation_id, i.embedding) for i in items]), places
        )

    def _widen_by(self, items: Sequence[Pending] | Sequence[Observation], sign: float) -> None:
        if self.decided is not None and items:
            x = self._joint(items)
            self.decided.add(x, np.zeros((len(x), 0)), sign)


def greedy(features: FeatureMap, settings: LinUCBSettings | None = None) -> LinUCB:
    """Return the paper's Greedy baseline: LinUCB at α = 0."""
    base = settings or LinUCBSettings()
    return LinUCB(features, LinUCBSettings(0.0, base.ridge, base.reward, base.widths), name="greedy")


class LinearOptions(Options, frozen=True, kw_only=True):
    """Options of the linear policies.

    Attributes:
        alpha, ridge, reward, widths: see LinUCBSettings.
    """

    alpha: float = 1.0
    ridge: float = 1.0
    reward: Literal["terms", "scalar"] = "terms"
    widths: Literal["rewarded", "decided"] = "rewarded"

    def __post_init__(self) -> None:
        """Refuse numbers they cannot run with."""
        super().__post_init__()
        self.not_negative("alpha")
        self.positive("ridge")

    @property
    def linear(self) -> LinUCBSettings:
        """Return LinUCB's settings."""
        return LinUCBSettings(self.alpha, self.ridge, self.reward, self.widths)


@policy("linucb", LinearOptions)
def _linucb(options: LinearOptions, on: Inputs) -> Policy:
    return LinUCB(on.features(options), options.linear)


@policy("greedy", LinearOptions)
def _greedy(options: LinearOptions, on: Inputs) -> Policy:
    return greedy(on.features(options), options.linear)
