"""Index of recent queries by id. Kafka has no lookup by key, so the gateway stores records in SQLite."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import orjson
from msgspec import Struct, json, structs

from schemas.answer import Answer, Status
from schemas.control import CatalogueEntry, ControlRecord, CostBoundsEntry, ObjectiveEntry, PriceFactorEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.prices import rate_in_words
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.gateway.auth import Tenants
from streams.gateway.errors import why
from streams.gateway.quotas import Usage
from streams.gateway.request import BASELINE_OF, kept_of
from streams.recent_ids import RecentIds
from streams.timeline import Timeline

# Changes to catalogue, objectives and cost bounds, as marks on the page's time axis.

_KEPT: Final = 100


class Marks:
    """The latest changes on `control`, where compaction keeps only the last record of each name.

    Args:
        models: The models of the deployment's own catalogue.

    Attributes:
        listed: The marks, oldest first, as the page draws them. Each has `at` (seconds since the epoch), `kind`
            (`catalogue`, `objective` or `costs`) and `what` (a description).
    """

    def __init__(self, models: Iterable[str]) -> None:
        self._models = set(models)
        self.listed: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def note(self, entry: ControlRecord, at_ms: int) -> None:
        """Add a control record; records that do not affect choices are ignored."""
        match entry:
            case CatalogueEntry(name=name, model=None):
                self._models.discard(name)
                self._add(at_ms, "catalogue", f"model {name} removed")
            case CatalogueEntry(name=name):
                what = "changed" if name in self._models else "added"
                self._models.add(name)
                self._add(at_ms, "catalogue", f"model {name} {what}")
            case PriceFactorEntry(name=name):
                self._add(at_ms, "catalogue", f"model {name} charges {rate_in_words(entry.rate)}")
            case ObjectiveEntry(name=name, op=op):
                self._add(at_ms, "objective", f"objective {name} {'set' if op == 'set' else 'removed'}")
            case CostBoundsEntry():
                self._add(at_ms, "costs", "cost bounds changed")

    def _add(self, at_ms: int, kind: str, what: str) -> None:
        self.listed.append({"at": at_ms // 1000, "kind": kind, "what": what})


# The tables of the index, and its rows as exposed to the rest of the gateway.

SCHEMA: Final = """
create table if not exists queries (
    query_id text primary key,
    tenant text,
    key text not null default '',
    digest text not null default '',
    created_ms integer not null,
    until_ms integer not null default 0,
    budget real,
    asked integer not null default 0, stored integer not null default 1,
    groups text not null default '[]', session text, baseline_of text,
    question text, action text, objective text, cohort text, randomised integer,
    reason text,
    status text, error text, answered_ms integer, spent text, cost real, cut real not null default 0, correct real,
    size integer not null default 0,
    decision blob, answer blob, reward blob
) without rowid;
create table if not exists feedback (
    query_id text, source text, value real not null, primary key (query_id, source)
) without rowid;
create table if not exists dead_letters (
    origin text primary key, created_ms integer not null, letter blob not null, retried integer not null default 0
) without rowid;
create index if not exists by_age on queries (created_ms);
create index if not exists asked_by_age on queries (asked, created_ms, status, until_ms);
create index if not exists asked_by_tenant on queries (asked, tenant, created_ms, status, until_ms);
create index if not exists open_by_time on queries (until_ms) where status is null and until_ms > 0;
create index if not exists ended_by_age on queries (created_ms, size, status, until_ms)
    where status is not null or until_ms = 0;
create index if not exists spare_by_age on queries (created_ms)
    where key = '' or status is not null or until_ms = 0;
