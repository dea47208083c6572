"""What is known of one partition: which record is due, which are in hand, and up to where all are handled.

`transport.py` asks these two; they know no Kafka.
"""

from collections import deque


class SkippedRecord(RuntimeError):
    """A record was handed over and not handled, but a later one of its partition was. Read again after a restart."""


class Offsets:
    """Which records of a partition were handed over, and up to where they are handled. Handling keeps their order."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._newest = -1
        self.next: int | None = None
        """The offset to commit; None where nothing was handled since the last commit."""

    def handed_over(self, offset: int) -> None:
        """Await a record; one that is handed over again is awaited already, or was handled."""
        if offset > self._newest:
            self._newest = offset
            self._open.append(offset)

    def handled(self, offset: int) -> None:
        """Close a record.

        Raises:
            SkippedRecord: one before it is open.
        """
        if not self._open or offset < self._open[0]:
            return  # handed over twice, or of an assignment that is over
        if offset > self._open[0]:
            raise SkippedRecord(f"offset {self._open[0]} was not handled, {offset} was")
        self._open.popleft()
        self.next = offset + 1

    def start(self, committed: int) -> None:
        """Begin where the group has come to: what lies before is handled, here or elsewhere."""
        while self._open and self._open[0] < committed:
            self._open.popleft()
        self._newest = max(self._newest, committed - 1)

    @property
    def open(self) -> int:
        """How many records were handed over and are not handled."""
        return len(self._open)

    def take(self) -> int | None:
        """Return the offset to commit, once."""
        offset, self.next = self.next, None
        return offset


class Course:
    """The way through one partition: which offset is due, and whether what lies before a later one is known."""

    def __init__(self, due: int) -> None:
        self.due = due
        self._asked_again: tuple[int, int] | None = None

    def follows(self, offset: int, after: int | None) -> bool:
        """Say whether a record that was not handed over is the next; False where others may be missing before it.

        Compacted records and the markers of transactions leave gaps. One inside a batch is such a gap: a batch is
        fetched whole. One in front of a batch is, when the fetcher was sent back to what is due and came with the
        same again.

        Args:
            offset: Of the record; not below what is due.
            after: What was due after the record before it in the same batch; None for the first.
        """
        if offset > self.due and after != self.due and self._asked_again != (self.due, offset):
            self._asked_again = self.due, offset
            return False
        self.due = offset + 1
        return True
