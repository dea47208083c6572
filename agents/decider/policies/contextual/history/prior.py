"""A prior from history: a complete state of the contextual policy, from which it can start.

`Contextual.relearn` makes it: first the anchors and the query transform (`fitting`), then A₀ and B₀ from history's rows
in these directions. All outcomes together weigh as much as `cap` observations at most, because traffic may differ from
history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from agents.decider.errors import CorruptState, PriorRefused
from agents.decider.policies.base import ActionVector
from agents.decider.policies.contextual.history.table import History
from agents.decider.policies.envelope import header, pack, plain, unpack, values

if TYPE_CHECKING:
    from agents.decider.policies.contextual.policy import Contextual

CAP: Final = 2000.0
"""Weight of a history: it counts as at most this many observations."""


def teach(
    policy: Contextual, history: History, cap: float = CAP, pricing: Mapping[str, float | str] | None = None
) -> bytes:
    """Let a fresh policy learn a history; return its state, the prior.

    Args:
        policy: A policy with its actions added and nothing learned.
        history: The outcomes.
        cap: Weight of the history: it counts as at most this many observations.
        pricing: What history's costs follow from (`Catalogue.pricing`), which the prior then names; None leaves it out.

    Raises:
        CorruptState: The policy has learned already.
    """
    if policy.version or policy.estimates.any():
        raise CorruptState("the policy", "rewards learned", "a fresh policy")
    policy.relearn(history, cap)
    # The policy must not discard what history taught for its first few outcomes.
    policy.lessons.due = ()
    state = policy.state()
    if pricing is None:
        return state
    meta, arrays = unpack(state, policy.name, policy.identity())
    return pack(policy.name, policy.identity(), meta | {"pricing": dict(pricing)}, arrays)


def require_fit(prior: bytes, name: str, identity: dict[str, Any], actions: Sequence[ActionVector]) -> None:
    """Refuse a prior that was made for another policy or from another catalogue.

    Args:
        prior: A state made by `teach`.
        name: Name of the policy that is to begin from it.
        identity: Settings of that policy.
        actions: What will be on offer.

    Raises:
        PriorRefused: It was made with another encoder, other features, or from another catalogue.
        CorruptState: The bytes are not whole.
    """
    kind, settings = header(prior)
    mine = plain(identity)
    if kind != name:
        raise PriorRefused("policy", kind, name)
    for field, wanted in mine["contextual"].items():
        if settings["contextual"].get(field) != wanted:
            raise PriorRefused(field, settings["contextual"].get(field), wanted)
    for field, wanted in mine["features"].items():
        if settings["features"].get(field) != wanted:
            raise PriorRefused(f"features: {field}", settings["features"].get(field), wanted)
    meta, _ = unpack(prior, name, identity)
    known = meta["features"]
    theirs = dict(zip(known["models"], known["sizes"], strict=True))
    ours = {action.model: action.size for action in actions}
    if theirs != ours:
        raise PriorRefused("catalogue", _models(theirs), _models(ours))


def require_pricing(prior: bytes, pricing: Mapping[str, float | str]) -> None:
    """Refuse a prior whose costs follow from another verifier, precision or hardware.

    Models that only one of the two has are `require_fit`'s; so is all else of a prior that does not name its pricing.

    Args:
        prior: A state made by `teach`.
        pricing: What this deployment's costs follow from.

    Raises:
        PriorRefused: It names what differs.
        CorruptState: The bytes are not whole.
    """
    named = values(prior).get("pricing", {})
    for part, wanted in pricing.items():
        if part in named and named[part] != wanted:
            raise PriorRefused(f"catalogue: {part}", named[part], wanted)


def digest(prior: bytes) -> str:
    """Return the SHA-256 of a prior, by which a log names the prior it started from."""
    return hashlib.sha256(prior).hexdigest()


def _models(sizes: dict[str, float]) -> str:
    return ", ".join(f"{model} ({size:.4g})" for model, size in sorted(sizes.items()))
