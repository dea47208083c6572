"""How many decisions wait for their reward, and since when: two gauges of the decider."""

from streams.runtime.base import Runtime


class Pending:
    """The decisions whose reward is outstanding. Those that were recovered count, but have no age."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._count = 0
        # Append times of their Contexts, oldest first, in ms.
        self._since_ms: dict[str, int] = {}

    def recovered(self, count: int) -> None:
        """Start from the number of decisions that the log leaves open."""
        self._count = count
        self.runtime.metrics.pending.set(count)

    def add(self, query_id: str, appended_ms: int) -> None:
        """Count a decision, with the append time of its Context in ms since the epoch."""
        self._count += 1
        self._since_ms[query_id] = appended_ms

    def remove(self, query_id: str) -> None:
        """Forget a decision that was learned, priced or abandoned."""
        self._count -= 1
        self._since_ms.pop(query_id, None)

    def show(self) -> None:
        """Update both gauges; the age is 0 where no decision has one."""
        self.runtime.metrics.pending.set(self._count)
        oldest_ms = next(iter(self._since_ms.values()), self.runtime.now_ms())
        self.runtime.metrics.oldest_pending.set(oldest_ms / 1000)
