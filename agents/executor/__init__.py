"""Decision and Verification to SearchStep and Answer: the search forest and its engines (§3.3)."""

from agents.executor.engine import Drafted
from agents.executor.forest import Outcome, outcome, plant, tell_drafts, tell_scores
from agents.executor.next_step import Ask, ask

__all__ = ["plant", "ask", "tell_drafts", "tell_scores", "outcome", "Ask", "Drafted", "Outcome"]