"""
"""`until_ms` is 0 once no Answer is expected any more; `size` is the bytes of the records; `budget` is a cost."""

# The conditions of the partial indexes, verbatim.
_ENDED: Final = "status is not null or until_ms = 0"
_SPARE: Final = f"key = '' or {_ENDED}"  # an open query of a key counts against its limits

_MOST_WORD: Final = 80

_CHARGED: Final = 16
"""Charged ids to remember per query kept, because its Answer and its Reward both report the cost, in any order."""

_AT_ONCE: Final = 500
"""Number of queries to read, in a few milliseconds, before yielding to other tasks."""


class IndexedQuery(Struct, frozen=True):
    """A query in the index.

    Attributes:
        query_id: Its id.
        tenant: Its tenant.
        digest: Digest of the request's body; empty if the query did not come through a gateway.
        created_ms: When it was sent, ms since the epoch.
        until_ms: Time by which it must have an Answer, MARGIN_S after its deadline, in ms since the epoch; 0 if none
            came by then.
        stored: Whether clients may read it back; see `kept_of`.
    """

    query_id: str
    tenant: str | None
    digest: str
    created_ms: int
    until_ms: int
    stored: int


class Listed(Struct, frozen=True):
    """A query as shown in lists and statistics; attributes that are not known yet are None.

    Attributes:
        query_id: Its id.
        tenant: Its tenant.
        created_ms: When it was sent, ms since the epoch.
        groups: Its value for each metadata key by which the index groups queries; None for a key without a value.
        session: The conversation that it is a turn of; see `Query`.
        baseline_of: The query whose paired baseline it is.
        question: The first 200 characters of its question.
        action: The configuration chosen.
        objective: Name of its objective, or the objective's kind if it has no name.
        cohort: `policy` or `control`.
        randomised: Whether its cohort was drawn at random; see `Decision`.
        reason: What chose the configuration; see `Decision`.
        status: How it ended.
        error: Why it has no text, as clients may read it.
        answered_ms: When it ended, ms since the epoch.
        spent: How its time was spent: a `Spent` as JSON.
        cost: Its cost, in the deployment's unit.
        correct: Grade of its answer, from 0 (wrong) to 1 (right).
    """

    query_id: str
    tenant: str | None
    created_ms: int
    groups: tuple[str | None, ...]
    session: str | None
    baseline_of: str | None
    question: str | None
    action: str | None
    objective: str | None
    cohort: str | None
    randomised: bool | None
    reason: str | None
    status: Status | None
    error: str | None
    answered_ms: int | None
    spent: str | None
    cost: float | None
    correct: float | None

    @property
    def arm(self) -> Literal["policy", "control"] | None:
        """Return who chose: the policy, the control group (paired baselines too), or None for the client."""
        if self.baseline_of is not None or self.cohort == "control":
            return "control"
        return "policy" if self.action is not None and self.reason != "pinned" else None


_MODEL: Final = "substr(action, 1, instr(action, '/') - 1)"


class Filter(Struct, frozen=True):
    """Which queries a list or the statistics are about; by default all.

    Attributes:
        tenants: Their tenants.
        objective: Name or kind of their objective, as in `Listed`.
        model: The model chosen for them.
        within_s: How long ago they were sent at most, in seconds.
        statuses: How they ended.
    """

    tenants: Tenants = None
    objective: str | None = None
    model: str | None = None
    within_s: int | None = None
    statuses: tuple[str, ...] = ()

    def where(self, now_ms: int) -> tuple[str, list[Any]]:
        """Return the condition in SQL and its values."""
        since_ms = None if self.within_s is None else now_ms - 1000 * self.within_s
        given = {
            "objective = ?": self.objective,
            f"{_MODEL} = ?": self.model,
            "created_ms >= ?": since_ms,
        }
        wanted = {condition: value for condition, value in given.items() if value is not None}
        values = [*(self.tenants or ()), *self.statuses, *wanted.values()]
        status = f"and status in ({', '.join('?' * len(self.statuses))})" if self.statuses else ""
        return " ".join(
            [f"asked = 1 {_of(self.tenants)} {status}", *(f"and {each}" for each in wanted)]
        ), values


EVERYTHING: Final = Filter()

LISTED: Final = ", ".join(field.name for field in structs.fields(Listed))
"""The columns of `Listed`."""


def baseline_of(query: Query) -> str | None:
    """Return the query whose paired baseline this is: the same question with a pinned configuration.

    A gateway accepts this only from keys with the scope `admin` (`request.BASELINE_OF`); producers on the topic may
    always set it.
    """
    found = query.metadata.get(BASELINE_OF)
    return found if isinstance(found, str) else None


def _word(value: Any) -> str | None:
    return str(value)[:_MOST_WORD] if isinstance(value, str | int | float) and str(value) else None


# The index holds nothing that is not on the topics: it is rebuilt from them at startup, and every gateway builds the
# same one.

Part = Literal["decision", "answer", "reward"]

MARGIN_S: Final = 30.0
"""Seconds after its deadline within which a query gets its `expired` Answer, if an aggregator is running."""


MOST_BYTES: Final = 128 * 1024 * 1024
"""Maximum bytes of records to keep: 20,000 typical queries take less, but as many large ones would take 24 GB."""


class Index:
    """The most recent queries.

    Args:
        most: How many to keep, not counting open queries of API keys. The keys' limits bound those once the topics have
            been read; until then, a query whose Answer has not been read yet also counts as open. The oldest are
            dropped first.
        most_bytes: How many bytes of records to keep, not counting those of open queries, which other limits bound.
        timeout_s: Timeout for queries that set none.
        group_by: Metadata keys whose values are kept, to group queries by.

    Attributes:
        moves: Whether older queries were dropped or never read, so that the index is a sliding window.
        usage: Usage of API keys.
    """

    def __init__(
        self,
        most: int,
        *,
        timeout_s: float = 600.0,
        group_by: Sequence[str] = (),
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.group_by = tuple(group_by)
        self.moves = False
        self._timeout_s = timeout_s
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.executescript(SCHEMA)
        self.usage = Usage(self._db)
        # Ids of queries whose cost has been charged, by an Answer or a Reward.
        self._charged = RecentIds(_CHARGED * most)
        self._forgotten_ms = 0  # when the newest dropped query was sent
        self._strange: list[str] = []  # ids of unknown queries for which feedback has arrived
        self._since_trim = 0
        self._bytes_since_trim = 0

    def __len__(self) -> int:
        """Return the number of queries."""
        return int(self._db.execute("select count(*) from queries").fetchone()[0])

    @property
    def size(self) -> int:
        """Return the size of the index in bytes."""
        return int(
            self._db.execute(
                "select page_count * page_size from pragma_page_count, pragma_page_size"
            ).fetchone()[0]
        )

    def query(self, query: Query, created_ms: int) -> None:
        """Add a Query. The first per id counts; its Decision or Answer may have been read earlier."""
        kept = kept_of(query)
        key = kept.get("key", "")
        columns = {
            "tenant": query.tenant,
            "key": key,
            "digest": kept.get("digest", ""),
            "created_ms": created_ms,
            "until_ms": created_ms + int(1000 * ((query.timeout_s or self._timeout_s) + MARGIN_S)),
            "budget": (query.budget.eflops or query.budget.usd) if query.budget else None,
            "groups": self._groups(query),
            "session": _word(query.session),
            "baseline_of": baseline_of(query),
            "asked": 1,
            "stored": kept.get("store") != "false",
        }
        done = self._db.execute(
            f"insert into queries (query_id, {', '.join(columns)}) values (?{', ?' * len(columns)})"
            f" on conflict (query_id) do update set {', '.join(f'{name} = excluded.{name}' for name in columns)}"
            " where asked = 0 returning cost, cut",
            (query.query_id, *columns.values()),
        ).fetchone()
        if done is None:
            return
        if key:
            self.usage.count(key, query.query_id, created_ms, len(encode(query)))
        self._charge(query.query_id, key, created_ms, *done)  # its Answer may have been read first
        self._since_trim += 1
        self._trim_if_due()

    def decision(self, decision: Decision, value: bytes, at_ms: int) -> bool:
        """Add a Decision, with the Query in it, and return whether it counts: only the first of the last attempt does.

        Args:
            decision: The Decision.
            value: Its encoded record.
            at_ms: Its append time, ms since the epoch.
        """
        self.query(decision.query, decision.appended_ms or at_ms)
        if not self._first("decision", decision.query_id, value, at_ms):
            known = self.decision_of(decision.query_id) if decision.attempt > 1 else None
            if known is None or known.attempt >= decision.attempt:
                return False
            self._set(decision.query_id, decision=value)
        self._set(
            decision.query_id,
            question=decision.query.question[:200],
            action=decision.action.id,
            objective=decision.objective.name or decision.objective.kind,
            cohort=decision.cohort,
            randomised=decision.randomised,
            reason=decision.reason,
        )
        return True

    def answer(self, answer: Answer, value: bytes, at_ms: int) -> bool:
        """Add an Answer and return whether it is the first, which counts.

        Args:
            answer: The Answer.
            value: Its encoded record.
            at_ms: Its append time, ms since the epoch.
        """
        if not self._first("answer", answer.query_id, value, at_ms):
            return False
        spent = json.encode(answer.spent).decode()
        self._set(answer.query_id, status=answer.status, error=why(answer), answered_ms=at_ms, spent=spent)
        return True

    def reward(self, reward: Reward, value: bytes) -> None:
        """Add a Reward. A later stage replaces an earlier one but never clears a known grade; the last stage stays."""
        if (known := self.reward_of(reward.query_id)) is not None and known.closes:
            return
        self._db.execute(
            "update queries set reward = ?, correct = coalesce(?, correct),"
            " size = size + ? - coalesce(length(reward), 0) where query_id = ?",
            (value, reward.correct, len(value), reward.query_id),
        )

    def priced(self, query_id: str, total: float | None, cut: float = 0.0) -> None:
        """Add the cost of a query, and charge it to its key unless that has been done.

        Args:
            query_id: Its id.
            total: Cost of its searches; None if unknown.
            cut: Upper bound on the cost of a step that its deadline cut.
        """
        done = self._db.execute(
            "update queries set cost = coalesce(cost, ?), cut = max(cut, ?) where query_id = ?"
            " returning key, created_ms",
            (total, cut, query_id),
        ).fetchone()
        if done is not None:
            key, created_ms = done
            self._charge(query_id, key, created_ms, total, cut)

    def spent(self, reward: Reward, at_ms: int) -> None:
        """Charge a Reward's `charge` to its key, unless the query's Answer has been charged already.

        Args:
            reward: The Reward.
            at_ms: Its append time, ms since the epoch.
        """
        if reward.charge is not None:
            price = reward.cost
            cut = reward.charge.eflops + reward.charge.usd - (price or 0.0)
            self._charge(reward.query_id, reward.charge.key, at_ms, price, cut)

    def _charge(self, query_id: str, key: str, at_ms: int, price: float | None, cut: float) -> None:
        if key and (price is not None or cut) and query_id not in self._charged:
            self._charged.add(query_id)
            self.usage.charge(key, at_ms, price, cut)

    def withdraw(self, query_id: str) -> None:
        """Remove a query that could not be sent, so that it does not count against its key's limits."""
        if self.forget(query_id):
            self.usage.take_back(query_id)

    def forget(self, query_id: str) -> bool:
        """Remove a query unless its Decision or Answer has arrived, and return whether it was removed."""
        done = self._db.execute(
            "delete from queries where query_id = ? and decision is null and answer is null", (query_id,)
        )
        return done.rowcount == 1

    @property
    def complete_ms(self) -> int | None:
        """Return the time since which all queries are kept, in ms since the epoch; None if there are none.

        Open queries of API keys may be older: they are kept longer than newer ones that have ended.
        """
        found = self._db.execute("select min(created_ms) from queries").fetchone()
        return None if found[0] is None else max(int(found[0]), self._forgotten_ms + 1)

    def note_feedback(self, given: Feedback) -> bool:
        """Add feedback and return whether its source had already sent some."""
        done = self._db.execute(
            "insert or ignore into feedback (query_id, source, value) values (?, ?, ?)",
            (given.query_id, given.source, given.grade),
        )
        if done.rowcount and self.find(given.query_id) is None:
            self._strange.append(given.query_id)
        return done.rowcount == 0

    def withdraw_feedback(self, query_id: str, source: str) -> None:
        """Remove feedback that could not be sent, so that its source may retry."""
        self._db.execute("delete from feedback where query_id = ? and source = ?", (query_id, source))

    def dead_letter(self, letter: DeadLetter, value: bytes, at_ms: int) -> None:
        """Add a dead letter. Only the newest of each origin counts, and only the thousand newest are kept."""
        self._db.execute(
            "insert into dead_letters (origin, created_ms, letter) values (?, ?, ?) on conflict (origin) do update"
            " set created_ms = excluded.created_ms, letter = excluded.letter",
            (letter.key, at_ms, value),
        )
        self._db.execute(
            "delete from dead_letters where origin in"
            " (select origin from dead_letters order by created_ms desc limit -1 offset 1000)"
        )

    def dead_letters(self, most: int) -> list[tuple[int, DeadLetter, bool]]:
        """Return the newest dead letters, newest first, each with its time in ms and whether it was sent again."""
        rows = self._db.execute(
            "select created_ms, letter, retried from dead_letters order by created_ms desc limit ?", (most,)
        )
        return [(at_ms, decode(value, DeadLetter), bool(retried)) for at_ms, value, retried in rows]

    def open_dead_letters(self) -> int:
        """Return how many dead letters have not been sent again."""
        return int(self._db.execute("select count(*) from dead_letters where not retried").fetchone()[0])

    def dead_letter_of(self, origin: str) -> DeadLetter | None:
        """Return the dead letter of an origin."""
        row = self._db.execute("select letter from dead_letters where origin = ?", (origin,)).fetchone()
        return decode(row[0], DeadLetter) if row else None

    def retried(self, origin: str, retried: bool = True) -> bool:
        """Record that a dead letter was retried, or that the retry failed; return whether that is a change."""
        done = self._db.execute(
            "update dead_letters set retried = ? where origin = ? and retried = ?",
            (retried, origin, not retried),
        )
        return done.rowcount == 1

    def find(self, query_id: str) -> IndexedQuery | None:
        """Return a query, or None if it is unknown or no longer kept."""
        found = self._db.execute(
            "select query_id, tenant, digest, created_ms, until_ms, stored from queries"
            " where query_id = ? and asked = 1",
            (query_id,),
        ).fetchone()
        return None if found is None else IndexedQuery(*found)

    def decision_of(self, query_id: str) -> Decision | None:
        """Return the Decision of a query, or None."""
        return decode(value, Decision) if (value := self._part("decision", query_id)) else None

    def answer_of(self, query_id: str) -> Answer | None:
        """Return the Answer of a query, or None."""
        return decode(value, Answer) if (value := self._part("answer", query_id)) else None

    def timeline(self, query_id: str) -> Timeline:
        """Return the kept records of a query (Decision, Answer, latest Reward), and when it was sent and answered."""
        found = Timeline(query_id)
        row = self._db.execute(
            "select decision, answer, reward, iif(asked = 1, created_ms, null), answered_ms from queries"
            " where query_id = ?",
            (query_id,),
        ).fetchone()
        if row is None:
            return found
        decision, answer, reward, asked_ms, answered_ms = row
        found.decisions = [decode(decision, Decision)] if decision else []
        found.answers = [decode(answer, Answer)] if answer else []
        found.rewards = [decode(reward, Reward)] if reward else []
        times = {"query": asked_ms, "answer": answered_ms}
        found.at_ms = {stage: at_ms for stage, at_ms in times.items() if at_ms is not None}
        return found

    def has_answer(self, query_id: str) -> bool:
        """Return whether a query has ended."""
        found = self._db.execute(
            "select 1 from queries where query_id = ? and answer is not null", (query_id,)
        ).fetchone()
        return found is not None

    def reward_of(self, query_id: str) -> Reward | None:
        """Return the latest Reward of a query, or None."""
        return decode(value, Reward) if (value := self._part("reward", query_id)) else None

    def activity(self, now_ms: int, tenants: Tenants = None) -> tuple[int, int]:
        """Return how many queries were sent in the last minute, and how many have no Answer yet."""
        found = self._db.execute(
            "select total(created_ms > ?), total(status is null and until_ms > ?) from queries"
            f" where asked = 1 {_of(tenants)}",
            [now_ms - 60_000, now_ms, *(tenants or ())],
        ).fetchone()
        return int(found[0]), int(found[1])

    def latest(self, most: int, now_ms: int, wanted: Filter = EVERYTHING) -> list[Listed]:
        """Return the newest of these queries that may be read back, newest first."""
        where, values = wanted.where(now_ms)
        return [_listed(row) for row in self._latest(f"{where} and stored", [*values, most])]

    async def all(self, now_ms: int, wanted: Filter = EVERYTHING) -> list[Listed]:
        """Return all of these queries and their paired baselines, newest first, yielding to other tasks meanwhile."""
        where, values = wanted.where(now_ms)
        rows = self._latest(
            f"asked = 1 {_of(wanted.tenants)} and iif(baseline_of is null, {where}, "
            f"baseline_of in (select query_id from queries where {where}))",
            [*(wanted.tenants or ()), *values, *values, self.most],
        )
        found = list[Listed]()
        while some := rows.fetchmany(_AT_ONCE):
            found += map(_listed, some)
            await asyncio.sleep(0)
        return found

    def _latest(self, where: str, values: Sequence[Any]) -> sqlite3.Cursor:
        return self._db.execute(
            f"select {LISTED} from queries where {where} order by created_ms desc limit ?", values
        )

    def values(self, tenants: Tenants = None) -> dict[str, list[str | None]]:
        """Return the tenants, objectives and models by which these tenants' queries can be filtered."""
        rows = self._db.execute(
            f"select distinct tenant, objective, {_MODEL} from queries where asked = 1 {_of(tenants)}",
            tenants or (),
        ).fetchall()
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        tenant, *named = (sorted(set(column), key=lambda value: value or "") for column in columns)
        return {"tenant": tenant} | {
            name: [value for value in values if value]
            for name, values in zip(("objective", "model"), named, strict=True)
        }

    def _groups(self, query: Query) -> str:
        """Return the values of the keys by which queries are grouped, as JSON."""
        return orjson.dumps([_word(query.metadata.get(key)) for key in self.group_by]).decode()

    def _first(self, part: Part, query_id: str, value: bytes, at_ms: int) -> bool:
        """Store a part unless there is one already, and return whether this was the first."""
        done = self._db.execute(
            f"insert into queries (query_id, created_ms, {part}, size) values (?, ?, ?, ?) on conflict (query_id)"
            f" do update set {part} = excluded.{part}, size = size + excluded.size where {part} is null",
            (query_id, at_ms, value, len(value)),
        )
        self._bytes_since_trim += len(value)
        self._trim_if_due()
        return done.rowcount == 1

    def _set(self, query_id: str, **columns: object) -> None:
        named = ", ".join(f"{name} = ?" for name in columns)
        self._db.execute(f"update queries set {named} where query_id = ?", (*columns.values(), query_id))

    def _part(self, part: Part, query_id: str) -> bytes | None:
        row = self._db.execute(f"select {part} from queries where query_id = ?", (query_id,)).fetchone()
        return row[0] if row else None

    def _trim_if_due(self) -> None:
        if self._since_trim > max(1, self.most // 100) or self._bytes_since_trim > self.most_bytes // 100:
            self._trim()

    def _trim(self) -> None:
        self._since_trim = self._bytes_since_trim = 0
        newest = self._db.execute("select max(created_ms) from queries").fetchone()[0] or 0
        self._db.execute(
            "update queries set until_ms = 0 where status is null and until_ms > 0 and until_ms < ?",
            (newest,),
        )
        self._drop(self._surplus())
        self._drop(self._excess())
        self._db.executemany(
            "delete from feedback where query_id = ? and query_id not in (select query_id from queries)",
            [(query_id,) for query_id in self._strange],
        )
        self._strange.clear()
        self.usage.trim(newest)

    def _surplus(self) -> list[tuple[str, int]]:
        """Return the oldest queries beyond the limit, and when they were sent."""
        (count,) = self._db.execute(f"select count(*) from queries where {_SPARE}").fetchone()
        return self._db.execute(
            f"select query_id, created_ms from queries where {_SPARE} order by created_ms limit ?",
            (max(0, count - self.most),),
        ).fetchall()

    def _excess(self) -> list[tuple[str, int]]:
        """Return the oldest ended queries whose records exceed the byte limit; see `_surplus`."""
        (size,) = self._db.execute(f"select total(size) from queries where {_ENDED}").fetchone()
        oldest = self._db.execute(
            f"select query_id, created_ms, size from queries where {_ENDED} order by created_ms"
        )
        found = []
        while size > self.most_bytes:
            query_id, created_ms, its = oldest.fetchone()
            size -= its
            found.append((query_id, created_ms))
        oldest.close()
        return found

    def _drop(self, queries: list[tuple[str, int]]) -> None:
        self.moves = self.moves or bool(queries)
        self._forgotten_ms = max([self._forgotten_ms, *(created_ms for _, created_ms in queries)])
        ids = [(query_id,) for query_id, _ in queries]
        self._db.executemany("delete from queries where query_id = ?", ids)
        self._db.executemany("delete from feedback where query_id = ?", ids)


def _listed(row: Sequence[Any]) -> Listed:
    query_id, tenant, created_ms, groups, *others = row
    return Listed(query_id, tenant, created_ms, tuple(orjson.loads(groups)), *others)


def _of(tenants: Tenants) -> str:
    return "" if tenants is None else f"and ({' or '.join(['tenant is ?'] * len(tenants)) or 'false'})"
