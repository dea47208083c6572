"""The learner killed under load: after each restart it is the fold of its log, and no reward counts twice or not.

The decider's process is real; this test plays the services around it. It asks, and answers each Decision with the
rewards of one of six lives: some in two stages, some out of order, some repeated, some never learned.
"""

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from agents.decider.policy_fold import fold, register_actions
from agents.decider.rows import ActionRow, AnyRow, Row, decode_row
from agents.decider.snapshot import is_record, versions
from agents.decider.verify import load_replay, mismatches
from agents.embedding import encoder_id
from agents.encoders import encoder_of
from schemas.decision import Decision
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode, encode
from streams.log import kafka_clients
from streams.services.decider import policy_of
from streams.topics import SHARD
from tests.support.deployment import Deploy, Deployment
from tests.support.records import reward_for

pytestmark = pytest.mark.broker

# Kinds of reward in the order they are sent, and how many of them the policy counts.
LIVES = [
    (("final",), 1),
    (("provisional", "correction"), 2),
    (("provisional", "default"), 1),
    (("failed",), 0),
    (("correction", "provisional"), 1),
    (("final", "final"), 1),
]


# A slow decider must not have ever more to catch up with.
MOST_UNDECIDED = 100


def read(log: dict[bytes, bytes]) -> list[AnyRow]:
    """Return the rows of a log, without the snapshots among them."""
    return [decode_row(k, v) for k, v in list(log.items()) if not is_record(k)]


class Around:
    """The services around the decider: contexts in, decisions out, rewards in; what was sent is remembered."""

    def __init__(self, loop: Deployment) -> None:
        self.loop, self.topics = loop, loop.topics
        self.encoder = encoder_of(loop.settings.encoder)
        self.rng = np.random.default_rng(5)
        self.contexts: dict[str, QueryContext] = {}
        self.decisions: dict[str, bytes] = {}
        self.terms: dict[str, dict[str, float]] = {}
        self.log: dict[bytes, bytes] = {}
        self.ever: dict[bytes, bytes] = {}
        # Queries before this one are no longer on the broker, so nobody can send their Contexts again.
        self.oldest = 0
        self.asking = threading.Event()
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._producer = kafka_clients.producer(loop.settings)
        self._reader = kafka_clients.consumer(loop.settings)
        self._parts = [
            TopicPartition(t, p)
            for t in (
                self.topics.decision,
                self.topics.changelog("decider", "pending"),
                self.topics.snapshot,
            )
            for p in self._reader.partitions_for_topic(t)
        ]
        self._reader.assign(self._parts)
        self._reader.seek_to_beginning()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.over.set()
        self._thread.join(60)
        self._reader.close()
        self._producer.close()

    def ask(self) -> str:
        """Send one Context, at times one that was sent before."""
        at = len(self.contexts)
        if at > self.oldest and self.rng.random() < 0.05:
            again = self.contexts[f"q{int(self.rng.integers(self.oldest, at))}"]
            self._send(self.topics.context, again)
            return again.query_id
        row = self.rng.normal(size=self.encoder.dimension)
        query = Query(query_id=f"q{at}", text=f"Question {at}?")
        origin = self._producer.send(self.topics.query, key=b"0", value=encode(query), partition=0).get(60)
        context = QueryContext(
            query=query, embedding=(row / np.linalg.norm(row)).astype("<f4").tobytes(),
            encoder=encoder_id(self.encoder),
            origin=Origin(topic=self.topics.query, partition=0, offset=origin.offset),
        )  # fmt: skip
        self.contexts[query.query_id] = context
        self._send(self.topics.context, context)
        return query.query_id

    def send(self, context: QueryContext) -> None:
        """Send one Context as it is."""
        self._send(self.topics.context, context)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; what went wrong around the decider is raised here."""

        def sound() -> bool:
            if self.error is not None:
                raise self.error
            return condition()

        self.loop.until(sound, what=what)

    def settled(self) -> bool:
        """Say whether every Context has its Decision, and every Decision's row has had all its rewards."""
        rows = self.rows(self.ever)
        return set(self.contexts) == set(self.decisions) == {row.query_id for row in rows} and all(
            row.stage in ("closed", "abandoned") for row in rows
        )

    def end_of(self, topic: str) -> int:
        """Return the offset that the next record of a topic of one partition gets."""
        reader = kafka_clients.consumer(self.loop.settings)
        self._producer.flush()
        part = TopicPartition(topic, 0)
        end = reader.end_offsets([part])[part]
        reader.close()
        return int(end)

    @staticmethod
    def rows(log: dict[bytes, bytes]) -> list[Row]:
        return [row for row in read(log) if isinstance(row, Row)]

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                for record in [r for rs in self._reader.poll(20).values() for r in rs]:
                    self._take(record)
                for _ in range(3 if self.asking.is_set() else 0):
                    if len(self.contexts) - len(self.decisions) < MOST_UNDECIDED:
                        self.ask()
        except BaseException as error:
            self.error = error

    def _take(self, record: Any) -> None:
        if record.topic != self.topics.decision:
            if record.value is None:
                self.log.pop(record.key, None)
            else:
                self.log[record.key] = self.ever[record.key] = record.value
            return
        decision = decode(record.value, Decision)
        first = self.decisions.setdefault(decision.query_id, record.value)
        assert first == record.value, f"{decision.query_id} was decided twice"
        if decision.query_id not in self.terms:
            self._reward(decision)

    def _reward(self, decision: Decision) -> None:
        number = int(decision.query_id[1:])
        rng = np.random.default_rng(number)
        terms = {
            "correct": float(rng.random() < 0.5), "score": float(rng.random()),
            "log_cost": float(rng.uniform(21.0, 27.0)),
        }  # fmt: skip
        self.terms[decision.query_id] = terms
        for name in LIVES[number % len(LIVES)][0]:
            told = terms if name in ("final", "correction") else terms | {"correct": None}
            failed = {"status": "failed", "score": None, "log_cost": None} if name == "failed" else {}
            kind: Any = "default" if failed else name
            self._send(self.topics.reward, reward_for(decision, kind, **(told | failed)))

    def _send(self, topic: str, record: Any) -> None:
        self._producer.send(topic, key=SHARD, value=encode(record))


