"""Random (§4): every allowed action with equal probability, which is logged exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.decider import intake
from agents.decider.features import FeatureMap
from agents.decider.policies.base import Context, Observation, Scores, Vector, generator
from agents.decider.policies.learner import Learner
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, Options, policy


class Uniform(Learner):
    """Draws at random, by the seed alone. Observations are checked and counted, but nothing is learned."""

    name = "random"

    def score(self, query: Vector, context: Context, seed: int) -> Scores:
        """Give every allowed action the same score and probability."""
        return equal_scores(self.features, context, seed)

    def take(self, observations: Sequence[Observation]) -> None:
        """Check."""
        self.features.queries([(o.observation_id, o.embedding) for o in observations])
        for o in observations:
            self.features.position(o.observation_id, o.action_id)
            intake.outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)

    amend = take


def equal_scores(features: FeatureMap, context: Context, seed: int) -> Scores:
    """Return the scores of a uniform draw; the same seed draws the same action under every policy."""
    rows = features.choosable(context.query_id, context.allowed)
    n = len(rows)
    zero = np.zeros(n)
    chosen = int(generator(seed, context.query_id, "uniform").integers(n))
    return Scores([features.ids[j] for j in rows], zero, zero, zero, chosen, np.full(n, 1.0 / n))


@policy("random", Options)
def _random(options: Options, on: Inputs) -> Policy:
    return Uniform(on.features(options))
