"""The cost of open rows in the decider: the bytes per row in memory, in the file, and in snapshots.

The decider's own code (`LearnerLog` on a `Table` with its file, and `PendingDecisions`) writes rows for queries whose
rewards are waiting for feedback. All rows have the same Decision by the deployment's policy, under different ids. Data
for the broker is counted and discarded. Memory is the growth of the resident set after the first thousand rows.

    python -m bench memory --open 100000
"""

import asyncio
import gc
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from agents.catalogue.action_space import uis_space
from agents.catalogue.control_state import ControlState
from agents.catalogue.file import load_catalogue
from agents.decider.decider import Decider
from agents.decider.eligibility import DecisionEnvironment
from agents.decider.open_rows import ROWS_KEY
from agents.decider.rows import Row, decode_row, encode_row
from agents.embedding import encoder_id
from agents.encoders import encoder_of
from schemas.query import Origin, Query, QueryContext
from streams.metrics import Metrics
from streams.runtime.table import FileRows, PlacedRow, Table
from streams.services.decider import PendingDecisions, action_vectors, policy_of
from streams.services.learner_log import LearnerLog
from streams.settings import Settings
from streams.topics import Topics

T = TypeVar("T")

_FIRST = 1000
_BATCH = 64


class _Table(Table):
    reading = 1  # the number of a recovery from an empty log


class _Runtime:
    """Stands in for the runtime of a `LearnerLog`, but keeps only the sizes of writes."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.topics, self.service = settings, Topics(settings), "decider"
        self.metrics = Metrics(self.service)
        self.log = self.clock = self  # only offsets and the time are used
        self.records = 0
        self.written: dict[str, int] = {"rows": 0, "snapshots": 0}
        self.rows = FileRows(settings.state_path())

    def table(self, name: str, *_: Any, **__: Any) -> Table:
        changelog = self.topics.changelog(self.service, name)
        limit = self.settings.kafka.max_record_bytes
        return _Table(changelog, self._write, lambda: frozenset({0}), limit, self.rows)

    async def _write(self, topic: str, rows: Sequence[PlacedRow]) -> None:
        self.records += topic != self.topics.snapshot
        for key, value, _ in rows:
            if topic == self.topics.snapshot:
                kind = "rows" if key.startswith(ROWS_KEY) else "snapshots"
                self.written[kind] += len(value or b"")

    async def end_offsets(self, topics: Iterable[str]) -> Mapping[tuple[str, int], int]:
        return {(topic, 0): self.records for topic in topics}

    async def first_offsets(self, topics: Iterable[str]) -> Mapping[tuple[str, int], int]:
        return {(topic, 0): 0 for topic in topics}

    async def in_thread(self, work: Callable[[], T]) -> T:
        return work()

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


def measure(settings: Settings, rows: int) -> dict[str, Any]:
    """Return the cost of this many open rows."""
    with tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder:
        settings = settings.replace(
            encoder="hashed",
            encoder_dimension=settings.encoder.dimension or 384,
            prior="none",
            state_dir=folder,
        )
        return asyncio.run(_measure(settings, rows))


async def _measure(settings: Settings, rows: int) -> dict[str, Any]:
    runtime = _Runtime(settings)
    learner_log = LearnerLog(runtime, _recovered)  # type: ignore[arg-type]
    pending = PendingDecisions(runtime)  # type: ignore[arg-type]
    encoder = encoder_of(settings.encoder)
    decider = Decider(policy_of(settings, encoder), seed=settings.policy.seed, encoder=encoder_id(encoder))
    catalogue = load_catalogue(Path(settings.catalogue))
    environment = DecisionEnvironment(ControlState.of(catalogue), uis_space(catalogue))
    await learner_log.write(decider.offer(action_vectors(catalogue, encoder)))
    text = "How many of them are there together? " * 4
    vector = encoder.encode([text])[0].astype("<f4").tobytes()
    origin = Origin(topic=runtime.topics.query, partition=0, offset=0)
    context = QueryContext(
        query=Query(query_id="q", text=text), embedding=vector, encoder=encoder_id(encoder), origin=origin
    )
    (made,) = decider.decide([(context, origin)], lambda query_id: None, environment)
    assert made.row is not None, made.error
    like = decode_row(*made.row)
    assert isinstance(like, Row)

    snapshots: list[dict[str, int]] = []
    base = at_first = 0
    for start in range(0, rows, _BATCH):
        ids = [f"chatcmpl-{at:032x}" for at in range(start, min(start + _BATCH, rows))]
        written = [
            (name.encode(), encode_row(msgspec.structs.replace(like, query_id=name, seq=decider.seq + at)))
            for at, name in enumerate(ids)
        ]
        await learner_log.write(written)
        decider.seq += len(ids)
        for name in ids:
            pending.add(name, start)
        before = dict(runtime.written)
        await learner_log.snapshot_when_due(decider)
        if runtime.written != before:
            snapshots.append({kind: size - before[kind] for kind, size in runtime.written.items()})
        if not base and start + _BATCH >= _FIRST:
            base, at_first = _resident(), start + len(ids)
    after = _resident()
    return {
        "rows": rows,
        "row_bytes": len(written[-1][1]),
        "memory_bytes_a_row": round((after - base) / max(1, rows - at_first)),
        "file_bytes_a_row": round(runtime.rows.file_bytes / rows),
        "snapshots": len(snapshots),
        "newest_snapshot_bytes": sum(snapshots[-1].values()) if snapshots else 0,
        "newest_snapshot_bytes_of_open_rows": snapshots[-1]["rows"] if snapshots else 0,
        "all_snapshots_bytes_of_open_rows": sum(each["rows"] for each in snapshots),
    }


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def _recovered() -> None:
    """Never called, because the log is only written here."""
