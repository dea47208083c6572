"""Lessons: how a policy that began without a prior learns its query transform, from its own first outcomes.

It keeps these outcomes, and after 500, 1,000, 2,000 and 4,000 of them turns all into a `History` to relearn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from agents.decider.policies.base import Observation, Vector
from agents.decider.policies.contextual.history.table import History

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
