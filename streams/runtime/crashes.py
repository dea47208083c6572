"""Count failures per record across restarts, so that the third sends the record to the dead-letter topic.

An unknown error ends the process before the offset moves, and the next process reads the record again. Without a
count, a record that always fails would block its partition forever. A process that dies abruptly (segmentation
fault, out of memory, kill -9) cannot count. Records in flight are therefore noted in a file while they are handled,
and the next process counts for the one that died.
"""

import contextlib
import mmap
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from schemas.errors import UniscaleError

LIMIT = 3

# A topic's name has 249 characters at most, partition and offset 31 together.
_SLOT = 288
_SLOTS = 1024


_REASON = 500
"""Most characters of a failure's reason that are kept."""


class KilledProcess(UniscaleError):
    """The process died repeatedly while handling this record. Check the room's log before you retry it."""


class Crashes:
    """Failures of one worker by record, kept in a small file, or only in memory when there is no path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._counts = self._read()

    def of(self, coordinates: str) -> int:
        """Return how often a record has failed."""
        return self._counts.get(coordinates, (0, ""))[0]

    def reason(self, coordinates: str) -> str:
        """Return what the last failure at a record was; empty if its process could not say."""
        return self._counts.get(coordinates, (0, ""))[1]

    def add(self, coordinates: str, reason: str = "") -> int:
        """Count one more failure at a record and return how many there are now.

        Args:
            coordinates: The record's.
            reason: What failed; empty where the process died of it.
        """
        count = self.of(coordinates) + 1
        self._counts[coordinates] = count, reason[:_REASON]
        self._write()
        return count

    def forget(self, coordinates: str) -> None:
        """Drop the count of a record that was handled or sent to the dead-letter topic."""
        if self._counts.pop(coordinates, None) is not None:
            self._write()

    def _read(self) -> dict[str, tuple[int, str]]:
        if self.path is None:
            return {}
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, tuple[int, str]])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}  # none yet, or torn by a crash of the machine: counting starts again

    def _write(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(self._counts))
        temporary.replace(self.path)


class InFlight(Protocol):
    """The records being handled, as the guard notes them."""

    left: list[str]

    def holding(self, coordinates: Iterable[str]) -> AbstractContextManager[None]:
        """Keep records noted while they are handled."""


class InFlightFile:
    """Records in flight, in a memory-mapped file that outlives the process: one slot each, never synced.

    Pages handed to the kernel survive the process but not the machine. Losing a count with the machine does no harm.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.truncate(_SLOT * _SLOTS)
            self._slots = mmap.mmap(file.fileno(), _SLOT * _SLOTS)
        self._free = list(range(_SLOTS))
        self.left = self.coordinates
        """Coordinates of the records in flight when the previous process died; empty after an orderly exit."""
        self.clear()

    @property
    def held(self) -> int:
        """Number of records in flight."""
        return _SLOTS - len(self._free)

    @property
    def coordinates(self) -> list[str]:
        """Coordinates of the records in flight."""
        slots = (self._slots[at : at + _SLOT] for at in range(0, _SLOT * _SLOTS, _SLOT))
        return [slot.rstrip(b"\0").decode(errors="replace") for slot in slots if slot[0]]

    @contextlib.contextmanager
    def holding(self, coordinates: Iterable[str]) -> Iterator[None]:
        """Keep records in the file while they are handled; only the death of the process leaves them there."""
        slots = []
        for each in coordinates:
            if not self._free:
                break  # more at once than any room handles; these go uncounted
            slots.append(self._free.pop())
            start = slots[-1] * _SLOT
            self._slots[start : start + _SLOT] = each.encode()[:_SLOT].ljust(_SLOT, b"\0")
        try:
            yield
        finally:
            for slot in slots:
                self._slots[slot * _SLOT] = 0
            self._free += slots

    def clear(self) -> None:
        """Empty the file: the process is exiting deliberately, so the records in flight are not to blame."""
        self._slots[:] = bytes(_SLOT * _SLOTS)
