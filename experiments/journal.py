"""What was made, so that an interrupted run goes on where it stopped; and who looked at live questions when.

A journal is a file of JSON lines, one for what is finished, on disk before the next begins: a kill at any moment loses
only what is under way, and the line that it cut short is left out, and gone with the next.

Of a frontier a line is a game: one row of a table on one history, in one order of the questions, at one price: the arms
it took, round by round, from which accuracy and cost follow. It belongs to one table of outcomes and to one version of
the code that chose, both by digest: with others it counts as nothing. A verdict is what a whole run came to.

Of a recording the first line holds the settings, and each further one a finished shard. A shard that is run in further
variants later, without early exit or under another verifier, has a further line. Processes that share a recording write
a journal each, and read each other's.
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
    """What identifies a game.

    Attributes:
        table: Digest of the outcomes, the texts and the split.
        row: Name of the player.
        history: How many questions of history, or `third`; empty for none.
        order: Its seed.
        price: Of linear cost, or the paper's weight of it.
        batch: Decisions made together.
        code: Digest of what chose.
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
    """Games by what identifies them, and where they are kept.

    Attributes:
        path: None keeps them in memory alone.
    """

    path: Path | None = None
    games: dict[Game, list[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """Return what a file holds; one that is not there yet holds nothing."""
        journal = cls(path)
        for line in lines_of(path):
            if "arms" in line:
                arms = np.frombuffer(base64.b64decode(line.pop("arms")), dtype="<u2")
                journal.games[Game(**line)] = arms.tolist()
        return journal

    def keep(self, game: Game, arms: Sequence[int]) -> None:
        """Keep a game."""
        self.games[game] = list(arms)
        packed = base64.b64encode(np.array(arms, dtype="<u2").tobytes()).decode()
        self._append({**asdict(game), "arms": packed})

    def conclude(self, verdict: Mapping[str, Any]) -> None:
        """Keep what a run came to."""
        self._append({"verdict": verdict})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self.path is not None:
            append(self.path, line)


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; the last one, cut short by a kill, is left out."""
    if path.is_file():
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            if line:
                yield orjson.loads(line)


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line and wait until it is on disk; one that was cut short goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # Unreadable it was anyway; nothing may be appended to it.
                kept = path.read_bytes().rpartition(b"\n")[0]
                file.truncate(len(kept) + bool(kept))
        file.write(orjson.dumps(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def code_digest(*parts: str) -> str:
    """Return a digest of source files, named as paths or folders in the repository."""
    digest = hashlib.sha256()
    for part in parts:
        at = ROOT / part
        for file in [at] if at.is_file() else sorted(at.rglob("*.py")):
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def record_live_run(about: Mapping[str, Any], path: Path = LIVE_RUNS) -> None:
    """Append who looked at live questions: commit, whether files were changed since, time and what was run."""

    def git(*words: str) -> str:
        told = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return told.stdout.strip()

    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "agents", "experiments/*.py")
    append(path, {"commit": git("rev-parse", "HEAD"), "changed": bool(changed), "date": when, **about})


RunKey = tuple[str, str, bool]
"""A shard's name, a verifier, and whether with early exit: the searches of a shard that are run together."""


class JournalError(UniscaleError):
    """A journal is of another recording. Choose another folder, or the settings it was begun with."""


class SearchJournal:
    """The searches of every finished shard of a recording.

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
        """Write a finished shard, each of its variants once."""
        if new := _new({"shard": shard, "rows": rows}, self.done):
            append(self.path, {"shard": shard, "rows": new})
            self.done |= _runs({"shard": shard, "rows": new})

    def check(self, source: Path, begun: Mapping[str, Any]) -> None:
        """Refuse what was made with other settings.

        Args:
            source: Its file, for the message.
            begun: The settings it was made with.

        Raises:
            JournalError: naming the first that differs.
        """
        now = orjson.loads(orjson.dumps(self.settings))
        for name in {**begun, **now}:
            if begun.get(name) != now.get(name):
                raise JournalError(
                    f"{source}, setting {name}: begun with {begun.get(name)!r}, now {now.get(name)!r}; "
                    "choose another folder"
                )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row of every finished shard, of the journals beside it too."""
        seen: set[RunKey] = set()
        for file in self._files:
            for line in lines_of(file):
                if "shard" in line:
                    yield from _new(line, seen)
                    seen |= _runs(line)


def journals(folder: Path, task: str) -> list[Path]:
    """Return the journals of all parts of a task's recording."""
    return sorted(folder.glob(f"{task}*.jsonl"))


def _runs(line: Mapping[str, Any]) -> set[RunKey]:
    return {(line["shard"], row["verifier"], row["early_exit"]) for row in line["rows"]}


def _new(line: Mapping[str, Any], seen: set[RunKey]) -> list[dict[str, Any]]:
    """Return the rows of a shard's variants that were not seen before it."""
    return [row for row in line["rows"] if (line["shard"], row["verifier"], row["early_exit"]) not in seen]
