"""Lowers limits that a short history would never reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agents.bandit import contextual, pacing
from agents.decider import decider, fold, snapshot
from streams.services import learner_log


def small() -> Iterator[tuple[Any, str, Any]]:
    """Yield modules, the names of limits in them, and their lower values."""
    yield decider, "REFIT_BYTES", 1500
    yield snapshot, "CHUNK_BYTES", 6000
    yield learner_log, "_DROPPED_AT_ONCE", 2
    yield fold, "BATCH", 3
    yield contextual, "SETTLED", 5
    yield pacing, "KEPT", 12
    yield pacing, "KEYS", 2
