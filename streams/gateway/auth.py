"""Who may ask, and how much: API keys from `control`, and what each has used of its limits, from the log."""

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
from schemas.query import Query, account_of
from streams.gateway.errors import NO_RETRY, ApiError, no_model, not_found
from streams.gateway.request import AUTO

# What each API key uses of its limits, counted from the log: all gateways of a deployment count the same requests.
#
# A query reserves at admission what one like it costs, and settles that at its Answer. What another gateway admitted
# counts here as soon as its Query has been read, which takes milliseconds.

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
_DAY_HOURS: Final = 24
SPENT_MS: Final = (_DAY_HOURS + 1) * HOUR_MS
"""How far back it counts what was spent: 24 hours, by whole ones."""

PREVIEWS: Final = 600
"""Previews a minute of a key that states no requests a minute: a slider asks ten times a second while it moves."""

TARGETS: Final = 8
"""Mean costs and accuracies a minute that a key may state itself: the decider solves for the price of each."""

LOOKUPS: Final = 8
"""Requests of a key for old ids at once, the one that is looked up among them: each reads two minutes of a topic."""

OTHERS: Final = 32
"""Requests of a key at once, beyond those that it may have in flight: bodies that are on their way, reads, feedback."""

_LOOKS: Final = 16
"""Open completions of a key, oldest first, whose clients are looked for where it has too many."""

