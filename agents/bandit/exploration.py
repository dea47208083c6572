"""Recorded randomisation around any policy: an exploration floor, a uniform warm-up, a control group.

Off-policy evaluation needs the probability with which the served action was drawn. A deterministic policy gives other
actions a probability of zero; the floor gives each at least ε/n, known exactly. The warm-up is the paper's 50 uniform
rounds.
The control group always gets one fixed action, so that the policy's gain over it can be measured continuously.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from agents.bandit.learner import choices, pack, standard_error, unpack
from agents.bandit.policy import (
    UNPRICED,
    Account,
    ActionVector,
    Aim,
    Choice,
    Context,
    Ground,
    Matrix,
    Objective,
    Observation,
    Pending,
    Policy,
    Scores,
    generator,
)
from schemas.action import Action

CONTROL_DRAW: Final = 1 << 64
"""Number of values of the keyed hash that draws the control group, whose share is exact to 2⁻⁶⁴."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A share of the queries that get one action, whatever the policy prefers.

    Membership depends only on the query's id and a secret salt. So a redelivery keeps its cohort, and a client that
    does not know the salt cannot choose an id to be in or out.

    Attributes:
        share: Probability that a query belongs to it.
        action_id: The action of the group.
        salt: The secret.
    """

    share: float
    action_id: str
    salt: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Refuse a share outside 0 to 1, and an action that cannot be parsed."""
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"control_share is {self.share!r}; give a number between 0 and 1")
        Action.parse(self.action_id)

    def holds(self, query_id: str) -> bool:
        """Return whether a query belongs to it."""
        digest = hmac.digest(self.salt.encode(), query_id.encode(), "sha256")
        return int.from_bytes(digest[:8], "big") < self.share * CONTROL_DRAW


class Explored:
    """A policy that draws uniformly with probability ε, and in the first `warm_up` rounds; otherwise `inner` chooses.

    A round is a decision passed to `decided`; the i-th context of a batch is i rounds later.

    Args:
        inner: The policy.
        floor: ε in [0, 1].
        warm_up: Rounds of uniform choice at the start (50 in the paper's experiments).
        control: The control group. Queries of the warm-up, queries for which its action is not allowed, and queries
            with a single allowed action belong to the policy.
    """

    def __init__(
        self, inner: Policy, *, floor: float = 0.0, warm_up: int = 0, control: ControlGroup | None = None
    ) -> None:
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor is {floor!r}; give a probability between 0 and 1")
        if warm_up < 0:
            raise ValueError(f"warm_up is {warm_up!r}; give a number of rounds, zero or more")
        self.inner = inner
        self.name = f"explored-{inner.name}"
        self.order_free = inner.order_free
        # The warm-up counts rounds, but `scores` counts those within its batch, so batches need not be split.
        self.counts_decisions = inner.counts_decisions
        self.paces, self.surface = inner.paces, inner.surface
        self.floor, self.warm_up, self.control = floor, warm_up, control
        self.decisions = 0

    @property
    def version(self) -> int:
        """Return the inner policy's version."""
        return self.inner.version

    def offer(self, actions: Sequence[ActionVector], price_factors: Mapping[str, float] = UNPRICED) -> None:
        """Pass on."""
        self.inner.offer(actions, price_factors)

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Return the inner scores with the drawn action and the mixed probabilities."""
        inner = self.inner.scores(contexts, objectives, seed)
        out = []
        for i, (context, scores) in enumerate(zip(contexts, inner, strict=True)):
            warming = self.decisions + i < self.warm_up
            mixed = self._mixed(context, scores, seed, warming=warming)
            out.append(mixed if warming or self.control is None else _split(mixed, context, self.control))
        return out

    def select(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Choice]:
        """Choose one action per context."""
        return choices(contexts, self.scores(contexts, objectives, seed), self.version)

    def terms(self, context: Context) -> Matrix | None:
        """Return the inner policy's predictions."""
        return self.inner.terms(context)

    def explain(self, context: Context, action_id: str) -> Sequence[Ground]:
        """Return the inner policy's parts."""
        return self.inner.explain(context, action_id)

    def price(self, aim: Aim) -> float:
        """Return the inner policy's price."""
        return self.inner.price(aim)

    def shortfall(self, aim: Aim) -> float | None:
        """Return the inner policy's."""
        return self.inner.shortfall(aim)

    def account(self, aim: Aim) -> Account | None:
        """Return the inner policy's."""
        return self.inner.account(aim)

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Count rounds, those of abandoned decisions too."""
        self.decisions += sum(not decision.abandoned for decision in decisions)
        self.inner.decided(decisions)

    def learn(self, outcomes: Sequence[Observation]) -> None:
        """Let the inner policy learn, also from warm-up rounds."""
        self.inner.learn(outcomes)

    def begin(self, prior: bytes, actions: Sequence[ActionVector]) -> None:
        """Let the inner policy start from a prior, which takes the place of the warm-up."""
        self.inner.begin(prior, actions)
        self.decisions = self.warm_up

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
        # The control group is left out: it changes no state, so it may differ between two snapshots.
        return {"floor": self.floor, "warm_up": self.warm_up}

    def _mixed(self, context: Context, scores: Scores, seed: int, *, warming: bool) -> Scores:
        n = len(scores.action_ids)
        if warming:
            # The same stream as `Uniform`, so that all policies with one seed share their warm-up choices.
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


def _split(scores: Scores, context: Context, control: ControlGroup) -> Scores:
    """Assign a query to the control group or to the policy; the probabilities account for both."""
    ids = list(scores.action_ids)
    if control.action_id not in ids or len(ids) == 1:
        return scores
    at, share = ids.index(control.action_id), control.share
    probability, error = None, 0.0
    if scores.probability is not None:
        probability = (1.0 - share) * scores.probability
        probability[at] += share
    if not control.holds(context.query_id):
        return replace(scores, probability=probability, error=(1.0 - share) * scores.error, randomised=True)
    if scores.probability is not None:
        error = (1.0 - share) * standard_error(float(scores.probability[at]), scores.draws)
    return replace(
        scores,
        chosen=at,
        probability=probability,
        error=error,
        reason="control",
        cohort="control",
        randomised=True,
        predicted=scores.predicted if at == scores.chosen else None,
    )
