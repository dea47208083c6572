"""The decider's changelog rows, and the fold from rows to policy state.

A row is one decision with everything that was learned of it. The policy's matrices are never stored: they are
what the rows give in the one order of decisions and updates (`seq`).
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from agents.decider.policies.base import ActionVector, Objective, Observation, Pending, Policy, Vector
from schemas.decision import Decision
from schemas.objective import ObjectiveInForce
from schemas.query import Origin
from schemas.reward import Kind

ROW_VERSION = 1


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """One reward that was applied: its place in the order, its kind and its raw terms.

    `log_cost` is None when nothing could be learned: the decision was only taken off the pending ones.
    """

    seq: int
    kind: Kind
    correct: float | None
    score: float | None
    log_cost: float | None
    imputed: float


class Row(msgspec.Struct, frozen=True):
    """One decision: the stored Decision, byte for byte, its vector, and the rewards applied to it.

    Attributes:
        version: Of this layout.
        seq: Place of the decision in the order.
        clock: Decisions made before it.
        origin: Where the Query lies: the same id from another origin is a duplicate.
        decision: The Decision as it was sent.
        embedding: s_q as little-endian float32.
        action_id: What was chosen.
        action_vector: s_a of an action outside the catalogue file, float32; empty otherwise.
        objective: What was in force.
        applied: In order.
    """

    version: int
    seq: int
    clock: int
    origin: Origin
    decision: bytes
    embedding: bytes
    action_id: str
    model: str
    objective: ObjectiveInForce
    action_vector: bytes = b""
    applied: tuple[Applied, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of rewards applied."""
        return frozenset(a.kind for a in self.applied)

    @property
    def learned(self) -> Applied | None:
        """The reward with which x entered A."""
        return next((a for a in self.applied if a.log_cost is not None), None)

    @property
    def last_seq(self) -> int:
        """The highest place in the order that this row takes."""
        return max([self.seq, *(a.seq for a in self.applied)])


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Row)


class RowUnreadable(RuntimeError):
    """A changelog row cannot be read; the learner must not start on part of its state."""


def encode_row(row: Row) -> bytes:
    """Return a row as the changelog holds it."""
    return _ENCODER.encode(row)


def decode_row(data: bytes) -> Row:
    """Return the row of a changelog value.

    Raises:
        RowUnreadable: it is damaged or of another version.
    """
    try:
        row = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise RowUnreadable(f"a row of the decider's changelog is damaged ({error}); restore the topic") from None
    if row.version != ROW_VERSION:
        raise RowUnreadable(f"a row of the decider's changelog has version {row.version}, this release reads {ROW_VERSION}")
    return row


def vector(data: bytes) -> Vector:
    """Return float32 bytes as float64."""
    return np.frombuffer(data, dtype="<f4").astype(np.float64)


def objective_of(objective: ObjectiveInForce) -> Objective:
    """Return the policy's form of an objective on the wire."""
    w, bounds = objective.weights, objective.cost_range
    return Objective(
        w.correct, w.score, w.cost, float(np.log(bounds.low_eflops)), float(np.log(bounds.high_eflops))
    )


def pending_of(query_id: str, row: Row) -> Pending:
    """Return a row as the policy's outstanding decision."""
    return Pending(query_id, vector(row.embedding), row.action_id)


def observation_of(query_id: str, row: Row, applied: Applied, entered: Applied) -> Observation:
    """Return a row with one reward as the policy's observation.

    Args:
        query_id: Its query.
        row: The decision.
        applied: The reward: of its own terms, for a correction its correctness.
        entered: The reward with which x entered A: its score, cost and imputed value are in the columns.
    """
    assert entered.score is not None
    assert entered.log_cost is not None
    return Observation(
        observation_id=query_id,
        embedding=vector(row.embedding),
        action_id=row.action_id,
        correct=applied.correct,
        score=entered.score,
        log_cost=entered.log_cost,
        imputed=entered.imputed,
        objective=objective_of(row.objective),
        clock=row.clock,
    )


def fold(policy: Policy, rows: Iterable[tuple[str, Row]]) -> int:
    """Bring a policy to the state of its rows and return the next place in the order.

    Decisions and rewards are told in the order in which they happened, so that every policy, order-free or
    not, becomes what it was; runs of the same kind are told together (BLAS-3).
    """
    events: list[tuple[int, str, Row, Applied | None]] = []
    for query_id, row in rows:
        events.append((row.seq, query_id, row, None))
        events += [(a.seq, query_id, row, a) for a in row.applied]
    events.sort(key=lambda event: event[0])
    known: set[str] = set()
    for _, _, row, _ in events:
        if row.action_vector and row.action_id not in known:
            known.add(row.action_id)
            policy.add_actions([ActionVector(row.action_id, row.model, vector(row.action_vector))])
            policy.remove_actions([row.action_id])
    run: list[tuple[str, Row, Applied | None]] = []
    run_kind = ""
    for _, query_id, row, applied in events:
        kind = told_as(row, applied)
        if kind != run_kind and run:
            _tell(policy, run_kind, run)
            run = []
        run_kind = kind
        run.append((query_id, row, applied))
    if run:
        _tell(policy, run_kind, run)
    return events[-1][0] + 1 if events else 0


def told_as(row: Row, applied: Applied | None) -> str:
    """Say how a policy is told of a decision (None) or of one of its rewards."""
    if applied is None:
        return "expect"
    entered = row.learned
    if applied.log_cost is None:
        return "abandon" if entered is None else "nothing"
    if entered is not None and entered.seq == applied.seq:
        return "update"
    return "correct" if applied.kind == "correction" else "nothing"


def _tell(policy: Policy, kind: str, run: list[tuple[str, Row, Applied | None]]) -> None:
    if kind == "expect":
        policy.expect([pending_of(query_id, row) for query_id, row, _ in run])
    elif kind == "abandon":
        policy.abandon([pending_of(query_id, row) for query_id, row, _ in run])
    elif kind in ("update", "correct"):
        told = []
        for query_id, row, applied in run:
            entered = row.learned
            assert applied is not None
            assert entered is not None
            told.append(observation_of(query_id, row, applied, entered))
        (policy.update if kind == "update" else policy.correct)(told)


def decision_of(row: Row) -> Decision:
    """Return the stored Decision."""
    from schemas.base import decode

    return decode(row.decision, Decision)
