"""A simulated deployment's life: it starts, runs with traffic and faults, is restarted as a whole, and drains."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextvars import Context
from typing import Any, Final

import msgspec

from agents.decider.decider import Decider
from agents.decider.repair import repaired
from agents.decider.rows import REFIT_KEY, Row, decode_row
from agents.decider.snapshot import RESET_KEY, EndedIds, manifests, start_of
from agents.embedding import EncoderUnavailable, encoder_id
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.control import CatalogueEntry, ObjectiveEntry, PriceFactorEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import Record, decode, encode
from schemas.reward import Reward
from schemas.search import SearchStep
from streams.control_follower import catalogue_of
from streams.log.base import ConsumerRecord
from streams.log.memory import MemoryBroker
from streams.runtime.errors import Crash
from streams.runtime.memory import Died, MemoryRuntime
from streams.runtime.memory_cluster import Cluster
from streams.runtime.queues import WINDOW
from streams.runtime.runtime import Runtime, ServiceSpec
from streams.services import SERVICES
from streams.services.decider import DeciderService, policy_of
from streams.settings import Settings
from streams.simulate.faults import (
    SEGMENT_S,
    TIMES,
    Fault,
    Faults,
    Injected,
    Worker,
    injected,
    marked,
)
from streams.simulate.faults import SERVICES as SIMULATED
from streams.simulate.fold import compared, differences
from streams.simulate.world import SLOW_S, World, entry
from streams.topics import Topics

CALM_S: Final = 30.0
"""Everything is restarted this many seconds after the last client record and the last fault."""

CLOSED_S: Final = 5.0
"""If too many rewards are open, those closed early must be closed within this many seconds of being written."""

DRAIN_S: Final = 1500.0
"""The last query must have ended within this many virtual seconds of that restart."""

QUIET_S: Final = 120.0
"""How long an operator waits for queries in flight before giving up on a reset, in virtual seconds."""

LAST: Final = 2
"""Number of queries sent at the end; each must be answered."""


def _ending(spec: ServiceSpec) -> ServiceSpec:
    """Return a service whose worker ends, as its process would, if the service cannot be built."""

    async def build(runtime: Runtime) -> object:
        try:
            return await spec.build(runtime)
        except EncoderUnavailable as error:  # the worker is restarted until the encoder's server responds
            raise marked(Crash(f"{spec.name} cannot start: {error}")) from error
        except Exception as error:
            raise Crash(f"{spec.name} cannot start: {error}") from error

    return msgspec.structs.replace(spec, build=build)


class Life:
    """A simulated deployment from its start to its end.

    Attributes:
        failures: Failures found while the deployment ran.
        seen: Ids of the queries that have an Answer, a Decision, a closing Reward or a dead letter, by kind.
        waiting: Queries that have a Reward but no closing one yet, each with the time of its Reward, in seconds.
        window_full: Whether any worker's window was ever full in some partition (`streams.runtime.queues.WINDOW`).
        calm_s: Time at which everything was restarted, a while after the last fault, in seconds.
    """

    def __init__(self, world: World, faults: Sequence[Fault], seed: int) -> None:
        loop = asyncio.get_running_loop()
        self.world = world
        self.rng = random.Random(f"life {seed}")
        self.faults = Faults(faults, loop.time)
        self.faults.suspend = lambda worker, seconds: self._beside(self._suspended(worker, seconds))
        self.cluster = Cluster(
            world.settings,
            {name: _ending(SERVICES[name]) for name in SIMULATED},
            seed=seed,
            make=self._made,
        )
        self._deciders = 0
        self.topics, self.broker = self.cluster.topics, self.cluster.broker
        self.log = self.topics.changelog("decider", "pending")
        self.failures: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.seen: dict[str, set[str]] = {name: set() for name in ("answer", "decision", "closed", "refused")}
        self.calm_s = 0.0
        kinds = (self.topics.answer, self.topics.decision, self.topics.reward, self.topics.dead_letter)
        self.broker.watch(self, kinds, self._see)
        self._appended: dict[str, list[ConsumerRecord]] = {
            topic.name: [] for topic in self.topics.declared(self.cluster.groups)
        }
        self.broker.watch(self, self._appended, lambda record: self._appended[record.topic].append(record))
        self._moments: Counter[str] = Counter()
        kills = [fault for fault in faults if fault.kind == "kill between"]
        self.broker.watch(self, {self._moment_topic(fault.how) for fault in kills}, self._between)
        self.waiting: dict[str, float] = {}
        self.window_full = False
        self._window = WINDOW * world.settings.kafka.concurrency

    def _made(self, settings: Settings, *rest: Any, **more: Any) -> Worker:
        """Return a worker; each new decider gets the next list of metadata keys."""
        spec: ServiceSpec = rest[1]
        if spec.name == "decider" and (lists := self.world.lists):
            settings = settings.replace(context_keys=lists[self._deciders % len(lists)])
            self._deciders += 1
        return Worker(settings, *rest, **more, faults=self.faults)

    async def live(self) -> None:
        """Start everything, run traffic and faults, restart everything, and wait until everything has ended."""
        await self._start()
        sent = self._beside(self._send())
        for fault in self.faults.schedule:
            if fault.kind in TIMES and fault.kind != "clock":
                self._beside(self._at(fault))
        await sent
        timeless = ("raise", "clock", "kill between")
        last_s = max(
            (fault.at + fault.much for fault in self.faults.schedule if fault.kind not in timeless),
            default=0.0,
        )
        until_s = self.world.until_s
        await asyncio.sleep(max(0.0, min(last_s, 2 * until_s + 60.0) - until_s))
        await asyncio.sleep(CALM_S)
        self.faults.over = True
        await asyncio.sleep(CALM_S)
        self.calm_s = asyncio.get_running_loop().time()
        deaths = len(self.cluster.deaths)
        self._judge_learner()
        waiting = sum(self.calm_s - since_s > CLOSED_S for since_s in self.waiting.values())
        if waiting > (most := self.world.open_rewards or waiting):
            self.failures.append(f"{waiting} rewards wait for feedback, and {most} may")
        await self._restart_all()
        self._ask_last()
        await self._drained()
        for error in self.cluster.deaths[deaths:]:
            if isinstance(error, Died) or (self.world.deadly and injected(error)):
                continue  # killed by the restart, or ended by a deadly question
            self.failures.append(f"a worker died though nothing went wrong: {said(error)}")
        for error in self.cluster.deaths[:deaths]:
            if not injected(error):
                self.failures.append(f"a worker died by itself: {said(error)}")
        self._judge_learner()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Events: services start, clients send, and timed faults occur.

    async def _start(self) -> None:
        for name in reversed(SIMULATED):
            for group in self.world.groups if SERVICES[name].grouped else ("",):
                for at in range(self.world.workers[name]):
                    await self.cluster.start(name, group, str(at))

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        for each in self.world.sent:
            await asyncio.sleep(max(0.0, each.at_s - loop.time()))
            self.cluster.produce(self.topics.prefix + each.topic, each.key, each.value, each.partition)

    async def _at(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at - asyncio.get_running_loop().time()))
        self.faults.hit(fault)
        match fault.kind:
            case "compact":
                for topic in self.topics.declared(self.cluster.groups):
                    if topic.compacted:
                        self.broker.compact(topic.name, self.broker.now_ms() - int(1000 * SEGMENT_S))
            case "expire":
                self._expire()
            case "catalogue":
                self._control(*_catalogue(fault, self.world))
            case "objective":
                self._control(ObjectiveEntry(name="thrifty", op="set", accuracy=0.5))
            case "restart":
                for worker in [each for each in self.cluster.workers if each.service == fault.service]:
                    await self._again(worker)
            case "scale":
                await self._scale(fault.service)
            case "repair" | "reset":
                await self._operated(fault.kind)

    def _control(self, *records: CatalogueEntry | PriceFactorEntry | ObjectiveEntry) -> None:
        for record in records:
            self.cluster.produce(self.topics.control, record.key.encode(), encode(record))

    def _expire(self) -> None:
        """As retention does, delete records that every group has handled, from topics that are not read again."""
        readers = [
            (app, spec.input_topics(self.topics, group))
            for spec in self.cluster.services.values()
            for group in (self.cluster.groups if spec.grouped else ("",))
            for app in [self.topics.app_id(spec.name, group)]
        ]
        topics = self.topics
        each_group = (topics.decision_for, topics.verification_for)
        for name in (
            *(
                topics.query,
                topics.context,
                topics.search_step,
                topics.due,
                topics.heartbeat,
                topics.feedback,
                topics.attempt_failed,
            ),
            *(of(group) for of in each_group for group in self.cluster.groups),
        ):
            apps = [app for app, topics in readers if name in topics]
            for at in range(self.broker.partitions(name)):
                ends = [self.broker.committed.get((app, name, at), 0) for app in apps]
                self.broker.delete_before(name, at, min(ends, default=self.broker.end(name, at) - 3))

    async def _stop(self, worker: MemoryRuntime) -> bool:
        """Stop a worker cleanly; return whether that succeeded."""
        try:
            if worker in self.cluster.workers:
                await self.cluster.stop(worker)
                return True
        except (Crash, Died, Injected) as error:
            self.cluster.ended(worker, error)
        return False

    async def _again(self, worker: MemoryRuntime) -> None:
        """Stop a worker cleanly and restart it."""
        if await self._stop(worker):
            await self.cluster.start(worker.service, worker.group, worker.instance)

    async def _scale(self, service: str) -> None:
        """Add a worker for a while."""
        group = self.world.groups[0] if SERVICES[service].grouped else ""
        joined = await self.cluster.start(service, group, "joined")
        await asyncio.sleep(self.rng.uniform(1.0, 20.0))
        await self._stop(joined)

    async def _operated(self, command: str) -> None:
        """Stop every decider, run an operator's command on their log, and start them again.

        A reset waits until queries in flight have ended: otherwise their outcomes would not be learned, and a
        redelivered Context would be decided again.
        """
        until = asyncio.get_running_loop().time() + QUIET_S
        while command == "reset" and self._in_flight():
            await asyncio.sleep(0.5)
            if asyncio.get_running_loop().time() > until:
                return
        stopped: list[MemoryRuntime] = []
        while running := [each for each in self.cluster.workers if each.service == "decider"]:
            stopped += [worker for worker in running if await self._stop(worker)]
        service = next((each.built for each in stopped if isinstance(each.built, DeciderService)), None)
        if service is not None and command == "repair":
            self.failures += repair(service, self.broker, self.topics, self.rng)
        elif service is not None:
            reset(self.broker, self.topics)
            self.faults.meets_queries("reset", self.seen["decision"])
        for worker in stopped:
            await self.cluster.start(worker.service, worker.group, worker.instance)

    def _moment_topic(self, moment: str) -> str:
        topics = self.topics
        return {
            "failed": topics.attempt_failed,
            "decided": topics.decision,
            "begun": topics.search_step,
            "answered": topics.answer,
            "ended": self.log,
        }[moment]

    def _between(self, record: ConsumerRecord) -> None:
        """If a fault says so, kill a worker when a record of a failed or further attempt is appended."""
        if self.faults.over or not self._is_between(record):
            return
        self._moments[record.topic] += 1
        for fault in self.faults.schedule:
            named = fault.kind == "kill between" and self._moment_topic(fault.how) == record.topic
            if named and self._moments[record.topic] == fault.at:
                self._beside(self._killed(fault))

    def _is_between(self, record: ConsumerRecord) -> bool:
        """Return whether a record belongs to an attempt that failed, or to a further attempt."""
        if record.topic == self.log:
            row = None if record.value is None else decode_row(record.key or b"", record.value)
            return isinstance(row, Row) and row.failure_offset >= 0
        read: Any = decode(record.value, _MOMENTS[record.topic.removeprefix(self.topics.prefix)])
        return isinstance(read, AttemptFailed) or read.attempt > 1

    async def _killed(self, fault: Fault) -> None:
        for worker in self.cluster.workers:
            if worker.service == fault.service:
                self.faults.hit(fault)
                self.cluster.kill(worker)
                return

    async def _suspended(self, worker: Worker, seconds: float) -> None:
        """Suspend a worker. If its session expires, its group continues without it; once it resumes, it ends."""
        session_s = self.world.settings.kafka.session_timeout_s
        worker.running.clear()
        await asyncio.sleep(min(seconds, session_s))
        if seconds > session_s and worker in self.cluster.workers:
            worker.expelled = True
            await self.cluster.expel(worker)
            await asyncio.sleep(seconds - session_s)
        worker.running.set()
        if worker.expelled:
            await asyncio.sleep(0.5)
            worker.die()
            await self.cluster.start(worker.service, worker.group, worker.instance)

    async def _restart_all(self) -> None:
        for worker in list(self.cluster.workers):
            if self.rng.random() < 0.5:
                await self._again(worker)
            elif worker in self.cluster.workers:
                self.cluster.kill(worker)

    def _ask_last(self) -> None:
        """Send the last queries, when the deployment is healthy."""
        models = {"hostile": ("large",), "choices": ("small",)}.get(self.world.trait)
        for at in range(LAST):
            text, reference, _ = next(iter(self.world.questions.values()))
            # An executor starts only once each of its models has responded or failed.
            timeout_s = 2 * SLOW_S if self.world.bad == "slow" else None
            query = Query(
                query_id=f"last{at}",
                text=text,
                reference=reference,
                tenant="a",
                allowed_models=models,
                timeout_s=timeout_s,
            )
            self.world.queries[query.query_id] = (self.calm_s, query)
            self.cluster.produce(self.topics.query, query.query_id.encode(), encode(query))

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # A new context, because this is not part of the work of the handler during which a worker may be suspended.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.append(task)
        return task

    # Checks after everything has ended.

    def _see(self, record: ConsumerRecord) -> None:
        found: Any = _KINDS[record.topic.removeprefix(self.topics.prefix)]
        read = decode(record.value, found)
        self.window_full = self.window_full or any(
            offsets.span >= self._window
            for worker in self.cluster.workers
            for each in worker.subscriptions
            for offsets in each.offsets.values()
        )
        name = {Answer: "answer", Decision: "decision", Reward: "closed", DeadLetter: "refused"}[found]
        if isinstance(read, Reward):
            if read.closes:
                self.waiting.pop(read.query_id, None)
            else:
                if read.query_id not in self.seen["closed"]:
                    self.waiting.setdefault(read.query_id, asyncio.get_running_loop().time())
                return
        if read.query_id:
            self.seen[name].add(read.query_id)

    def _open(self) -> list[str]:
        """Return the ids of the queries that have not ended, in order."""
        answered, decided = self.seen["answer"], self.seen["decision"]
        settled = self.seen["closed"] | self.seen["refused"]
        return [
            query_id
            for query_id in self.world.queries
            if query_id not in answered or (query_id in decided and query_id not in settled)
        ]

    def _in_flight(self) -> bool:
        """Return whether any query that has been sent has not ended."""
        now = asyncio.get_running_loop().time()
        return any(self.world.queries[query_id][0] <= now for query_id in self._open())

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        until, quiet = loop.time() + DRAIN_S, 0
        while quiet < 6:
            self.cluster.check()
            if loop.time() > until:
                waits = [each for each in self._open()][:5]
                self.failures.append(
                    f"not at rest {DRAIN_S:.0f} s after everything was restarted; open: {waits}"
                )
                return
            await asyncio.sleep(0.5)
            quiet = quiet + 1 if not self._open() and not self.cluster.busy else 0

    # The live learner must equal the fold of its log.

    def _judge_learner(self) -> None:
        for worker in self.cluster.workers:
            if not isinstance(worker, Worker) or worker.service != "decider" or worker.expelled:
                continue
            service = worker.built
            if not isinstance(service, DeciderService) or service.decider is None or service.lock.locked():
                continue
            if service.learner.log.assigned:
                snapshots = self.snapshots()
                log = self.broker.changelog(self.log, 0, start_of(snapshots))
                self.failures += compared(service, log, snapshots)

    def records(self, topic: str) -> list[ConsumerRecord]:
        """Return every record appended to a topic, including records that retention has deleted."""
        return self._appended[topic]

    def snapshots(self) -> dict[bytes, bytes]:
        """Return the records of the learner's snapshots."""
        return self.broker.changelog(self.topics.snapshot, 0)


