"""One history: a world lives through its faults, everything is restarted and drained, and the outcome is judged."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from agents.bandit.learner import header, unpack
from agents.decider.decider import Decider
from agents.decider.log import REFIT_KEY, Row, decode_row
from agents.decider.snapshot import EndedIds, start_of
from agents.decider.verify import mismatches, opened
from agents.embedding import EncoderUnavailable, encoder_id
from schemas.answer import Answer
from schemas.control import CatalogueEntry, ObjectiveEntry, PriceEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query, QueryContext
from schemas.record import Record, decode, encode
from schemas.reward import Reward
from streams.audit.reading import Raw, Span
from streams.audit.run import audit
from streams.runtime.base import ConsumerRecord, Crash, Runtime, ServiceSpec
from streams.runtime.memory import Died, MemoryRuntime, run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.decider import DeciderService, policy_of
from streams.simulate.faults import (
    SEGMENT_S,
    TIMES,
    Fault,
    Faults,
    Injected,
    Worker,
    injected,
    marked,
    schedule,
    stand_ins,
)
from streams.simulate.faults import SERVICES as SIMULATED
from streams.simulate.world import World, drawn, entry

CALM_S: Final = 30.0
"""Seconds after the last client and the last fault until everything is restarted."""

DRAIN_S: Final = 1500.0
"""Longest time, in virtual seconds, until the last query has ended after that."""

WAIT_S: Final = 120.0
"""Longest wait of an honest query for its admission, from when nothing goes wrong any more."""

LAST: Final = 2
"""Queries that are asked in the end; each is answered."""

ROW_BYTES: Final = 4096
"""Most bytes of a query's row in the learner's log, however long its question is."""

EARLY: Final = 0.85
"""Share of a query's time before which no answer may say that its time is up; searches may use 0.9 of it."""


class Lived(Struct, kw_only=True):
    """What one seed came to.

    Attributes:
        seed: The seed.
        failures: What is wrong, each in words; empty if nothing is.
        faults: What was to go wrong.
        hits: How often each kind of fault struck each service.
        digest: SHA-256 of every record, in hex.
        records: How many there are.
    """

    seed: int
    failures: list[str] = []
    faults: tuple[Fault, ...] = ()
    hits: dict[str, int] = {}
    digest: str = ""
    records: int = 0


class InMemoryLog:
    """The topics of a cluster in memory, as the audit reads them."""

    def __init__(self, cluster: Cluster) -> None:
        self.broker = cluster.broker

    def spans(self, topics: Iterable[str]) -> dict[tuple[str, int], Span]:
        """Return what each partition holds."""
        return {
            (name, at): Span(self.broker.first(name, at), self.broker.end(name, at))
            for name in topics
            for at in range(self.broker.partitions(name))
        }

    def read(self, part: tuple[str, int], span: Span) -> Iterator[Raw]:
        """Yield the records of a span."""
        for r in self.broker.records(part[0]):
            if r.partition == part[1] and span.begin <= r.offset < span.end:
                yield Raw(r.offset, r.timestamp_ms, r.key, r.value)


def _ending(spec: ServiceSpec) -> ServiceSpec:
    """Return a service whose worker ends, as its process does, when it cannot be built."""

    async def build(runtime: Runtime) -> object:
        try:
            return await spec.build(runtime)
        except EncoderUnavailable as error:  # it is started again until its server answers
            raise marked(Crash(f"{spec.name} cannot start: {error}")) from error
        except Exception as error:
            raise Crash(f"{spec.name} cannot start: {error}") from error

    return msgspec.structs.replace(spec, build=build)


