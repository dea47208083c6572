"""The decider after many queries: memory, startup time, and whether duplicates of ended queries are recognised.

The decider's own code (`Decider`, `LearnerLog`) writes the learner's log to a broker, row by row, with its snapshots
and tombstones. A decider process then starts from this log and reports the time it spends reading and folding. For
queries beyond `lived`, only the ids of ended queries are recorded, because such queries do not add to the policy's size
and their rows would have left the log.

    python -m bench closed 1000000
    UNISCALE_SNAPSHOT_EVERY=0 python -m bench closed 10000 --lived 10000 --half 1024    # no snapshot
"""

import asyncio
import os
import re
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from agents.catalogue.action_space import uis_space
from agents.catalogue.control_state import ControlState
from agents.catalogue.file import load_catalogue
from agents.decider.decider import Decider
from agents.decider.decisions import DecisionResult
from agents.decider.eligibility import DecisionEnvironment
from agents.decider.snapshot import EndedIds
from agents.embedding import Encoder, encoder_id
from agents.encoders import encoder_of
from bench.streams import cpu_s
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode, encode
from schemas.reward import Reward, reward_id
from streams.local.broker import free_port
from streams.local.deployment import Supervisor, service_commands
from streams.log import kafka_admin, kafka_clients
from streams.log.blocking import read_all
from streams.metrics import Metrics
from streams.runtime.table import PlacedRow
from streams.services.decider import action_vectors, policy_of
from streams.services.learner_log import LearnerLog
from streams.settings import Settings
from streams.topics import SHARD, Topics

T = TypeVar("T")

_BATCH = 64
_AGAIN = 100


