"""Quotas of API keys: their usage, counted from the log, and the limits on requests, streams and spending."""

import asyncio
import math
import sqlite3
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct

from schemas.control import KeyEntry
from schemas.objective import UNITS, CostUnit
from schemas.query import Query
from streams.gateway.auth import Credential
from streams.gateway.errors import NO_RETRY, ApiError
from streams.words import counted

# Usage of each API key, counted from the log: all gateways of a deployment count the same requests. A query reserves
# its expected cost at admission and settles it at its Answer. Queries that other gateways admitted count as soon as
# they have been read, within milliseconds.

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
_DAY_HOURS: Final = 24
SPENT_MS: Final = (_DAY_HOURS + 1) * HOUR_MS
"""How far back spending is counted, in ms: the current hour and the 24 hours before it."""

PREVIEWS: Final = 600
"""Maximum previews per minute for keys without a request limit: a slider requests ten per second while it moves."""

TARGETS: Final = 8
"""Maximum distinct mean costs and accuracies that a key may set per minute: the decider solves for λ for each."""

LOOKUPS: Final = 8
"""Maximum concurrent requests of a key for old ids, including the running one: each reads two minutes of a topic."""

OTHERS: Final = 32
"""Maximum concurrent requests of a key beyond its in-flight limit: bodies being received, reads and feedback."""

_LOOKS: Final = 16
"""If a key has too many open completions, how many of the oldest are checked for disconnected clients."""

