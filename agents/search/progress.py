"""The last step done for each attempt, so that a redelivered record is dropped rather than searched again."""

from collections import OrderedDict


class Progress:
    """The last step this process has done for each of the most recent attempts.

    It remembers a limited number of attempts and is lost with the process. A forgotten step is repeated if its record
    is redelivered. This wastes time, but changes the result only if the repeated step fails (no engine, no time left)
    and its Answer is the first on the topic.

    >>> progress = Progress(most=2)
    >>> progress.done("q", 1)
    >>> progress.behind("q", 1), progress.behind("q", 2)
    (True, False)
    """

    def __init__(self, most: int = 10_000) -> None:
        """Remember up to `most` attempts."""
        self._most = most
        self._done: OrderedDict[str, int] = OrderedDict()

    def behind(self, attempt: str, step: int) -> bool:
        """Return whether a record leading to `step` is outdated because that step or a later one has been done."""
        return step <= self._done.get(attempt, -1)

    def done(self, attempt: str, step: int) -> None:
        """Record that a step's result has been delivered. Call this only after the delivery."""
        self._done[attempt] = max(step, self._done.get(attempt, -1))
        self._done.move_to_end(attempt)
        while len(self._done) > self._most:
            self._done.popitem(last=False)
