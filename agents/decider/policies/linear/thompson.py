"""Linear Thompson sampling (App. B.3): one draw θ̃ ~ N(θ̂, α²A⁻¹) a round, then argmax of xᵀθ̃.

A draw of θ̃ in d dimensions is not needed: xᵀθ̃ = s_qᵀθ̃_q + f_aᵀθ̃_a, and (s_qᵀθ̃_q, θ̃_a) is Gaussian in 1 + e
dimensions, with covariance ((s_qᵀP s_q, s_qᵀQ), (Qᵀs_q, R)). Sampling that has exactly the same distribution at a
thousandth of the cost. The propensity has no closed form; it is estimated by further draws and marked as an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agents.decider.features import FeatureMap
from agents.decider.policies.base import Context, Matrix, Objective, Scores, generator
from agents.decider.policies.choosing import estimate, standard_error
from agents.decider.policies.linear.linucb import LinearOptions, LinUCB, LinUCBSettings
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, policy


class Thompson(LinUCB):
    """LinUCB's state with a posterior draw instead of the width.

    Args:
        features: The feature map.
        settings: α scales the draw's spread; λ as in LinUCB.
        propensity_draws: Monte Carlo draws behind each logged propensity; 0 logs none.
    """

    def __init__(
        self, features: FeatureMap, settings: LinUCBSettings | None = None, *, propensity_draws: int = 256
    ) -> None:
        super().__init__(features, settings, name="thompson")
        self.propensity_draws = propensity_draws

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Draw one θ̃ per context and score by xᵀθ̃; `width` is the draw's departure from the mean."""
        return [
            self._drawn(context, plain, seed)
            for context, plain in zip(contexts, self.scores_at(contexts, objectives, seed, 0.0), strict=True)
        ]

    def _drawn(self, context: Context, plain: Scores, seed: int) -> Scores:
        query = np.asarray(context.embedding, dtype=np.float64)
        size = float(np.linalg.norm(query))
        own, cross, action = (self.decided or self.gram).marginal(query / size)
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
        predicted = self._predicted(query, rows[chosen])
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
    """Options of Thompson sampling.

    Attributes:
        propensity_draws: Monte Carlo draws behind each logged propensity; 0 logs none.
    """

    propensity_draws: int = 256

    def __post_init__(self) -> None:
        """Refuse numbers it cannot run with."""
        super().__post_init__()
        self.not_negative("propensity_draws")


@policy("thompson", ThompsonOptions)
def _thompson(options: ThompsonOptions, on: Inputs) -> Policy:
    return Thompson(on.features(options), options.linear, propensity_draws=options.propensity_draws)
