"""Checks on an outcome before it enters A or B."""

from __future__ import annotations

import math
from typing import Final

from agents.decider.errors import InvalidObservation

LOG_COST_LIMIT: Final = 200.0
"""Largest plausible |log C|: a search of 64 paths on a 32 B model costs e^38 eFLOPs. One row beyond it would outweigh
millions of true ones in the log-cost column."""


def share(subject: str, name: str, value: float) -> float:
    """Return a value in [0, 1], or raise InvalidObservation naming the field."""
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise InvalidObservation(subject, name, value, "give a finite value between 0 and 1")
    return value


def log_cost(subject: str, value: float) -> float:
    """Return a natural log cost that is finite and plausible, or raise InvalidObservation."""
    if not math.isfinite(value) or abs(value) > LOG_COST_LIMIT:
        raise InvalidObservation(subject, "log_cost", value, f"give ln(eFLOPs), within ±{LOG_COST_LIMIT:g}")
    return value


def outcome(subject: str, correct: float | None, score: float, cost: float, imputed: float) -> None:
    """Refuse an outcome with a term that is not finite or out of range."""
    if correct is not None:
        share(subject, "correct", correct)
    share(subject, "score", score)
    share(subject, "imputed", imputed)
    log_cost(subject, cost)
