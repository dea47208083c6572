"""Turns the raw topics into facts on disk, with a decoder that shares no code with the product."""

import hashlib
import math
import re
import sqlite3
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import orjson
import zstandard
from kafka import KafkaConsumer, TopicPartition

from streams.audit.price import PriceList, PriceTerms, factor_of, prices_of
from streams.log import kafka_clients
from streams.log.kafka_clients import BrokerStalled
from streams.settings import Settings

# The facts go into SQLite on disk, so that memory does not grow with the log. `facts.sql` defines the tables, and
# SQLite checks the column types.

TABLES: Final = {
    "query": "Query",
    "context": "Context",
    "decision": "Decision",
    "answer": "Answer",
    "reward": "Reward",
    "feedback": "Feedback",
    "failure": "Failure",
    "learner": "Row",
    "join": "JoinRow",
}
"""The tables, by kind of topic, for topics where each record concerns a single query."""

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(file: str) -> dict[str, str]:
    """Return the statements in a file in this folder, in order, keyed by the name in the comment above each one.

    >>> list(statements("timeline.sql"))[:2]
    ['by_query', 'by_context']
    """
    _, *parts = _NAME.split(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


class Ledger:
    """The facts, in a temporary SQLite database: up to 32 MB in memory, the rest in an unnamed file."""

    def __init__(self) -> None:
        self.db = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-32768", "temp_store=FILE"):
            self.db.execute(f"PRAGMA {pragma}")
        for statement in statements("facts.sql").values():
            self.db.execute(statement)
        self.db.execute("BEGIN")

    def add(self, table: str, *fact: object) -> None:
        """Store a fact, given its table's columns in order. In a table with a key, it replaces any earlier fact.

        Raises:
            sqlite3.Error, OverflowError: a field has the wrong type, so the product did not write the record.
        """
        self.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(fact))})", fact)

    def drop(self, table: str, column: str, key: object) -> None:
        """Delete the fact with this key, because the key's tombstone was read."""
        self.db.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))

    def close(self) -> None:
        """Close the file."""
        self.db.close()


# The raw topics: the range of offsets in each partition, and their records, read one partition after another.
#
# `Log` is the interface: `BrokerLog` reads from a broker, and tests pass lists. Reading a record takes bounded memory
# whatever its contents, and a value that cannot be read is None.

MAX_PLAIN: Final = 16 * 1024 * 1024
"""Maximum size of a decompressed zstd frame, twice the product's, so that a hostile frame cannot fill memory."""

# Maximum number of values in a record, twice a service's limit. Reading millions of empty lists would take seconds.
_MOST_VALUES: Final = 256 * 1024

_POLL_MS: Final = 500
_STALLED_S: Final = 30.0
# An unterminated string also matches; otherwise each quotation mark in it would be tried, in quadratic time.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

Part = tuple[str, int]
"""Topic and partition."""


class Raw(NamedTuple):
    """One record as the broker stores it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Span(NamedTuple):
    """The range of offsets in a partition, from `begin` up to but excluding `end`."""

    begin: int
    end: int


class Log(Protocol):
    """Read-only access to a deployment's topics."""

    def spans(self, topics: Iterable[str]) -> dict[Part, Span]:
        """Return each partition's current range of offsets. A topic that does not exist has no partitions."""

    def read(self, part: Part, span: Span) -> Iterator[Raw]:
        """Yield the records of a span in offset order. Compaction may have left gaps."""


