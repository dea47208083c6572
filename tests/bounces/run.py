"""One run: services answer a stream of queries with feedback while a fault strikes, then all must end as if it had not.

The services run as processes, reach the nodes through a proxy and answer from a recording. Who asks, reads and audits
is spared the proxy, not the nodes' bounces. The decider and the aggregator have two workers, so that one can take over.
"""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from kafka.errors import KafkaError
from msgspec import Struct

from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.record import Record, encode
from schemas.reward import Feedback
from streams.commit import commit_of
from streams.local.deployment import python
from streams.log import kafka_clients
from tests.bounces.faults import FAULTS, SESSION_S, Stage
from tests.support.deployment import Deployment, recorded_in
from tests.support.nodes import Nodes
from tests.support.proxy import Proxy
from tests.support.recorded import question

QUERIES: Final = 100
"""Queries of a run, at least: they go on while the fault strikes."""

RATE: Final = 5.0
"""Queries a second."""


class Run(Struct, kw_only=True, frozen=True):
    """What became of one run.

    Attributes:
        fault: A key of `FAULTS`.
        seed: What its moments, victims and spans are drawn from.
        commit: The commit that was run.
        date: The day.
        failed: What is wrong, in words; empty if all is well.
        strikes: What was done, in words.
        queries: How many were asked.
        drained_s: Seconds from the end of the last strike, or the last query if that came later, until the rewards of
            all queries were closed.
        restarts: How often each service's process ended by itself, where it did.
    """

    fault: str
    seed: int
    commit: str
    date: str
    failed: str = ""
    strikes: tuple[str, ...] = ()
    queries: int = 0
    drained_s: float = 0.0
    restarts: dict[str, int] = {}


class Traffic:
    """Queries at a steady rate from a thread: half have a reference, most others get feedback.

    Feedback is drawn, and comes before its Answer or after: who gives it does not look.
    """

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        self.ids: list[str] = []
        self._topics = deployment.topics
        self._settings = deployment.settings
        self._rng = rng
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    def finish(self) -> set[str]:
        """Wait until enough was asked and all of it is stored; return the ids.

        Raises:
            AssertionError: a record was not stored.
        """
        while len(self.ids) < QUERIES and self._thread.is_alive():
            time.sleep(0.1)
        self.__exit__()
        assert self._error is None, f"the client could not send: {self._error!r}"
        return set(self.ids)

    def _run(self) -> None:
        try:
            producer = kafka_clients.producer(self._settings)
            pending: list[Any] = []
            late: list[tuple[float, Feedback]] = []
            while not self._ended.wait(1 / RATE):
                query, feedback = self._drawn(len(self.ids))
                pending.append(self._sent(producer, self._topics.query, query.query_id, query))
                self.ids.append(query.query_id)
                if feedback is not None:
                    late.append((time.monotonic() + self._rng.uniform(0.0, 3.0), feedback))
                due = [told for at_s, told in late if at_s <= time.monotonic()]
                late = [each for each in late if each[1] not in due]
                pending += [self._sent(producer, self._topics.feedback, told.query_id, told) for told in due]
            pending += [self._sent(producer, self._topics.feedback, told.query_id, told) for _, told in late]
            for each in pending:
                each.get(timeout=120)
            producer.close()
        except BaseException as error:  # raised again by `finish`
            self._error = error

    def _sent(self, producer: Any, topic: str, key: str, record: Record) -> Any:
        return producer.send(topic, key=key.encode(), value=encode(record))

    def _drawn(self, number: int) -> tuple[Query, Feedback | None]:
        text, answer = question(number % 40)
        query_id = f"q{number}"
        kind = self._rng.random()
        if kind < 0.5:
            return Query(query_id=query_id, text=text, reference=answer), None
        if kind < 0.6:
            return Query(query_id=query_id, text=text, feedback_wait_s=1.0), None
        feedback = Feedback(query_id=query_id, correct=self._rng.random() < 0.7)
        return Query(query_id=query_id, text=text), feedback