def measure(
    settings: Settings, queries: int, lived: int, half: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the decider's memory, startup time and handling of duplicates.

    Args:
        settings: The deployment's settings, including the catalogue to choose actions from.
        queries: Number of ended queries.
        lived: How many of these queries are decided and learned from; for the others, only ids are recorded.
        half: The length of s_q and of s_a; d is twice that.
        say: Called with a line for each stage.

    Raises:
        BrokerUnreachable: no broker answers.
        ServiceFailed: the decider does not start.
        LookupError: the decider does not recover, decides no new query, or decides a duplicate.
    """
    lived = min(lived, queries)
    with tempfile.TemporaryDirectory() as folder:
        settings = settings.replace(
            prefix=f"closed-{uuid.uuid4().hex[:6]}.",
            encoder="hashed",
            encoder_dimension=half,
            state_dir=folder,
            warm_up=0,
            heartbeat_grace_s=0.1,
            snapshot_every=_snapshot_every(settings, queries, lived),
        )
        topics = Topics(settings)
        kafka_admin.create(settings, topics.declared(load_catalogue(Path(settings.catalogue)).groups))
        say(f"writing the log of {queries:,} queries, {lived:,} of them decided and learned")
        encoder = encoder_of(settings.encoder)
        began_s, began_cpu = time.monotonic(), time.process_time()
        writer = _Writer(settings)
        seq = asyncio.run(_life(writer, encoder, queries, lived))
        writer.producer.close()
        say(
            f"{writer.ends[writer.changelog]:,} records of rows written in {time.monotonic() - began_s:.0f} s "
            f"({time.process_time() - began_cpu:.0f} s of processor time); {len(writer.rows):,} rows are left"
        )
        say("starting the decider")
        return {
            "queries": queries,
            "lived": lived,
            "d": 2 * half,
            "log_records": writer.ends[writer.changelog],
            "rows_left": len(writer.rows),
            **_started(settings, encoder, queries, seq, Path(folder) / "decider.log"),
        }


def _snapshot_every(settings: Settings, queries: int, lived: int) -> int:
    """Return the configured interval, reduced if necessary so that a snapshot includes the recorded ids."""
    every = settings.policy.snapshot_every
    return every if lived == queries else min(every or lived, lived)


class _Writer:
    """Stands in for the runtime and the table of a `LearnerLog`, with one plain producer."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.topics, self.service = settings, Topics(settings), "decider"
        self.changelog = self.topics.changelog(self.service, "pending")
        self.metrics = Metrics(self.service)
        self.rows: dict[bytes, bytes] = {}
        self.ends = {self.changelog: 0, self.topics.snapshot: 0}
        self.producer = kafka_clients.producer(settings, linger_ms=20, batch_size=1 << 19)
        self.log = self.clock = self  # only offsets and the time are used
        self.reading = 1  # the number of a recovery from an empty log
        self._pending: list[Any] = []

    def table(self, *_: Any, **__: Any) -> "_Writer":
        return self

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self.rows))

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    async def put_all(self, rows: Iterable[PlacedRow]) -> None:
        for key, value, _ in rows:
            self._send(self.changelog, key, value)
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    async def post(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            self._send(topic, key, value)

    def _send(self, topic: str, key: bytes, value: bytes | None) -> None:
        self._pending.append(self.producer.send(topic, key=key, value=value, partition=0))
        self.ends[topic] += 1
        if len(self._pending) >= 1000:
            for delivery in self._pending:
                delivery.get(timeout=120)
            self._pending.clear()

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        return {(topic, 0): self.ends[topic] for topic in topics}

    async def first_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        return {(topic, 0): 0 for topic in topics}

    async def in_thread(self, work: Callable[[], T]) -> T:
        return work()

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        return time.monotonic()


async def _recovered() -> None:
    """Never called, because the log is only written here."""


async def _life(writer: _Writer, encoder: Encoder, queries: int, lived: int) -> int:
    """Let a decider decide and learn, and write its log; return the next sequence number."""
    settings = writer.settings
    ended = EndedIds(settings.policy.remembered_ids)
    for at in range(queries - lived):
        ended.add(f"c{at}", Origin(topic=writer.topics.query, partition=0, offset=at), at)
    decider = Decider(
        policy_of(settings, encoder), seed=settings.policy.seed, encoder=encoder_id(encoder), ended=ended
    )
    recovered: Callable[[], Awaitable[None]] = _recovered
    learner_log = LearnerLog(writer, recovered)  # type: ignore[arg-type]
    catalogue = load_catalogue(Path(settings.catalogue))
    environment = DecisionEnvironment(ControlState.of(catalogue), uis_space(catalogue))
    await learner_log.write(decider.offer(action_vectors(catalogue, encoder)))
    rng = np.random.default_rng(settings.policy.seed)
    for start in range(queries - lived, queries, _BATCH):
        asked = [
            (
                _context(settings, encoder, rng, at, at),
                Origin(topic=writer.topics.context, partition=0, offset=at),
            )
            for at in range(start, min(start + _BATCH, queries))
        ]
        made = decider.decide(asked, _no_row, environment)
        table = {d.query_id: d.row[1] for d in made if d.row}
        await learner_log.write(each.row for each in made if each.row)
        rewards = [(_drawn_reward(each, rng), start + at) for at, each in enumerate(made)]
        learned = decider.learn(rewards, table.get)
        await learner_log.write(row for each in learned for row in each.rows)
        await learner_log.snapshot_when_due(decider)
    writer.producer.flush()
    return decider.seq


def _drawn_reward(decided: DecisionResult, rng: np.random.Generator) -> Reward:
    """Return a final reward with random terms."""
    assert decided.value is not None, decided.error
    decision = decode(decided.value, Decision)
    return Reward(
        reward_id=reward_id(decided.query_id, "final"),
        query_id=decided.query_id,
        kind="final",
        seq=decision.seq,
        action=decision.action,
        status="ok",
        correct=float(rng.random() < 0.5),
        score=float(rng.random()),
        log_cost=float(rng.uniform(26.0, 36.0)),
        price=None,
        objective=decision.objective,
    )


def _no_row(query_id: str) -> bytes | None:
    return None


def _context(
    settings: Settings, encoder: Encoder, rng: np.random.Generator, number: int, at: int
) -> QueryContext:
    row = rng.normal(size=encoder.dimension)
    return QueryContext(
        query=Query(
            query_id=f"c{number}", text=f"Question {number}: how many are there of them together? " * 4
        ),
        embedding=(row / np.linalg.norm(row)).astype("<f4").tobytes(),
        encoder=encoder_id(encoder),
        origin=Origin(topic=Topics(settings).query, partition=0, offset=at),
    )


def _started(settings: Settings, encoder: Encoder, queries: int, seq: int, log: Path) -> dict[str, Any]:
    """Start the decider's process, measure its recovery, and send it Contexts of ended queries.

    Raises:
        LookupError: the decider did not recover in ten minutes (the message ends with its log), or decided a duplicate.
    """
    port = free_port()
    command = [*service_commands([])["decider"], "--metrics-port", str(port)]
    environ = {"OMP_NUM_THREADS": "1", **os.environ, **settings.environ()}
    began_s = time.monotonic()
    with Supervisor({"decider": command}, environ=environ, log_path=log) as supervisor:
        supervisor.wait_ready(300)
        while not (took := _recovery_seconds(port)):
            if time.monotonic() - began_s > 600:
                raise LookupError(f"the decider did not recover in 600 s:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        ready_s, pid = time.monotonic() - began_s, supervisor.services["decider"].pid
        ready_cpu_s = cpu_s(pid)
        at_start = _memory_mb(pid)
        refused = _again(settings, encoder, queries, seq)
        now = _memory_mb(pid)
    return {
        "ready_s": round(ready_s, 2),
        "ready_cpu_s": round(ready_cpu_s, 2),
        "read_s": round(took["read"], 3),
        "fold_s": round(took["fold"], 3),
        "rss_mb": max(at_start["VmRSS"], now["VmRSS"]),
        "peak_mb": now["VmHWM"],
        "duplicates_sent": _AGAIN,
        "duplicates_refused": refused,
        "duplicates_decided": 0,
    }


def _recovery_seconds(port: int) -> dict[str, float]:
    """From the decider's metrics, return how many seconds each part of its recovery took; empty until it recovers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r'^uniscale_recovery_seconds{part="(\w+)"} (\S+)$', text, re.MULTILINE)
    return {part: float(value) for part, value in found}


def _again(settings: Settings, encoder: Encoder, queries: int, seq: int) -> int:
    """Send Contexts of ended queries, half of them with a new origin; return how many were refused as duplicates.

    A Context with the original origin gets its Decision again as long as the query's row is in the log. That Decision's
    sequence number is below `seq`.

    Raises:
        LookupError: no new query is decided, or a query that had ended is decided again.
    """
    topics, rng = Topics(settings), np.random.default_rng(1)
    producer = kafka_clients.producer(settings)
    numbers = rng.integers(0, queries, _AGAIN).tolist()
    for n, number in enumerate(numbers):
        context = _context(settings, encoder, rng, number, number + (queries if n % 2 else 0))
        producer.send(topics.context, key=SHARD, value=encode(context), partition=0).get(timeout=60)
    last = _context(settings, encoder, rng, queries, queries)
    producer.send(topics.context, key=SHARD, value=encode(last), partition=0).get(timeout=60)
    producer.close()
    deadline = time.monotonic() + 120
    while not (decided := [each for each in _decisions(settings) if each.seq >= seq]):
        if time.monotonic() > deadline:
            raise LookupError("the decider did not decide a new query in 120 s")
        time.sleep(0.2)
    if (found := [each.query_id for each in decided]) != [f"c{queries}"]:
        raise LookupError(f"queries that had ended were decided again: {found[:5]}")
    letters = [decode(r.value, DeadLetter) for r in read_all(settings, [topics.dead_letter])]
    return sum(letter.error == "DuplicateQuery" for letter in letters)


def _decisions(settings: Settings) -> list[Decision]:
    topic = Topics(settings).decision
    return [decode(record.value, Decision) for record in read_all(settings, [topic])]


def _memory_mb(pid: int) -> dict[str, float]:
    """Return a process's current and peak resident memory, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    return {name: round(int(sizes[name].split()[0]) / 1024, 1) for name in ("VmRSS", "VmHWM")}