_KINDS: Final[dict[str, type[Record]]] = {
    "answer": Answer,
    "action-decision": Decision,
    "reward": Reward,
    "dead-letter": DeadLetter,
}


_MOMENTS: Final[dict[str, type[Record]]] = {
    "attempt-failed": AttemptFailed,
    "action-decision": Decision,
    "search-step": SearchStep,
    "answer": Answer,
}


def _catalogue(fault: Fault, world: World) -> Sequence[CatalogueEntry | PriceFactorEntry]:
    if fault.how == "remove":
        return (CatalogueEntry(name="small", op="remove"),)
    if fault.how == "price":
        return (PriceFactorEntry(name="large", factor=3.0),)
    return (CatalogueEntry(name="fresh", op="add", model=entry("fresh", world.unscored)),)


def said(error: BaseException) -> str:
    """Return a description of an error and its causes."""
    cause = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {error}" + (f" <- {said(cause)}" if cause is not None else "")


def repair(
    service: DeciderService, broker: MemoryBroker, topics: Topics, rng: random.Random
) -> Iterator[str]:
    """Repair the log without one early row. Yield any learner state that the remaining rows do not imply."""
    changelog = topics.changelog("decider", "pending")
    snapshots = broker.changelog(topics.snapshot, 0)
    rows = broker.changelog(changelog, 0, start_of(snapshots))
    learned = sorted(
        (row.learned_seq, key)
        for key, value in rows.items()
        if isinstance(row := decode_row(key, value), Row) and row.learned_seq >= 0
    )
    if not learned:
        return
    _, lost = rng.choice(learned[:8])  # every refit includes the early rows
    without, end = [lost], broker.end(changelog, 0)
    decider, anew = _fresh(service), _fresh(service)
    records, gone = repaired(decider, rows, snapshots, without, end)
    unestimated = {key: value for key, value in rows.items() if not key.startswith(REFIT_KEY)}
    repaired(anew, unestimated, snapshots, without, end)
    yield from (f"repaired is not what the rows say: {each}" for each in differences(decider, anew))
    for key, value in records:
        broker.append(topics.snapshot, key, value)
    for key in gone:
        broker.append(changelog, key, None)


