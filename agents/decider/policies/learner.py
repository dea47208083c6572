"""What all policies share besides their mathematics: features, counters, select, save and load.

A subclass defines how the policy scores (`score`, or `scores` for a whole batch), how it learns from observations
(`take`, `amend`), and which state is saved (`saved`, `restored`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from agents.decider.errors import PriorRefused
from agents.decider.features import FeatureMap
from agents.decider.policies.base import (
    Account,
    ActionVector,
    Aim,
    Choice,
    Context,
    Matrix,
    Objective,
    Observation,
    Pending,
    Scores,
    Vector,
)
from agents.decider.policies.choosing import choices
from agents.decider.policies.envelope import pack, unpack


class Learner:
    """Base class of all policies on joint features x = [s_q; f_a]; implements the `Policy` protocol.

    Attributes:
        name: Name of the policy, in Decisions and in saved states.
        features: The known actions, and x.
    """

    name: str
    order_free: bool = True
    counts_decisions: bool = False
    paces: bool = False
    surface: bool = False

    def __init__(self, features: FeatureMap) -> None:
        self.features = features
        self._updates = 0
        self._corrections = 0

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections applied."""
        return self._updates + self._corrections

    def add_actions(self, actions: Sequence[ActionVector]) -> None:
        """Make actions available."""
        self.grown(self.features.add(actions))

    def remove_actions(self, action_ids: Sequence[str]) -> None:
        """Stop choosing actions. What was learned from them stays, and outstanding rewards are still learned."""
        self.features.remove(action_ids)

    def reprice(self, factors: Mapping[str, float]) -> None:
        """Do nothing: this policy learns costs with their price included."""

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Score every allowed action of every context. Changes no state."""
        queries = self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return [self.score(query, context, seed) for query, context in zip(queries, contexts, strict=True)]

    def select(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Choice]:
        """Choose one action per context. Changes no state."""
        return choices(contexts, self.scores(contexts, objectives, seed), self.version)

    def terms(self, context: Context) -> Matrix | None:
        """Return None: only a policy with one regression per term predicts terms."""
        return None

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Do nothing: a decision does not change the next one before its reward."""

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Do nothing: decisions were not recorded, so there is nothing to take back."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn the first reward of each observation."""
        self.take(observations)
        self._updates += len(observations)

    def correct(self, observations: Sequence[Observation]) -> None:
        """Replace the imputed Correct of each observation by the true one."""
        self.amend(observations)
        self._corrections += len(observations)

    def price_only(self, observations: Sequence[Observation]) -> None:
        """Take back the decisions: all terms share what is learned of an outcome, so cost alone cannot be."""
        self.abandon([Pending(o.observation_id, o.embedding, o.action_id) for o in observations])

    def state(self) -> bytes:
        """Serialise everything learned, with a format version and a checksum."""
        features, arrays = self.features.snapshot()
        meta, more = self.saved()
        counters = {"updates": self._updates, "corrections": self._corrections}
        return pack(self.name, self.identity(), {"features": features} | counters | meta, arrays | more)

    def load(self, data: bytes) -> None:
        """Become a state that a policy with the same settings serialised.

        Raises:
            CorruptState: The state is truncated or altered, or of another version, policy, dimension or setting.
        """
        meta, arrays = unpack(data, self.name, self.identity())
        self.features.restore(meta["features"], arrays)
        self._updates, self._corrections = meta["updates"], meta["corrections"]
        self.restored(meta, arrays)

    def price(self, aim: Aim) -> float:
        """Refuse: only a policy that `paces` determines the price of an aim."""
        raise NotImplementedError(f"policy {self.name!r} cannot aim at a mean cost or an accuracy")

    def shortfall(self, aim: Aim) -> float | None:
        """Return None: see `price`."""
        return None

    def account(self, aim: Aim) -> Account | None:
        """Return None: see `price`."""
        return None

    def begin(self, prior: bytes, actions: Sequence[ActionVector]) -> None:
        """Refuse: only the contextual policy can start from a prior."""
        raise PriorRefused("policy", "contextual", self.name)

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal when a state is loaded."""
        return {"features": asdict(self.features.settings)}

    def grown(self, kept: Sequence[int]) -> None:
        """Adapt to a feature map to which actions were added.

        Args:
            kept: The new position of each old column of f_a.
        """

    def score(self, query: Vector, context: Context, seed: int) -> Scores:
        """Score the allowed actions of one context; policies that override `scores` do not need it.

        Args:
            query: The checked s_q, shape (query_dim,).
            context: The context.
            seed: Seed of random choices.
        """
        raise NotImplementedError

    def take(self, observations: Sequence[Observation]) -> None:
        """Check observations and learn from them."""
        raise NotImplementedError

    def amend(self, observations: Sequence[Observation]) -> None:
        """Check corrections and apply them."""
        raise NotImplementedError

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the plain values and arrays of the state, without the features' and the counters."""
        return {}, {}

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take back what `saved` returned; features and counters are restored already."""
