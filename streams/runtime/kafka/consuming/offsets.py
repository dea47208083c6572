"""Bookkeeping for one partition: which record is due, which are in flight, and below which offset all are handled.

`consumer.py` uses both classes; neither depends on Kafka.
"""

from collections import deque


class SkippedRecord(RuntimeError):
    """A later record of the partition was handled before this one. A restart reads this one again."""


class Offsets:
    """Tracks which records of a partition were handed over, and below which offset all are handled."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._newest = -1
        self.next: int | None = None
        """The offset to commit; None if no record was handled since the last commit."""

    def handed_over(self, offset: int) -> None:
        """Mark a record as open. This has no effect on a record that is open or handled already."""
        if offset > self._newest:
            self._newest = offset
            self._open.append(offset)

    def handled(self, offset: int) -> None:
        """Close a record.

        Raises:
            SkippedRecord: an earlier one is still open.
        """
        if not self._open or offset < self._open[0]:
            return  # it was handed over twice, or belongs to an earlier assignment
        if offset > self._open[0]:
            raise SkippedRecord(f"offset {self._open[0]} was not handled, {offset} was")
        self._open.popleft()
        self.next = offset + 1

    def start(self, committed: int) -> None:
        """Start at the group's committed offset: every record before it has been handled, here or elsewhere."""
        while self._open and self._open[0] < committed:
            self._open.popleft()
        self._newest = max(self._newest, committed - 1)

    @property
    def open(self) -> int:
        """Number of records handed over but not yet handled."""
        return len(self._open)

    @property
    def done(self) -> int:
        """Offset below which everything handed over is handled."""
        return self._open[0] if self._open else self._newest + 1

    def take(self) -> int | None:
        """Return the offset to commit and forget it."""
        offset, self.next = self.next, None
        return offset


class Course:
    """Position in one partition: which offset is due, and whether a gap before a later one is genuine."""

    def __init__(self, due: int) -> None:
        self.due = due
        self._asked_again: tuple[int, int] | None = None

    def follows(self, offset: int, after: int | None) -> bool:
        """Return whether a record is the next to hand over; False if records before it may be missing.

        Compacted records and transaction markers leave genuine gaps. A gap inside a batch is genuine, because a
        batch is fetched whole. A gap before a batch is genuine if the fetcher was sent back to the due offset and
        returned the same record again.

        Args:
            offset: The record's offset, which is not below the due one.
            after: The offset that was due after the previous record of the same batch; None for its first record.
        """
        if offset > self.due and after != self.due and self._asked_again != (self.due, offset):
            self._asked_again = self.due, offset
            return False
        self.due = offset + 1
        return True
