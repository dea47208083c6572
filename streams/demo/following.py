"""After how many queries the choices follow a change: the definitions, over the choices that a log records.

They were written down before the first run (experiments/CRITERIA.md, The demo's second act).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from schemas.query import Query
from schemas.reward import Reward

WINDOW = 20
"""Number of the latest choices by which it is judged whether the choices follow."""


class Choice(msgspec.Struct, frozen=True):
    """What was chosen for a query, and what came of it.

    Attributes:
        seq: The Decision's sequence number.
        model: The model.
        cost: What the answer cost.
        right: Whether it was right, 0 to 1.
        family: The question's family; empty if it names none.
    """

    seq: int
    model: str
    cost: float
    right: float
    family: str = ""


def choices_of(queries: Sequence[Query], rewards: Mapping[str, Reward]) -> list[Choice]:
    """Return the choices for the queries whose Reward has closed, in the order of their decisions."""
    found = [
        Choice(
            reward.seq,
            reward.action.model,
            reward.cost or 0.0,
            reward.correct or 0.0,
            str(query.metadata.get("family", "")),
        )
        for query in queries
        if (reward := rewards.get(query.query_id)) is not None
    ]
    return sorted(found, key=lambda choice: choice.seq)


@dataclass(frozen=True)
class Condition:
    """When the choices follow a change: as soon as the mean over the latest choices passes a threshold.

    Attributes:
        words: The condition in words.
        measure: What is averaged over a window.
        threshold: The threshold.
        at_most: Whether the mean must be at most the threshold, rather than at least.
    """

    words: str
    measure: Callable[[Choice], float]
    threshold: float
    at_most: bool

    def windows(self, choices: Sequence[Choice]) -> list[float]:
        """Return the mean over every window of choices, the first of which ends with the twentieth choice."""
        values = [self.measure(choice) for choice in choices]
        return [sum(values[at - WINDOW : at]) / WINDOW for at in range(WINDOW, len(values) + 1)]

    def first(self, choices: Sequence[Choice]) -> int | None:
        """Return the number of choices at the end of the first window that meets the condition; None if none does.

        >>> falls = Condition("at most a half", lambda choice: choice.cost, 0.5, at_most=True)
        >>> made = [Choice(n, "m", float(n < 20), 1.0) for n in range(60)]
        >>> falls.first(made), falls.first(made[:25])
        (30, None)
        """
        for at, mean in enumerate(self.windows(choices)):
            if mean <= self.threshold if self.at_most else mean >= self.threshold:
                return at + WINDOW
        return None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and how the choices followed it.

    Attributes:
        name: `objective`, `worse` or `joined`.
        title: What changed.
        did: How: the command, or what was done in its place.
        condition: When the choices follow, in words.
        threshold, at_most: The same as numbers.
        asked: Number of queries after the change.
        closed: Number of these whose Reward has closed.
        windows: The means over every window of choices after the change.
        after: Number of queries after which the choices followed; None if they did not.
        without_change: The same over the first act, in which nothing had changed; None if no window met the condition.
        notes: What else there is to say.
    """

    name: str
    title: str
    did: str
    condition: str
    threshold: float
    at_most: bool
    asked: int
    closed: int = 0
    windows: tuple[float, ...] = ()
    after: int | None = None
    without_change: int | None = None
    notes: tuple[str, ...] = ()


def observed(change: Change, condition: Condition, choices: Sequence[Choice]) -> Change:
    """Return a change with what is known of the choices after it."""
    return msgspec.structs.replace(
        change,
        closed=len(choices),
        windows=tuple(condition.windows(choices)),
        after=condition.first(choices),
    )


def outcome(change: Change) -> str:
    """Return after how many queries the choices followed, in words."""
    return f"after {change.after} queries" if change.after else f"not within {change.asked} queries"


def told(change: Change) -> str:
    """Return how the choices followed, in one sentence."""
    followed = "the choices followed" if change.after else "the choices did not follow"
    return f"{change.title}: {followed} {outcome(change).removeprefix('not ')}."
