"""Randomisation with logged probabilities, for any policy: an exploration floor, a warm-up and a control group.

Off-policy evaluation needs the probability that the served action was drawn. A deterministic policy gives every other
action a probability of zero, whereas the floor gives each a known probability of at least ε/n. The warm-up is the
paper's 50 uniform rounds. The control group always gets one fixed action, so that the policy's gain over it can be
measured continuously.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from agents.bandit.learner import header, pack, redrawn, standard_error, unpack
from agents.bandit.policy import (
    UNPRICED,
    ActionVector,
    Context,
    Contribution,
    Drift,
    Objective,
    Observation,
    Pending,
    Policy,
    Prediction,
    Reason,
    generator,
)
from schemas.action import Action
from schemas.prices import Rate

CONTROL_DRAW: Final = 1 << 64
"""Number of possible values of the keyed hash that assigns queries to the control group, whose share is thus exact to
2⁻⁶⁴."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control group: a share of the queries, all of which get one fixed action regardless of the policy.

    Membership depends only on the query's id and a secret salt, so a redelivered query stays in its group, and a client
    without the salt cannot pick an id to get in or out.

    Attributes:
        share: Probability that a query belongs to the group.
        action_id: The group's action.
        salt: The secret salt.
    """

    share: float
    action_id: str
    salt: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Reject a share outside 0 to 1, and an action that cannot be parsed."""
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"control_share is {self.share!r}; give a number between 0 and 1")
        Action.parse(self.action_id)

    def holds(self, query_id: str) -> bool:
        """Return whether a query belongs to the group."""
        digest = hmac.digest(self.salt.encode(), query_id.encode(), "sha256")
        return int.from_bytes(digest[:8], "big") < self.share * CONTROL_DRAW


def uniform(of: Prediction, seed: int, reason: Reason = "policy") -> Prediction:
    """Draw one action uniformly at random. For a given seed, all policies draw the same one."""
    n = len(of.action_ids)
    chosen = int(generator(seed, of.query_id, "uniform").integers(n))
    return replace(redrawn(of, chosen, np.full(n, 1.0 / n), 0.0, reason), draws=0)


def floored(of: Prediction, floor: float, seed: int) -> Prediction:
    """With probability ε (the floor), replace the choice with a uniform draw. Probabilities are mixed accordingly."""
    n = len(of.action_ids)
    random = generator(seed, of.query_id, "floor")
    explored = bool(random.random() < floor)
    chosen = int(random.integers(n)) if explored else of.chosen
    probability, error = None, 0.0
    if of.probability is not None:
        probability = floor / n + (1.0 - floor) * of.probability
        error = (1.0 - floor) * standard_error(float(of.probability[chosen]), of.draws)
    return redrawn(of, chosen, probability, error, "floor" if explored else of.reason)


def controlled(of: Prediction, control: ControlGroup) -> Prediction:
    """Assign a query to the control group or to the policy. Probabilities are mixed accordingly."""
    ids = list(of.action_ids)
    if control.action_id not in ids or len(ids) == 1:
        return of
    at, share = ids.index(control.action_id), control.share
    probability, error = None, 0.0
    if of.probability is not None:
        probability = (1.0 - share) * of.probability
        probability[at] += share
    if not control.holds(of.query_id):
        return replace(of, probability=probability, error=(1.0 - share) * of.error, randomised=True)
    if of.probability is not None:
        error = (1.0 - share) * standard_error(float(of.probability[at]), of.draws)
    return replace(redrawn(of, at, probability, error, "control"), cohort="control", randomised=True)


class Explored:
    """A policy with added exploration: uniform draws for the first `warm_up` rounds, then a floor and a control group.

    Each decision passed to `decided` is one round. The contexts in a batch count as consecutive rounds.

    Args:
        inner: The policy.
        floor: ε in [0, 1].
        warm_up: Number of initial rounds with uniform choices (50 in the paper's experiments).
        control: The control group. It excludes queries during the warm-up, queries that do not allow its action, and
            queries with only one allowed action.
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
        # `predict` counts warm-up rounds within its batch, so batches need not be split.
        self.traits, self.refits, self.pacer = inner.traits, inner.refits, inner.pacer
        self.floor, self.warm_up, self.control = floor, warm_up, control
        self.decisions = 0

    @property
    def version(self) -> int:
        """Return the inner policy's version."""
        return self.inner.version

    @property
    def graded(self) -> bool:
        """Return whether the inner policy has learned the correctness of any answer."""
        return self.inner.graded

    def untried(self, models: Iterable[str]) -> set[str]:
        """Return the inner policy's untried models."""
        return self.inner.untried(models)

    def offer(
        self,
        actions: Sequence[ActionVector],
        price_factors: Mapping[str, Rate] = UNPRICED,
        newcomers: Iterable[str] = (),
    ) -> None:
        """Forward the actions, price factors and newcomers to the inner policy."""
        self.inner.offer(actions, price_factors, newcomers)

    def distrust_scores(self, seq: int) -> None:
        """Forward to the inner policy."""
        self.inner.distrust_scores(seq)

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Return the inner policy's predictions, with the action redrawn and the probabilities mixed."""
        inner = self.inner.predict(contexts, objectives, seed)
        pairs = enumerate(zip(inner, contexts, strict=True))
        return [self._explored(of, seed, self.decisions + i, context.drawn) for i, (of, context) in pairs]

    def _explored(self, of: Prediction, seed: int, round_: int, drawn: bool) -> Prediction:
        if round_ < self.warm_up:
            return uniform(of, seed, "warm-up")
        if self.floor:
            of = floored(of, self.floor, seed)
        return controlled(of, self.control) if self.control and drawn else of

    def left_out(self) -> Sequence[str]:
        """Return the categories that the inner policy has no room for."""
        return self.inner.left_out()

    def drifted(self) -> Mapping[str, Drift]:
        """Return the drift detected by the inner policy."""
        return self.inner.drifted()

    def explain(self, context: Context, action_id: str) -> Sequence[Contribution]:
        """Return the inner policy's contributions."""
        return self.inner.explain(context, action_id)

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Count decisions as rounds unless they are abandoned, and forward all of them."""
        self.decisions += sum(not decision.abandoned for decision in decisions)
        self.inner.decided(decisions)

    def learn(self, outcomes: Sequence[Observation]) -> None:
        """Have the inner policy learn the outcomes, including those of warm-up rounds."""
        self.inner.learn(outcomes)

    def state(self) -> bytes:
        """Serialise the round count together with the inner state."""
        inner = np.frombuffer(self.inner.state(), dtype=np.uint8)
        return pack(self.name, self._identity(), {"decisions": self.decisions}, {"inner": inner})

    def load(self, data: bytes) -> None:
        """Restore a serialised state. If it is a state of the inner policy alone, the warm-up is skipped."""
        if header(data)[0] == self.inner.name:
            self.inner.load(data)
            self.decisions = self.warm_up
            return
        meta, arrays = unpack(data, self.name, self._identity())
        self.inner.load(arrays["inner"].tobytes())
        self.decisions = meta["decisions"]

    def _identity(self) -> dict[str, float]:
        # The control group is left out because it does not affect the state, so it may change between snapshots.
        return {"floor": self.floor, "warm_up": self.warm_up}
