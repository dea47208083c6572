"""Sessions: the configuration that each conversation last used, so that its next turn can keep it.

Switching models mid-conversation breaks tool-call loops and loses the previous model's prompt cache.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from agents.bandit.policy import Choice
from schemas.query import Query

MOST: Final = 10_000
"""Maximum number of remembered sessions. A learner snapshot stores all of them, at about 60 bytes each."""


class Turn(NamedTuple):
    """The last turn of a session.

    Attributes:
        session: The session (`session_of`).
        action: Id of the configuration that ran.
        at_ms: When the Query was appended, in ms since the epoch.
    """

    session: str
    action: str
    at_ms: int


class Sessions:
    """The latest sessions' last turns. They depend only on the order of the log, so a recovery restores them."""

    def __init__(self, turns: Iterable[Turn] = (), most: int = MOST) -> None:
        self._most = most
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        for turn in turns:
            self.add(turn)

    def add(self, turn: Turn) -> None:
        """Remember a turn as its session's last; ignore it if it has no session.

        >>> sessions = Sessions([Turn("a", "m/1/1/1", 5), Turn("b", "m/1/1/1", 6)], most=2)
        >>> sessions.add(Turn("a", "n/1/1/1", 7))
        >>> sessions.add(Turn("c", "m/1/1/1", 8))
        >>> [turn.session for turn in sessions.turns()]
        ['a', 'c']
        """
        if not turn.session:
            return
        self._turns[turn.session] = turn
        self._turns.move_to_end(turn.session)
        if len(self._turns) > self._most:
            self._turns.popitem(last=False)

    def last(self, session: str) -> Turn | None:
        """Return a session's last turn; None if it is not remembered."""
        return self._turns.get(session)

    def turns(self) -> tuple[Turn, ...]:
        """Return the last turn of each session, oldest first."""
        return tuple(self._turns.values())


def session_of(query: Query) -> str:
    """Return a digest of a query's session, scoped by account; "" if the query has no session."""
    if query.session is None:
        return ""
    return hashlib.blake2b(f"{query.account}\0{query.session}".encode(), digest_size=8).hexdigest()


def without_propensity(choice: Choice) -> Choice:
    """Return the choice for a turn that keeps its session's configuration, with no propensity and no random draw."""
    return replace(
        choice, reason="session", propensity=None, propensity_draws=0, propensity_error=0.0, randomised=False
    )
