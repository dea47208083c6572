"""What was played, so that an interrupted run goes on where it stopped; and who looked at live questions when.

A journal is a file of JSON lines. A game is one row of a table on one history, in one order of the questions, at one
price: the arms it took, round by round, from which accuracy and cost follow. It belongs to one table of outcomes and to
one version of the code that chose, both by digest: with others it counts as nothing. A verdict is what a whole run
came to.
"""

import base64
import datetime
import hashlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

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
    """Append one line, after an end to one that was cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                # Unreadable it was anyway; nothing may be appended to it.
                kept = path.read_bytes().rpartition(b"\n")[0]
                file.truncate(len(kept) + bool(kept))
        file.write(orjson.dumps(line) + b"\n")


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
