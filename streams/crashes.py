"""Count failures at one record across restarts, so that the third makes it a dead letter.

An unknown error ends the process before its offset moves, and the record is read again by the process that
follows. Without a count, a record that always fails would stop its partition for ever.
"""

from pathlib import Path

import orjson

LIMIT = 3


class Crashes:
    """The failures of one worker, kept in a small file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, coordinates: str) -> int:
        """Count one more failure at a record and return how many there are now."""
        counts = self._read()
        counts[coordinates] = counts.get(coordinates, 0) + 1
        self._write(counts)
        return counts[coordinates]

    def forget(self, coordinates: str) -> None:
        """Stop counting a record that was given up or got through."""
        counts = self._read()
        if counts.pop(coordinates, None) is not None:
            self._write(counts)

    def _read(self) -> dict[str, int]:
        try:
            counts = orjson.loads(self.path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return {}  # none yet, or torn by a crash of the machine: counting starts again
        return {str(k): int(v) for k, v in counts.items()} if isinstance(counts, dict) else {}

    def _write(self, counts: dict[str, int]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_bytes(orjson.dumps(counts))
        temporary.replace(self.path)
