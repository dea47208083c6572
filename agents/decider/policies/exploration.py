"""Recorded randomisation around any policy: an exploration floor and a uniform warm-up.

Off-policy evaluation needs the probability with which the served action was drawn. A deterministic policy
gives other actions none; the floor gives each at least ε/n, exactly. The warm-up is the paper's 50 uniform
rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agents.decider.policies.base import (
    ActionVector,
    Choice,
    Context,
    Objective,
    Observation,
    Pending,
    Policy,
    Scores,
    generator,
)
from agents.decider.policies.choosing import choices, standard_error
from agents.decider.policies.envelope import pack, unpack


class Explored:
    """Draw uniformly with probability ε, and in the first `warm_up` rounds; else let the policy choose.

    A round is a decision told through `expect`; the i-th context of a batch is i rounds later.

    Args:
        inner: The policy.
        floor: ε in [0, 1].
        warm_up: Rounds of uniform choice at the start (50 in the paper's experiments).
    """

    def __init__(self, inner: Policy, *, floor: float = 0.0, warm_up: int = 0) -> None:
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor is {floor!r}; give a probability between 0 and 1")
        if warm_up < 0:
            raise ValueError(f"warm_up is {warm_up!r}; give a number of rounds, zero or more")
        self.inner = inner
        self.name = f"explored-{inner.name}"
        self.order_free = inner.order_free
        self.counts_decisions = inner.counts_decisions or warm_up > 0
        self.floor, self.warm_up = floor, warm_up
        self.decisions = 0

    @property
    def version(self) -> int:
        """Return the inner policy's version."""
        return self.inner.version

    def add_actions(self, actions: Sequence[ActionVector]) -> None:
        """Make actions available."""
        self.inner.add_actions(actions)

    def remove_actions(self, action_ids: Sequence[str]) -> None:
        """Stop choosing actions."""
        self.inner.remove_actions(action_ids)

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Return the inner scores with the drawn action and the mixed probabilities."""
        inner = self.inner.scores(contexts, objectives, seed)
        return [
            self._mixed(context, scores, seed, warming=self.decisions + i < self.warm_up)
            for i, (context, scores) in enumerate(zip(contexts, inner, strict=True))
        ]

    def select(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Choice]:
        """Choose one action per context."""
        return choices(contexts, self.scores(contexts, objectives, seed), self.version)

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Count rounds."""
        self.decisions += len(decisions)
        self.inner.expect(decisions)

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Pass on; a round once made stays counted."""
        self.inner.abandon(decisions)

    def update(self, observations: Sequence[Observation]) -> None:
        """Let the policy learn, warm-up rounds included."""
        self.inner.update(observations)

    def correct(self, observations: Sequence[Observation]) -> None:
        """Let the policy correct."""
        self.inner.correct(observations)

    def state(self) -> bytes:
        """Serialise the round count around the inner state."""
        inner = np.frombuffer(self.inner.state(), dtype=np.uint8)
        return pack(self.name, self._identity(), {"decisions": self.decisions}, {"inner": inner})

    def load(self, data: bytes) -> None:
        """Become a serialised state."""
        meta, arrays = unpack(data, self.name, self._identity())
        self.inner.load(arrays["inner"].tobytes())
        self.decisions = meta["decisions"]

    def _identity(self) -> dict[str, float]:
        return {"floor": self.floor, "warm_up": self.warm_up}

    def _mixed(self, context: Context, scores: Scores, seed: int, *, warming: bool) -> Scores:
        n = len(scores.action_ids)
        if warming:
            # The stream of `Uniform`, so that all policies of a seed share their warm-up choices.
            chosen = int(generator(seed, context.query_id, "uniform").integers(n))
            everywhere = np.full(n, 1.0 / n)
            return replace(
                scores,
                chosen=chosen,
                probability=everywhere,
                draws=0,
                error=0.0,
                reason="warm-up",
                predicted=scores.predicted if chosen == scores.chosen else None,
            )
        if not self.floor:
            return scores
        random = generator(seed, context.query_id, "floor")
        explored = bool(random.random() < self.floor)
        chosen = int(random.integers(n)) if explored else scores.chosen
        probability, error = None, 0.0
        if scores.probability is not None:
            probability = self.floor / n + (1.0 - self.floor) * scores.probability
            error = (1.0 - self.floor) * standard_error(float(scores.probability[chosen]), scores.draws)
        return replace(
            scores,
            chosen=chosen,
            probability=probability,
            error=error,
            reason="floor" if explored else scores.reason,
            predicted=scores.predicted if chosen == scores.chosen else None,
        )
