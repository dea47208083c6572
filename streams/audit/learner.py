"""Is the policy the fold of its log? Rows are replayed into plain sums, snapshots are decoded independently."""

import hashlib
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from msgspec import Struct

from streams.audit.reading import Chunk, Ledger

# The learner's snapshots, decoded independently: chunks, manifest, ids, and the sums of a linear policy.
#
# A state is `USPOLICY`, a SHA-256 of the rest, the length of a header, the header as JSON, and arrays one after the
# other. A policy that explores wraps the state of an inner policy. The ids of ended queries are arrays: n sorted
# digests of 8 bytes, then n places (partition and offset) of 8 bytes.

Matrix = npt.NDArray[np.float64]

_PREFIX: Final = b"\x00snapshot/"
_IDS: Final = b"\x00ended/"
_START: Final = b"\x00start"
_MAGIC: Final = b"USPOLICY"
_KEPT: Final = 2  # older versions are being removed, perhaps at this moment


@dataclass(slots=True)
class Snapshot:
    """One version of the policy.

    Attributes:
        version: The sequence number up to which it contains everything.
        kind: Name of the innermost policy.
        settings: Settings of that policy.
        meta: Plain values of its state.
        arrays: Arrays of its state.
    """

    version: int
    kind: str
    settings: dict[str, Any]
    meta: dict[str, Any]
    arrays: dict[str, Matrix]

    @property
    def counted(self) -> int | None:
        """Return the number of rewards and corrections it contains; None if its policy does not count them."""
        if "updates" not in self.meta or "corrections" not in self.meta:
            return None
        return int(self.meta["updates"]) + int(self.meta["corrections"])

    def sums(self) -> tuple[Matrix, Matrix] | None:
        """Return S = A − λI and B in the coordinates of the embeddings; None for another kind of policy.

        The state stores them in a basis of the span of the action vectors; each row of `basis` is an axis.
        """
        policy, features = self.settings.get("policy", {}), self.settings.get("features", {})
        if features.get("action_features") != "raw" or features.get("interactions") != "none":
            return None
        if "rewarded.a" not in self.arrays or "rewarded.b" not in self.arrays:
            return None
        basis, q = self.arrays["basis"], int(features["query_dim"])
        dim = q + len(basis)
        a = np.zeros((dim, dim))
        a[np.tril_indices(dim)] = self.arrays["rewarded.a"]
        a += np.tril(a, -1).T
        a[np.diag_indices(dim)] -= float(policy["ridge"])
        turn = np.zeros((dim, q + basis.shape[1]))
        turn[:q, :q] = np.eye(q)
        turn[q:, q:] = basis
        return turn.T @ a @ turn, turn.T @ self.arrays["rewarded.b"]


def snapshots(chunks: Iterable[Chunk]) -> tuple[list[Snapshot], list[tuple[str, str]]]:
    """Return the newest complete snapshots, oldest first, and name and fault of those that are damaged."""
    records = {chunk.key: chunk.value for chunk in chunks}
    whole = sorted(
        int(key[len(_PREFIX) :].partition(b"/")[0]) for key in records if key.endswith(b"/manifest")
    )
    taken, wrong = [], []
    for version in whole[-_KEPT:]:
        try:
            taken.append(_snapshot(records, version))
        except (KeyError, ValueError, IndexError, TypeError) as error:
            wrong.append((f"snapshot {version}", f"the snapshot is damaged: {error}"))
    return taken, wrong


