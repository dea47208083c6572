"""The policy against the control group, from the log of a run."""

from collections.abc import Iterable

from agents.decider.uplift import Uplift
from streams.client.ledger import Story


def compared(stories: Iterable[Story], found: Uplift | None = None) -> Uplift:
    """Compare policy and control group over queries whose cohort was drawn at random and whose reward is closed.

    Args:
        stories: The queries; each must appear once, because the intervals count outcomes.
        found: A comparison to extend in place; None starts a new one.

    >>> compared([]).sentence()
    'Too few outcomes to compare the policy with the control group.'
    """
    found = found or Uplift()
    for story in stories:
        decision, closing, answer = story.decision, story.closing, story.answer
        if decision is None or closing is None or answer is None or not decision.randomised:
            continue
        found.add(decision.cohort, answer.status, correct=closing.correct, cost=story.eflops)
    return found
