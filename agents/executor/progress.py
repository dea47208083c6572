"""Remembers which step of each query was done last, so that a record delivered twice is dropped, not searched again."""

from collections import OrderedDict


class Progress:
    """The last step of each query that this process has done, for the most recent queries.

    It is bounded, and lost with the process. A step it no longer knows is done again, which wastes time but does not
    change the result.

    >>> progress = Progress(most=2)
    >>> progress.done("q", 1)
    >>> progress.behind("q", 1), progress.behind("q", 2)
    (True, False)
    """

    def __init__(self, most: int = 10_000) -> None:
        """Remember at most so many queries."""
        self._most = most
        self._done: OrderedDict[str, int] = OrderedDict()

    def behind(self, query_id: str, step: int) -> bool:
        """Return whether a record that leads to `step` is outdated: that step or a later one has been done."""
        return step <= self._done.get(query_id, -1)

    def done(self, query_id: str, step: int) -> None:
        """Record that the result of a step has been delivered; call it after the delivery, not before."""
        self._done[query_id] = max(step, self._done.get(query_id, -1))
        self._done.move_to_end(query_id)
        while len(self._done) > self._most:
            self._done.popitem(last=False)