class BrokerLog:
    """The topics on a broker, read by a consumer without a group so that no other reader is affected.

    Only committed records are read.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader: KafkaConsumer = kafka_clients.consumer(
            settings,
            fetch_max_bytes=settings.kafka.max_record_bytes + 65_536,
            max_poll_records=2_000,
        )

    def spans(self, topics: Iterable[str]) -> dict[Part, Span]:
        """Return each partition's current range of offsets, requested topic by topic in the order given."""
        found: dict[Part, Span] = {}
        for topic in topics:
            parts = [TopicPartition(topic, p) for p in sorted(self._reader.partitions_for_topic(topic) or ())]
            if not parts:
                continue
            ends: Mapping[TopicPartition, int] = self._reader.end_offsets(parts)
            begins: Mapping[TopicPartition, int] = self._reader.beginning_offsets(parts)
            found |= {(tp.topic, tp.partition): Span(begins[tp], ends[tp]) for tp in parts}
        return found

    def read(self, part: Part, span: Span) -> Iterator[Raw]:
        """Yield the records of a span.

        Raises:
            BrokerStalled: no record arrived for half a minute.
        """
        if span.begin >= span.end:
            return
        tp, since_s = TopicPartition(*part), time.monotonic()
        self._reader.assign([tp])
        self._reader.seek(tp, span.begin)
        at = span.begin
        while at < span.end:
            for records in self._reader.poll(timeout_ms=_POLL_MS).values():
                for r in records:
                    if r.offset < span.end:
                        yield Raw(r.offset, r.timestamp, r.key, r.value)
            if (now_at := self._reader.position(tp)) != at:
                at, since_s = now_at, time.monotonic()
            elif time.monotonic() - since_s > _STALLED_S:
                where = f"{tp.topic}/{tp.partition}: no record after offset {at} of {span.end}"
                raise BrokerStalled(f"{where}; try again")

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


