"""Which step of each query was last done: a record delivered twice is dropped, not searched again."""

from collections import OrderedDict


class Progress:
    """Which step of each query was last done by this process, for the queries seen most recently.

    Bounded and lost with the process: what it no longer knows is done again, which is a waste and no second
    result.

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
        """Return whether a record that leads to `step` came too late: that step or a later one is done."""
        return step <= self._done.get(query_id, -1)

    def done(self, query_id: str, step: int) -> None:
        """Note that what a record led to has been delivered; call it after the delivery, not before."""
        self._done[query_id] = max(step, self._done.get(query_id, -1))
        self._done.move_to_end(query_id)
        while len(self._done) > self._most:
            self._done.popitem(last=False)
