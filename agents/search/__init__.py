"""Decision and Verification to SearchStep and Answer: the search forest and its engines (§3.3)."""

from agents.search.forest import Ask, Outcome, SearchError, ask, outcome, plant, tell_drafts, tell_scores
from agents.serving.engine import Drafted

__all__ = [
    "plant",
    "ask",
    "tell_drafts",
    "tell_scores",
    "outcome",
    "Ask",
    "Drafted",
    "Outcome",
    "SearchError",
]