MINUTE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of queries that a key may send a minute: every one of them travels through all topics of its search."""

SCHEMA: Final = """
create table if not exists spending (
    key text, hour integer, eflops real not null, priced real not null, answers integer not null,
    primary key (key, hour)
) without rowid;
create index if not exists open_by_key on queries (key, until_ms, budget, status) where status is null;
"""


class Used(Struct, frozen=True):
    """What an API key has used.

    Attributes:
        minute: Requests of the last minute.
        reset_s: Seconds until the first of these is more than a minute old.
        bytes: Of the queries of the last minute, as their topic has them.
        in_flight: Queries without an Answer.
        eflops: What its answers of the last 24 hours cost, by whole hours.
        reserved: What is reserved for its queries in flight, each at `mean` or its own budget.
        mean: Mean cost of an answer: what one more query reserves.
    """

    minute: int = 0
    reset_s: int = 0
    bytes: int = 0
    in_flight: int = 0
    eflops: float = 0.0
    reserved: float = 0.0
    mean: float = 0.0


class _Sent:
    """The queries that one key sent lately."""

    def __init__(self) -> None:
        self._queries: list[tuple[int, str, int]] = []  # by time, with their bytes
        self.bytes = 0

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self._queries)

    @property
    def oldest_ms(self) -> int:
        """Return when the first of them was asked."""
        return self._queries[0][0]

    def add(self, query: tuple[int, str, int]) -> None:
        """Count a query: its time, id and bytes."""
        insort(self._queries, query)
        self.bytes += query[2]

    def remove(self, query: tuple[int, str, int]) -> None:
        """Count a query no longer."""
        del self._queries[bisect_left(self._queries, query)]
        self.bytes -= query[2]

    def forget(self, until_ms: int) -> list[str]:
        """Count those up to a time no longer, and return their ids."""
        at = bisect_left(self._queries, (until_ms + 1,))
        gone, self._queries = self._queries[:at], self._queries[at:] if at else self._queries
        self.bytes -= sum(size for _, _, size in gone)
        return [query_id for _, query_id, _ in gone]


class Usage:
    """Use by API key: what is open and spent in the database of the index, and what was sent in the last minute.

    The index forgets queries that count here still.

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
        """Count a query among those of its key's last minute, once."""
        if query_id not in self._counted:
            self._counted[query_id] = (key, created_ms, size)
            self._sent[key].add((created_ms, query_id, size))

    def take_back(self, query_id: str) -> None:
        """Take back a query that could not be sent."""
        if (found := self._counted.pop(query_id, None)) is not None:
            key, created_ms, size = found
            self._sent[key].remove((created_ms, query_id, size))

    def _lately(self, key: str, since_ms: int) -> _Sent:
        sent = self._sent.get(key) or _Sent()
        for query_id in sent.forget(since_ms):
            del self._counted[query_id]
        return sent

    def used(self, key: str, now_ms: int) -> Used:
        """Return what a key has used."""
        sent = self._lately(key, now_ms - MINUTE_MS)
        mean = self.mean(key)
        # As `reserved` has it.
        in_flight, in_use = self._db.execute(
            "select count(*), total(min(coalesce(budget, ?), ?)) from queries"
            " where key = ? and until_ms > ? and status is null",
            (mean, mean or math.inf, key, now_ms),
        ).fetchone()
        (eflops,) = self._db.execute(
            "select total(eflops) from spending where key = ? and hour > ?",
            (key, now_ms // HOUR_MS - _DAY_HOURS - 1),
        ).fetchone()
        return Used(
            minute=len(sent),
            bytes=sent.bytes,
            in_flight=in_flight,
            eflops=eflops,
            reserved=in_use,
            mean=mean,
            reset_s=max(1, math.ceil((sent.oldest_ms + MINUTE_MS - now_ms) / 1000)) if sent else 0,
        )

    def charge(self, key: str, at_ms: int, price: float | None, cut: float = 0.0) -> None:
        """Settle one Answer.

        Args:
            key: Its key.
            at_ms: When it was asked, or answered.
            price: What its search cost, in eFLOPs; None where that is not known. It counts in the mean.
            cut: What a step that its deadline cut may have cost beside. The mean knows nothing of it: a key that lets
                its queries be cut must not lower what the next one reserves.
        """
        self._db.execute(
            "insert into spending (key, hour, eflops, priced, answers) values (?, ?, ?, ?, ?) on conflict (key, hour)"
            " do update set eflops = eflops + excluded.eflops, priced = priced + excluded.priced,"
            " answers = answers + excluded.answers",
            (key, at_ms // HOUR_MS, (price or 0.0) + cut, price or 0.0, price is not None),
        )

    def trim(self, now_ms: int) -> None:
        """Forget what is too old to count, by the clock of any gateway."""
        for key in list(self._sent):
            if not self._lately(key, now_ms - 2 * MINUTE_MS):
                del self._sent[key]
        self._db.execute("delete from spending where hour < ?", (now_ms // HOUR_MS - _DAY_HOURS,))

    def mean(self, key: str) -> float:
        """Return the mean cost of a key's answers in eFLOPs; of everybody's while it has none."""
        found = self._db.execute(
            "select total(priced), total(answers) from spending where key = ?", (key,)
        ).fetchone()
        if not found[1]:
            found = self._db.execute("select total(priced), total(answers) from spending").fetchone()
        return float(found[0] / found[1]) if found[1] else 0.0


def reserved(mean: float, budget: float | None) -> float:
    """Return what a query reserves, in eFLOPs: its key's mean cost of an answer, its own budget at most.

    >>> reserved(5.0, 2.0), reserved(5.0, None), reserved(0.0, 2.0)
    (2.0, 5.0, 2.0)
    """
    return min(mean if budget is None else budget, mean or math.inf)


# Who may ask, and how much: API keys from `control`, requests a minute, requests in flight, eFLOPs a day.

Tenants: TypeAlias = tuple[str | None, ...] | None
"""Tenants whose queries may be seen; None for all. A key without a tenant sees those of keys without one."""


Gone: TypeAlias = Callable[[], Awaitable[bool]]
"""Whether the client of a request has left."""


class Credential(Struct, frozen=True):
    """Who asks, as authenticated.

    Attributes:
        key: Digest of the API key; empty where the gateway has no keys.
        entry: What the key may do; None where the gateway has no keys: everything.
    """

    key: str = ""
    entry: KeyEntry | None = None

    @property
    def tenant(self) -> str | None:
        """Return the tenant that queries are stamped with."""
        return self.entry.tenant if self.entry else None

    @property
    def account(self) -> str:
        """Return to whom its queries count; see `Query.account`."""
        return account_of(self.tenant, self.key)

    @property
    def name(self) -> str:
        """Return the key's name, for feedback and logs."""
        return self.entry.name if self.entry else "local"

    @property
    def teaches(self) -> bool:
        """Return whether the learner may learn from what this caller asks and claims."""
        return self.entry is None or "teach" in self.entry.scopes

    @property
    def sees(self) -> Tenants:
        """Return the tenants whose queries this caller may list."""
        return None if self.entry is None or "admin" in self.entry.scopes else (self.entry.tenant,)

    def require(self, scope: Scope) -> None:
        """Refuse what the key was not made for. Raises ApiError 403."""
        if self.entry is not None and scope not in self.entry.scopes:
            raise ApiError(
                403,
                f"this key may not {scope}; ask its owner for a key with that scope",
                type="permission_error",
                code="insufficient_scope",
            )

    def may_see(self, tenant: str | None) -> bool:
        """Return whether a query of a tenant is this caller's to see."""
        return self.entry is None or "admin" in self.entry.scopes or tenant == self.entry.tenant


class Gate:
    """API keys, and what they allow.

    Args:
        in_flight: Requests that a key may have in flight which does not say: more than the deployment admits would
            wait in front of everybody else's.
        streams: How many streams a key may have open at once.
        reads: How many reads a key may make a minute.
    """

    def __init__(self, in_flight: int = 256, streams: int = 256, reads: int = 600) -> None:
        self._in_flight = in_flight
        self._most_streams = streams
        self._most_reads = reads
        # What each key has open at this gateway: everything, its streams, and its completions, oldest first, each with
        # whether its client has left.
        self._requests: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._completions: defaultdict[str, dict[object, Gone]] = defaultdict(dict)
        # When each key had some in the last minute; of previews, with their bytes.
        self._reads: dict[str, deque[int]] = {}
        self._previews: dict[str, deque[tuple[int, int]]] = {}
        self._targets: dict[
            str, dict[tuple[float | None, float | None], int]
        ] = {}  # when each stated them last
        self._lookups: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._looking_up: Counter[str] = Counter()
        self._by_digest: dict[str, KeyEntry] = {}
        self._had_keys = False
        self._digest_of: dict[str, str] = {}

    @property
    def has_keys(self) -> bool:
        """Return whether any key exists or ever existed: revoking the last one does not open the gateway."""
        return self._had_keys

    @property
    def has_quotas(self) -> bool:
        """Return whether any key may spend so much a day only."""
        return any(entry.eflops_per_day is not None for entry in self._by_digest.values())

    def change(self, entry: KeyEntry) -> None:
        """Add a key entry from `control`: the last one with a name counts."""
        self._had_keys = True
        if (old := self._digest_of.pop(entry.name, None)) is not None:
            self._by_digest.pop(old, None)
        if entry.op == "add" and entry.sha256 is not None:
            self._digest_of[entry.name] = entry.sha256
            self._by_digest[entry.sha256] = entry

    def teaches(self, who: Credential, query: Query) -> bool:
        """Return whether the learner may learn from a query.

        It learns from keys with the scope `teach`. While there is none, it must learn from somebody: from everybody's
        plain questions, those without a reference, a grader or a configuration of their own.
        """
        if who.teaches:
            return True
        plain = query.reference is None and query.grader is None and query.pinned is None
        return plain and not any("teach" in entry.scopes for entry in self._by_digest.values())

    def credential(self, bearer: str | None) -> Credential:
        """Return the credential of a bearer token. While no key exists, every request is let in.

        Raises:
            ApiError: 401, when keys exist and this is not one of them.
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
        """Return whether a credential is still good: its key may have been revoked or replaced."""
        return self._by_digest.get(who.key) == who.entry if who.entry else not self.has_keys

    def has_key(self, digest: str) -> bool:
        """Return whether a key with this digest may come in; an empty one while no key exists."""
        return digest in self._by_digest if digest else not self.has_keys

    def request(self, who: Credential) -> AbstractContextManager[None]:
        """Count a request of a key until its response begins, whatever it waits for.

        Raises:
            ApiError: 429 where the key has OTHERS more than it may have completions.
        """
        return _counted(self._requests, who, self._most(who) + OTHERS, "requests at once")

    def stream(self, who: Credential) -> AbstractContextManager[None]:
        """Count one stream of a key for as long as it is open. Raises ApiError 429 where the key has too many."""
        return _counted(self._streams, who, self._most_streams, "streams open at once")

    async def completion(self, who: Credential, gone: Gone) -> AbstractContextManager[None]:
        """Count a completion of a key for as long as its request is open, whichever query it waits for.

        Queries in flight are counted from the log. This is for requests that send none, but join that of another one.

        Args:
            who: Who asks.
            gone: Whether its client has left: it may be back with a retry before that is noticed.

        Raises:
            ApiError: 429 where the key has as many already as it may have in flight.
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
        """Return how many requests a key may have in flight."""
        return (who.entry.in_flight if who.entry is not None else None) or self._in_flight

    @asynccontextmanager
    async def lookup(self, who: Credential) -> AsyncIterator[None]:
        """Wait for one's turn to look up an old id: a key's come one at a time.

        Raises:
            ApiError: 429 where LOOKUPS requests of the key are here already.
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
        """Refuse models and objectives that the key may not use; return the query with the models that it may use.

        Args:
            who: Who asks.
            model: The model name of the request.
            query: What it asks for.
            models: Names of the catalogue in force.

        Raises:
            ApiError: 404 for a name the key may not use, 403 for an objective of its own.
        """
        entry = who.entry
        if entry is None:
            return query
        if entry.allowed_models is not None:
            if model not in entry.allowed_models:
                raise no_model(model)
            # A virtual name leaves the choice to the policy; it is no way to other models.
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

    def admit(self, who: Credential, query: Query, used: Used) -> None:
        """Admit a request, or raise an error that names the limit it exceeds.

        Args:
            who: Who asks.
            query: What it asks for.
            used: What the key has used before it.

        Raises:
            ApiError: 429.
        """
        entry = who.entry
        if entry is None:
            return
        if entry.eflops_per_day is not None:
            taken = used.eflops + used.reserved
            its = reserved(used.mean, query.budget.eflops if query.budget else None)
            if taken >= entry.eflops_per_day or taken + its > entry.eflops_per_day:
                raise ApiError(
                    429,
                    f"this key may spend {entry.eflops_per_day:.3g} eFLOPs in 24 hours: {used.eflops:.3g} are "
                    f"spent, {used.reserved:.3g} reserved for queries in flight, and this one takes about "
                    f"{its:.3g}; give it a smaller uniscale.budget.eflops, or wait",
                    type="insufficient_quota",
                    code="insufficient_quota",
                    headers=dict(NO_RETRY),
                )
        if entry.per_minute is not None and used.minute >= entry.per_minute:
            raise _rate(f"{entry.per_minute} requests a minute", used.reset_s, self.headers(who, used))
        if used.bytes >= MINUTE_BYTES:
            raise _rate(f"{MINUTE_BYTES} bytes of queries a minute", used.reset_s, self.headers(who, used))
        if used.in_flight >= (most := self._most(who)):
            raise _rate(f"{most} requests in flight", 1, self.headers(who, used))

    def read(self, who: Credential, now_ms: int) -> None:
        """Count a read of a key. Raises ApiError 429 where it has made as many within a minute as it may."""
        if who.entry is None:
            return
        recent = self._reads.setdefault(who.key, deque())
        while recent and recent[0] <= now_ms - MINUTE_MS:
            recent.popleft()
        if len(recent) >= self._most_reads:
            wait_s = 1 + (recent[0] + MINUTE_MS - now_ms) // 1000
            raise _rate(f"{self._most_reads} reads a minute", wait_s, {})
        recent.append(now_ms)

    def preview(self, who: Credential, size: int, used: Used, now_ms: int) -> None:
        """Count a preview of a decision, which the decider works out as it does a decision, or refuse it.

        Args:
            who: Who asks.
            size: Bytes of its query, as a decision's would be on the topic.
            used: What the key has used before it, previews aside.
            now_ms: When it asks.

        Raises:
            ApiError: 429 above the key's requests a minute, or PREVIEWS where it states none, or its bytes a minute.
        """
        if who.entry is None:
            return
        recent = self._previews.setdefault(who.key, deque())
        while recent and recent[0][0] <= now_ms - MINUTE_MS:
            recent.popleft()
        if used.minute + len(recent) >= (most := who.entry.per_minute or PREVIEWS):
            what = f"{most} requests a minute, previews among them"
            raise _rate(what, max(1, used.reset_s), self.headers(who, used))
        if used.bytes + sum(each for _, each in recent) >= MINUTE_BYTES:
            what = f"{MINUTE_BYTES} bytes of queries a minute, previews among them"
            raise _rate(what, max(1, used.reset_s), self.headers(who, used))
        recent.append((now_ms, size))

    def aim(self, who: Credential, query: Query, now_ms: int) -> None:
        """Count the mean cost or accuracy that a query states itself, or refuse it.

        Raises:
            ApiError: 429 where its key has stated TARGETS others within a minute.
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
        """Return how much of the limit a minute is left, in OpenAI's headers."""
        if who.entry is None or who.entry.per_minute is None:
            return {}
        return {
            "x-ratelimit-limit-requests": str(who.entry.per_minute),
            "x-ratelimit-remaining-requests": str(max(0, who.entry.per_minute - used.minute)),
            "x-ratelimit-reset-requests": f"{used.reset_s}s",
        }


def check_host(host: str | None, origin: str | None, allowed: frozenset[str]) -> None:
    """Refuse a request for another host, or from a page of another one: a browser must not be led here (DNS rebinding).

    Args:
        host: The Host header.
        origin: The Origin header, where there is one.
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
    """Return whether an address to listen on can be reached only from this machine."""
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
    """Return the models of the catalogue that a key names, by themselves or in a configuration.

    None where it names virtual ones alone, which restricts it to no model.

    Raises:
        ApiError: 404 where the catalogue has none of them any more.
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
    """Count what a key holds while the block runs. Raises ApiError 429 where it holds so many already."""
    if who.entry is not None and held[who.key] >= most:
        raise _rate(f"{most} {what}", 1, {})
    held[who.key] += 1
    try:
        yield
    finally:
        held[who.key] -= 1
        if not held[who.key]:
            del held[who.key]


def _rate(what: str, wait_s: int, headers: dict[str, str]) -> ApiError:
    return ApiError(
        429,
        f"this key may have {what}; try again in {wait_s} s",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={**headers, "retry-after": str(wait_s)},
    )
