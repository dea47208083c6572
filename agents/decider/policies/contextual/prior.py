"""A prior from history: a complete state of the contextual policy, to begin from.

`Contextual.relearn` makes it: the anchors and the query transform first (`fitting`), then A₀ and B₀ from history's rows
on these directions. All questions together weigh as `cap` observations at most: history is a start, and traffic may
differ from it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from agents.decider.errors import CorruptState
from agents.decider.policies.contextual.history import History
from agents.decider.policies.contextual.policy import Contextual

CAP: Final = 2000.0
"""Questions that history counts as, at most."""


def teach(policy: Contextual, history: History, cap: float = CAP) -> bytes:
    """Let a fresh policy begin from history; return its state, the prior.

    Args:
        policy: With its actions added, and nothing learned.
        history: What was seen.
        cap: Questions that history counts as, at most.

    Raises:
        CorruptState: The policy has learned already.
    """
    if policy.version or policy.estimates.any():
        raise CorruptState("the policy", "rewards learned", "a fresh policy")
    policy.relearn(history, cap)
    # What history taught is not unlearned for the few outcomes that come first.
    policy.lessons = ()
    return policy.state()


def digest(prior: bytes) -> str:
    """Return the SHA-256 of a prior: what a log says it began from."""
    return hashlib.sha256(prior).hexdigest()
