"""A prior from history, and lessons: how a policy without one learns its query transform from first outcomes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agents.bandit.design import History
from agents.bandit.errors import CorruptState, PriorRefused
from agents.bandit.learner import header, pack, plain, unpack, values
from agents.bandit.policy import ActionVector, Observation, Vector

if TYPE_CHECKING:
    from agents.bandit.contextual import Contextual

# Lessons: how a policy that began without a prior learns its query transform, from its own first outcomes.
#
# It keeps these outcomes, and after 500, 1,000, 2,000 and 4,000 of them turns all into a `History` to relearn from.

LESSONS: Final = (500, 1000, 2000, 4000)
"""Outcomes after which the query transform is fitted again: about a second each."""


class Lessons:
    """The lessons still due, and the outcomes kept for them.

    Args:
        due: Numbers of outcomes, rising; empty for a policy with a prior, which keeps nothing.
    """

    def __init__(self, due: Sequence[int] = LESSONS) -> None:
        self.due = tuple(due)
        self._kept: dict[str, tuple[Vector, int, float, float, float]] = {}

    def take(self, o: Observation, query: Vector, at: int, log_cost: float) -> History | None:
        """Keep an outcome; return all that were kept if a lesson is due.

        Args:
            o: The outcome.
            query: Its embedding and surface counts.
            at: Index of its action.
            log_cost: ln(eFLOPs), without a price.
        """
        if not self.due:
            return None
        self._kept[o.observation_id] = (query, at, o.entered, o.score, log_cost)
        if len(self._kept) < self.due[0]:
            return None
        queries, actions, correct, score, costs = (
            np.array(column) for column in zip(*self._kept.values(), strict=True)
        )
        self.due = self.due[1:]
        if not self.due:
            self._kept = {}
        # What is asked again is the same question: fitted without it, the transform must not know its other answers.
        places: dict[bytes, int] = {}
        question = np.array([places.setdefault(query.tobytes(), len(places)) for query in queries])
        _, first = np.unique(question, return_index=True)
        return History(queries[first], question, actions, correct, score, costs, np.ones(len(question)))

    def correct(self, o: Observation) -> None:
        """Replace the Correct of an outcome that was kept."""
        if (kept := self._kept.get(o.observation_id)) is not None:
            self._kept[o.observation_id] = (kept[0], kept[1], o.entered, *kept[3:])

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return plain values and arrays from which `restore` continues."""
        kept = list(self._kept.values())
        arrays = {
            "memory.queries": np.array([row[0] for row in kept], dtype="<f4"),
            "memory.actions": np.array([row[1] for row in kept], dtype="<i8"),
            "memory.terms": np.array([row[2:] for row in kept], dtype=np.float64).reshape(len(kept), 3),
        }
        return {"lessons": list(self.due), "memory": list(self._kept)}, arrays

    def restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Become what `snapshot` returned."""
        self.due = tuple(meta["lessons"])
        rows = zip(
            meta["memory"],
            arrays["memory.queries"].astype(np.float64),
            arrays["memory.actions"].tolist(),
            arrays["memory.terms"].tolist(),
            strict=True,
        )
        self._kept = {name: (query, action, *terms) for name, query, action, terms in rows}


# A prior from history: a complete state of the contextual policy, from which it can start.
#
# `Contextual.relearn` makes it: first the anchors and the query transform (`fitting`), then A₀ and B₀ from
# history's rows in these directions. All outcomes together weigh as much as `cap` observations at most, because
# traffic may differ from history.

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
