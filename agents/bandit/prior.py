"""A prior from history: a complete state of the contextual policy, from which it can start.

`Contextual.relearn` makes it: first the anchors and the directions, then the variances, then A₀ and B₀ from history's
rows. All outcomes together weigh as much as `cap` observations at most, because traffic may differ from history: what
is predicted stays as it is, and how certain it is does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agents.bandit.contextual import Contextual
from agents.bandit.errors import CorruptState, PriorRefused
from agents.bandit.exploration import Explored
from agents.bandit.history import History
from agents.bandit.learner import header, pack, unpack, values
from agents.bandit.policy import ActionVector, Policy

CAP: Final = 2000.0
"""Weight of a history: it counts as at most this many observations."""


def teach(
    policy: Contextual,
    history: History,
    cap: float = CAP,
    cost_basis: Mapping[str, float | str] | None = None,
) -> bytes:
    """Let a fresh policy learn a history; return its state, the prior.

    Args:
        policy: A policy with its actions added and nothing learned.
        history: The outcomes.
        cap: Weight of the history: it counts as at most this many observations.
        cost_basis: What history's costs follow from (`Catalogue.cost_basis`), which the prior then names; None leaves
            it out.

    Raises:
        CorruptState: The policy has learned already.
    """
    if policy.version or policy.estimates.any():
        raise CorruptState("the policy", "rewards learned", "a fresh policy")
    policy.relearn(history, cap)
    # The policy must not discard what history taught for its first few outcomes.
    policy.refits.at = ()
    state = policy.state()
    if cost_basis is None:
        return state
    meta, arrays = unpack(state, policy.name, policy.identity())
    return pack(policy.name, policy.identity(), meta | {"pricing": dict(cost_basis)}, arrays)


def begin(policy: Policy, prior: bytes, actions: Sequence[ActionVector]) -> None:
    """Let a policy that has learned nothing start from a prior, or raise and change nothing.

    Args:
        policy: The policy; a warm-up around it is over.
        prior: A state made by `teach`.
        actions: What will be on offer; the prior must come from the same models.

    Raises:
        PriorRefused: It was made for another policy, with another encoder, other features, or from another catalogue.
        CorruptState: The bytes are not whole.
    """
    inner = policy.inner if isinstance(policy, Explored) else policy
    _require_fit(prior, *header(inner.state()), actions)
    inner.load(prior)
    inner.offer([])  # the first offer comes next
    if isinstance(policy, Explored):
        policy.decisions = policy.warm_up


def _require_fit(prior: bytes, name: str, mine: dict[str, Any], actions: Sequence[ActionVector]) -> None:
    """Refuse a prior that was made for another policy or from another catalogue.

    Args:
        prior: A state made by `teach`.
        name: Name of the policy that is to begin from it.
        mine: Settings of that policy.
        actions: What will be on offer.
    """
    kind, settings = header(prior)
    if kind != name:
        raise PriorRefused("policy", kind, name)
    for part, prefix in (("contextual", ""), ("features", "features: ")):
        for field, wanted in mine[part].items():
            if (found := settings[part].get(field)) != wanted:
                raise PriorRefused(f"{prefix}{field}", found, wanted)
    meta, _ = unpack(prior, name, mine)
    known = meta["features"]
    theirs = dict(zip(known["models"], known["sizes"], strict=True))
    ours = {action.model: action.size for action in actions}
    if theirs != ours:
        raise PriorRefused("catalogue", _models(theirs), _models(ours))


def outcomes_of(prior: bytes) -> int:
    """Return as how many outcomes a prior counts; 0 where it does not say.

    Raises:
        CorruptState: The bytes are not whole.
    """
    return int(values(prior).get("estimates", {}).get("right", {}).get("outcomes", 0))


def require_cost_basis(prior: bytes, cost_basis: Mapping[str, float | str]) -> None:
    """Refuse a prior whose costs follow from another verifier, precision or hardware.

    Models that only one of the two has are `require_fit`'s; so is all else of a prior that names no cost basis.

    Args:
        prior: A state made by `teach`.
        cost_basis: What this deployment's costs follow from.

    Raises:
        PriorRefused: It names what differs.
        CorruptState: The bytes are not whole.
    """
    named = values(prior).get("pricing", {})
    for part, wanted in cost_basis.items():
        if part in named and named[part] != wanted:
            raise PriorRefused(f"catalogue: {part}", named[part], wanted)


def digest(prior: bytes) -> str:
    """Return the SHA-256 of a prior, by which a log names the prior it started from."""
    return hashlib.sha256(prior).hexdigest()


def _models(sizes: dict[str, float]) -> str:
    return ", ".join(f"{model} ({size:.4g})" for model, size in sorted(sizes.items()))
