"""Journals, which interrupted runs resume from, and the record of every run on live questions.

A journal is a file of JSON lines, one for each finished piece of work. Each line is on disk before the next piece of
work starts, so killing the process loses only the work in progress. An incomplete last line is ignored when the file is
read, and removed by the next write.

In a frontier's journal, a line is a game: one row of a table on one history, in one order of the questions, at one
price. It contains the chosen arms, round by round, which determine accuracy and cost. A game is valid for one table of
outcomes and one version of the code, both identified by digests. A verdict is the result of a whole run.

In a recording's journal, the first line contains the settings, and each further line a finished shard. If more variants
of a shard are run later (without early exit or with a different verifier), a line is added. Processes that share a
recording each write their own journal and read those of the others.
"""

import base64
import datetime
import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from schemas.errors import UniscaleError

ROOT = Path(__file__).parents[1]
LIVE_RUNS = ROOT / "experiments" / "live-runs.jsonl"


@dataclass(frozen=True)
class Game:
    """The identity of a game.

    Attributes:
        table: Digest of the outcomes, the texts and the split.
        row: The player's name.
        history: Number of history questions, or `third`; empty for none.
        order: Seed for the order.
        price: The price of linear cost, or the paper's weight for cost.
        batch: Number of queries per batch of decisions.
        code: Digest of the code that chose the arms.
    """

    table: str
    row: str
    history: str
    order: int
    price: float
    batch: int
    code: str


@dataclass
class Journal:
    """Finished games, keyed by identity and stored in a file.

    Attributes:
        path: The file; None keeps the games only in memory.
    """

    path: Path | None = None
    games: dict[Game, list[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """Return the journal in a file; empty if the file does not exist yet."""
        journal = cls(path)
        for line in lines_of(path):
            if "arms" in line:
                arms = np.frombuffer(base64.b64decode(line.pop("arms")), dtype="<u2")
                journal.games[Game(**line)] = arms.tolist()
        return journal

    def keep(self, game: Game, arms: Sequence[int]) -> None:
        """Store a game."""
        self.games[game] = list(arms)
        packed = base64.b64encode(np.array(arms, dtype="<u2").tobytes()).decode()
        self._append({**asdict(game), "arms": packed})

    def conclude(self, verdict: Mapping[str, Any]) -> None:
        """Store the result of a run."""
        self._append({"verdict": verdict})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self.path is not None:
            append(self.path, line)


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file, except an incomplete last one."""
    if path.is_file():
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            if line:
                yield orjson.loads(line)


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line, after removing an incomplete last line, and wait until it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # The incomplete line is unreadable, and a new one must not be appended to it.
                kept = path.read_bytes().rpartition(b"\n")[0]
                file.truncate(len(kept) + bool(kept))
        file.write(orjson.dumps(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def code_digest(*parts: str) -> str:
    """Return a digest of source files, given as files or folders in the repository."""
    digest = hashlib.sha256()
    for part in parts:
        at = ROOT / part
        for file in [at] if at.is_file() else sorted(at.rglob("*.py")):
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def record_live_run(about: Mapping[str, Any], path: Path = LIVE_RUNS) -> None:
    """Record a run on live questions, with the commit, whether files have changed since, and the time."""

    def git(*words: str) -> str:
        told = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return told.stdout.strip()

    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "agents", "experiments/*.py")
    append(path, {"commit": git("rev-parse", "HEAD"), "changed": bool(changed), "date": when, **about})


RunKey = tuple[str, str, bool]
"""Identifies a shard's searches that run together: the shard's name, the verifier, and whether early exit is on."""


class JournalError(UniscaleError):
    """A journal belongs to a different recording. Choose another folder, or the settings it was started with."""


class SearchJournal:
    """The searches of every finished shard of a recording.

    Args:
        path: The journal's file, which is created if missing.
        settings: The settings that the recording depends on. They are stored in the first line.
        beside: Journals for other parts of the same recording.

    Raises:
        JournalError: A file was started with different settings. The message names the first one that differs.
    """

    def __init__(self, path: Path, settings: dict[str, Any], beside: Sequence[Path] = ()) -> None:
        self.path = path
        self.settings = settings
        self.done: set[RunKey] = set()
        self._files = [*(other for other in beside if other != path), path]
        for file in self._files:
            for line in lines_of(file):
                if "settings" in line:
                    self.check(file, line["settings"])
                else:
                    self.done |= _runs(line)
        if next(lines_of(path), None) is None:
            append(path, {"settings": settings})

    def add(self, shard: str, rows: list[dict[str, Any]]) -> None:
        """Write a finished shard, except variants that have already been written."""
        if new := _new({"shard": shard, "rows": rows}, self.done):
            append(self.path, {"shard": shard, "rows": new})
            self.done |= _runs({"shard": shard, "rows": new})

    def check(self, source: Path, begun: Mapping[str, Any]) -> None:
        """Reject a file that was made with different settings.

        Args:
            source: The file, for the message.
            begun: The settings it was made with.

        Raises:
            JournalError: The settings differ. The message names the first difference.
        """
        now = orjson.loads(orjson.dumps(self.settings))
        for name in {**begun, **now}:
            if begun.get(name) != now.get(name):
                raise JournalError(
                    f"{source}, setting {name}: begun with {begun.get(name)!r}, now {now.get(name)!r}; "
                    "choose another folder"
                )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row of every finished shard, including those in the other journals."""
        seen: set[RunKey] = set()
        for file in self._files:
            for line in lines_of(file):
                if "shard" in line:
                    yield from _new(line, seen)
                    seen |= _runs(line)


def journals(folder: Path, task: str) -> list[Path]:
    """Return the journals for all parts of a task's recording."""
    return sorted(folder.glob(f"{task}*.jsonl"))


def _runs(line: Mapping[str, Any]) -> set[RunKey]:
    return {(line["shard"], row["verifier"], row["early_exit"]) for row in line["rows"]}


def _new(line: Mapping[str, Any], seen: set[RunKey]) -> list[dict[str, Any]]:
    """Return the rows of a shard's variants that have not been seen before."""
    return [row for row in line["rows"] if (line["shard"], row["verifier"], row["early_exit"]) not in seen]
