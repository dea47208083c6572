"""API keys from `control`, and how much of its limits each key has used, counted from the log."""

import asyncio
import hashlib
import ipaddress
import math
import sqlite3
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct, structs

from schemas.control import KeyEntry, Scope
from schemas.objective import UNITS, CostUnit
from schemas.query import Query, account_of
from streams.gateway.errors import NO_RETRY, ApiError, no_model, not_found
from streams.gateway.request import AUTO

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


# Authentication and limits: API keys from `control`, requests per minute, requests in flight, costs per day.

Tenants: TypeAlias = tuple[str | None, ...] | None
"""Tenants whose queries are visible; None for all. A key without a tenant sees the queries of all such keys."""


Gone: TypeAlias = Callable[[], Awaitable[bool]]
"""Returns whether the client of a request has disconnected."""


class Credential(Struct, frozen=True):
    """An authenticated caller.

    Attributes:
        key: Digest of the API key; empty if the gateway has no keys.
        entry: The key's entry; None if the gateway has no keys, which permits everything.
    """

    key: str = ""
    entry: KeyEntry | None = None

    @property
    def tenant(self) -> str | None:
        """Return the tenant that this caller's queries belong to."""
        return self.entry.tenant if self.entry else None

    @property
    def account(self) -> str:
        """Return the account that this caller's queries count against; see `Query.account`."""
        return account_of(self.tenant, self.key)

    @property
    def name(self) -> str:
        """Return the key's name, for feedback and logs."""
        return self.entry.name if self.entry else "local"

    @property
    def teaches(self) -> bool:
        """Return whether the learner may learn from this caller's queries and feedback."""
        return self.entry is None or "teach" in self.entry.scopes

    @property
    def sees(self) -> Tenants:
        """Return the tenants whose queries this caller may list."""
        return None if self.entry is None or "admin" in self.entry.scopes else (self.entry.tenant,)

    def require(self, scope: Scope) -> None:
        """Refuse a key without this scope. Raises ApiError 403."""
        if self.entry is not None and scope not in self.entry.scopes:
            raise ApiError(
                403,
                f"this key may not {scope}; ask its owner for a key with that scope",
                type="permission_error",
                code="insufficient_scope",
            )

    def may_see(self, tenant: str | None) -> bool:
        """Return whether this caller may see a tenant's queries."""
        return self.entry is None or "admin" in self.entry.scopes or tenant == self.entry.tenant


