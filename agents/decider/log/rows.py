"""The rows of the learner's log: one per decision, rewritten when a reward changes it; see `offers` for the others.

State is a fold over rows, never a matrix on the wire. A row is written when its decision is made (`pending`, with the
whole Decision, so that a redelivered Context sends the same bytes again) and rewritten when a reward changes it. Each
change has a sequence number in one order of decisions and updates, so that the fold repeats the live run. It also has
the offsets it came from: after a crash, the learner trusts its rows more than the consumer group's commits.

    pending ──provisional──▶ learned ──correction, default──▶ closed
       ├──final, correction, default──────────────────────────▶ closed
       ├──default of an answer that the client's bounds cut───▶ priced      (its cost alone is learned)
       └──a reward without score or cost, or of a query with learn: false──▶ abandoned   (nothing enters A)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec import Struct

from agents.decider.errors import FIX_LOG, CorruptState
from agents.decider.log.offers import ActionRow, OfferRow
from agents.decider.policies.base import Aim, Objective, Observation, Pending, Vector
from schemas.base import MAX_VALUE
from schemas.errors import RecordTooLarge
from schemas.objective import ObjectiveInForce
from schemas.query import Origin
from schemas.reward import Kind

Stage = Literal["pending", "learned", "closed", "priced", "abandoned"]

ENDED: Final[tuple[Stage, ...]] = ("closed", "priced", "abandoned")
"""Stages that no reward changes any more."""

GROWTH: Final = 1024
"""Generous bound on the bytes that rewards add to a row: three sequence numbers, four kinds, an offset, six numbers."""


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decider-row.v1", tag_field="schema"):
    """One decision and what became of it. Key: query_id.

    Attributes:
        seq: Sequence number of the decision, in one order with the updates.
        clock: Decisions made before it.
        action: Id of the chosen action.
        embedding: s_q as little-endian float32.
        objective: The objective in force at the decision.
        query_origin: Origin of the Query; a Query with the same id and another origin is a duplicate.
        context_origin: Origin of the Context.
        decision: The Decision's value, byte for byte as it was sent.
        learned_seq, corrected_seq, ended_seq: Sequence numbers of the updates; -1 where there was none.
        kinds: Rewards applied, in order.
        paced: Whether its cost counts against the objective's aim; a control's or a pinned query's does not.
        reward_offset: Offset of the last reward applied.
        batch: Sequence number of the first decision made together with this one: prices are those of its state; -1
            where it was made alone.
        entered: Correct as it entered A; None when the imputed value did.
        correct, score, log_cost, imputed: The present values of the raw terms.
        price_factor: What an eFLOP cost: `log_cost` is ln(eFLOPs) plus its logarithm.
    """

    query_id: str
    seq: int
    clock: int
    action: str
    embedding: bytes
    objective: ObjectiveInForce
    query_origin: Origin
    context_origin: Origin
    decision: msgspec.Raw
    stage: Stage = "pending"
    learned_seq: int = -1
    corrected_seq: int = -1
    ended_seq: int = -1
    kinds: tuple[Kind, ...] = ()
    reward_offset: int = -1
    batch: int = -1
    paced: bool = True
    entered: float | None = None
    correct: float | None = None
    score: float = 0.0
    log_cost: float = 0.0
    imputed: float = 0.0
    price_factor: float = 1.0

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return self.query_id.encode()

    @property
    def seqs(self) -> tuple[int, ...]:
        """Return the sequence numbers of the decision and of each change; -1 for a change that has not happened."""
        return self.seq, self.learned_seq, self.corrected_seq, self.ended_seq

    @property
    def last_seq(self) -> int:
        """Return the sequence number of the newest change."""
        return max(self.seqs)

    def vector(self) -> Vector:
        """Return s_q as float64, shape (d_q,)."""
        return np.frombuffer(self.embedding, dtype="<f4").astype(np.float64)

    def pending(self) -> Pending:
        """Return the decision in the form that the policy takes."""
        aim = aim_of(self.objective) if self.paced else None
        return Pending(self.query_id, self.vector(), self.action, aim)

    def observation(self, correct: float | None) -> Observation:
        """Return the outcome in the form that the policy takes, with Correct as it was known at the time."""
        return Observation(
            observation_id=self.query_id,
            embedding=self.vector(),
            action_id=self.action,
            correct=correct,
            score=self.score,
            log_cost=self.log_cost,
            imputed=self.imputed,
            objective=policy_objective(self.objective),
            clock=self.clock,
            price_factor=self.price_factor,
        )


AnyRow = Row | ActionRow | OfferRow


@lru_cache(maxsize=1024)
def policy_objective(objective: ObjectiveInForce) -> Objective:
    """Return an objective in force as the policy's coefficients."""
    w, bounds = objective.weights, objective.cost_range
    low, high = float(np.log(bounds.low_eflops)), float(np.log(bounds.high_eflops))
    return Objective(w.correct, w.score, w.cost, low, high, objective.price)


def aim_of(objective: ObjectiveInForce) -> Aim | None:
    """Return the aim of an objective; None if it states weights.

    The key includes the target, so a new target is paced from the start and a repeated one is not.
    """
    if objective.mean_cost is not None:
        key = f"{objective.name or ''}/mean_cost={objective.mean_cost!r}"
        return Aim(key, mean_cost=objective.mean_cost)
    if objective.accuracy is not None:
        return Aim(f"{objective.name or ''}/accuracy={objective.accuracy!r}", accuracy=objective.accuracy)
    return None


def encode_row(row: AnyRow, limit: int = MAX_VALUE) -> bytes:
    """Return a row's value.

    Args:
        row: The row.
        limit: Most bytes it may take.

    Raises:
        RecordTooLarge: It would exceed the limit; refuse the source record before it is decided.
    """
    value = msgspec.json.encode(row)
    if len(value) > limit:
        raise RecordTooLarge(
            type(row).__name__, "", f"takes {len(value)} bytes of {limit}; shorten the query"
        )
    return value


def decode_row(key: bytes, value: bytes) -> AnyRow:
    """Return the row in a value.

    Raises:
        CorruptState: It is not a row, or of a version that this release does not know.
    """
    try:
        row: AnyRow = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptState(f"row {key!r}", str(error), "a row of this release", FIX_LOG) from None
    return row


def own_row(key: bytes, value: bytes) -> AnyRow | None:
    """Return the row in a record of the log; None if the record is not a row, or the row of another key.

    The learner never writes such a record, but anyone with write access to its topic can.

    Raises:
        CorruptState: It is a row of another release, which may contain something that must not be lost.
    """
    try:
        row = decode_row(key, value)
        return row if row.key == key else None
    except UnicodeEncodeError:
        return None
    except CorruptState:
        if key and _of_another_release(value):  # no release writes an empty key
            raise
        return None


class _Tagged(Struct):
    schema: str = ""


def _of_another_release(value: bytes) -> bool:
    try:
        schema = msgspec.json.decode(value, type=_Tagged).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    own = {str(kind.__struct_config__.tag) for kind in (Row, ActionRow, OfferRow)}
    return schema.startswith("decider-") and schema not in own


_DECODER: Final = msgspec.json.Decoder(AnyRow)
