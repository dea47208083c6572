"""Fault injection: the kinds of faults, schedules drawn from seeds, and the workers and dependencies they affect."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeVar, cast

import httpx
from msgspec import Struct
from msgspec.structs import replace

from agents.bandit import contextual, contextual_features, pacing
from agents.catalogue.models import Model, Sampling
from agents.decider import decider as learner
from agents.decider import policy_fold, snapshot
from agents.embedding import Vectors
from agents.encoders import EncoderChoice, HashedEncoder, HttpEncoder
from agents.grading.pool import GradingPool, GradingPoolError
from agents.serving.engine import Drafted, Engine, Prefix
from agents.serving.errors import (
    ContentFilteredError,
    EndpointRefusedError,
    EndpointSuspendedError,
    EngineBusyError,
    EngineDiedError,
    EngineFaultError,
    EngineReplyError,
    EngineStartError,
    EngineTimeoutError,
    EngineUnreachableError,
    RequestRefusedError,
    ServingError,
)
from agents.serving.recorded import RecordedEngine, question_of
from agents.serving.registry import GroupEngines, HostingOptions, Loaded
from agents.verifier.prm import RecordedVerifier
from schemas.control import ModelHealth
from schemas.record import quick_id
from schemas.search import Scored
from streams.log.base import ConsumerRecord, SendFailed
from streams.log.memory import Appended, Effect
from streams.runtime.handler_guard import LIMIT, handling
from streams.runtime.memory import Died, MemoryRuntime, Subscription
from streams.runtime.runtime import Binding
from streams.services import aggregator, decider, embedder, executor, learner_log, verifier
from streams.simulate.world import SLOW_S, Bad, State, World, same

T = TypeVar("T")

SERVICES: Final = ("embedder", "decider", "executor", "verifier", "aggregator")

# Kinds of faults. A fault in `STEPS` occurs at the n-th step of some kind in a service; the others occur at a time.

STEPS: Final[dict[str, tuple[str, ...]]] = {
    "die": ("send", "row", "commit"),
    "raise": ("handle", "send", "row", "thread", "handled"),
    "suspend": ("send", "row"),
    "twice": ("send",),
    "unsure": ("send", "row"),
    "commit lost": ("commit",),
    "thread slow": ("thread",),
}
"""The steps at which each kind of fault can occur: a worker starts handling records (`handle`), sends, writes a row,
computes in a thread, has handled the records (`handled`) or commits."""

_SKIPPED: Final = {"embedder": ("row",), "executor": ("row", "thread"), "verifier": ("row", "thread")}
"""Steps that some services do not have."""

ERRORS: Final[dict[str, ServingError]] = {
    "429": EngineBusyError("HTTP 429: slow down"),
    "500": EngineFaultError("HTTP 500"),
    "400": RequestRefusedError("HTTP 400: unknown parameter"),
    "401": EndpointRefusedError("HTTP 401: wrong key"),
    "filtered": ContentFilteredError("a content filter withheld the completion"),
    "unreachable": EngineUnreachableError("no connection"),
    "time-out": EngineTimeoutError("no reply in time"),
    "undecodable": EngineReplyError("not a completion"),
    "suspended": EndpointSuspendedError("its endpoint is not asked"),
}
"""The errors an attempt can fail with before any of its text is sent. It can also return an empty completion."""

DEPENDENCIES: Final[dict[str, tuple[str, ...]]] = {
    "encoder down": ("unreachable", "500"),
    "encoder wrong": ("401", "404", "html", "dimension"),
    "encoder lies": ("",),
    "engine slow": ("",),
    "engine down": ("unreachable", "dead"),
    "engine wrong": ("few",),
    "engine lies": ("",),
    "grader slow": ("timeout",),
    "grader down": ("died", "no process"),
    "grader lies": ("",),
    "verifier slow": ("",),
    "verifier down": ("unreachable", "dead"),
    "verifier wrong": ("few",),
    "verifier lies": ("",),
    "model away": ("suspended", "loading", "failed"),
    "attempt fails": tuple(
        f"{model} {how}" for model in ("small", "large", "large", "every") for how in (*ERRORS, "empty")
    ),
}
"""The ways in which each dependency can misbehave for a while."""

BETWEEN: Final = ("failed", "decided", "begun", "answered", "ended")
"""Moments at which a worker can be killed around a failed attempt: its AttemptFailed is written; the next attempt is
decided, has made a step, or is answered; or the failed attempt's row has ended and nothing is sent yet."""