class Gate:
    """API keys and their limits.

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
        self._by_digest: dict[str, KeyEntry] = {}
        self._had_keys = False
        self._digest_of: dict[str, str] = {}

    @property
    def has_keys(self) -> bool:
        """Return whether any key exists or ever existed, so that revoking the last one does not open the gateway."""
        return self._had_keys

    @property
    def has_quotas(self) -> bool:
        """Return whether any key has a limit on what its answers may cost per day."""
        return any(entry.limits_spending for entry in self._by_digest.values())

    def change(self, entry: KeyEntry) -> None:
        """Apply a key entry from `control`, where the last entry of each name counts."""
        self._had_keys = True
        if (old := self._digest_of.pop(entry.name, None)) is not None:
            self._by_digest.pop(old, None)
        if entry.op == "add" and entry.sha256 is not None:
            self._digest_of[entry.name] = entry.sha256
            self._by_digest[entry.sha256] = entry

    def teaches(self, who: Credential, query: Query) -> bool:
        """Return whether the learner may learn from a query.

        It learns from keys with the scope `teach`. While no key has that scope, it learns from everybody's plain
        questions: those that bring no reference, grader or configuration of their own.
        """
        if who.teaches:
            return True
        plain = query.reference is None and query.grader is None and query.pinned is None
        return plain and not any("teach" in entry.scopes for entry in self._by_digest.values())

    def credential(self, bearer: str | None) -> Credential:
        """Return the credential of a bearer token. While no key exists, every request is allowed.

        Raises:
            ApiError: 401, if keys exist and the token is not one of them.
        """
        if not self.has_keys:
            return Credential()
        digest = hashlib.sha256((bearer or "").encode()).hexdigest()
        if (entry := self._by_digest.get(digest)) is None:
            what = (
                "is not valid, or was revoked" if bearer else "is missing; send `Authorization: Bearer KEY`"
            )
            raise ApiError(401, f"the API key {what}", type="authentication_error", code="invalid_api_key")
        return Credential(digest, entry)

    def knows(self, who: Credential) -> bool:
        """Return whether a credential is still valid, because its key may have been revoked or replaced."""
        return self._by_digest.get(who.key) == who.entry if who.entry else not self.has_keys

    def has_key(self, digest: str) -> bool:
        """Return whether a key with this digest is valid; the empty digest is valid while no key exists."""
        return digest in self._by_digest if digest else not self.has_keys

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
                raise _rate(f"{most} requests in flight", 1, {})
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

    def permitted(self, who: Credential, model: str, query: Query, models: Sequence[str]) -> Query:
        """Refuse models and objectives that the key may not use; return the query restricted to allowed models.

        Args:
            who: The caller.
            model: The model name of the request.
            query: Its query.
            models: Model names of the current catalogue.

        Raises:
            ApiError: 404 for a name that the key may not use; 403 if the query sets weights or targets and the key may
                only name objectives.
        """
        entry = who.entry
        if entry is None:
            return query
        if entry.allowed_models is not None:
            if model not in entry.allowed_models:
                raise no_model(model)
            # A virtual name leaves the choice to the policy, but only among the allowed models.
            if _is_virtual(model):
                own = _own(model, entry.allowed_models, models)
                for name in query.allowed_models or ():
                    if name not in (own or ()):
                        raise not_found("uniscale.allowed_models", name, "model_not_found")
                if query.allowed_models is None:
                    query = structs.replace(query, allowed_models=own)
        if entry.allowed_objectives is not None:
            if query.objective is not None and query.objective not in entry.allowed_objectives:
                raise not_found("objective", query.objective)
            for field in ("weights", "mean_cost", "accuracy"):
                if getattr(query, field) is not None:
                    raise ApiError(
                        403,
                        f"this key may not set {field}; name one of its objectives: "
                        f"{', '.join(entry.allowed_objectives)}",
                        type="permission_error",
                        param=f"uniscale.{field}",
                        code="objective_not_allowed",
                    )
        return query

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
            raise _rate(f"{entry.per_minute} requests a minute", used.reset_s, self.headers(who, used))
        if used.bytes >= MINUTE_BYTES:
            raise _rate(f"{MINUTE_BYTES} bytes of queries a minute", used.reset_s, self.headers(who, used))
        if used.in_flight >= (most := self._most(who)):
            raise _rate(f"{most} requests in flight", 1, self.headers(who, used))

    def read(self, who: Credential, now_ms: int) -> None:
        """Count a read of a key. Raises ApiError 429 if it has reached its reads per minute."""
        if who.entry is not None:
            _count(_lately(self._reads[who.key], now_ms), self._most_reads, "reads", now_ms)

    def feedback(self, who: Credential, now_ms: int) -> None:
        """Count a key's feedback. Raises ApiError 429 above its limit on requests or, without one, on reads."""
        if who.entry is not None:
            most = who.entry.per_minute or self._most_reads
            _count(_lately(self._feedback[who.key], now_ms), most, "feedback requests", now_ms)

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
            what = f"{most} requests a minute, previews among them"
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


def check_host(host: str | None, origin: str | None, allowed: frozenset[str]) -> None:
    """Refuse a request for a foreign host, or from a page of one, to prevent DNS rebinding.

    Args:
        host: The Host header.
        origin: The Origin header, if any.
        allowed: Host names, without ports.

    Raises:
        ApiError: 403.
    """
    given = (
        {"host": host or "", "origin": (origin or "").partition("://")[2]} if origin else {"host": host or ""}
    )
    for name, value in given.items():
        if _name(value) not in allowed:
            raise ApiError(
                403,
                f"{name} {value!r} is not allowed here; add it to UNISCALE_GATEWAY_HOSTS",
                type="permission_error",
                code="host_not_allowed",
            )


def is_local(address: str) -> bool:
    """Return whether a listening address can be reached only from this machine."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _name(value: str) -> str:
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    return value.rpartition(":")[0] if value.count(":") == 1 else value


def _is_virtual(model: str) -> bool:
    return model == AUTO or model.startswith(f"{AUTO}:")


def _own(model: str, allowed: tuple[str, ...], models: Sequence[str]) -> tuple[str, ...] | None:
    """Return the catalogue models that a key allows, named directly or in a configuration.

    Return None if it names only virtual models, which do not restrict the models.

    Raises:
        ApiError: 404 if none of the named models is in the catalogue any more.
    """
    named = [name for name in allowed if not _is_virtual(name)]
    if not named:
        return None
    bare = {name if name in models else name.rsplit("/", 3)[0] for name in named}
    if own := tuple(name for name in models if name in bare):
        return own
    raise no_model(model)


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
        raise _rate(f"{most} {what} a minute", 1 + (recent[0][0] + MINUTE_MS - now_ms) // 1000, {})
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
