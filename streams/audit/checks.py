"""Runs `timeline.sql`, `checks.sql` and `summary.sql` on the facts, for each query's state, invariants and totals."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from streams.audit.reading import TABLES, Ledger, statements

# The learner's snapshots: which versions are complete, and which queries' rows may have left its log. A version
# consists of a manifest and the records that it references by SHA-256: chunks of the policy's state, the rows of open
# queries, and the ids of ended queries. The ids are arrays of n sorted digests of 8 bytes, followed by n positions
# (partition and offset) of 8 bytes.

_PREFIX: Final = b"\x00snapshot/"
_IDS: Final = b"\x00ended/"
_ROWS: Final = b"\x00rows/"
_START: Final = b"\x00start"
_RESET: Final = b"\x00reset"
_KEPT: Final = 2  # older versions may be partly deleted


class Snapshots:
    """The newest complete snapshots.

    Args:
        chunks: Every record of the snapshots, as key and value.

    Attributes:
        versions: What is wrong with each version, or None if it is complete; oldest first. A version is named after the
            sequence number it is complete up to.
        after: Rows up to this sequence number may have left the log; -1 if none may have.
        reset_at: End offsets of the Decisions, by partition, when `learner reset` deleted the log.
    """

    def __init__(self, chunks: Iterable[tuple[bytes, bytes]]) -> None:
        records = dict(chunks)
        whole = sorted(_version(key) for key in records if _is_manifest(key))
        self.versions = {version: _fault(records, version) for version in whole[-_KEPT:]}
        self.reset_at = _offsets(records.get(_RESET, b""))
        self._ended = np.empty(0, "<u8")
        # A row may leave the log once its query has ended in both of the newest snapshots. After a repair there is only
        # one snapshot, which then suffices.
        kept = [version for version in whole if version >= 0][-_KEPT:]
        # A prior is a snapshot that precedes all rows. It is kept in addition to a repair's snapshot.
        self.after = kept[0] if kept and _START in records else max(-1, min(self.versions, default=-1))
        if len(kept) == _KEPT or (kept and _START in records):
            self._ended = _ended(records, kept[0])

    def ended(self, query_id: str) -> bool:
        """Return whether a query's row may have left the log."""
        digest = hashlib.blake2b(query_id.encode(), digest_size=8).digest()
        wanted = np.uint64(int.from_bytes(digest, "little"))
        at = int(self._ended.searchsorted(wanted))
        return at < len(self._ended) and bool(self._ended[at] == wanted)


