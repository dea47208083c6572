"""Decision and Verification to SearchStep and Answer: the search forest and its engines (§3.3)."""

from agents.executor.forest import (
    Ask,
    Drafted,
    Outcome,
    Verified,
    ask,
    outcome,
    plant,
    tell_drafts,
    tell_scores,
)

__all__ = ["plant", "ask", "tell_drafts", "tell_scores", "outcome", "Ask", "Drafted", "Verified", "Outcome"]