def reset(broker: MemoryBroker, topics: Topics) -> None:
    """Delete the log and the snapshots, as `learner reset` does. Records that a decider has read are not read again."""
    changelog = topics.changelog("decider", "pending")
    snapshots, rows = broker.changelog(topics.snapshot, 0), broker.changelog(changelog, 0)
    known = manifests(snapshots).values()
    decided = [row for key, value in rows.items() if isinstance(row := decode_row(key, value), Row)]
    read = {
        topics.context: [each.context_offset for each in known]
        + [row.context_origin.offset for row in decided],
        topics.reward: [each.reward_offset for each in known] + [row.reward_offset for row in decided],
        topics.attempt_failed: [each.failure_offset for each in known]
        + [row.failure_offset for row in decided],
    }
    for topic, offsets in read.items():
        if (last := max(offsets, default=-1)) >= 0:
            broker.committed[topics.app_id("decider"), topic, 0] = last + 1
    ends = {str(at): broker.end(topics.decision, at) for at in range(broker.partitions(topics.decision))}
    broker.append(topics.snapshot, RESET_KEY, json.dumps(ends).encode())
    for key in rows:
        broker.append(changelog, key, None)
    for key in snapshots:
        if key != RESET_KEY:
            broker.append(topics.snapshot, key, None)


def _fresh(service: DeciderService) -> Decider:
    settings = service.runtime.settings
    return Decider(
        policy_of(settings, service.encoder),
        seed=settings.policy.seed,
        encoder=encoder_id(service.encoder),
        unit=catalogue_of(settings).unit,
        ended=EndedIds(settings.policy.remembered_ids),
    )