class Ended:
    """The queries that both of the newest snapshots list as ended: their rows may have left the log.

    A repaired log starts from a single snapshot, which then is enough.

    Args:
        chunks: Every record of the snapshots.
    """

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        manifests: dict[int, dict[str, Any]] = {}
        arrays: dict[str, bytes] = {}
        moved = False
        for key, value in chunks:
            moved = moved or key == _START
            if key.startswith(_IDS):
                arrays[key[len(_IDS) :].decode(errors="replace")] = value
            elif key.startswith(_PREFIX) and key.endswith(b"/manifest"):
                manifests[_version(key)] = _body(value)
        self.digests = np.empty(0, "<u8")
        whole = sorted(version for version in manifests if version >= 0)[-_KEPT:]
        if len(whole) < _KEPT and not (whole and moved):
            return
        try:
            held = [arrays[part["sha256"]] for part in manifests[whole[0]].get("ended", ())]
        except (KeyError, TypeError):
            return  # the snapshot is damaged, and `learner` reports it
        found = [np.frombuffer(data[: len(data) // 16 * 8], "<u8") for data in held]
        self.digests = np.sort(np.concatenate([self.digests, *found]))

    def __contains__(self, query_id: object) -> bool:
        """Return whether a query's id is among them."""
        digest = hashlib.blake2b(str(query_id).encode(), digest_size=8).digest()
        wanted = np.uint64(int.from_bytes(digest, "little"))
        at = int(self.digests.searchsorted(wanted))
        return at < len(self.digests) and bool(self.digests[at] == wanted)


def _version(key: bytes) -> int:
    number = key[len(_PREFIX) :].partition(b"/")[0]
    return int(number) if number.removeprefix(b"-").isdigit() else -2


def _body(value: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(value.partition(b"\n")[2])
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _snapshot(records: dict[bytes, bytes], version: int) -> Snapshot:
    prefix = _PREFIX + f"{version}/".encode()
    stated, _, body = records[prefix + b"manifest"].partition(b"\n")
    _same(body, stated.decode(errors="replace"), "manifest")
    manifest = orjson.loads(body)
    parts = []
    for at, digest in enumerate(manifest["chunks"]):
        part = records.get(prefix + str(at).encode())
        if part is None:
            raise ValueError(f"chunk {at} of {len(manifest['chunks'])} is missing")
        _same(part, digest, f"chunk {at}")
        parts.append(part)
    for at, digest in enumerate(manifest.get("rows", ())):
        _same(records.get(prefix + f"rows/{at}".encode(), b""), digest, f"chunk {at} of rows")
    for part in manifest.get("ended", ()):
        _same(records.get(_IDS + part["sha256"].encode(), b""), part["sha256"], "ids of ended queries")
    state = b"".join(parts)
    _same(state, manifest["sha256"], "state")
    header, arrays = _state(state)
    while "inner" in arrays:
        header, arrays = _state(arrays["inner"].tobytes())
    return Snapshot(version, header["kind"], header["settings"], header["meta"], arrays)


def _state(data: bytes) -> tuple[dict[str, Any], dict[str, Matrix]]:
    if data[:8] != _MAGIC:
        raise ValueError("it does not begin with USPOLICY")
    body = data[40:]
    _same(body, data[8:40].hex(), "state of the policy")
    length = int.from_bytes(body[:4], "little")
    header = orjson.loads(body[4 : 4 + length])
    payload, arrays = body[4 + length :], {}
    for entry in header["arrays"]:
        count = int(np.prod(entry["shape"], dtype=np.int64))
        flat = np.frombuffer(payload, np.dtype(entry["dtype"]), count, entry["offset"])
        arrays[entry["name"]] = flat.reshape(entry["shape"])
    return header, arrays


def _same(data: bytes, digest: str, what: str) -> None:
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"SHA-256 of the {what} is {found[:12]}…, stated {digest[:12]}…")


# Is the policy the fold of its log? The learner's rows are replayed into plain sums, by sequence number.
#
# Checked for every policy: decisions and updates share one sequence without gaps or duplicates, and the policy
# version in a Decision is the number of rewards and corrections before it. For linear policies with the paper's
# features, A = λI + Σ x xᵀ and B = Σ x (Correct, Score, log C, 1)ᵀ with x = [s_q; s_a] are also added up in plain
# numpy, and compared with the newest snapshot and with the mean and width in a sample of Decisions.

FAR: Final = 1e-6
"""Relative difference from which a policy is not the fold of its log. The product itself promises 1e-9."""

SAMPLE: Final = 8
"""Decisions whose mean and width are computed again; each costs one solution of d equations."""

_BATCH: Final = 512
_EVENTS: Final = """
SELECT seq, 'decide', query_id FROM Row WHERE seq > :after
UNION ALL SELECT learned, 'update', query_id FROM Row WHERE learned > :after
UNION ALL SELECT corrected, 'correct', query_id FROM Row WHERE corrected > :after
UNION ALL SELECT ended, 'end', query_id FROM Row WHERE ended > :after
ORDER BY 1"""


class Setup(Struct, frozen=True):
    """The settings of the live policy that its sums depend on.

    Attributes:
        linear: Whether it is linear in x = [s_q; s_a]; if not, only versions and counts are compared.
        widths: Whether a Decision's width is α√(xᵀA⁻¹x), with A over rewarded decisions only.
        scalar: Whether B is the single column Σ r x instead of one column per term.
    """

    linear: bool
    widths: bool = True
    scalar: bool = False
    alpha: float = 1.0
    ridge: float = 1.0

    @classmethod
    def of(cls, policy: str, options: Mapping[str, Any]) -> "Setup":
        """Return the setup of a policy with these options."""
        raw = options.get("action_features", "raw") == "raw" and options.get("interactions", "none") == "none"
        return cls(
            linear=policy in ("linucb", "greedy", "thompson") and raw,
            widths=policy != "thompson" and options.get("widths", "rewarded") == "rewarded",
            scalar=options.get("reward", "terms") == "scalar",
            alpha=0.0 if policy == "greedy" else float(options.get("alpha", 1.0)),
            ridge=float(options.get("ridge", 1.0)),
        )


class Learner(Struct):
    """What the fold found.

    Attributes:
        updates: Rewards and corrections that entered the policy, counted in the learner's rows.
        max_difference: Largest relative difference between a stated and a computed number; None if only versions and
            counts could be compared.
        compared: What was compared, in words.
        discrepancies: Pairs of a query_id (or another subject) and what is wrong.
    """

    updates: int = 0
    max_difference: float | None = None
    compared: str = "versions and counts"
    discrepancies: list[tuple[str, str]] = []

    def differs(self, who: str, what: str, stated: Any, worked: Any) -> None:
        """Record two numbers or matrices that should be equal."""
        stated, worked = np.asarray(stated), np.asarray(worked)
        most = float(np.abs(stated - worked).max() / max(1.0, np.abs(worked).max()))
        self.max_difference = max(most, self.max_difference or 0.0)
        if not most <= FAR:
            self.discrepancies.append((who, f"{what} is not the fold of the log: off by {most:.2g}"))


class _Event(NamedTuple):
    seq: int
    tell: str
    query_id: str


class Fold:
    """Replays the rows of a ledger.

    Args:
        ledger: A flushed ledger.
        actions: s_a of every action by its id, base64.
        setup: Setup of the live policy.
    """

    def __init__(self, ledger: Ledger, actions: dict[str, str], setup: Setup) -> None:
        self.ledger, self.setup, self.found = ledger, setup, Learner()
        self.later, self.found.discrepancies = snapshots(ledger.of_kind(Chunk, "key"))
        # If rows have left the log, the oldest snapshot contains them. A prior is the snapshot before all rows.
        begins = bool(self.later) and (self.later[0].version < 0 or ledger.one(_GAPS))
        base = self.later.pop(0) if begins else None
        self.found.updates = ledger.one("SELECT SUM((learned >= 0) + (corrected >= 0)) FROM Row") or 0
        self.after = -1 if base is None else base.version
        # A policy that may have started from a prior counts from the version in its first Decision.
        none = 0 if setup.linear else None
        self.version: int | None = none if base is None else base.counted
        self.sums = _Sums.of(ledger, actions, setup, base) if setup.linear else None
        self.sample = self._sampled() if self.sums else frozenset()

    def run(self) -> Learner:
        """Return what was found."""
        seq, last = self.after, ""
        for event in map(_Event._make, self.ledger.db.execute(_EVENTS, {"after": self.after})):
            self._pass(event.seq)
            if event.seq == seq:
                what = f"sequence number {seq} of the learner's log belongs to {last} and to {event.query_id}"
                self.found.discrepancies += [(last, what), (event.query_id, what)]
            elif event.seq > seq + 1:
                what = f"the learner's log has no row for sequence numbers {seq + 1} to {event.seq - 1}"
                self.found.discrepancies.append((f"seq {seq + 1}", what))
            seq, last = event.seq, event.query_id
            self._tell(event)
        self._pass(seq + 1)
        if self.sums is not None and self.found.max_difference is not None:
            self.found.compared = "versions, counts, the sums A and B, means and widths"
        return self.found

    def _tell(self, event: _Event) -> None:
        if event.tell == "decide":
            stated = self.ledger.one(f"SELECT version {_OWN} AND query_id = ?", event.query_id)
            if stated is not None and stated != self.version:
                if self.version is not None:
                    what = f"its policy version is {stated}, but {self.version} rewards came before it"
                    self.found.discrepancies.append((event.query_id, what))
                self.version = stated
            if self.sums is not None and event.query_id in self.sample:
                self.sums.compare(event.query_id, self.found)
        elif event.tell in ("update", "correct"):
            self.version = None if self.version is None else self.version + 1
            if self.sums is not None:
                self.sums.tell(event)

    def _pass(self, seq: int) -> None:
        """Compare every snapshot before a sequence number."""
        while self.later and self.later[0].version < seq:
            self._compare(self.later.pop(0))

    def _compare(self, snapshot: Snapshot) -> None:
        who = f"snapshot {snapshot.version}"
        if None not in (snapshot.counted, self.version) and snapshot.counted != self.version:
            what = f"it counts {snapshot.counted} rewards, but {self.version} came before it"
            self.found.discrepancies.append((who, what))
        if self.sums is not None and (stated := snapshot.sums()) is not None:
            for name, one, two in zip("AB", stated, self.sums.now(), strict=True):
                if one.shape == two.shape:
                    self.found.differs(who, f"its {name}", one, two)

    def _sampled(self) -> frozenset[str]:
        """Return a sample of the policy's Decisions, evenly spaced over the log and including the newest."""
        where = f"{_OWN} AND mean IS NOT NULL AND reason = 'policy' AND price = 0 AND Decision.seq > ?"
        count = self.ledger.one(f"SELECT COUNT(*) {where}", self.after)
        wanted = sorted({count - 1 - at * count // SAMPLE for at in range(min(SAMPLE, count))})
        pick = f"SELECT query_id {where} ORDER BY Decision.seq LIMIT 1 OFFSET ?"
        return frozenset(self.ledger.one(pick, self.after, at) for at in wanted)


class _Sums:
    """The sums S = Σ x xᵀ and B, in the coordinates of the embeddings."""

    def __init__(self, ledger: Ledger, actions: dict[str, Matrix], setup: Setup, dim: int) -> None:
        self.ledger, self.actions, self.setup = ledger, actions, setup
        self.s: Matrix = np.zeros((dim, dim))
        self.b: Matrix = np.zeros((dim, 1 if setup.scalar else 4))
        self._waiting: list[tuple[Matrix, Matrix, bool]] = []

    @classmethod
    def of(
        cls, ledger: Ledger, actions: dict[str, str], setup: Setup, base: Snapshot | None
    ) -> "_Sums | None":
        """Return the sums to start with; None if the snapshot has no such sums, or if there is nothing to sum."""
        vector = ledger.one("SELECT vector FROM Vector LIMIT 1")
        if vector is None or not actions:
            return None
        known = {action: _unit(b64decode(text)) for action, text in actions.items()}
        dim = len(vector) // 4 + len(next(iter(known.values())))
        made = cls(ledger, known, setup, dim)
        if base is None:
            return made
        if (held := base.sums()) is None or held[1].shape != made.b.shape:
            return None
        made.s, made.b = held
        return made

    def tell(self, event: _Event) -> None:
        """Add a reward, or correct one that was added before."""
        row = self.ledger.db.execute(_TERMS, (event.query_id,)).fetchone()
        entered, correct, score, log_cost, imputed, w, v, u, c = row
        x = self._x(event.query_id)
        first = imputed if entered is None else entered
        scale = w if self.setup.scalar else 1.0
        if event.tell == "correct":
            target = np.zeros(self.b.shape[1])
            target[0] = scale * (correct - imputed)
        elif self.setup.scalar:
            target = np.array([w * first + v * score + u * log_cost + c])
        else:
            target = np.array([first, score, log_cost, 1.0])
        self._waiting.append((x, target, event.tell == "update"))
        if len(self._waiting) >= _BATCH:
            self.now()

    def now(self) -> tuple[Matrix, Matrix]:
        """Return S and B with everything added so far."""
        if self._waiting:
            x = np.array([each[0] for each in self._waiting])
            self.b += x.T @ np.array([each[1] for each in self._waiting])
            entering = x[[each[2] for each in self._waiting]]
            self.s += entering.T @ entering
            self._waiting.clear()
        return self.s, self.b

    def compare(self, query_id: str, found: Learner) -> None:
        """Compare the mean and width in a Decision with those that the sums give."""
        s, b = self.now()
        mean, width, *weights = self.ledger.db.execute(_STATED, (query_id,)).fetchone()
        x = self._x(query_id)
        solved = np.linalg.solve(s + self.setup.ridge * np.eye(len(s)), x)
        w = np.ones(1) if self.setup.scalar else np.array(weights)
        found.differs("learner", f"the mean in the Decision of {query_id}", mean, solved @ b @ w)
        if self.setup.widths:
            found.differs(
                "learner",
                f"the width in the Decision of {query_id}",
                width,
                self.setup.alpha * float(x @ solved) ** 0.5,
            )

    def _x(self, query_id: str) -> Matrix:
        vector, action = self.ledger.db.execute(_VECTOR, (query_id,)).fetchone()
        return np.concatenate([np.frombuffer(vector, "<f4").astype(np.float64), self.actions[action]])


_GAPS: Final = """SELECT MAX(MAX(seq), MAX(learned), MAX(corrected), MAX(ended)) + 1
 <> SUM((seq >= 0) + (learned >= 0) + (corrected >= 0) + (ended >= 0)) FROM Row"""
_TERMS: Final = """SELECT entered, correct, score, log_cost, imputed, w_correct, w_score, w_log_cost, w_one
FROM Row WHERE query_id = ?"""
# A Decision other than the one in the learner's row was forged. The checks name it; nothing was learned from it.
_OWN: Final = "FROM Decision JOIN Row USING (query_id) WHERE whole = decision"
_STATED: Final = f"SELECT mean, width, w_correct, w_score, w_log_cost, w_one {_OWN} AND query_id = ?"
_VECTOR: Final = "SELECT Vector.vector, action FROM Row JOIN Vector USING (query_id) WHERE query_id = ?"


def _unit(data: bytes) -> Matrix:
    vector = np.frombuffer(data, "<f4").astype(np.float64)
    return np.asarray(vector / np.linalg.norm(vector))
