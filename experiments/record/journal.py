"""The record of a recording: a line for each finished shard, on disk before the next begins.

A kill at any moment loses only shards in flight: a torn last line is cut off when the journal is opened again. A
shard that is run in further variants later, without early exit or under another verifier, has a further line.
Processes that share a recording write a journal each, and read each other's.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from schemas.errors import UniscaleError

RunKey = tuple[str, str, bool]
"""A shard's name, a verifier, and whether with early exit: the searches of a shard that are run together."""


class JournalError(UniscaleError):
    """A journal is of another recording. Choose another folder, or the settings it was begun with."""


class SearchJournal:
    """The searches of every finished shard.

    Args:
        path: Its file; made when absent.
        settings: What the recording depends on; the first line.
        beside: Journals of other parts of the same recording.

    Raises:
        JournalError: when a file was begun with other settings, naming the first that differs.
    """

    def __init__(self, path: Path, settings: dict[str, Any], beside: Sequence[Path] = ()) -> None:
        self.path = path
        self.settings = settings
        self.done: set[RunKey] = set()
        self._beside = [other for other in beside if other != path]
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in self._beside:
            self._take_up(other, settings)
        if path.exists():
            self._cut()
            self._take_up(path, settings)
        if not path.exists() or path.stat().st_size == 0:
            self._write({"settings": settings})

    def add(self, shard: str, rows: list[dict[str, Any]]) -> None:
        """Write a finished shard, each of its variants once."""
        if new := _new({"shard": shard, "rows": rows}, self.done):
            self._write({"shard": shard, "rows": new})
            self.done |= _keys({"shard": shard, "rows": new})

    def take_over(
        self, source: Path, settings: dict[str, Any], shards: Mapping[str, list[dict[str, Any]]]
    ) -> None:
        """Write the shards of an earlier recording whose journal is gone.

        Args:
            source: Its file, for the message.
            settings: It was made with.
            shards: Rows by shard.

        Raises:
            JournalError: made with other settings, naming the first that differs.
        """
        self._check(source, settings, self.settings)
        for shard, rows in shards.items():
            self.add(shard, rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row of every finished shard, of the journals beside it too."""
        seen: set[RunKey] = set()
        for path in (*self._beside, self.path):
            for line in _whole_lines(path)[1:]:
                entry = orjson.loads(line)
                yield from _new(entry, seen)
                seen |= _keys(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(orjson.dumps(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _cut(self) -> None:
        with self.path.open("r+b") as file:
            file.truncate(sum(len(line) + 1 for line in _whole_lines(self.path)))

    def _take_up(self, path: Path, settings: dict[str, Any]) -> None:
        lines = _whole_lines(path)
        if not lines:
            return
        self._check(path, orjson.loads(lines[0])["settings"], settings)
        for line in lines[1:]:
            self.done |= _keys(orjson.loads(line))

    @staticmethod
    def _check(path: Path, begun: dict[str, Any], settings: dict[str, Any]) -> None:
        now = orjson.loads(orjson.dumps(settings))
        for name in {**begun, **now}:
            if begun.get(name) != now.get(name):
                raise JournalError(
                    f"{path}, setting {name}: begun with {begun.get(name)!r}, now {now.get(name)!r}; "
                    "choose another folder"
                )


def _keys(entry: dict[str, Any]) -> set[RunKey]:
    return {(entry["shard"], row["verifier"], row["early_exit"]) for row in entry["rows"]}


def _new(entry: dict[str, Any], seen: set[RunKey]) -> list[dict[str, Any]]:
    """Return the rows of an entry's variants that were not seen before it."""
    return [row for row in entry["rows"] if (entry["shard"], row["verifier"], row["early_exit"]) not in seen]


def journals(folder: Path, task: str) -> list[Path]:
    """Return the journals of all parts of a task's recording."""
    return sorted(folder.glob(f"{task}*.jsonl"))


def _whole_lines(path: Path) -> list[bytes]:
    """Return a file's lines but for a torn last one: whoever writes it may have been killed, or be writing."""
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1].splitlines()