class Plain:
    """Decodes values to plain JSON objects."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_PLAIN)

    def __call__(self, value: bytes | None) -> dict[str, Any] | None:
        """Return the JSON object in a value, which may be compressed, or None if the value is not a JSON object."""
        if not value:
            return None
        try:
            if value.startswith(_ZSTD_MAGIC):
                if not 0 <= zstandard.frame_content_size(value) <= MAX_PLAIN:
                    return None
                value = self._zstd.decompress(value)
            if _is_crowded(value):
                return None
            found = orjson.loads(value)
        except (orjson.JSONDecodeError, zstandard.ZstdError):
            return None
        return found if isinstance(found, dict) else None


def _is_crowded(value: bytes) -> bool:
    """Return whether some JSON text has too many values, judging by the commas and brackets outside its strings."""
    marks = (b",", b"[", b"{")
    if sum(map(value.count, marks)) <= _MOST_VALUES:
        return False
    bare = _STRINGS.sub(b"", value)
    return sum(map(bare.count, marks)) > _MOST_VALUES


# Facts are the fields of the raw records that the checks need, decoded without the product's schemas. An unreadable
# record leaves no fact. If a service should have refused the record, the checks look for its dead letter.

SNAPSHOT: Final = (b"\x00snapshot/", b"\x00ended/", b"\x00rows/", b"\x00start", b"\x00reset")
_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_WRONG: Final = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError),
    sqlite3.Error,
)


class Facts:
    """Turns records into facts and keeps them in the ledger.

    Attributes:
        queries_done: By partition, the offset of the newest Query that had a Context by the first capture.
        contexts_done: The offset of the newest Context that had been decided by then.
        rewards_done: The offset of the newest Reward that had been applied by then.
        failures_done: The offset of the newest AttemptFailed that the learner's log had taken into account by then.
        unreadable: Number of records that left no fact, by kind of topic.
        unpriced: By model, the number of Answers whose cost cannot be computed because the catalogue lacks the model.
    """

    def __init__(self, ledger: Ledger, catalogue: PriceList) -> None:
        self._catalogue, self._plain = catalogue, Plain()
        # Append time (ms) of each model's oldest entry in `control`: compaction may have removed earlier ones.
        self._entered_ms: dict[str, int] = {}
        self._add, self._drop = ledger.add, ledger.drop
        self.queries_done: dict[int, int] = {}
        self.contexts_done = self.rewards_done = self.failures_done = -1
        self.unreadable: dict[str, int] = {}
        self.unpriced: dict[str, int] = {}

    def take(self, kind: str, part: int, raw: Raw, early: bool) -> None:
        """Take one record.

        Args:
            kind: The kind of the record's topic, such as query, context or decision; see `streams.audit.run`.
            part: The record's partition.
            raw: The record.
            early: Whether the record is before the first capture's end offsets.
        """
        keyed = raw.value is None or raw.key is None or raw.key.startswith(b"\x00")
        if kind == "snapshot" or (kind in ("learner", "join") and keyed):
            self._keyed(kind, raw)
            return
        plain = self._plain(raw.value)
        where = (part, raw.offset, early, raw.timestamp_ms)
        reader: Callable[[dict[str, Any], tuple[int, int, bool, int]], None] = getattr(self, f"_{kind}")
        try:
            if plain is None:
                raise ValueError("no JSON object")
            reader(plain, where)
        except _WRONG:
            self.unreadable[kind] = self.unreadable.get(kind, 0) + 1
            if kind == "query":
                self._add("Query", None, *where, None, None, None)

    def _keyed(self, kind: str, raw: Raw) -> None:
        key = raw.key or b""
        if kind in ("learner", "snapshot") and key.startswith(SNAPSHOT):
            if raw.value:
                self._add("Chunk", key, raw.value)
            else:
                self._drop("Chunk", "key", key)
        elif kind in ("learner", "join") and raw.value is None:
            column = "name" if kind == "learner" else "query_id"
            self._drop(TABLES[kind], column, key.decode(errors="replace"))

    def _control(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        if r["schema"] == "catalogue-entry.v1":
            self._entered_ms.setdefault(r["name"], where[3])
            if r.get("model"):
                self._catalogue.add(r["model"])

    def _query(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        query_id = r["query_id"]
        if not _ID.fullmatch(query_id):
            raise ValueError("no key")
        timeout_ms, wait_ms = _waits(r)
        self._add("Query", query_id, *where, _asked(r), timeout_ms, wait_ms)

    def _context(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        query_id, origin, vector = r["query"]["query_id"], r["origin"], b64decode(r["embedding"])
        q_part, q_off = int(origin["partition"]), int(origin["offset"])
        self._add("Context", query_id, *where, q_part, q_off, _digest(vector))
        if where[2]:
            self.queries_done[q_part] = max(q_off, self.queries_done.get(q_part, -1))

    def _decision(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        query, reference = r["query"], r["query"].get("reference")
        self._add(
            "Decision", query["query_id"], *where, _same(_without(r, "query", "spent")), r["seq"], _action(r["action"]),
            _objective(r), r["policy"]["version"], r["origin"]["partition"], r["origin"]["offset"],
            _asked(query), _whole_number(str(reference) if isinstance(reference, str | int) else None),
            r.get("appended_ms", 0), query.get("learn", True), *_waits(query), r.get("price_factor", 1.0),
            r.get("verified", "all"), prices_of(r), r.get("attempt", 1), _unable(r),
        )  # fmt: skip

    def _failure(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        answer = r["answer"]
        prices = self._catalogue.prices(answer)
        eflops = None if answer.get("trace") else 0.0
        eflops = prices[0].cost if len(prices) == 1 else eflops
        self._add(
            "Failure", answer["query_id"], *where, answer.get("attempt", 1), answer["seq"], _action(answer["action"]),
            answer.get("fault") == "model", eflops,
        )  # fmt: skip

    def _answer(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        trace, path = r.get("trace", ()), r.get("path", ())
        scores = [trace[at]["score"] for at in path if trace[at].get("score") is not None]
        extracted = r.get("extracted")
        prices = self._catalogue.prices(r)
        model = (r.get("action") or {}).get("model", "")
        unknown = bool(trace) and not prices and model not in self._catalogue.models
        forgotten = unknown or where[3] < self._entered_ms.get(model, -1)
        self._add(
            "Answer", r["query_id"], *where, _same(_without(r, "spent")), r["status"], r["by"],
            _action(r["action"]) if r.get("action") else None, r.get("seq"), r.get("text") is not None,
            extracted is not None, _whole_number(extracted), r.get("score"),
            sum(scores) / len(scores) if scores else None, factor_of(r), bool(r.get("fault")),
            r.get("fault") == "model", _excused(r), forgotten,
            None if r.get("limits") is None else prices_of(r["limits"]), r.get("attempt", 1),
        )  # fmt: skip
        if unknown:
            self.unpriced[model] = self.unpriced.get(model, 0) + 1
        for price in prices:
            self._add("Worked", *where[:2], *price)

    def _reward(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        stated = r["price"]
        price = {} if stated is None else _NO_TERMS | stated
        paid = price.get("cost", 0.0)
        unscored = r.get("unscored", False)
        by_correctness = unscored or r.get("verified", "all") != "all"
        score = r["correct"] if by_correctness else r["score"]
        cost_only = r.get("bounded", False) or (
            by_correctness and score is None and r["kind"] != "provisional"
        )
        self._add(
            "Reward", r["query_id"], *where, _same(r), r["kind"], r["seq"], _action(r["action"]), r["status"],
            r["correct"], score, r["score"], r["log_cost"], _objective(r), r.get("reward"), _scalar(r, score),
            r.get("graded_by", ""), bool(r.get("grader")), _boxed(r), bool(r.get("missing")), r.get("learn", True),
            r.get("bounded", False), unscored, cost_only, r.get("closed_early", False), r.get("fault") == "model",
            r.get("verified", "all"), stated is not None, math.log(paid) if paid > 0 else None,
            *(price.get(name) for name in PriceTerms._fields), r.get("attempt", 1),
        )  # fmt: skip
        for each in r.get("earlier", ()):
            self._add(
                "Earlier", r["query_id"], where[1], each["attempt"], each["seq"], _action(each["action"]),
                each.get("cost", 0.0),
            )  # fmt: skip

    def _feedback(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        source = (r.get("graded_by", "person"), r.get("learn", True))
        self._add("Feedback", r["query_id"], *where, float(r["correct"]), *source)

    def _dead_letter(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        at = r["origin"]
        self._add("Letter", at["topic"], at["partition"], at["offset"], str(r["error"]), r.get("query_id"))

    def _learner(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        vector, c_off = b64decode(r["embedding"]), r["context_origin"]["offset"]
        if r["decision"]["policy"]["name"].endswith(_COUNTING):
            vector = vector[:-_COUNTS_BYTES]
        self._add(
            "Row", r["query_id"], *where, r["seq"], r["clock"], r["action"], _objective(r),
            r["query_origin"]["partition"], r["query_origin"]["offset"], c_off, r["decision"].get("appended_ms", 0),
            _same(_without(r["decision"], "query", "spent")), _digest(vector), r.get("stage", "pending"),
            r.get("weight", 1),
            r.get("learned_seq", -1), r.get("corrected_seq", -1), r.get("ended_seq", -1), ",".join(r.get("kinds", ())),
            r.get("reward_offset", -1), r.get("correct"), r.get("score", 0.0), r.get("log_cost", 0.0),
            r.get("price_factor", 1.0), attempt := r.get("attempt", 1), r.get("failure_offset", -1),
            r["query_id"] if attempt == 1 else f"{r['query_id']} {attempt}",
        )  # fmt: skip
        if where[2]:
            self.contexts_done = max(self.contexts_done, c_off)
            self.failures_done = max(self.failures_done, r.get("failure_offset", -1))
            self.rewards_done = max(self.rewards_done, r.get("reward_offset", -1))

    def _join(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        self._add("JoinRow", r["query_id"], *where)


_SORTED: Final = orjson.OPT_SORT_KEYS


# In the contextual policy's rows, the embedding is followed by the question's nine surface counts (float32).
_COUNTING: Final = "contextual"
_COUNTS_BYTES: Final = 9 * 4


def _excused(answer: dict[str, Any]) -> bool:
    """Return whether an Answer blames a model for a refusal although the model did not fail the operator's probe."""
    refused = answer.get("fault") == "model" and answer.get("cause") in ("refused", "filtered")
    return refused and (answer.get("probe") or {"passed": True})["passed"]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12).digest()


