"""The record of a recording: one line a finished shard, on disk before the next begins.

A kill at any moment loses only shards in flight: a torn last line is cut off when the journal is opened again.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from schemas.errors import UniscaleError


class JournalError(UniscaleError):
    """A journal is of another recording. Choose another folder, or the settings it was begun with."""


class Journal:
    """Shards by name.

    Args:
        path: Its file; made when absent.
        settings: What the recording depends on; the first line.

    Raises:
        JournalError: when the file was begun with other settings, naming the first that differs.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.done: set[str] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._resume(settings)
        if not path.exists() or path.stat().st_size == 0:
            self._write({"settings": settings})

    def add(self, shard: str, rows: list[dict[str, Any]]) -> None:
        """Write a finished shard, once."""
        if shard not in self.done:
            self._write({"shard": shard, "rows": rows})
            self.done.add(shard)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row of every finished shard."""
        for line in self.path.read_bytes().splitlines()[1:]:
            yield from orjson.loads(line)["rows"]

    def _write(self, entry: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(orjson.dumps(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _resume(self, settings: dict[str, Any]) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self.path.open("r+b") as file:
                file.truncate(whole)
        lines = content[:whole].splitlines()
        if not lines:
            return
        begun = orjson.loads(lines[0])["settings"]
        for name in {**begun, **settings}:
            if begun.get(name) != orjson.loads(orjson.dumps(settings)).get(name):
                raise JournalError(
                    f"{self.path}, setting {name}: begun with {begun.get(name)!r}, now {settings.get(name)!r}; "
                    "choose another folder"
                )
        self.done = {orjson.loads(line)["shard"] for line in lines[1:]}