MINUTE_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of queries that a key may send per minute: every query is copied through all topics of its search."""

SCHEMA: Final = """
create table if not exists spending (
    key text, hour integer, spent real not null, priced real not null, answers integer not null,
    primary key (key, hour)
) without rowid;
create index if not exists open_by_key on queries (key, until_ms, budget, status) where status is null;
"""


class Used(Struct, frozen=True):
    """What an API key has used.

    Attributes:
        minute: Requests in the last minute.
        reset_s: Seconds until the first of these requests is more than a minute old.
        bytes: Size of the last minute's queries on their topic.
        in_flight: Queries without an Answer.
        spent: Cost of its answers in the last 24 hours, counted in whole hours. This and the next two are in the
            deployment's unit.
        reserved: Cost reserved for its queries in flight: for each, `mean` or its own budget, whichever is less.
        mean: Mean cost of an answer, which one more query reserves.
    """

    minute: int = 0
    reset_s: int = 0
    bytes: int = 0
    in_flight: int = 0
    spent: float = 0.0
    reserved: float = 0.0
    mean: float = 0.0


class _Sent:
    """Recent queries of one key."""

    def __init__(self) -> None:
        self._queries: list[tuple[int, str, int]] = []  # by time, with their bytes
        self.bytes = 0

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self._queries)

    @property
    def oldest_ms(self) -> int:
        """Return when the oldest query was sent, in ms since the epoch."""
        return self._queries[0][0]

    def add(self, query: tuple[int, str, int]) -> None:
        """Count a query: its time, id and bytes."""
        insort(self._queries, query)
        self.bytes += query[2]

    def remove(self, query: tuple[int, str, int]) -> None:
        """Stop counting a query."""
        del self._queries[bisect_left(self._queries, query)]
        self.bytes -= query[2]

    def forget(self, until_ms: int) -> list[str]:
        """Stop counting queries up to a time, and return their ids."""
        at = bisect_left(self._queries, (until_ms + 1,))
        gone, self._queries = self._queries[:at], self._queries[at:] if at else self._queries
        self.bytes -= sum(size for _, _, size in gone)
        return [query_id for _, query_id, _ in gone]


class Usage:
    """Usage by API key: queries in flight and costs, from the index's database, and the requests of the last minute.

    Queries dropped from the index may still count here.

    Args:
        db: The database; its table `queries` exists.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._db.executescript(SCHEMA)
        self._sent: defaultdict[str, _Sent] = defaultdict(_Sent)
        # The key, time and bytes of each query in `_sent`.
        self._counted: dict[str, tuple[str, int, int]] = {}

    def count(self, key: str, query_id: str, created_ms: int, size: int) -> None:
        """Count a query in its key's last minute, once."""
        if query_id not in self._counted:
            self._counted[query_id] = (key, created_ms, size)
            self._sent[key].add((created_ms, query_id, size))

    def take_back(self, query_id: str) -> None:
        """Stop counting a query that could not be sent."""
        if (found := self._counted.pop(query_id, None)) is not None:
            key, created_ms, size = found
            self._sent[key].remove((created_ms, query_id, size))

    def _lately(self, key: str, since_ms: int) -> _Sent:
        sent = self._sent.get(key) or _Sent()
        for query_id in sent.forget(since_ms):
            del self._counted[query_id]
        return sent

    def used(self, key: str, now_ms: int) -> Used:
        """Return a key's usage."""
        sent = self._lately(key, now_ms - MINUTE_MS)
        mean = self.mean(key)
        # The same formula as `reserved`.
        in_flight, in_use = self._db.execute(
            "select count(*), total(min(coalesce(budget, ?), ?)) from queries"
            " where key = ? and until_ms > ? and status is null",
            (mean, mean or math.inf, key, now_ms),
        ).fetchone()
        (spent,) = self._db.execute(
            "select total(spent) from spending where key = ? and hour > ?",
            (key, now_ms // HOUR_MS - _DAY_HOURS - 1),
        ).fetchone()
        return Used(
            minute=len(sent),
            bytes=sent.bytes,
            in_flight=in_flight,
            spent=spent,
            reserved=in_use,
            mean=mean,
            reset_s=max(1, math.ceil((sent.oldest_ms + MINUTE_MS - now_ms) / 1000)) if sent else 0,
        )

    def charge(self, key: str, at_ms: int, price: float | None, cut: float = 0.0) -> None:
        """Settle the cost of one Answer.

        Args:
            key: The API key's digest.
            at_ms: When the query was sent or answered.
            price: Cost of its search, which enters the mean; None if unknown.
            cut: Upper bound on the cost of a step that the deadline cut. It does not enter the mean, so that queries
                that are cut do not change how much the key's next query reserves.
        """
        self._db.execute(
            "insert into spending (key, hour, spent, priced, answers) values (?, ?, ?, ?, ?) on conflict (key, hour)"
            " do update set spent = spent + excluded.spent, priced = priced + excluded.priced,"
            " answers = answers + excluded.answers",
            (key, at_ms // HOUR_MS, (price or 0.0) + cut, price or 0.0, price is not None),
        )

    def trim(self, now_ms: int) -> None:
        """Drop entries too old to count, allowing for clock differences between gateways."""
        for key in list(self._sent):
            if not self._lately(key, now_ms - 2 * MINUTE_MS):
                del self._sent[key]
        self._db.execute("delete from spending where hour < ?", (now_ms // HOUR_MS - _DAY_HOURS,))

    def mean(self, key: str) -> float:
        """Return the mean cost of a key's answers; the mean over all keys if it has none."""
        found = self._db.execute(
            "select total(priced), total(answers) from spending where key = ?", (key,)
        ).fetchone()
        if not found[1]:
            found = self._db.execute("select total(priced), total(answers) from spending").fetchone()
        return float(found[0] / found[1]) if found[1] else 0.0


def reserved(mean: float, budget: float | None) -> float:
    """Return what a query reserves: its key's mean cost of an answer, but at most its own budget.

    >>> reserved(5.0, 2.0), reserved(5.0, None), reserved(0.0, 2.0)
    (2.0, 5.0, 2.0)
    """
    return min(mean if budget is None else budget, mean or math.inf)


# The limits of a key, as this gateway enforces them.

Gone: TypeAlias = Callable[[], Awaitable[bool]]
"""Returns whether the client of a request has disconnected."""


class KeyLimits:
    """The limits on what API keys use.

    Args:
        in_flight: In-flight limit for keys that set none. If it were higher than what the deployment admits, a key's
            queries would queue ahead of everyone else's.
        streams: How many streams a key may have open at once.
        reads: How many reads a key may make per minute.
    """

    def __init__(self, in_flight: int = 256, streams: int = 256, reads: int = 600) -> None:
        self._in_flight = in_flight
        self._most_streams = streams
        self._most_reads = reads
        # Open requests of each key at this gateway: all of them, its streams, and its completions (oldest first, each
        # with a function that returns whether its client has disconnected).
        self._requests: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._completions: defaultdict[str, dict[object, Gone]] = defaultdict(dict)
        # Reads, feedback and previews of the last minute by key: when, and the bytes of previews.
        self._reads: defaultdict[str, deque[tuple[int, int]]] = defaultdict(deque)
        self._feedback: defaultdict[str, deque[tuple[int, int]]] = defaultdict(deque)
        self._previews: defaultdict[str, deque[tuple[int, int]]] = defaultdict(deque)
        self._targets: dict[str, dict[tuple[float | None, float | None], int]] = {}  # when each was last set
        self._lookups: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._looking_up: Counter[str] = Counter()

    def request(self, who: Credential) -> AbstractContextManager[None]:
        """Count a request of a key until its response starts, no matter what it waits for.

        Raises:
            ApiError: 429 if the key has as many open requests as its in-flight limit plus OTHERS.
        """
        return _counted(self._requests, who, self._most(who) + OTHERS, "requests at once")

    def stream(self, who: Credential) -> AbstractContextManager[None]:
        """Count one stream of a key while it is open. Raises ApiError 429 if the key has too many."""
        return _counted(self._streams, who, self._most_streams, "streams open at once")

    async def completion(self, who: Credential, gone: Gone) -> AbstractContextManager[None]:
        """Count a completion of a key while its request is open, no matter which query it waits for.

        Queries in flight are counted from the log. This covers requests that join an existing query.

        Args:
            who: The caller.
            gone: Returns whether the client has disconnected; it may retry before this is noticed.

        Raises:
            ApiError: 429 if the key is at its in-flight limit.
        """
        most, completions = self._most(who), self._completions
        if who.entry is not None and len(completions.get(who.key, ())) >= most:
            for each, has_left in list(islice(completions[who.key].items(), _LOOKS)):
                if await has_left():
                    completions[who.key].pop(each, None)
            if len(completions[who.key]) >= most:
                raise _rate(f"{counted(most, 'request')} in flight", 1, {})
        return self._held(who.key, gone)

    @contextmanager
    def _held(self, key: str, gone: Gone) -> Iterator[None]:
        this = object()
        self._completions[key][this] = gone
        try:
            yield
        finally:
            self._completions[key].pop(this, None)
            if not self._completions[key]:
                del self._completions[key]

    def _most(self, who: Credential) -> int:
        """Return a key's in-flight limit."""
        return (who.entry.in_flight if who.entry is not None else None) or self._in_flight

    @asynccontextmanager
    async def lookup(self, who: Credential) -> AsyncIterator[None]:
        """Wait for a turn to look up an old id: lookups of one key run one at a time.

        Raises:
            ApiError: 429 if LOOKUPS requests of the key are waiting or running.
        """
        if who.entry is not None and self._looking_up[who.key] >= LOOKUPS:
            raise _rate(f"{LOOKUPS} requests for old ids at once", 1, {})
        self._looking_up[who.key] += 1
        try:
            async with self._lookups[who.key]:
                yield
        finally:
            self._looking_up[who.key] -= 1
            if not self._looking_up[who.key]:
                del self._looking_up[who.key], self._lookups[who.key]

    def admit(self, who: Credential, query: Query, used: Used, unit: CostUnit = "eflops") -> None:
        """Admit a request, or raise an error that names the limit it exceeds.

        Args:
            who: The caller.
            query: Its query.
            used: The key's usage so far.
            unit: Unit of costs.

        Raises:
            ApiError: 429; 403 if the key's spending limit is in a different unit.
        """
        entry = who.entry
        if entry is None:
            return
        if entry.limits_spending:
            _check_spending(entry, query, used, unit)
        if entry.per_minute is not None and used.minute >= entry.per_minute:
            raise _rate(
                f"{counted(entry.per_minute, 'request')} a minute", used.reset_s, self.headers(who, used)
            )
        if used.bytes >= MINUTE_BYTES:
            raise _rate(f"{MINUTE_BYTES} bytes of queries a minute", used.reset_s, self.headers(who, used))
        if used.in_flight >= (most := self._most(who)):
            raise _rate(f"{counted(most, 'request')} in flight", 1, self.headers(who, used))

    def read(self, who: Credential, now_ms: int) -> None:
        """Count a read of a key. Raises ApiError 429 if it has reached its reads per minute."""
        if who.entry is not None:
            _count(_lately(self._reads[who.key], now_ms), self._most_reads, "read", now_ms)

    def feedback(self, who: Credential, now_ms: int) -> None:
        """Count a key's feedback. Raises ApiError 429 above its limit on requests or, without one, on reads."""
        if who.entry is not None:
            most = who.entry.per_minute or self._most_reads
            _count(_lately(self._feedback[who.key], now_ms), most, "feedback request", now_ms)

    def preview(self, who: Credential, size: int, used: Used, now_ms: int) -> None:
        """Count or refuse a preview, which costs the decider as much as a decision.

        Args:
            who: The caller.
            size: Bytes that its query would take on the topic.
            used: The key's usage so far, without previews.
            now_ms: The current time, ms since the epoch.

        Raises:
            ApiError: 429 above the key's requests per minute, PREVIEWS if it sets none, or MINUTE_BYTES.
        """
        if who.entry is None:
            return
        recent = _lately(self._previews[who.key], now_ms)
        if used.minute + len(recent) >= (most := who.entry.per_minute or PREVIEWS):
            what = f"{counted(most, 'request')} a minute, previews among them"
            raise _rate(what, max(1, used.reset_s), self.headers(who, used))
        if used.bytes + sum(each for _, each in recent) >= MINUTE_BYTES:
            what = f"{MINUTE_BYTES} bytes of queries a minute, previews among them"
            raise _rate(what, max(1, used.reset_s), self.headers(who, used))
        recent.append((now_ms, size))

    def aim(self, who: Credential, query: Query, now_ms: int) -> None:
        """Count or refuse a mean cost or accuracy target set by a query itself.

        Raises:
            ApiError: 429 if its key has set TARGETS other targets within a minute.
        """
        target = (query.mean_cost, query.accuracy)
        if who.entry is None or target == (None, None):
            return
        since_ms = now_ms - MINUTE_MS
        recent = {one: at_ms for one, at_ms in self._targets.get(who.key, {}).items() if at_ms > since_ms}
        if target not in recent and len(recent) >= TARGETS:
            wait_s = 1 + (min(recent.values()) - since_ms) // 1000
            raise _rate(f"{TARGETS} different mean costs and accuracies of its own a minute", wait_s, {})
        self._targets[who.key] = {**recent, target: now_ms}

    def headers(self, who: Credential, used: Used) -> dict[str, str]:
        """Return the remaining requests per minute, in OpenAI's headers."""
        if who.entry is None or who.entry.per_minute is None:
            return {}
        return {
            "x-ratelimit-limit-requests": str(who.entry.per_minute),
            "x-ratelimit-remaining-requests": str(max(0, who.entry.per_minute - used.minute)),
            "x-ratelimit-reset-requests": f"{used.reset_s}s",
        }


@contextmanager
def _counted(held: Counter[str], who: Credential, most: int, what: str) -> Iterator[None]:
    """Count one more for a key while the block runs. Raises ApiError 429 if it already has `most`."""
    if who.entry is not None and held[who.key] >= most:
        raise _rate(f"{most} {what}", 1, {})
    held[who.key] += 1
    try:
        yield
    finally:
        held[who.key] -= 1
        if not held[who.key]:
            del held[who.key]


def _lately(counted: deque[tuple[int, int]], now_ms: int) -> deque[tuple[int, int]]:
    """Drop entries more than a minute old, and return the rest."""
    while counted and counted[0][0] <= now_ms - MINUTE_MS:
        counted.popleft()
    return counted


def _count(recent: deque[tuple[int, int]], most: int, what: str, now_ms: int) -> None:
    """Count one more in the last minute. Raises ApiError 429 if there are already `most`."""
    if len(recent) >= most:
        raise _rate(f"{counted(most, what)} a minute", 1 + (recent[0][0] + MINUTE_MS - now_ms) // 1000, {})
    recent.append((now_ms, 0))


def _check_spending(entry: KeyEntry, query: Query, used: Used, unit: CostUnit) -> None:
    """Refuse a query with which its key would spend more than it may in a day."""
    most: float | None = getattr(entry, f"{unit}_per_day")
    if most is None:
        raise ApiError(
            403,
            f"what this key may spend a day is not set in {UNITS[unit]}, in which the deployment counts: its operator "
            f"must add it again (`keys add {entry.name} --{unit}-per-day …`)",
            type="permission_error",
            code="quota_in_another_unit",
        )
    taken = used.spent + used.reserved
    its = reserved(used.mean, getattr(query.budget, unit) if query.budget else None)
    if taken >= most or taken + its > most:
        raise ApiError(
            429,
            f"this key may spend {most:.3g} {UNITS[unit]} in 24 hours: {used.spent:.3g} are "
            f"spent, {used.reserved:.3g} reserved for queries in flight, and this one takes about "
            f"{its:.3g}; give it a smaller uniscale.budget.{unit}, or wait",
            type="insufficient_quota",
            code="insufficient_quota",
            headers=dict(NO_RETRY),
        )


def _rate(what: str, wait_s: int, headers: dict[str, str]) -> ApiError:
    return ApiError(
        429,
        f"this key may have {what}; try again in {wait_s} s",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={**headers, "retry-after": str(wait_s)},
    )
