"""Admission: limits the queries in flight, and refuses those that could never be graded."""

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import orjson

from agents.grading.grade import check
from agents.grading.pool import GraderFailed, GradingPool, GradingPoolError
from schemas.errors import InvalidField, UniscaleError
from schemas.query import Origin, Query
from streams.recent_ids import RecentIds
from streams.runtime.runtime import Runtime
from streams.services.fair_queue import FairQueue

# Without admission, thousands of decisions would be made before the first reward. A query is in flight from when its
# Context is sent until its Answer appears on the `answer` topic. A separate reader watches that topic, because handlers
# that all wait for a record of their own app would deadlock. A tenant's queries are admitted in order of arrival; among
# tenants, the one with the fewest slots is next. Queries that no live executor serves can stay open for hours without
# using resources, so they have separate slots. Once those are taken, such queries are refused, because a waiting query
# holds back its partition and would block everyone else's queries.

# How many seconds a model may go without a heartbeat before queries for it are refused. One late heartbeat must not
# cause every waiting query to be rejected. If executors recover one by one, queries for the later ones must not be
# rejected as soon as the first is back.
_LAPSE_S = 30.0


class AdmissionRejected(UniscaleError):
    """No executor serves a query, and all slots for such queries are taken. Start one, or request another model."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.instead = f"{type(self).__name__}: {why}"  # tells the gateway that a retry may be admitted


class _Seat(NamedTuple):
    """A query in flight or waiting for admission."""

    tenant: str
    until_s: float
    origin: Origin | None
    models: frozenset[str] | None


class Admission:
    """Admits at most `most` queries, plus the same number that no live executor serves.

    Further queries wait; those that no live executor serves are refused.

    A single tenant may use all slots. With several, each is entitled to its share and gets it even while others still
    exceed theirs, so up to twice `most` may be in flight for a while.

    Args:
        most: Maximum number of queries in flight.
        clock: A monotonic clock, in seconds.
        serving: Returns the models with a live executor; None treats all as served.
        remembered: Maximum number of ended queries to recognise; at least the latest half of this number are.
    """

    def __init__(
        self,
        most: int,
        clock: Callable[[], float],
        serving: Callable[[], frozenset[str]] | None = None,
        remembered: int = 4096,
    ) -> None:
        self.most = most
        self._clock = clock
        self._serving = serving
        self._living: frozenset[str] | None = None
        self._idle_s = clock()  # when it was last true that no model was served
        self._served_s: dict[str, float] = {}  # when each model was last served
        self._open: OrderedDict[str, _Seat] = OrderedDict()
        # A query redelivered after a restart may already have its Answer: it must not hold a slot forever.
        self._ended = RecentIds(remembered)
        self._held: Counter[tuple[bool, str]] = Counter()  # slots in use, by (served, tenant)
        # Waiting queries, in order of arrival, by the same keys.
        self._waiting: dict[tuple[bool, str], dict[str, tuple[_Seat, asyncio.Future[None]]]] = {}
        self.look()

    def __len__(self) -> int:
        """Return how many queries are in flight."""
        return len(self._open)

    def __contains__(self, query_id: object) -> bool:
        """Return whether a query is in flight."""
        return query_id in self._open

    def origin(self, query_id: str) -> Origin | None:
        """Return the position of a query's record, or None if the query is not in flight."""
        seat = self._open.get(query_id)
        return None if seat is None else seat.origin

    async def enter(
        self,
        query_id: str,
        timeout_s: float,
        origin: Origin | None = None,
        *,
        tenant: str = "",
        models: frozenset[str] | None = None,
    ) -> None:
        """Wait for a slot and take it; a query already in flight takes no second one.

        Args:
            query_id: The query.
            timeout_s: Seconds after which its slot is freed if its Answer is never seen.
            origin: The position of its record, to distinguish it from a later one with the same id.
            tenant: The tenant whose share it counts against.
            models: The models that may answer it; None for all.

        Raises:
            AdmissionRejected: none of the query's models is served, and there is no free slot for such queries.
        """
        if query_id in self._open or query_id in self._ended:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(query_id, _Seat(tenant, self._clock() + timeout_s, origin, models), turn)
        self._admit()
        if not turn.done():
            self.look()
        try:
            await turn
        finally:
            self._unqueue(query_id)

    def leave(self, query_id: str) -> None:
        """Release a query's slot. An unknown query is not an error, because it may belong to another process."""
        if (place := self._open.pop(query_id, None)) is not None:
            kind = self._kind(place)
            self._held[kind] -= 1
            if not self._held[kind]:
                del self._held[kind]  # the number of tenants is unbounded
            self._admit()

    def refused(self, query_id: str, origin: Origin) -> None:
        """Release the slot taken by the record at `origin`; an earlier query with the same id keeps its own."""
        if query_id in self._open and self._open[query_id].origin == origin:
            self.leave(query_id)

    def ended(self, query_id: str) -> None:
        """Record that a query has its Answer: its slot is freed, and it takes none if it is redelivered."""
        self._ended.add(query_id)
        if (turn := self._unqueue(query_id)) is not None and not turn.done():
            turn.set_result(None)
        self.leave(query_id)

    def has_ended(self, query_id: str) -> bool:
        """Return whether a query is known to have its Answer."""
        return query_id in self._ended

    def look(self) -> None:
        """Check timeouts and update the set of served models. Call this every second, even if no queries arrive."""
        living = self._serving() if self._serving is not None else None
        if living != self._living:
            self._living = living
            self._held = Counter(map(self._kind, self._open.values()))
            waiting, self._waiting = self._waiting, {}
            for query_id, (place, turn) in [each for queue in waiting.values() for each in queue.items()]:
                self._queue(query_id, place, turn)
        now = self._clock()
        if not living:
            self._idle_s = now
        self._served_s |= dict.fromkeys(living or (), now)
        for query_id in [q for q, place in self._open.items() if place.until_s < now]:
            self.leave(query_id)
        self._admit()
        self._refuse(now)

    def _refuse(self, now: float) -> None:
        """Refuse waiting queries that no executor serves while other models are served."""
        for (served, _), queue in list(self._waiting.items()):
            for query_id, (place, turn) in [] if served else list(queue.items()):
                served_s = [self._served_s.get(model, 0.0) for model in place.models or ()]
                if turn.done() or now - max([self._idle_s, *served_s]) < _LAPSE_S:
                    continue
                self._unqueue(query_id)
                models = ", ".join(sorted(place.models or ()))
                turn.set_exception(
                    AdmissionRejected(
                        f"allowed_models or pin_action: no executor serves {models} now, and the {self.most} places "
                        "of queries that nothing serves are taken; try again once it is served, or allow another model"
                    )
                )

    def _kind(self, place: _Seat) -> tuple[bool, str]:
        """Return whether a query is served, and its tenant.

        A query that any model may answer is considered served; otherwise none would be before the first heartbeat.
        """
        served = self._living is None or place.models is None or bool(place.models & self._living)
        return served, place.tenant

    def _queue(self, query_id: str, place: _Seat, turn: "asyncio.Future[None]") -> None:
        self._waiting.setdefault(self._kind(place), {})[query_id] = place, turn

    def _unqueue(self, query_id: str) -> "asyncio.Future[None] | None":
        for kind, queue in self._waiting.items():
            if (found := queue.pop(query_id, None)) is not None:
                if not queue:
                    del self._waiting[kind]
                return found[1]
        return None

    def _admit(self) -> None:
        for served in (True, False):
            while (tenant := self._next(served)) is not None:
                query_id, (place, turn) = next(iter(self._waiting[served, tenant].items()))
                self._unqueue(query_id)
                if turn.done():
                    continue  # the waiter was cancelled but has not run yet
                self._open[query_id] = place
                self._held[served, tenant] += 1
                turn.set_result(None)

    def _next(self, served: bool) -> str | None:
        """Return the tenant whose query is next; None if none may be admitted."""
        wanting = [tenant for kind, tenant in self._waiting if kind is served]
        if not wanting:
            return None
        held = {tenant: n for (kind, tenant), n in self._held.items() if kind is served}
        tenant = min(wanting, key=lambda each: held.get(each, 0))
        share = max(1, self.most // len({*wanting, *held}))
        room = self.most if held.get(tenant, 0) >= share else 2 * self.most
        return tenant if sum(held.values()) < room else None


# References and graders that could never grade an answer are refused before a configuration is chosen.
#
# Patterns and schemas are compiled in a grading process, because some take minutes to compile. Those that compile are
# cached, because clients send the same ones repeatedly.

log = logging.getLogger("streams.grader-checks")

_TIMEOUT_S: Final = 2.0
_REMEMBERED: Final = 4096


class GraderChecks:
    """Checks queries' references and graders, with fair turns for tenants."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pool = GradingPool(workers=1, timeout_s=_TIMEOUT_S)
        runtime.closers.append(self._pool.aclose)
        self._checking = FairQueue(1, runtime.monotonic)
        self._passed = RecentIds(_REMEMBERED)

    async def check(self, query: Query) -> None:
        """Refuse a query whose answer could not be graded, whichever model it came from.

        A plain reference without a grader is not checked here; its Reward reports what is wrong with it.

        Raises:
            InvalidField: the answer could not be graded; the message names the field and the fix.
        """
        for grader in self._runtime.control.graders(query):
            if grader is None and not isinstance(query.reference, list):
                continue
            if query.reference is None and (grader is None or grader.needs_reference):
                continue
            request = check(grader, query.reference)
            if request is not None:
                await self._compile(request, query.account)

    async def _compile(self, request: dict[str, object], account: str) -> None:
        field = "reference" if "patterns" in request else "grader.schema"
        digest = hashlib.sha256(orjson.dumps(request)).hexdigest()
        if digest in self._passed:
            return
        async with self._checking.turn(account):
            try:
                why = await self._runtime.in_thread(partial(self._pool.refusal, request))
            except GraderFailed as error:
                why = f"cannot be used ({error}); make it simpler"
            except GradingPoolError as error:
                log.warning("not checked before it is used: %s", error)
                return
        if why:
            raise InvalidField("Query", field, why)
        self._passed.add(digest)