def _offsets(value: bytes) -> dict[int, int]:
    """Return the offsets, by partition, in the record that `learner reset` writes; empty if the record is not valid."""
    try:
        return {int(part): int(offset) for part, offset in orjson.loads(value).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _is_manifest(key: bytes) -> bool:
    number, _, name = key.removeprefix(_PREFIX).partition(b"/")
    return key.startswith(_PREFIX) and name == b"manifest" and number.removeprefix(b"-").isdigit()


def _version(key: bytes) -> int:
    return int(key[len(_PREFIX) :].partition(b"/")[0])


def _fault(records: dict[bytes, bytes], version: int) -> str | None:
    """Return what is wrong with a snapshot, or None if it is complete."""
    try:
        _check(records, version)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        return f"the snapshot is damaged: {error}"
    return None


def _check(records: dict[bytes, bytes], version: int) -> None:
    prefix = _PREFIX + f"{version}/".encode()
    stated, _, body = records[prefix + b"manifest"].partition(b"\n")
    _same(body, stated.decode(errors="replace"), "manifest")
    manifest: dict[str, Any] = orjson.loads(body)
    parts = []
    for at, digest in enumerate(manifest["chunks"]):
        part = records.get(prefix + str(at).encode())
        if part is None:
            raise ValueError(f"chunk {at} of {len(manifest['chunks'])} is missing")
        _same(part, digest, f"chunk {at}")
        parts.append(part)
    _same(b"".join(parts), manifest["sha256"], "state")
    for at, digest in enumerate(manifest.get("rows", ())):
        _same(records.get(prefix + f"rows/{at}".encode(), b""), digest, f"chunk {at} of rows")
    for rows in manifest.get("waiting", ()):
        _same(records.get(_ROWS + rows["sha256"].encode(), b""), rows["sha256"], "open rows")
    for ids in manifest.get("ended", ()):
        _same(records.get(_IDS + ids["sha256"].encode(), b""), ids["sha256"], "ids of ended queries")


def _ended(records: dict[bytes, bytes], version: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Return the sorted digests of the ids that a snapshot lists as ended; empty if the snapshot is damaged."""
    try:
        manifest = orjson.loads(records[_PREFIX + f"{version}/manifest".encode()].partition(b"\n")[2])
        held = [records[_IDS + ids["sha256"].encode()] for ids in manifest.get("ended", ())]
    except (KeyError, TypeError, ValueError, AttributeError):
        return np.empty(0, "<u8")  # reported by `_fault`
    return np.sort(np.concatenate([np.frombuffer(ids[: len(ids) // 16 * 8], "<u8") for ids in [b"", *held]]))


def _same(data: bytes, digest: str, what: str) -> None:
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"SHA-256 of the {what} is {found[:12]}…, stated {digest[:12]}…")


# Invariants of the facts.

CLOSE: Final = 1e-9
"""Relative difference allowed between two ways of summing the same numbers."""

BATCH: Final = 64
"""Larger than any decider batch, so every record this far before the decider's newest row has been handled."""

WINDOW: Final = 8
"""How many records the embedder may read past a Query that waits for admission, as a multiple of its concurrency."""

CLOCKS_MS: Final = 5_000
"""Maximum clock difference between brokers, in ms. The append times in different partitions may come from different
brokers."""


class Discrepancy(NamedTuple):
    """A failed check: its name, the query_id or other subject, and a description."""

    check: str
    query_id: str
    what: str


class Checks:
    """Computes the state of each query in a ledger, and the discrepancies.

    Args:
        ledger: The complete ledger.
        topics: The topic for each kind of record.
        known: The statements' other parameters, by name, such as times in ms and each service's progress.
    """

    def __init__(self, ledger: Ledger, topics: dict[str, str], known: dict[str, Any]) -> None:
        self._db = ledger.db
        snapshots = Snapshots(self._db.execute("SELECT key, value FROM Chunk"))
        for version, fault in snapshots.versions.items():
            ledger.add("Version", version, fault)
        self._db.execute("COMMIT")
        self._known = {
            **known,
            "batch": BATCH,
            "clocks_ms": CLOCKS_MS,
            "after": snapshots.after,
        }
        self._db.create_function("close", 2, _close, deterministic=True)
        self._db.create_function("said", 1, _said, deterministic=True)
        self._db.create_function(
            "before_reset",
            2,
            lambda part, offset: offset < snapshots.reset_at.get(part, 0),
            deterministic=True,
        )
        self._db.create_function("ended", 1, snapshots.ended, deterministic=True)
        for kind, table in TABLES.items():
            self._db.execute(f"ALTER TABLE {table} ADD COLUMN error TEXT")
            if kind not in ("learner", "join"):
                self._give_up(table, topics[kind])
        for statement in statements("timeline.sql").values():
            self._db.execute(statement, self._known)

    def wrong(self) -> Iterator[Discrepancy]:
        """Yield the discrepancies, check by check."""
        for name, statement in statements("checks.sql").items():
            for query_id, what in self._db.execute(statement, self._known):
                yield Discrepancy(name, query_id, what)

    def found(self, name: str) -> list[Any]:
        """Return the rows of a statement of `summary.sql`."""
        return self._db.execute(statements("summary.sql")[name], self._known).fetchall()

    def number(self, name: str) -> int:
        """Return the number that a statement of `summary.sql` selects."""
        [(number,)] = self.found(name)
        return int(number)

    def _give_up(self, table: str, topic: str) -> None:
        """For each of a topic's records with a dead letter, add the dead letter's error to the record."""
        self._db.execute(
            f"UPDATE {table} SET error = Letter.error FROM Letter"
            f" WHERE Letter.topic = ? AND Letter.part = {table}.part AND Letter.off = {table}.off",
            (topic,),
        )


def _close(one: float | None, two: float | None) -> bool:
    return one is not None and two is not None and abs(one - two) <= CLOSE * max(1.0, abs(one), abs(two))


def _said(value: object) -> str:
    return "none" if value is None else str(value)