def shown(around: Around) -> dict[str, Any]:
    """Return what the running process has learned, after everything before has settled."""
    state = Path(around.loop.settings.state_dir)
    around.asking.clear()
    around.until(around.settled, what="a quiet log")
    (state / "shown.npz").unlink(missing_ok=True)
    (state / "show").touch()
    around.ask()
    around.until((state / "shown.npz").exists, what="the learner's state")
    around.until(around.settled, what="a quiet log")
    with np.load(state / "shown.npz") as found:
        return dict(found)


def check(around: Around) -> None:
    """Compare the live learner with the fold of its log, and with what was sent, computed plainly."""
    live = shown(around)
    settings = around.loop.settings
    until = int(live["seq"])
    rows = around.rows(around.ever)
    told = [row for row in rows if row.seq < until]
    # The probe that asked for the state may have been rewarded since.
    told = [row if row.last_seq < until else pending(row) for row in told]
    policy: Any = policy_of(settings, around.encoder)
    register_actions(policy, [r for r in read(around.ever) if isinstance(r, ActionRow)])
    fold(policy, told)
    gram = policy.inner.gram
    gram.flush()
    whole = np.tril(gram.a) + np.tril(gram.a, -1).T
    for name, folded in (("a", whole), ("b", gram.b), ("theta", gram.theta)):
        assert np.abs(live[name] - folded).max() <= 1e-9 * max(1.0, np.abs(folded).max()), name
    assert policy.version == live["version"]
    assert sorted(p for row in told for p in row.seqs if p >= 0) == list(range(until))

    counted = 0
    a, b = np.eye(len(whole)), np.zeros_like(gram.b)
    for row in told:
        life, updates = LIVES[int(row.query_id[1:]) % len(LIVES)]
        if row.stage == "pending" or not updates:
            continue
        counted += updates
        terms = around.terms[row.query_id]
        correct = terms["score"] if life == ("provisional", "default") else terms["correct"]
        place = policy.inner.features.index[decode(around.decisions[row.query_id], Decision).action.id]
        s_q = np.frombuffer(around.contexts[row.query_id].embedding, "<f4").astype(float)
        x = policy.inner.features.joint(s_q[None], [place])[0]
        a += np.outer(x, x)
        b += np.outer(x, [correct, terms["score"], terms["log_cost"], 1.0])
    assert counted == live["version"], "a reward was lost or counted twice"
    assert np.abs(live["a"] - a).max() <= 1e-9 * np.abs(a).max()
    assert np.abs(live["b"] - b).max() <= 1e-9 * np.abs(b).max()


def pending(row: Row) -> Row:
    """Return a row as it was before its first reward."""
    return Row(
        query_id=row.query_id, seq=row.seq, clock=row.clock, action=row.action, embedding=row.embedding,
        objective=row.objective, query_origin=row.query_origin, context_origin=row.context_origin,
        decision=row.decision, batch=row.batch,
    )  # fmt: skip


