"""What could be chosen, and when: the actions ever offered, which of them are on offer, and telling a policy so.

An action keeps its row even after its model is gone, because the rows of decisions refer to it. Each offer holds from
its sequence number until that of the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import Struct

from agents.decider.policies.base import ActionVector
from agents.decider.policies.policy import Policy

ACTION_KEY: Final = b"\x00action/"
"""Prefix of action rows. A query_id is printable ASCII, so no query's row can begin like this."""

OFFER_KEY: Final = b"\x00offer/"
"""Prefix of the rows that say which actions were on offer."""


class ActionRow(Struct, frozen=True, kw_only=True, tag="decider-action.v1", tag_field="schema"):
    """An action that was ever offered; rows refer to it even after its model is gone. Key: ACTION_KEY + id.

    Attributes:
        position: Order of first appearance.
        anchor: Whether it belongs to the first catalogue, whose centre the features keep.
        embedding: s_a as little-endian float32.
        size: Number of parameters of its model; 0 if it was not known.
    """

    action: str
    model: str
    position: int
    anchor: bool
    embedding: bytes
    size: float = 0.0

    @classmethod
    def of(cls, action: ActionVector, position: int, *, anchor: bool) -> ActionRow:
        """Return the row of an action that is offered for the first time."""
        embedding = np.asarray(action.embedding).astype("<f4").tobytes()
        return cls(
            action=action.action_id, model=action.model, position=position, anchor=anchor, embedding=embedding,
            size=action.size,
        )  # fmt: skip

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return ACTION_KEY + self.action.encode()

    def vector(self) -> ActionVector:
        """Return the action in the form that the policy takes."""
        embedding = np.frombuffer(self.embedding, "<f4").astype(np.float64)
        return ActionVector(self.action, self.model, embedding, self.size)


class OfferRow(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decider-offer.v1", tag_field="schema"
):
    """Which actions could be chosen from a sequence number on, and at what prices. Key: OFFER_KEY + seq.

    Attributes:
        actions: Their ids.
        price_factors: What an eFLOP costs on each model where that is not 1.
    """

    seq: int
    actions: tuple[str, ...]
    price_factors: dict[str, float] = {}

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return OFFER_KEY + str(self.seq).encode()


NO_OFFER: Final = OfferRow(seq=-1, actions=())
"""Before the first offer."""


def offer(policy: Policy, row: OfferRow, actions: Mapping[str, ActionRow]) -> None:
    """Make exactly these actions choosable, at these prices.

    Args:
        policy: The policy.
        row: What is on offer.
        actions: Every action ever added, by id.
    """
    policy.add_actions([actions[action_id].vector() for action_id in row.actions])
    policy.remove_actions(sorted(set(actions) - set(row.actions)))
    policy.reprice(row.price_factors)


def on_offer(rows: Iterable[object], seq: float = math.inf) -> OfferRow:
    """Return what was on offer at a sequence number, by default the last; NO_OFFER if nothing was yet.

    Args:
        rows: Rows of the log in any order.
        seq: The sequence number; an offer precedes the decision with the same number.
    """
    known = (row for row in rows if isinstance(row, OfferRow) and row.seq <= seq)
    return max(known, key=attrgetter("seq"), default=NO_OFFER)


def resume_offer(
    policy: Policy, rows: Iterable[object], seq: int, actions: Mapping[str, ActionRow]
) -> OfferRow:
    """Offer what was on offer at a sequence number, if anything was, and return it."""
    offered = on_offer(rows, seq)
    if offered is not NO_OFFER:
        offer(policy, offered, actions)
    return offered


def introduce(policy: Policy, actions: Iterable[ActionRow]) -> None:
    """Add the log's actions in order of appearance, those of the first catalogue together: they fix the centre."""
    known = sorted(actions, key=lambda row: row.position)
    policy.add_actions([row.vector() for row in known if row.anchor])
    policy.add_actions([row.vector() for row in known if not row.anchor])
