"""The protocol of all policies (UniScale §3.2, Alg. 1).

A policy is asked (`select`) and told (`expect`, `update`, `correct`). It is pure: no clock, no global randomness, no
I/O. The same state, contexts and seed give the same choices for any batch size, because every context has its own
random generator, derived from the seed and the query_id.

Policies do not detect repeated rewards: `log.rewards.applied` makes every `update` and `correct` happen once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

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
)


@runtime_checkable
class Policy(Protocol):
    """The protocol of all policies. One contract suite tests every implementation."""

    name: str
    order_free: bool
    """Whether the state depends only on the set of observations, so that a fold may reorder and batch."""
    counts_decisions: bool
    """Whether a decision changes the next one before any reward, so that decisions are made one at a time."""
    paces: bool
    """Whether it determines the price λ of an objective by mean cost or accuracy."""
    surface: bool
    """Whether it reads the surface counts of the question behind the embedding (`agents.decider.surface`)."""

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections applied."""
        ...

    def add_actions(self, actions: Sequence[ActionVector]) -> None:
        """Make actions available; one that was removed becomes available again."""
        ...

    def remove_actions(self, action_ids: Sequence[str]) -> None:
        """Stop choosing actions. Their outstanding rewards are still learned."""
        ...

    def reprice(self, factors: Mapping[str, float]) -> None:
        """Charge so many times its eFLOPs for each of these models, and its eFLOPs for every other.

        A policy that learns what queries cost without their prices multiplies when it decides; any other has to learn
        the new prices from rewards, and ignores this.
        """
        ...

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Score every allowed action of every context. Changes no state."""
        ...

    def select(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Choice]:
        """Choose one action per context. Changes no state."""
        ...

    def terms(self, context: Context) -> Matrix | None:
        """Return the predicted (Correct, Score, log C) of every allowed action, shape (n, 3), in the order of `scores`.

        None where the policy models the reward alone. Changes no state.
        """
        ...

    def price(self, aim: Aim) -> float:
        """Return λ, the price of one eFLOP at which the aim is met by now. Changes no state."""
        ...

    def shortfall(self, aim: Aim) -> float | None:
        """Return what can be had at best of an aim that cannot be met; None if it can be, or nothing is known yet.

        The least mean cost, or the largest share of the best configuration's accuracy. Changes no state.
        """
        ...

    def account(self, aim: Aim) -> Account | None:
        """Return what an aim's decisions came to; None before the first, or if the policy paces none."""
        ...

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Record decisions. They advance the decision clock and may count in widths."""
        ...

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Take back decisions whose reward will never come: they stop counting in widths."""
        ...

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn the first reward of each observation: x enters A once, here."""
        ...

    def correct(self, observations: Sequence[Observation]) -> None:
        """Replace the imputed Correct by the true one: adds (correct − imputed)·x to that column only."""
        ...

    def price_only(self, observations: Sequence[Observation]) -> None:
        """Learn what these searches cost, and nothing about their answers, which the client's own bounds cut.

        A policy that cannot learn the one without the other takes the decisions back, as `abandon` does.
        """
        ...

    def begin(self, prior: bytes, actions: Sequence[ActionVector]) -> None:
        """Start from a prior made from history, before anything is learned; or raise PriorRefused, changing nothing."""
        ...

    def state(self) -> bytes:
        """Serialise everything learned, with a format version and a checksum."""
        ...

    def load(self, data: bytes) -> None:
        """Become a state that a policy with the same settings serialised.

        Raises:
            CorruptState: The state is truncated or altered, or of another version, policy, dimension or setting.
        """
        ...