@pytest.fixture(scope="module")
def around(deploy: Deploy) -> Iterator[Around]:
    mortal = [sys.executable, "-m", "tests.support.mortal_decider"]
    loop = deploy(
        only=("decider",), commands={"decider": mortal}, heartbeat_grace_s=0.1,
        snapshot_every=150, query_partitions=1, policy="linucb",
    )  # fmt: skip
    made = Around(loop)
    made.asking.set()
    made.until(lambda: len(made.decisions) >= 30, what="first decisions")
    yield made
    made.close()


def revived(around: Around, die: Callable[[], None]) -> None:
    """Let the decider run under load, die and come back, then check it."""
    service = around.loop.supervisor.services["decider"]
    before = len(around.decisions)
    # A supervisor waits longer after each death, and gives up after some; these here are no fault of the service.
    service.restarts, service.pause_s = 0, 0.1
    around.asking.set()
    around.until(lambda: len(around.decisions) >= before + 20, what="decisions under load")
    die()
    around.until(lambda: service.restarts > 0, what="its death")
    around.loop.supervisor.wait_ready(240)
    check(around)


@pytest.mark.parametrize(
    "point",
    [
        "decision",
        "manifest",
        *(pytest.param(each, marks=pytest.mark.thorough) for each in ("row", "reward", "start")),
    ],
)
def test_a_death_between_two_writes_changes_nothing(around: Around, point: str) -> None:
    armed = Path(around.loop.settings.state_dir) / f"die-{point}"
    revived(around, armed.touch)
    assert not armed.exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_deaths_at_random_moments_change_nothing(around: Around) -> None:
    rng = random.Random(11)

    def die() -> None:
        time.sleep(rng.uniform(0.0, 1.5))
        around.loop.supervisor.kill("decider")

    for _ in range(20):
        revived(around, die)


@pytest.mark.kafka("the embedded broker takes offsets from members of the group alone")
def test_a_commit_that_ran_ahead_of_the_log_is_taken_back(around: Around) -> None:
    loop, topics = around.loop, around.topics
    around.asking.clear()
    around.until(around.settled, what="a quiet log")
    loop.suspend("decider")
    skipped = [around.ask() for _ in range(12)]
    end = around.end_of(topics.context)

    admin = kafka_clients.admin(loop.settings)
    group = topics.app_id("decider")
    offsets = {TopicPartition(topics.context, 0): OffsetAndMetadata(end, "", -1)}

    def altered() -> bool:
        try:
            return all(error.errno == 0 for error in admin.alter_group_offsets(group, offsets).values())
        except Exception:
            return False  # while the dead member's session lasts

    around.until(altered, what="the group's offsets past what was decided")
    admin.close()
    loop.supervisor.kill("decider")
    around.until(lambda: set(skipped) <= set(around.decisions), what="decisions of what was skipped")
    assert "reading again from there" in loop.log.read_text()
    check(around)


def test_rows_leave_after_two_snapshots_and_stay_known(around: Around) -> None:
    loop = around.loop
    around.asking.set()
    around.until(lambda: len(around.rows(around.log)) < len(around.rows(around.ever)), what="rows dropped")
    revived(around, lambda: loop.supervisor.kill("decider"))
    log: dict[bytes, bytes] = {}

    def two_snapshots() -> bool:
        """Nothing is asked any more, but the snapshot of the last rewards may still be on its way."""
        log.clear()
        log.update(around.log.copy())
        return len(versions(log)) == 2

    around.until(two_snapshots, what="the snapshots before the last two to leave")
    policy = policy_of(loop.settings, around.encoder)
    rows, after = load_replay(policy, log)
    assert after == min(versions(log))
    assert list(mismatches(policy, rows, loop.settings.policy.seed, after)) == []
    # Contexts of rows that are gone were sent again all along; none was decided a second time, and now neither.
    gone = next(q for q in around.contexts if q.encode() not in around.log)
    around.send(around.contexts[gone])
    other = msgspec.structs.replace(
        around.contexts[gone], origin=Origin(topic="query", partition=0, offset=10**6)
    )
    around.send(other)
    letters = lambda: [r for r in loop.raw(loop.topics.dead_letter) if gone.encode() in r.value]  # noqa: E731
    around.until(lambda: bool(letters()), what="the duplicate's dead letter")
    assert len(letters()) == 1
    check(around)
