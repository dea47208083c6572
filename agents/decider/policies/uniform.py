"""Random (§4): every allowed action with equal probability, which is logged exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from agents.decider import intake
from agents.decider.features import FeatureMap
from agents.decider.policies.base import (
    ActionVector,
    Choice,
    Context,
    Objective,
    Observation,
    Pending,
    Scores,
    generator,
)
from agents.decider.policies.choosing import choices
from agents.decider.policies.envelope import pack, unpack


class Uniform:
    """Choose by seeded chance alone; observations are checked and counted, nothing is learned."""

    name = "uniform"
    order_free = True
    counts_decisions = False

    def __init__(self, features: FeatureMap) -> None:
        self.features = features
        self._updates = 0
        self._corrections = 0

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections seen."""
        return self._updates + self._corrections

    def add_actions(self, actions: Sequence[ActionVector]) -> None:
        """Make actions available."""
        self.features.add(actions)

    def remove_actions(self, action_ids: Sequence[str]) -> None:
        """Stop choosing actions."""
        self.features.remove(action_ids)

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Give every allowed action the same score and probability."""
        self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return [equal_scores(self.features, context, seed) for context in contexts]

    def select(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Choice]:
        """Draw one action per context."""
        return choices(contexts, self.scores(contexts, objectives, seed), self.version)

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Do nothing: no decision changes the next one."""

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Do nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Check and count."""
        self._check(observations)
        self._updates += len(observations)

    def correct(self, observations: Sequence[Observation]) -> None:
        """Check and count."""
        self._check(observations)
        self._corrections += len(observations)

    def state(self) -> bytes:
        """Serialise the known actions and the counts."""
        features, arrays = self.features.snapshot()
        meta = {"features": features, "updates": self._updates, "corrections": self._corrections}
        return pack(self.name, self._identity(), meta, arrays)

    def load(self, data: bytes) -> None:
        """Become a serialised state."""
        meta, arrays = unpack(data, self.name, self._identity())
        self.features.restore(meta["features"], arrays)
        self._updates, self._corrections = meta["updates"], meta["corrections"]

    def _identity(self) -> dict[str, Any]:
        return {"features": asdict(self.features.settings)}

    def _check(self, observations: Sequence[Observation]) -> None:
        self.features.queries([(o.observation_id, o.embedding) for o in observations])
        for o in observations:
            self.features.position(o.observation_id, o.action_id)
            intake.outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)


def equal_scores(features: FeatureMap, context: Context, seed: int) -> Scores:
    """Return the scores of a uniform draw; the same seed draws the same action under every policy."""
    rows = features.choosable(context.query_id, context.allowed)
    n = len(rows)
    zero = np.zeros(n)
    chosen = int(generator(seed, context.query_id, "uniform").integers(n))
    return Scores([features.ids[j] for j in rows], zero, zero, zero, chosen, np.full(n, 1.0 / n))