TIMES: Final = (
    "clock",
    "compact",
    "expire",
    "catalogue",
    "objective",
    "restart",
    "scale",
    "repair",
    "reset",
)
SEGMENT_S: Final = 55.0
"""Compaction spares records up to this age, in seconds. It exceeds the longest suspension of a worker."""

KINDS: Final = (*STEPS, *DEPENDENCIES, *TIMES, "kill between")

_LATER: Final = ("thread slow", "model away", "repair", "reset")
_ATTEMPTS: Final = ("attempt fails", "kill between")
"""Kinds that, like `_LATER`, are drawn from a separate random stream, so that known seeds keep their schedules."""

# Weights that make each kind take effect in one history in twenty. Few worlds use an encoder server, few answers need a
# grader, and a fault in an unused dependency has no effect.
_OFTEN: Final = {"encoder": 3.0, "grader": 3.0, "engine": 1.5, "verifier": 1.5, "raise": 2.0, "suspend": 2.0}

_OWNERS: Final = {
    "encoder": "embedder",
    "engine": "executor",
    "grader": "aggregator",
    "verifier": "verifier",
    "model": "executor",
    "attempt": "executor",
}


class Fault(Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        kind: One of `KINDS`.
        service: The service affected; empty for the broker or for all services.
        at: The step number, from 1, or the time in seconds.
        much: A duration in seconds, a number of times, or a shift in seconds, depending on the kind.
        how: The variant; for an error or a suspension, the step at which it occurs.
    """

    kind: str
    service: str = ""
    at: float
    much: float = 0.0
    how: str = ""


def schedule(seed: int, world: World) -> tuple[Fault, ...]:
    """Draw a world's faults; sometimes there are none."""
    rng, later = random.Random(f"faults {seed}"), random.Random(f"later faults {seed}")
    if world.trait == "choices":  # only a repair may occur: choices must be as good after it
        return tuple(_drawn(later, kind, world) for kind in later.choice(((), ("repair",))))
    kinds = [
        kind
        for kind in KINDS
        if kind not in (*_LATER, *_ATTEMPTS)
        and (not kind.startswith("encoder") or world.settings.encoder.kind == "http")
    ]
    often = [_OFTEN.get(kind.partition(" ")[0], 1.0) for kind in kinds]
    drawn = rng.choices(kinds, often, k=rng.choice((0, 3, 5, 7, 9)))
    more = later.choices(_LATER, k=later.choice((0, 0, 1, 2)))
    return (
        *(_drawn(rng, kind, world) for kind in drawn),
        *(_drawn(later, kind, world) for kind in more),
        *_between_attempts(random.Random(f"attempt faults {seed}"), world),
    )


def _between_attempts(rng: random.Random, world: World) -> Iterator[Fault]:
    """Yield faults that make attempts fail, or that kill a worker between a failed attempt and the next."""
    if rng.random() < 0.4:
        return
    for _ in range(rng.choice((1, 2, 3))):
        yield _drawn(rng, "attempt fails", world)
    for _ in range(rng.choice((0, 1, 2))):
        service = rng.choice(("executor", "decider", "aggregator"))
        moment = rng.choice(BETWEEN)
        yield Fault(kind="kill between", service=service, at=rng.choice((1, 1, 2, 3)), how=moment)


def _drawn(rng: random.Random, kind: str, world: World) -> Fault:
    if kind in STEPS:
        service = rng.choice((*SERVICES, "decider", "aggregator"))  # these two keep state
        much = {"raise": rng.choice((1, 3, 4)), "suspend": rng.choice((4.0, 19.0, 25.0, 50.0))}.get(kind, 0.0)
        if kind == "thread slow":
            service, much = (
                rng.choice(("embedder", "decider", "decider", "aggregator")),
                rng.uniform(1.0, 20.0),
            )
        steps = tuple(step for step in STEPS[kind] if step not in _SKIPPED.get(service, ()))
        hows = {"raise": steps, "suspend": steps, "unsure": ("written", "lost")}.get(kind, ("",))
        # Log-uniform, so that both early and late steps are drawn, and most faults occur even if there are few steps.
        step = int((3 * len(world.queries)) ** rng.random())
        return Fault(kind=kind, service=service, at=step, much=much, how=rng.choice(hows))
    # Early times are drawn more often, because near the end only late feedback arrives.
    at = round(world.until_s * rng.random() ** 2, 3)
    if kind in DEPENDENCIES:
        service = _OWNERS[kind.partition(" ")[0]]
        how = rng.choice(DEPENDENCIES[kind])
        return Fault(kind=kind, service=service, at=at, much=round(rng.uniform(5.0, 40.0), 3), how=how)
    much = 0.0
    if kind == "compact":
        at += SEGMENT_S
    if kind in ("repair", "reset"):  # once something has been learned
        at = round(world.until_s * rng.uniform(0.5, 1.5), 3)
    if kind == "clock":
        much = rng.choice((-900.0, -30.0, -2.0, 2.0, 30.0, 900.0))
    return Fault(
        kind=kind,
        service=rng.choice(SERVICES) if kind in ("clock", "scale", "restart") else "",
        at=at,
        much=much,
        how=rng.choice(
            {"catalogue": ("remove", "add", "price"), "clock": ("jump", "drift")}.get(kind, ("",))
        ),
    )


class Injected(RuntimeError):
    """An unexpected error that the simulator raises."""


def injected(error: BaseException | None) -> bool:
    """Return whether the simulator caused an error."""
    while error is not None:
        if isinstance(error, Injected | Died) or getattr(error, "injected", False):
            return True
        error = error.__cause__ or error.__context__
    return False


def marked(error: T) -> T:
    """Mark an error as caused by the simulator and return it."""
    error.injected = True  # type: ignore[attr-defined]
    return error


class _Raising(NamedTuple):
    """The place at which to raise an error again: the same step of the same record."""

    service: str
    what: str
    topic: str
    record: str


class Faults:
    """A fault schedule's state: which faults have taken effect, and which are active.

    Args:
        schedule: The faults.
        clock: Returns the seconds since the deployment started.

    Attributes:
        hits: How many faults of each kind took effect on each service.
        raised: How many times each record, by its coordinates, was in flight when an error was raised.
        witnessed: How many times each record, by its coordinates, was in flight when its worker died.
        deadly: How many processes each record of a deadly query has ended, by query id and record identity.
        over: Whether all faults are over.
        suspend: Suspends a worker for a number of seconds.
    """

    def __init__(self, schedule: Sequence[Fault], clock: Callable[[], float]) -> None:
        self.schedule, self.clock = schedule, clock
        self.hits: Counter[tuple[str, str]] = Counter()
        self.over = False
        self.suspend: Callable[[Worker, float], object]
        self._steps = {fault: int(fault.at) for fault in schedule if fault.kind in STEPS}
        self._raising: dict[_Raising, int] = {}
        self._raised: Counter[str] = Counter()
        self.raised: Counter[str] = Counter()
        self.witnessed: Counter[str] = Counter()
        self.deadly: dict[str, Counter[str]] = defaultdict(Counter)
        self._met: set[tuple[str, str]] = set()
        self._acted: set[str] = set()
        self._hit: set[Fault] = set()

    def strikes(self, worker: Worker, what: str, topic: str) -> Fault | None:
        """Return the fault that occurs at this step of a worker, or None.

        Raises:
            Injected: the fault is an error.
        """
        if self.over:
            return None
        records = handling.get()
        place = _Raising(worker.service, what, topic, records[0].coordinates if records else "")
        if self._raising.get(place, 0):
            self._raising[place] -= 1
            self._raise(place)
        for fault in self._steps:
            if fault.service != worker.service or what not in STEPS[fault.kind]:
                continue
            if fault.how in STEPS[fault.kind] and what != fault.how:
                continue
            # The guard sends dead letters itself, outside the handler.
            if fault.kind == "raise" and topic == worker.topics.dead_letter:
                continue
            self._steps[fault] -= 1
            if self._steps[fault] == 0:
                self.hit(fault)
                if fault.kind != "raise":
                    return fault
                self._raising[place] = int(fault.much) - 1
                self._raise(place)
        return None

    def acted(self) -> None:
        """Note that an effect of the records being handled has reached the broker."""
        self._acted.update(record.coordinates for record in handling.get())

    def _raise(self, place: _Raising) -> None:
        # A record that keeps failing goes to the dead-letter topic, and the effects already on the broker would stay
        # incomplete.
        if place.record and place.record in self._acted and self._raised[place.record] >= LIMIT - 1:
            return
        self._raised[place.record] += 1
        self.raised.update(record.coordinates for record in handling.get())
        raise Injected(f"while {place.service} did: {place.what} {place.topic}")

    def hit(self, fault: Fault) -> None:
        """Count a fault as having taken effect. Each fault is counted once."""
        if fault not in self._hit:
            self._hit.add(fault)
            self.hits[fault.kind, fault.service or "broker"] += 1

    def now(self, dependency: str) -> Fault | None:
        """Return the fault of a dependency that is active now, or None."""
        if self.over:
            return None
        for fault in self.schedule:
            begins = fault.kind.startswith(dependency + " ") and fault.kind in DEPENDENCIES
            if begins and self._lasts(fault):
                return fault
        return None

    def _lasts(self, fault: Fault) -> bool:
        """Return whether a fault is active now; if so, note that it affects the records being handled."""
        if not fault.at <= self.clock() < fault.at + fault.much:
            return False
        self.hit(fault)
        self.meets(fault.kind, (record.value for record in handling.get()))
        return True

    def fails(self, model: str) -> str:
        """Return how attempts with a model are failing now; empty if they are not."""
        for fault in () if self.over else self.schedule:
            whose, _, how = fault.how.partition(" ")
            if fault.kind == "attempt fails" and whose in (model, "every") and self._lasts(fault):
                return how
        return ""

    def away(self, model: str) -> State | None:
        """Return a model's state if a fault keeps it from being ready now, or None."""
        fault = self.now("model") if model == "large" else None
        return None if fault is None else cast(State, fault.how)

    def end(self, service: str, question: str, world: World) -> None:
        """Raise an error that ends the process of a service if a question is deadly to it.

        Raises:
            EngineDiedError: the question is deadly.
        """
        for query_id, owner in world.deadly.items():
            if owner == service and question == world.queries[query_id][1].text:
                self.deadly[query_id].update(record.identity for record in handling.get())
                raise marked(EngineDiedError(f"{service}: device-side assert triggered"))

    def skew_ms(self, worker: Worker) -> int:
        """Return how far a worker's clock is ahead of the broker's, in ms. It jumps, or drifts over a minute."""
        ahead_s = 0.0
        for fault in self.schedule:
            since_s = self.clock() - fault.at
            if fault.kind == "clock" and fault.service == worker.service and since_s >= 0.0 and not self.over:
                self.hit(fault)
                ahead_s += fault.much * (1.0 if fault.how == "jump" else min(1.0, since_s / 60.0))
        return int(1000 * ahead_s)

    def meets(self, kind: str, values: Iterable[bytes | None]) -> None:
        """Note that a kind of fault affected the queries of the records with these values."""
        self.meets_queries(kind, (query_id for value in values if (query_id := quick_id(value)) is not None))

    def meets_queries(self, kind: str, query_ids: Iterable[str]) -> None:
        """Note that a kind of fault affected queries."""
        self._met.update((kind, query_id) for query_id in query_ids)

    def met(self, kind: str, query_id: str) -> bool:
        """Return whether a kind of fault affected a query."""
        return (kind, query_id) in self._met


# A worker with faults injected at its steps.


class Worker(MemoryRuntime):
    """A worker of a simulated deployment.

    Attributes:
        running: Cleared while the worker is suspended.
        expelled: Whether the worker was removed from its group.
    """

    def __init__(self, *args: Any, faults: Faults, **more: Any) -> None:
        self.faults = faults
        super().__init__(*args, **more)
        faults.witnessed.update(each.rpartition("@")[0] for each in self.in_flight.left)
        self.running = asyncio.Event()
        self.running.set()
        self.expelled = False

    def _bind(self, topic: str, binding: Binding, stage: str) -> None:
        async def struck(records: Sequence[ConsumerRecord]) -> None:
            self.faults.strikes(self, "handle", topic)
            await binding.handle(records)
            self.faults.strikes(self, "handled", topic)

        super()._bind(topic, binding._replace(handle=struck), stage)

    async def effect(self, kind: Literal["send", "row"], topic: str, *records: Appended) -> None:
        """Append records unless a fault prevents it; see the base class."""
        on_its_way = self.running.is_set()
        fault = self.faults.strikes(self, kind, topic)
        if fault is not None and fault.kind == "suspend":
            self.faults.suspend(self, fault.much)
        if fault is not None and fault.kind == "unsure" and fault.how == "lost":
            raise marked(SendFailed(f"{topic}: no acknowledgement"))
        await self._latency()
        await self.running.wait()
        if self.expelled:
            # A request sent before the process was suspended still arrives, unless the broker fences its writer.
            if on_its_way and not (kind == "row" and self.spec.one_writer):
                for record in records:
                    self.broker.append(topic, *record)
                self.faults.meets("suspend", (value for _, value, _ in records))
            self.dead = True
        await super().effect(kind, topic, *records)
        self.faults.acted()
        if fault is None:
            return
        if fault.kind == "unsure":
            raise marked(SendFailed(f"{topic}: no acknowledgement"))
        if fault.kind == "twice":
            await super().effect(kind, topic, *records)
        if fault.kind == "die":
            self._dies(Effect(self.app, kind, topic, records[0][0] or b""))

    async def commit(self, subscription: Subscription, partition: int) -> None:
        """Commit an offset unless a fault prevents it; see the base class."""
        await self.running.wait()
        if self.expelled:
            self.dead = True
        fault = self.faults.strikes(self, "commit", subscription.topic)
        if fault is not None and fault.kind == "commit lost" and partition in subscription.offsets:
            subscription.offsets[partition].take()
        await super().commit(subscription, partition)
        if fault is not None and fault.kind == "die":
            self._dies(Effect(self.app, "commit", subscription.topic, b""))

    def _dies(self, effect: Effect) -> NoReturn:
        self.die()
        raise Died(f"{self.app} died after {effect}")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` inline, unless a fault raises an error. A slow thread does not block the event loop."""
        slow = self.faults.strikes(self, "thread", "")
        made = work()
        if slow is not None:
            await asyncio.sleep(slow.much)
            await self.running.wait()
        return made

    async def sleep(self, seconds: float) -> None:
        """Sleep, and then wait until the worker is no longer suspended."""
        await asyncio.sleep(seconds)
        await self.running.wait()

    def wall_ms(self) -> int:
        """Return the time on this worker's own clock, in ms since the epoch."""
        return self.broker.now_ms() + self.faults.skew_ms(self)


# The dependencies, which answer from the recording, subject to the active faults.


def _encoder(faults: Faults, choice: EncoderChoice) -> HashedEncoder | HttpEncoder:
    plain = HashedEncoder(choice.dimension)
    if choice.kind == "hashed":
        return plain

    def reply(request: httpx.Request) -> httpx.Response:
        fault = faults.now("encoder")
        how = "" if fault is None else fault.how or "lies"
        if how == "unreachable":
            raise httpx.ConnectError("no connection")
        if how.isdigit():
            return httpx.Response(int(how), json={"error": {"message": "no"}})
        if how == "html":
            return httpx.Response(200, text="<html>maintenance</html>")
        texts = json.loads(request.content)["input"]
        rows: Vectors = plain.encode([text[::-1] for text in texts] if how == "lies" else texts)
        cut = 3 if how == "dimension" else None
        data = [{"index": at, "embedding": row[:cut].tolist()} for at, row in enumerate(rows)]
        return httpx.Response(200, json={"data": data})

    return HttpEncoder(
        url=choice.url,
        model=choice.model,
        dimension=choice.dimension,
        sleep=lambda seconds: None,
        clock=faults.clock,
        transport=httpx.MockTransport(reply),
    )


def _broken(fault: Fault | None, what: str) -> None:
    """If the fault is that a server is down, raise the error that its client would raise."""
    if fault is not None and fault.how == "unreachable":
        raise marked(EngineUnreachableError(f"{what}: no connection"))
    if fault is not None and fault.how == "dead":
        raise marked(EngineDiedError(f"{what}: its process is gone"))


class _Engine(RecordedEngine):
    def __init__(self, faults: Faults, world: World, model: str) -> None:
        super().__init__(world.recording, model)
        self.faults, self.world = faults, world

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        fault = self.faults.now("engine")
        slow = fault is not None and fault.kind == "engine slow"
        await asyncio.sleep(20.0 if slow else 0.3)
        _broken(fault, self.model)
        self.faults.end("executor", question_of(prefixes[0].messages), self.world)
        if self.faults.away(self.model) == "suspended":
            raise marked(EndpointSuspendedError(f"{self.model}: its endpoint is not asked"))
        fails = self.faults.fails(self.model)
        if fails in ERRORS:
            error = ERRORS[fails]
            raise type(error)(f"{self.model}: {error}")
        drafts = await super().generate(step_id, prefixes, n, seeds, sampling)
        if fails == "empty":
            return _empty(drafts)
        if self.world.bad is not None and self.model == "large":
            drafts = await _badly(self.world.bad, drafts)
        if fault is not None and fault.kind == "engine wrong":
            return drafts[:-1]
        if fault is not None and fault.kind == "engine lies":
            return [replace(each, tokens=each.tokens + 1000) for each in drafts]
        return drafts


async def _badly(bad: Bad, drafts: list[Drafted]) -> list[Drafted]:
    """Return the output of a misbehaving model."""
    match bad:
        case "refuses":
            raise RequestRefusedError("large: HTTP 400: unknown parameter 'seed'")
        case "slow":
            await asyncio.sleep(SLOW_S)
        case "empty":
            return _empty(drafts)
        case "dear":
            pass
    return drafts


def _empty(drafts: list[Drafted]) -> list[Drafted]:
    return [replace(each, text="", finish="eos", tokens=1) for each in drafts]


class _Engines(GroupEngines):
    """The engines of a group, which are loaded at once."""

    def __init__(self, faults: Faults, world: World) -> None:
        super().__init__(HostingOptions(), world.recording, faults.clock)
        self.faults, self.world = faults, world

    async def _started(self, model: Model) -> Loaded:
        return Loaded(_Engine(self.faults, self.world, model.name))

    async def get(self, model: Model) -> Engine:
        """Return a model's engine once it has loaded; see the base class."""
        while (state := self._state(model.name)) == "loading":  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        if state == "failed":
            raise marked(EngineStartError(f"{model.name}: cannot be loaded"))
        return await super().get(model)

    def health(self) -> tuple[ModelHealth, ...]:
        """Return the state of every model; see the base class."""
        return tuple(
            ModelHealth(model=each.model, state=state, why="simulated")
            if (state := self._state(each.model))
            else each
            for each in super().health()
        )

    def _state(self, model: str) -> State | None:
        return self.world.states.get(model) or self.faults.away(model)


class _Verifier(RecordedVerifier):
    def __init__(self, faults: Faults, world: World) -> None:
        super().__init__(world.recording)
        self.faults, self.world = faults, world

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        fault = self.faults.now("verifier")
        slow = fault is not None and fault.kind == "verifier slow"
        await asyncio.sleep(20.0 if slow else 0.1)
        _broken(fault, "judge")
        self.faults.end("verifier", question, self.world)
        scores = await super().score(question, paths)
        if fault is not None and fault.kind == "verifier wrong":
            return scores[:-1]
        if fault is not None and fault.kind == "verifier lies":
            return [Scored(score=1.0 - (each.score or 0.0), tokens=each.tokens) for each in scores]
        return scores


class _Process:
    """A stand-in for a grading process."""

    stdin = stdout = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: int | None = None

    def poll(self) -> int | None:
        return self.ended

    def kill(self) -> None:
        self.ended = -9

    def wait(self) -> None:
        """Return at once."""


class _Grader(GradingPool):
    """The grading pool, but without real processes."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(environ={})
        self.faults = faults

    def _start(self) -> Any:
        self.started += 1
        if (fault := self.faults.now("grader")) is not None and fault.how == "no process":
            raise marked(GradingPoolError("the grading process did not start"))
        return _Process(self.started)

    def _exchange(self, process: Any, line: str, timeout_s: float | None = None) -> dict[str, object] | None:
        request = json.loads(line)
        if "math" in request:
            return {"ready": True}
        fault = self.faults.now("grader")
        if fault is not None and fault.how in ("timeout", "died"):
            process.ended = None if fault.how == "timeout" else -11
            return None
        lies = fault is not None and fault.kind == "grader lies"
        return {"correct": any(same(gold, request["answer"]) for gold in request["gold"]) != lies}


@contextmanager
def stand_ins(faults: Faults, world: World) -> Iterator[None]:
    """Make services use simulated dependencies instead of the configured ones."""

    async def verifier_of(*_: object) -> _Verifier:
        return _Verifier(faults, world)

    def encoder_of(choice: EncoderChoice) -> HashedEncoder | HttpEncoder:
        return _encoder(faults, choice)

    others: tuple[tuple[Any, str, Any], ...] = (
        (embedder, "encoder_of", encoder_of),
        (decider, "encoder_of", encoder_of),
        (executor, "engines_of", lambda *_: _Engines(faults, world)),
        (verifier, "verifier_of", verifier_of),
        (aggregator, "GradingPool", lambda: _Grader(faults)),
        *(small() if world.small else ()),
    )
    before = [getattr(module, name) for module, name, _ in others]
    for module, name, other in others:
        setattr(module, name, other)
    try:
        yield
    finally:
        for (module, name, _), old in zip(others, before, strict=True):
            setattr(module, name, old)


def small() -> Iterator[tuple[Any, str, Any]]:
    """Yield modules, each with the name of one of its limits and a lower value for that limit."""
    yield learner, "REFIT_BYTES", 1500
    yield snapshot, "CHUNK_BYTES", 6000
    yield learner_log, "_DROPPED_AT_ONCE", 2
    yield policy_fold, "BATCH", 3
    yield contextual, "SETTLED", 5
    yield contextual_features, "MOST_WITH_CATEGORIES", 150
    yield pacing, "KEPT", 12
    yield pacing, "KEYS", 2