@contextlib.contextmanager
def nodes_and_proxy(home: Path) -> Iterator[tuple[Nodes, Proxy]]:
    """Start three nodes behind a proxy; everything of theirs is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="uniscale-bounces-") as folder, Proxy(3) as proxy:
        nodes = Nodes(home, Path(folder), advertised=proxy.ports)
        proxy.lead(nodes.ports)
        with nodes:
            yield nodes, proxy


def run(fault: str, seed: int, nodes: Nodes, proxy: Proxy, kept: Path) -> Run:
    """Let a fault strike services that work, and return what became of it.

    Args:
        fault: A key of `FAULTS`.
        seed: Of everything that is drawn.
        nodes: They run, and are whole.
        proxy: Before them.
        kept: Where the logs of a run go that failed, or in which a process ended.
    """
    rng = Random(f"{fault} {seed}")
    done = Run(
        fault=fault, seed=seed, commit=commit_of(Path(__file__).parent), date=time.strftime("%Y-%m-%d")
    )
    with tempfile.TemporaryDirectory(prefix="uniscale-bounces-") as folder:
        deployment = _deployed(Path(folder), nodes)
        strikes: list[str] = []
        try:
            deployment.supervisor.start()
            deployment.supervisor.wait_ready(240)
            stage = Stage(nodes, proxy, deployment)
            with Traffic(deployment, Random(f"traffic {fault} {seed}")) as traffic:
                for _ in range(rng.randint(FAULTS[fault].least, FAULTS[fault].most)):
                    time.sleep(rng.uniform(0.5, 3.0))
                    strikes.append(FAULTS[fault].strike(stage, rng))
                ids = traffic.finish()
            ended_s = time.monotonic()
            nodes.wait_whole()
            _judge(deployment, ids)
            done = msgspec.structs.replace(
                done, queries=len(ids), drained_s=round(time.monotonic() - ended_s, 1)
            )
            deployment.supervisor.wait_ready(240)
            deployment.close()
            nodes.forget(deployment.topics.prefix)
        except (AssertionError, UniscaleError, KafkaError) as error:
            done = msgspec.structs.replace(done, failed=f"{type(error).__name__}: {error}"[:3000])
        finally:
            deployment.close()
        services = deployment.supervisor.services
        ended = {name: each.restarts for name, each in services.items() if each.restarts}
        if done.failed or ended:
            shutil.copytree(folder, kept / f"{fault}-{seed}", dirs_exist_ok=True)
            for log in nodes.folder.glob("*.log"):
                shutil.copy(log, kept / f"{fault}-{seed}" / f"node-{log.name}")
    return msgspec.structs.replace(done, strikes=tuple(strikes), restarts=ended)


def _deployed(folder: Path, nodes: Nodes) -> Deployment:
    settings = recorded_in(
        folder,
        bootstrap=nodes.direct,
        replication=3,
        session_timeout_s=SESSION_S,
        rebalance_timeout_s=SESSION_S,
        timeout_s=600.0,
        feedback_wait_s=300.0,
    )
    second = {
        f"{service}-1": [*python(), "worker", service, "--instance", "1"]
        for service in ("decider", "aggregator")
    }
    return Deployment(settings, folder / "services.log", commands=second, bootstrap=nodes.bootstrap)


def _judge(deployment: Deployment, ids: set[str]) -> None:
    """Wait until everything has ended; then hold the audit and every Answer to what is promised.

    Raises:
        AssertionError: something is not as promised.
    """
    topics = deployment.topics
    deployment.rewarded(ids)
    report = deployment.settled()
    assert report.queries == len(ids), f"{report.queries} queries in the audit, {len(ids)} asked"
    first: dict[str, Answer] = {}
    for answer in deployment.read(topics.answer, Answer):
        first.setdefault(answer.query_id, answer)
    assert first.keys() == ids, f"no Answer: {sorted(ids - first.keys())}"
    ill = {query_id: (each.status, each.error) for query_id, each in first.items() if each.status != "ok"}
    assert not ill, f"Answers that do not count: {ill}"
    letters = deployment.raw(topics.dead_letter)
    assert not letters, f"{len(letters)} dead letters: {letters[0].value[:500]!r}"
