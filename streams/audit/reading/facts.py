"""From raw records to facts: the fields that the checks need, decoded without the product's own schemas.

A record that cannot be read leaves no fact. If its room should have given it up, the checks look for its dead letter.
"""

import hashlib
import math
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final

import orjson

from streams.audit.price import Catalogue, factor_of
from streams.audit.reading.ledger import Ledger
from streams.audit.reading.log import Plain, Raw
from streams.audit.reading.records import (
    Answer,
    Chunk,
    Context,
    Decision,
    Feedback,
    JoinRow,
    Letter,
    Query,
    Reward,
    Row,
    Vector,
)

SNAPSHOT: Final = (b"\x00snapshot/", b"\x00ended/", b"\x00start")
ACTION: Final = b"\x00action/"
_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_WRONG: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


class Facts:
    """Turns records into facts and keeps them in the ledger.

    Attributes:
        actions: s_a of every action ever offered, by its id; base64.
        queries_done: Offset of the newest Query that had become a Context by the first capture, by partition.
        contexts_done: Offset of the newest Context that had been decided by then.
        decisions_done: Largest number of decisions made by then.
        rewards_done: Offset of the newest Reward that had been applied by then.
        unreadable: Number of records that left no fact, by kind of topic.
    """

    def __init__(self, ledger: Ledger, catalogue: Catalogue) -> None:
        self._ledger, self._catalogue, self._plain = ledger, catalogue, Plain()
        self.actions: dict[str, str] = {}
        self.queries_done: dict[int, int] = {}
        self.contexts_done = self.decisions_done = self.rewards_done = -1
        self.unreadable: dict[str, int] = {}

    def take(self, kind: str, part: int, raw: Raw, early: bool) -> None:
        """Take one record.

        Args:
            kind: Kind of its topic: query, context, decision, answer, reward, feedback or another.
            part: Its partition.
            raw: The record.
            early: Whether it lies before the first capture.
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
                self._ledger.add(Query(None, *where))

    def _keyed(self, kind: str, raw: Raw) -> None:
        key = raw.key or b""
        if kind in ("learner", "snapshot") and key.startswith(SNAPSHOT):
            if raw.value:
                self._ledger.add(Chunk(key, raw.value))
            else:
                self._ledger.drop(Chunk, key)
        elif kind == "learner" and key.startswith(ACTION) and (plain := self._plain(raw.value)):
            self.actions[str(plain.get("action"))] = str(plain.get("embedding"))
        elif kind in ("learner", "join") and raw.value is None:
            self._ledger.drop(Row if kind == "learner" else JoinRow, key.decode(errors="replace"))

    def _control(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        if r["schema"] == "catalogue-entry.v1" and r.get("model"):
            self._catalogue.add(r["model"])

    def _query(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        query_id = r["query_id"]
        if not _ID.fullmatch(query_id):
            raise ValueError("no key")
        timeout_ms, wait_ms = _waits(r)
        self._ledger.add(Query(query_id, *where, _asked(r), timeout_ms, wait_ms))

    def _context(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        query_id, origin, vector = r["query"]["query_id"], r["origin"], b64decode(r["embedding"])
        q_part, q_off = int(origin["partition"]), int(origin["offset"])
        self._ledger.add(Context(query_id, *where, q_part, q_off, _digest(vector)))
        self._ledger.add(Vector(query_id, vector))
        if where[2]:
            self.queries_done[q_part] = max(q_off, self.queries_done.get(q_part, -1))

    def _decision(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        query = r["query"]
        self._ledger.add(
            Decision(
                query["query_id"], *where, _same(_without(r, "query")), r["seq"], _action(r["action"]),
                _objective(r), r["objective"].get("price", 0.0), r["policy"]["version"],
                r.get("reason", "policy"), r.get("mean"), r.get("width"), r["origin"]["partition"],
                r["origin"]["offset"], _asked(query),
                orjson.dumps(query.get("reference")), r.get("appended_ms", 0), query.get("learn", True),
                *_waits(query), r.get("price_factor", 1.0),
            )
        )  # fmt: skip

    def _answer(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        trace, path = r.get("trace", ()), r.get("path", ())
        scores = [trace[at]["score"] for at in path if trace[at].get("score") is not None]
        self._ledger.add(
            Answer(
                r["query_id"], *where, _same(r), _same(_without(r, "spent")), r["status"], r["by"],
                r.get("error") or "", _action(r["action"]) if r.get("action") else None, r.get("seq"),
                r.get("text") is not None, r.get("extracted"), r.get("score"),
                sum(scores) / len(scores) if scores else None, bool((r.get("spent") or {}).get("verify_s")),
                orjson.dumps([*map(list, self._catalogue.prices(r))]), factor_of(r),
            )
        )  # fmt: skip

    def _reward(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        self._ledger.add(
            Reward(
                r["query_id"], *where, _same(r), r["kind"], r["seq"], _action(r["action"]), r["status"], r["correct"],
                r["score"], r["log_cost"], orjson.dumps(_price(r["price"])), _objective(r), r.get("reward"), _scalar(r),
                r.get("graded_by", ""), r.get("learn", True), r.get("bounded", False),
            )
        )  # fmt: skip

    def _feedback(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        self._ledger.add(Feedback(r["query_id"], *where, float(r["correct"])))

    def _dead_letter(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        at = r["origin"]
        self._ledger.add(
            Letter(at["topic"], at["partition"], at["offset"], where[2], r.get("query_id"), str(r["error"]))
        )

    def _learner(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        vector, c_off = b64decode(r["embedding"]), r["context_origin"]["offset"]
        if r["decision"]["policy"]["name"].endswith(_COUNTING):
            vector = vector[:-_COUNTS_BYTES]
        row = Row(
            r["query_id"], *where, r["seq"], r["clock"], r["action"], _objective(r),
            r["query_origin"]["partition"], r["query_origin"]["offset"], c_off, r["decision"].get("appended_ms", 0),
            _same(_without(r["decision"], "query")), _digest(vector), r.get("stage", "pending"),
            r.get("learned_seq", -1), r.get("corrected_seq", -1), r.get("ended_seq", -1), ",".join(r.get("kinds", ())),
            r.get("reward_offset", -1), r.get("entered"), r.get("correct"), r.get("score", 0.0),
            r.get("log_cost", 0.0), r.get("imputed", 0.0), *_coefficients(r["objective"]), r.get("price_factor", 1.0),
        )  # fmt: skip
        self._ledger.add(row)
        self._ledger.add(Vector(row.query_id, vector))
        if row.early:
            self.contexts_done = max(self.contexts_done, c_off)
            self.decisions_done = max(self.decisions_done, row.clock)
            self.rewards_done = max(self.rewards_done, row.r_off)

    def _join(self, r: dict[str, Any], where: tuple[int, int, bool, int]) -> None:
        self._ledger.add(JoinRow(r["query_id"], *where, r.get("closed"), bool(r.get("provisional"))))


_SORTED: Final = orjson.OPT_SORT_KEYS


# In rows of the contextual policy, nine counts of the question follow the embedding, float32 each.
_COUNTING: Final = "contextual"
_COUNTS_BYTES: Final = 9 * 4


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12).digest()


def _same(value: Any) -> bytes:
    return _digest(orjson.dumps(value, option=_SORTED))


def _without(record: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in fields}


def _action(a: dict[str, Any]) -> str:
    return f"{a['model']}/{a['qp']}/{a['cp']}/{a['bs']}"


def _price(price: dict[str, Any] | None) -> dict[str, float] | None:
    return None if price is None else {name: float(price[name]) for name in ("eflops", *price)}


def _objective(r: dict[str, Any]) -> bytes:
    """Return a digest of an objective. Fields with their default value are left out, as on the wire."""
    plain = {"name": None, "version": -1, "price": 0.0, "mean_cost": None, "accuracy": None}
    return _same({name: value for name, value in r["objective"].items() if plain.get(name, r) != value})


def _coefficients(objective: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return the coefficients of Correct, Score, log C and 1 in w₁·Correct + w₂·Score + w₃·(1 − C̃) (Eq. 4)."""
    w, bounds = objective["weights"], objective["cost_range"]
    low, high = math.log(bounds["low_eflops"]), math.log(bounds["high_eflops"])
    slope = w["cost"] / (high - low)
    return w["correct"], w["score"], -slope, slope * high


def _scalar(r: dict[str, Any]) -> float | None:
    """Return the reward of Eq. 4, minus λ·C if the objective has a price; None if a term is not known."""
    if r["correct"] is None or r["score"] is None or r["log_cost"] is None:
        return None
    w, v, u, c = _coefficients(r["objective"])
    spent = r["objective"].get("price", 0.0) * math.exp(r["log_cost"])
    return float(w * r["correct"] + v * r["score"] + u * r["log_cost"] + c - spent)


def _asked(q: dict[str, Any]) -> bytes:
    """Return a digest of the question and of the reference that its Answer is graded against."""
    turns = [[m["role"], m["content"]] for m in q.get("messages") or ()]
    return _same([q.get("text"), turns, q.get("reference")])


def _waits(q: dict[str, Any]) -> tuple[int | None, int | None]:
    timeout_s, wait_s = q.get("timeout_s"), q.get("feedback_wait_s")
    return None if timeout_s is None else int(timeout_s * 1000), None if wait_s is None else int(
        wait_s * 1000
    )
