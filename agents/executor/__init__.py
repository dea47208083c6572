"""Decision and Verification to SearchStep and Answer: the search forest and its engines (§3.3)."""

from agents.executor.engine import Drafted
from agents.executor.forest import Ask, Outcome, ask, outcome, plant, tell_drafts, tell_scores

__all__ = ["plant", "ask", "tell_drafts", "tell_scores", "outcome", "Ask", "Drafted", "Outcome"]