class _Life:
    """A deployment from its start to its end."""

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
            make=partial(Worker, faults=self.faults),
        )
        self.topics, self.broker = self.cluster.topics, self.cluster.broker
        self.log = self.topics.changelog("decider", "pending")
        self.failures: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.seen: dict[str, set[str]] = {name: set() for name in ("answer", "decision", "closed", "refused")}
        self.calm_s = 0.0
        kinds = (self.topics.answer, self.topics.decision, self.topics.reward, self.topics.dead_letter)
        self.broker.watch(self, kinds, self._see)

    async def live(self) -> None:
        """Start everything, let traffic and faults happen, restart everything, and wait until all has ended."""
        await self._start()
        sent = self._beside(self._send())
        for fault in self.faults.schedule:
            if fault.kind in TIMES and fault.kind != "clock":
                self._beside(self._at(fault))
        await sent
        last_s = max(
            (fault.at + fault.much for fault in self.faults.schedule if fault.kind not in ("raise", "clock")),
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
        await self._restart_all()
        self._ask_last()
        await self._drained()
        for error in self.cluster.deaths[deaths:]:
            if isinstance(error, Died):
                continue  # killed, just now
            self.failures.append(f"a worker died though nothing went wrong: {_said(error)}")
        for error in self.cluster.deaths[:deaths]:
            if not injected(error):
                self.failures.append(f"a worker died by itself: {_said(error)}")
        self._judge_learner()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What happens: the services start, clients send, faults of time come.

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
                self._control(*_catalogue(fault))
            case "objective":
                self._control(ObjectiveEntry(name="thrifty", op="set", accuracy=0.5))
            case "restart":
                for worker in [each for each in self.cluster.workers if each.service == fault.service]:
                    await self._again(worker)
            case "scale":
                await self._scale(fault.service)

    def _control(self, *records: CatalogueEntry | PriceEntry | ObjectiveEntry) -> None:
        for record in records:
            self.cluster.produce(self.topics.control, record.key.encode(), encode(record))

    def _expire(self) -> None:
        """Let retention take what every group has handled."""
        readers = [
            (app, spec.reads(self.topics, group))
            for spec in self.cluster.services.values()
            for group in (self.cluster.groups if spec.grouped else ("",))
            for app in [self.topics.app_id(spec.name, group)]
        ]
        for name in (self.topics.search_step, self.topics.due, self.topics.heartbeat):
            apps = [app for app, topics in readers if name in topics]
            for at in range(self.broker.partitions(name)):
                ends = [self.broker.committed.get((app, name, at), 0) for app in apps]
                self.broker.delete_before(name, at, min(ends, default=self.broker.end(name, at) - 3))

    async def _stop(self, worker: MemoryRuntime) -> bool:
        """Stop a worker in order; return whether it did, and did not end in another way."""
        try:
            if worker in self.cluster.workers:
                await self.cluster.stop(worker)
                return True
        except (Crash, Died, Injected) as error:
            self.cluster.ended(worker, error)
        return False

    async def _again(self, worker: MemoryRuntime) -> None:
        """Stop a worker in order and start it anew."""
        if await self._stop(worker):
            await self.cluster.start(worker.service, worker.group, worker.instance)

    async def _scale(self, service: str) -> None:
        """Let a worker join for a while."""
        group = self.world.groups[0] if SERVICES[service].grouped else ""
        joined = await self.cluster.start(service, group, "joined")
        await asyncio.sleep(self.rng.uniform(1.0, 20.0))
        await self._stop(joined)

    async def _suspended(self, worker: Worker, seconds: float) -> None:
        """Suspend a process. Its group goes on without it once its session is over; then it wakes, and ends."""
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
        """Ask again, of a deployment in which everything is well."""
        models = ("large",) if self.world.trait == "hostile" else None
        for at in range(LAST):
            text, reference, _ = next(iter(self.world.questions.values()))
            query = Query(
                query_id=f"last{at}", text=text, reference=reference, tenant="a", allowed_models=models
            )
            self.world.queries[query.query_id] = (self.calm_s, query)
            self.cluster.produce(self.topics.query, query.query_id.encode(), encode(query))

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Not in the context of a handler, at whose effect a worker is suspended: what is done here is none of its work.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.append(task)
        return task

    # When everything has ended.

    def _see(self, record: ConsumerRecord) -> None:
        found: Any = _KINDS[record.topic.removeprefix(self.topics.prefix)]
        read = decode(record.value, found)
        name = {Answer: "answer", Decision: "decision", Reward: "closed", DeadLetter: "refused"}[found]
        if isinstance(read, Reward) and not read.closes:
            return
        if read.query_id:
            self.seen[name].add(read.query_id)

    def _open(self) -> list[str]:
        """Return the queries that have not ended, in order."""
        answered, decided = self.seen["answer"], self.seen["decision"]
        settled = self.seen["closed"] | self.seen["refused"]
        return [
            query_id
            for query_id in self.world.queries
            if query_id not in answered or (query_id in decided and query_id not in settled)
        ]

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

    # The learner that lives is the one that its log says.

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
                self.failures += _compared(service, log, snapshots)

    def snapshots(self) -> dict[bytes, bytes]:
        return self.broker.changelog(self.topics.snapshot, 0)


_KINDS: Final[dict[str, type[Record]]] = {
    "answer": Answer,
    "action-decision": Decision,
    "reward": Reward,
    "dead-letter": DeadLetter,
}


def _catalogue(fault: Fault) -> Sequence[CatalogueEntry | PriceEntry]:
    if fault.how == "remove":
        return (CatalogueEntry(name="small", op="remove"),)
    if fault.how == "price":
        return (PriceEntry(name="large", factor=3.0),)
    return (CatalogueEntry(name="fresh", op="add", model=entry("fresh")),)


def _said(error: BaseException) -> str:
    cause = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {error}" + (f" <- {_said(cause)}" if cause is not None else "")


def _fold(service: DeciderService, log: dict[bytes, bytes], snapshots: dict[bytes, bytes]) -> Decider:
    settings = service.runtime.settings
    fold = Decider(
        policy_of(settings, service.encoder),
        seed=settings.policy.seed,
        encoder=encoder_id(service.encoder),
        limit=service.runtime.limit,
        ended=EndedIds(settings.policy.remembered_ids),
    )
    fold.recover(log.items(), snapshots.items())
    return fold


def _compared(
    service: DeciderService, log: dict[bytes, bytes], snapshots: dict[bytes, bytes]
) -> Iterator[str]:
    """Yield what differs between the learner that lives and the fold of its log."""
    live = service.decider
    assert live is not None
    try:
        fold = _fold(service, log, snapshots)
    except Exception as error:
        yield f"the log of the learner cannot be read: {_said(error)}"
        return
    for name, one, two in (
        ("seq", live.seq, fold.seq),
        ("clock", live.clock, fold.clock),
        ("version", live.policy.version, fold.policy.version),
    ):
        if one != two:
            yield f"fold is not live: {name} is {one}, the fold's {two}"
            return
    for name, one_array, two_array in _arrays(live.policy.state(), fold.policy.state()):
        scale = max(1.0, float(np.abs(two_array).max(initial=0.0)))
        if one_array.shape != two_array.shape or not np.allclose(
            one_array, two_array, rtol=0.0, atol=1e-9 * scale
        ):
            yield f"fold is not live: {name} of the policy differs"


def _arrays(one: bytes, two: bytes) -> Iterator[tuple[str, Any, Any]]:
    first, second = unpack(one, *header(one))[1], unpack(two, *header(two))[1]
    for name in sorted({*first, *second}):
        left, right = first.get(name, np.zeros(0)), second.get(name, np.zeros(0))
        if name == "inner":
            yield from _arrays(left.tobytes(), right.tobytes())
        else:
            yield name, left, right


# What must hold in the end.


def judged(life: _Life) -> Iterator[str]:
    """Yield what is wrong with a life that has ended."""
    cluster, topics = life.cluster, life.topics
    report = audit(InMemoryLog(cluster), cluster.settings, cluster.broker.now_ms())
    struck = {kind for kind, _ in life.faults.hits}
    for each in report.discrepancies:
        if struck.isdisjoint(_EXPLAINED.get(each["check"], ())):
            yield f"audit: {each['check']}: {each['query_id']} {each['what']}"
    for query in report.pending:
        if query.query_id not in life.seen["refused"]:  # an operator may have it tried again
            yield f"pending: {query.query_id} waits for the {query.waits_for}"
    yield from _replayed(life)
    answers: defaultdict[str, list[tuple[ConsumerRecord, Answer]]] = defaultdict(list)
    for record in sorted(cluster.broker.records(topics.answer), key=lambda record: record.offset):
        answer = decode(record.value, Answer)
        answers[answer.query_id].append((record, answer))
    first = {query_id: of[0] for query_id, of in answers.items()}
    for at in range(LAST):
        if (last := first.get(f"last{at}")) is not None and last[1].status != "ok":
            yield f"answered {last[1].status} though nothing is wrong: last{at}: {last[1].error}"
    yield from _graded(life, answers)
    yield from _in_time(life, first)
    yield from _admitted(life)
    yield from _refused(life)
    yield from _taught(life)
    for row in cluster.broker.records(life.log):
        of_query = not (row.key or b"").startswith(REFIT_KEY)
        if row.value is not None and len(row.value) > ROW_BYTES and of_query:
            yield f"a row of {len(row.value)} bytes: {(row.key or b'').decode()}"


def _replayed(life: _Life) -> Iterator[str]:
    """Yield decisions that the log does not reproduce."""
    settings = life.world.settings
    for worker in life.cluster.workers:
        if isinstance(service := worker.built, DeciderService) and life.seen["decision"]:
            policy = policy_of(settings, service.encoder)
            try:
                rows, after = opened(policy, {**life.broker.changelog(life.log, 0), **life.snapshots()})
                found = list(mismatches(policy, rows, settings.policy.seed, after))
            except Exception as error:
                yield f"the log cannot be replayed: {_said(error)}"
                return
            yield from (
                f"not reproduced: {each.query_id} {each.field}: {each.logged} {each.replayed}"
                for each in found
            )
            return


def _graded(life: _Life, answers: Mapping[str, Sequence[tuple[ConsumerRecord, Answer]]]) -> Iterator[str]:
    """Yield grades that are not the truth, though no grader lied: where it did not say, nobody knows."""
    if life.faults.lied("grader"):
        return
    given_up = {
        (letter.origin.partition, letter.origin.offset)
        for record in life.broker.records(life.topics.dead_letter)
        if (letter := decode(record.value, DeadLetter)).origin.topic == life.topics.answer
    }
    for record in life.broker.records(life.topics.reward):
        reward = decode(record.value, Reward)
        if not reward.grader or reward.query_id not in life.world.queries:
            continue
        query = life.world.queries[reward.query_id][1]
        # Of the first Answer that was not given up, or of one before it: whoever gave it up may have graded it.
        of = []
        for answered, answer in answers.get(reward.query_id, ()):
            if answer.status == reward.status:
                of.append(answer.extracted)
            if (answered.partition, answered.offset) not in given_up:
                break
        # None: its Answer was given up after three errors, and the Reward is of its expiry, and teaches nothing.
        if of and all(reward.correct != float(bool(life.world.right(query, text))) for text in of):
            said = f"{reward.correct} for {' or '.join(map(repr, of))}, right is {query.reference!r}"
            yield f"graded wrong: {reward.query_id}: {said}"


def _in_time(life: _Life, answers: dict[str, tuple[ConsumerRecord, Answer]]) -> Iterator[str]:
    """Yield answers that say their time is up while it is not."""
    appended = {}
    for record in life.broker.records(life.topics.decision):
        decision = decode(record.value, Decision)
        appended[decision.query_id] = decision.appended_ms, decision.query.timeout_s
    for query_id, (record, answer) in answers.items():
        out_of_time = answer.status == "expired" or "deadline" in (answer.error or "").lower()
        if not out_of_time or query_id not in appended:
            continue
        since_ms, timeout_s = appended[query_id]
        took_s, timeout_s = (
            (record.timestamp_ms - since_ms) / 1000,
            timeout_s or life.world.settings.queries.timeout_s,
        )
        if took_s < EARLY * timeout_s:
            said = f"after {took_s:.1f} s of {timeout_s:.0f}: {answer.status}, {answer.error}"
            yield f"out of time too early: {query_id} {said}"


def _admitted(life: _Life) -> Iterator[str]:
    """Yield honest queries that waited for long though nothing went wrong any more."""
    admitted: dict[str, int] = {}
    for record in life.broker.records(life.topics.context):
        admitted.setdefault(decode(record.value, QueryContext).query_id, record.timestamp_ms)
    began_ms = life.broker.now_ms() - int(1000 * asyncio.get_running_loop().time())
    for query_id, (at_s, query) in life.world.queries.items():
        if query.tenant == "evil" or query_id not in admitted:
            continue
        waited_s = (admitted[query_id] - began_ms) / 1000 - max(at_s, life.calm_s)
        if waited_s > WAIT_S:
            yield f"waited {waited_s:.0f} s for admission: {query_id}"


def _taught(life: _Life) -> Iterator[str]:
    """Yield outcomes that were learned though their tenant had taught more than all others together."""
    if life.world.settings.policy.snapshot_every or life.world.settings.policy.prior != "none":
        return  # rows have left the log, or an earlier life counts
    rows = (decode_row(key, value) for key, value in life.broker.changelog(life.log, 0).items())
    learned = sorted(
        (max(row.learned_seq, row.ended_seq if row.stage == "priced" else -1), row.tenant)
        for row in rows
        if isinstance(row, Row)
    )
    weight: Counter[str] = Counter()
    for seq, tenant in learned:
        if seq < 0:
            continue
        others = weight.total() - weight[tenant]
        if 0 < others < weight[tenant]:
            yield f"taught too much: {tenant!r} at {seq}: {weight[tenant]} outcomes, all others {others}"
        weight[tenant] += 1


_EXPLAINED: Final = {
    "row_embedding": ("encoder lies",),
    "answers_differ": ("engine lies", "engine wrong", "verifier lies"),
    "rewards_differ": ("suspend",),
    "reward_of_another_answer": ("suspend",),
    "reward_kinds": ("suspend",),
}
"""Checks of the audit that tell of what was done to the deployment: a dependency answered one question in two ways, or
the broker took the Reward of an aggregator whose successor had sent another."""

_EXPECTED: Final = {
    "Injected": "raise",
    "KilledProcess": "die raise",
    "NotEmbeddedInTime": "encoder",
    "DuplicateQuery": "",
    "OrphanFeedback": "",
    "SearchError": "wrong",
    "InvalidField": "wrong",
}
"""Errors of dead letters, and the kind of fault that they come from; none: clients."""

_WISHES: Final = frozenset(
    {"UnservedObjective", "ObjectiveError", "ActionError", "UnavailableModel", "PlacesTaken"}
)
"""What refuses a query that asks for more than there is at the time."""


def _refused(life: _Life) -> Iterator[str]:
    """Yield dead letters that nothing explains."""
    struck = " ".join(kind for kind, _ in life.faults.hits)
    for record in life.broker.records(life.topics.dead_letter):
        letter = decode(record.value, DeadLetter)
        query_id = letter.query_id or ""
        asked = life.world.queries.get(query_id)
        if letter.origin.topic == life.topics.query and asked is None:
            continue  # what nobody could read
        if letter.error in _WISHES and asked is not None and asked[1].query_id in life.world.wishing:
            continue
        if any(kind in struck for kind in _EXPECTED.get(letter.error, "-").split(" ")):
            continue
        yield f"given up: {letter.error} at {letter.origin} of {query_id}: {letter.reason[:200]}"


def lived(seed: int, only: Sequence[int] | None = None) -> Lived:
    """Live one history.

    Args:
        seed: Of world and faults.
        only: Which faults of the schedule happen, by place; None for all.
    """
    with tempfile.TemporaryDirectory(prefix="uniscale-simulate-") as folder:
        world = drawn(seed, Path(folder))
        faults = schedule(seed, world)
        kept = faults if only is None else tuple(faults[at] for at in only)
        return run(_lived(seed, world, kept))


async def _lived(seed: int, world: World, faults: tuple[Fault, ...]) -> Lived:
    life = _Life(world, faults, seed)
    with stand_ins(life.faults, world):
        try:
            await life.live()
            life.failures += judged(life)
        except Exception as error:
            life.failures.append(f"it did not end: {_said(error)}")
        finally:
            await life.cluster.close()
    digest, count = hashlib.sha256(), 0
    for topic in life.topics.declared(life.cluster.groups):
        for r in life.broker.records(topic.name):
            digest.update(repr((r.topic, r.partition, r.offset, r.timestamp_ms, r.key, r.value)).encode())
            count += 1
    digest.update("\n".join(life.failures).encode())
    hits = {f"{kind}/{service}": n for (kind, service), n in life.faults.hits.items()}
    return Lived(
        seed=seed, failures=life.failures, faults=faults, hits=hits, digest=digest.hexdigest(), records=count
    )
