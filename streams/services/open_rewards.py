"""The rewards waiting for feedback, by account, and the choice of which to close early when too many are open."""

from collections.abc import Iterator

from streams.services.priority_queue import PriorityQueue


class OpenRewards:
    """A partition's open rewards; those beyond its limits are closed early.

    The open rows alone determine which one is next: it is the oldest reward, by its Answer's append time, of the
    account with the most open rewards (the first by name if several tie).

    An account with many open rewards thus affects only itself: others' rewards are closed only once they have as many.

    >>> rewards = OpenRewards(most=3, most_each=3)
    >>> for at_ms, (account, query_id) in enumerate(
    ...     [("b", "b1"), ("a", "a1"), ("a", "a2"), ("b", "b2"), ("a", "a3")]
    ... ):
    ...     rewards.add(account, at_ms, query_id)
    >>> list(rewards.beyond())
    ['a1', 'a2']

    Args:
        most: Maximum number of open rewards.
        most_each: Maximum number of open rewards per account.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._accounts: dict[str, PriorityQueue[str]] = {}
        # Accounts, ordered by their negated number of open rewards: the one with the most comes first.
        self._sizes = PriorityQueue[str]()
        self._open = 0

    def __len__(self) -> int:
        """Return the number of open rewards."""
        return self._open

    def add(self, account: str, answered_ms: int, query_id: str) -> None:
        """Add a reward.

        Args:
            account: The reward's account.
            answered_ms: The append time of its Answer, ms since the epoch.
            query_id: The reward's query, which must have no open reward yet.
        """
        self._accounts.setdefault(account, PriorityQueue()).push(answered_ms, query_id)
        self._changed(account, 1)

    def remove(self, account: str, query_id: str) -> None:
        """Remove a closed reward, if present."""
        queue = self._accounts.get(account)
        if queue is not None and query_id in queue:
            queue.remove(query_id)
            self._changed(account, -1)

    def beyond(self) -> Iterator[str]:
        """Remove and yield the queries whose rewards are beyond the limits."""
        while (first := self._sizes.first()) is not None:
            size, account = first
            if self._open <= self._most and -size <= self._most_each:
                return
            _, query_id = self._accounts[account].pop()
            self._changed(account, -1)
            yield query_id

    def _changed(self, account: str, by: int) -> None:
        self._open += by
        if left := len(self._accounts[account]):
            self._sizes.push(-left, account)
        else:
            del self._accounts[account]
            self._sizes.remove(account)
