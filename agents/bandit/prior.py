"""A prior learned from a history: a complete initial state for the contextual policy.

`Contextual.relearn` computes it: first the anchors and the directions, then the variances, then A₀ and B₀ from the
history's rows. Because traffic may differ from the history, all outcomes together weigh at most as much as `cap`
observations. The cap leaves the predictions unchanged but makes them less certain.
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
    """Train a new policy on a history; return its state, which is the prior.

    Args:
        policy: A policy with its actions added and nothing learned.
        history: The outcomes.
        cap: Weight of the history: it counts as at most this many observations.
        cost_basis: The basis of the history's costs (`Catalogue.cost_basis`), to be recorded in the prior; None to omit
            it.

    Raises:
        CorruptState: The policy has already learned something.
    """
    if policy.version or policy.estimates.any():
        raise CorruptState("the policy", "rewards learned", "a fresh policy")
    policy.relearn(history, cap)
    # The policy must not replace the history with its own first outcomes.
    policy.refits.by_prior(with_categories=any(history.categories))
    state = policy.state()
    if cost_basis is None:
        return state
    meta, arrays = unpack(state, policy.name, policy.identity())
    return pack(policy.name, policy.identity(), meta | {"pricing": dict(cost_basis)}, arrays)


def begin(policy: Policy, prior: bytes, actions: Sequence[ActionVector]) -> None:
    """Load a prior into a policy that has learned nothing, or raise without changing the policy.

    Args:
        policy: The policy. Its warm-up, if any, ends.
        prior: A state made by `teach`.
        actions: The actions that will be available; the prior must have been learned from the same models.

    Raises:
        PriorRefused: The prior was made for a different policy, encoder, set of features or catalogue.
        CorruptState: The bytes are truncated or altered.
    """
    inner = policy.inner if isinstance(policy, Explored) else policy
    _require_fit(prior, *header(inner.state()), actions)
    inner.load(prior)
    inner.offer([])  # the caller offers the actions next
    if isinstance(policy, Explored):
        policy.decisions = policy.warm_up


def _require_fit(prior: bytes, name: str, mine: dict[str, Any], actions: Sequence[ActionVector]) -> None:
    """Reject a prior that was made for a different policy or from a different catalogue.

    Args:
        prior: A state made by `teach`.
        name: Name of the policy that is to start from the prior.
        mine: That policy's settings.
        actions: The actions that will be available.
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
    """Return the number of outcomes a prior counts as; 0 if the prior does not record it.

    Raises:
        CorruptState: The bytes are truncated or altered.
    """
    return int(values(prior).get("estimates", {}).get("right", {}).get("outcomes", 0))


def require_cost_basis(prior: bytes, cost_basis: Mapping[str, float | str]) -> None:
    """Reject a prior whose costs have a different unit, or are based on a different verifier, precision or hardware.

    Only parts that both record are compared; `begin` checks that the models are the same. A prior without a cost basis
    has costs in eFLOPs.

    Args:
        prior: A state made by `teach`.
        cost_basis: The cost basis of this deployment.

    Raises:
        PriorRefused: The two differ; the message names the difference.
        CorruptState: The bytes are truncated or altered.
    """
    named = values(prior).get("pricing", {})
    units = [basis.get("unit", "eflops") for basis in (named, cost_basis)]
    if units[0] != units[1]:
        raise PriorRefused("catalogue: unit of costs", *units)
    for part, wanted in cost_basis.items():
        if part in named and named[part] != wanted:
            raise PriorRefused(f"catalogue: {part}", named[part], wanted)


def digest(prior: bytes) -> str:
    """Return a prior's SHA-256; a log uses it to identify the prior it started from."""
    return hashlib.sha256(prior).hexdigest()


def _models(sizes: dict[str, float]) -> str:
    return ", ".join(f"{model} ({size:.4g})" for model, size in sorted(sizes.items()))
