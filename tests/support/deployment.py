"""All services as processes on a real broker, answering from a recording, and what their log says."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
from kafka import TopicPartition

from agents.catalogue.file import load_catalogue
from agents.decider.rows import decode_row
from agents.decider.snapshot import is_record
from schemas.control import KeyEntry
from schemas.query import Query
from schemas.record import Record, decode, encode
from schemas.reward import Reward
from streams.audit.reading import BrokerLog
from streams.audit.run import Report, audit
from streams.cli.keys import make_key
from streams.client.client import Client
from streams.local.deployment import Supervisor, service_commands
from streams.log import kafka_admin, kafka_clients
from streams.settings import Settings
from streams.topics import Topics
from tests.support.recorded import recorded_paths, recorded_settings

R = TypeVar("R", bound=Record)
Deploy = Callable[..., Any]
"""The fixture `deploy`: it starts services and returns their deployment."""
Ask = Callable[[int], Query]
"""The fixture `ask`: the query of a number, with its reference."""

# How long a machine may take that runs something else besides; a wait ends as soon as what it waits for is there.
PATIENCE_S = 300.0


class Deployment:
    """All services on one broker under a prefix of their own.

    Args:
        settings: Of the services and of who asks them.
        log: Where their output goes.
        only: The services to start; None for all.
        commands: Commands of further services, or of some in place of theirs.
        bootstrap: Where the services connect to, if elsewhere than who asks them.
    """

    def __init__(
        self,
        settings: Settings,
        log: Path,
        only: tuple[str, ...] | None = None,
        commands: Mapping[str, Sequence[str]] | None = None,
        bootstrap: str = "",
    ) -> None:
        self.settings = settings
        self.topics = Topics(settings)
        groups = load_catalogue(Path(settings.catalogue)).groups
        self.page = self.topics.declared(groups)
        kafka_admin.create(settings, self.page)
        self._reader: Any = None
        self._parts: dict[str, list[TopicPartition]] = {}
        self._seen: dict[str, list[Any]] = {}
        services = service_commands(groups)
        if only is not None:
            services = {name: argv for name, argv in services.items() if name in only}
        services |= commands or {}
        at = settings.replace(bootstrap=bootstrap) if bootstrap else settings
        self.environ = {"PYTHONPATH": str(Path(__file__).parents[2]), **os.environ, **at.environ()}
        self.supervisor = Supervisor(services, environ=self.environ, log_path=log)
        self.log = log

    def suspend(self, service: str) -> None:
        """Stop a process where it stands: its group goes on without it, and `supervisor.kill` has it started again."""
        os.killpg(self.supervisor.services[service].pid, signal.SIGSTOP)

    def send(self, *queries: Query) -> set[str]:
        """Produce queries, all at once, and return their ids."""
        with Client(self.settings) as client:
            client.send(queries)
        return {query.query_id for query in queries}

    def put(self, topic: str, key: bytes | None, value: bytes, partition: int | None = None) -> None:
        """Produce one raw record, as a client with another partitioner does where a partition is named."""
        producer = kafka_clients.producer(self.settings)
        producer.send(topic, key=key, value=value, partition=partition).get(timeout=30)
        producer.close()

    def first_key(self, url: str, name: str, **more: Any) -> str:
        """Add an API key and return it once the gateway at an address lets nobody in without one."""
        key, digest = make_key()
        entry = KeyEntry(name=name, op="add", sha256=digest, tenant=name, **more)
        self.put(self.topics.control, entry.key.encode(), encode(entry))
        self.until(lambda: httpx.get(f"{url}/v1/models").status_code == 401, "the key is known")
        return key

    def raw(self, topic: str) -> list[Any]:
        """Return every record now on a topic, in offset order within each partition."""
        if self._reader is None:
            self._reader = kafka_clients.consumer(self.settings)
            names = [t.name for t in self.page]
            self._parts = {
                n: [TopicPartition(n, p) for p in self._reader.partitions_for_topic(n) or ()] for n in names
            }
            self._reader.assign([tp for parts in self._parts.values() for tp in parts])
            self._reader.seek_to_beginning()
        ends = self._reader.end_offsets(self._parts[topic])
        while any(self._reader.position(tp) < end for tp, end in ends.items()):
            for tp, records in self._reader.poll(timeout_ms=200).items():
                self._seen.setdefault(tp.topic, []).extend(records)
        return list(self._seen.get(topic, []))

    def read(self, topic: str, kind: type[R]) -> list[R]:
        """Return every record now on a topic, decoded."""
        return [decode(r.value, kind) for r in self.raw(topic)]

    def serve(self, *queries: Query) -> set[str]:
        """Produce queries, wait until their rewards are closed, and return their ids."""
        ids = self.send(*queries)
        self.rewarded(ids)
        return ids

    def rewarded(self, ids: Iterable[str], timeout_s: float = PATIENCE_S) -> None:
        """Wait until the rewards of queries are closed."""
        wanted = frozenset(ids)
        self.until(lambda: self.closed() >= wanted, f"the rewards of {len(wanted)} queries", timeout_s)

    def answered(self, count: int) -> None:
        """Wait until the log holds so many Answers."""
        self.until(lambda: len(self.raw(self.topics.answer)) >= count, f"{count} Answers")

    @property
    def pids(self) -> dict[str, int]:
        """The process of each service."""
        return {name: service.pid for name, service in self.supervisor.services.items()}

    def closed(self) -> set[str]:
        """Return the queries whose reward is closed."""
        return {reward.query_id for reward in self.read(self.topics.reward, Reward) if reward.closes}

    def learner_log(self, *, gone: bool = True) -> dict[bytes, bytes]:
        """Return the rows of the decider's changelog, the last of each key.

        Args:
            gone: With those that have left the log: they do once two snapshots hold them.
        """
        records = self.raw(self.topics.changelog("decider", "pending"))
        latest = {r.key: r.value for r in records if r.value or not gone}
        return {key: value for key, value in latest.items() if value and not is_record(key)}

    def learner_rows(self, *, gone: bool = True) -> list[Any]:
        """Return the rows of `learner_log`, decoded."""
        return [decode_row(key, value) for key, value in self.learner_log(gone=gone).items()]

    def audited(self) -> Report:
        """Return the audit of the log as it is now, running or not."""
        log = BrokerLog(self.settings)
        try:
            return audit(log, self.settings)
        finally:
            log.close()

    def settled(self, wrong: Iterable[str] = ()) -> Report:
        """Wait until every query has ended, and compare what the audit names with what is expected: nothing."""
        found: list[Report] = []

        def ended() -> bool:
            found.append(self.audited())
            return not found[-1].pending

        self.until(ended, "the end of every query")
        assert set(found[-1].ids) == set(wrong), found[-1].discrepancies
        return found[-1]

    def close(self) -> None:
        """Stop the services and the reader."""
        self.supervisor.stop()
        if self._reader is not None:
            self._reader.close()

    def until(
        self, condition: Callable[[], bool], what: str = "condition", timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until a condition on the log holds, for as long as a busy machine may take."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                tail = self.log.read_text()[-3000:]
                raise AssertionError(f"{what} did not come true in {timeout_s:.0f} s\n{tail}")
            time.sleep(0.3)


def recorded_in(folder: Path, **fields: Any) -> Settings:
    """Return the settings of a deployment that answers from a recording, whose files are written here."""
    waits_s = {
        "session_timeout_s": 6.0,
        "rebalance_timeout_s": 6.0,
        "commit_interval_s": 0.5,
        "heartbeat_s": 0.5,
    }
    defaults: dict[str, Any] = {"prefix": f"t{uuid.uuid4().hex[:8]}.", "warm_up": 10, **waits_s}
    return recorded_settings(folder, recorded_paths(40), **{**defaults, **fields})