def _same(value: Any) -> bytes:
    return _digest(orjson.dumps(value, option=_SORTED))


def _without(record: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in fields}


def _action(a: dict[str, Any]) -> str:
    return f"{a['model']}/{a['qp']}/{a['cp']}/{a['bs']}"


def _boxed(r: dict[str, Any]) -> bool:
    """Return whether a Reward grades only the answer's last box, compared in the default grader's way."""
    read, _, rule = r.get("rule", "").rpartition("/")
    by_default = rule in ("number", "text", "math-verify", "program", "too-long")
    return bool(r.get("grader")) and (rule in ("", "no-box") or (read == "box" and by_default))


def _whole_number(text: str | None) -> int | None:
    """Return the integer that some text states, if it can be graded by comparing digits, or None."""
    digits = "" if text is None else text.strip()
    return int(digits) if len(digits) <= 15 and digits.isascii() and digits.isdigit() else None


def _objective(r: dict[str, Any]) -> bytes:
    """Return a digest of a record's objective. Fields with default values are left out, as on the wire."""
    plain = {"name": None, "version": -1, "price": 0.0, "mean_cost": None, "accuracy": None}
    return _same({name: value for name, value in r["objective"].items() if plain.get(name, r) != value})


def _coefficients(objective: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return the coefficients of Correct, Score, log C and 1 in w₁·Correct + w₂·Score + w₃·(1 − C̃) (Eq. 4)."""
    w, bounds = objective["weights"], objective["cost_range"]
    low, high = math.log(bounds["low"]), math.log(bounds["high"])
    slope = w["cost"] / (high - low)
    return w["correct"], w["score"], -slope, slope * high


_NO_TERMS: Final = {**dict.fromkeys(PriceTerms._fields, 0.0), "factor": 1.0}
"""Default values for the terms that a price omits."""


def _scalar(r: dict[str, Any], score: float | None) -> float | None:
    """Return the reward of Eq. 4, minus λ·C if the objective has a shadow price, or None if a term is unknown."""
    if r["correct"] is None or score is None or r["log_cost"] is None:
        return None
    w, v, u, c = _coefficients(r["objective"])
    spent = r["objective"].get("price", 0.0) * math.exp(r["log_cost"])
    return float(w * r["correct"] + v * score + u * r["log_cost"] + c - spent)


def _asked(q: dict[str, Any]) -> bytes:
    """Return a digest of the question, its options, and the reference and grader used to grade its Answer."""
    names = ("role", "content", "tool_calls", "tool_call_id", "parts")
    turns = [[m.get(name) for name in names] for m in q.get("messages") or ()]
    return _same([q.get("text"), turns, q.get("options"), q.get("reference"), q.get("grader")])


def _unable(d: dict[str, Any]) -> bool:
    """Return whether a Decision's action lacks something its query requires, or a requirement is not stated."""
    query, action, required = d["query"], d["action"], set(d.get("required", ()))
    options, turns = query.get("options") or {}, query.get("messages") or ()
    parts = {part.get("type") for turn in turns for part in turn.get("parts", ())}
    calls = any(turn.get("tool_calls") or turn["role"] == "tool" for turn in turns)
    asked = {
        "tools": options.get("tools") or calls,
        "json": options.get("response_format"),
        "images": "image_url" in parts,
        "audio": "input_audio" in parts,
        "logprobs": options.get("logprobs"),
    }
    several = action["qp"] * action["cp"] > 1 and not required.isdisjoint({*asked, "greedy"})
    forgotten = any(asks and name not in required for name, asks in asked.items())
    return several or forgotten or action["model"] in d.get("unable_models", ())


def _waits(q: dict[str, Any]) -> tuple[int | None, int | None]:
    timeout_s, wait_s = q.get("timeout_s"), q.get("feedback_wait_s")
    return None if timeout_s is None else int(timeout_s * 1000), None if wait_s is None else int(
        wait_s * 1000
    )
