"""The rows of the learner's log: one per decision, rewritten when a reward changes it, and one per offer of actions.

State is a fold over rows; no matrix is ever sent. A row is written when its decision is made (`pending`, with the whole
Decision, so that a redelivered Context sends the same bytes again) and rewritten when a reward changes it. Each change
has a sequence number in the total order of decisions and updates, so that the fold repeats the live run. A row also
contains its sources' offsets. After a crash, they take precedence over the consumer group's commits.

    pending ──provisional──▶ learned ──correction, default──▶ closed
       ├──final, correction, default──────────────────────────▶ closed
       ├──default of an answer that the client's bounds cut,
       │  or ungraded with no score to replace the grade──────▶ priced      (only its cost is learned)
       ├──final of an answer that its model failed to give, or its
       │  AttemptFailed───────────────────────────────────────▶ failed      (learned as wrong)
       └──the first reward for a tenant over its share (weight 0); a reward without score or cost,
          or of a query with learn: false; an AttemptFailed that
          is not its model's fault; the reward that closes its query
          with an earlier attempt────────────────────────────▶ abandoned   (nothing is learned)

An action keeps its row even after its model is gone, because decision rows refer to it. Each offer is valid from its
sequence number until the next one's.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec import Struct

from agents.bandit.errors import FIX_LOG, CorruptState
from agents.bandit.policy import (
    LOG_COST_LIMIT,
    ActionVector,
    Objective,
    Observation,
    OutcomeKind,
    Pending,
    Target,
    Vector,
)
from agents.decider.sessions import Turn
from schemas.decision import Decision, Predicted, Verified
from schemas.errors import RecordTooLarge
from schemas.failure import attempt_id
from schemas.objective import CostUnit, ObjectiveInForce
from schemas.prices import Rate
from schemas.query import Origin, Query
from schemas.record import MAX_VALUE, decode, encode
from schemas.reward import Kind

Stage = Literal["pending", "learned", "closed", "priced", "failed", "abandoned"]

ENDED: Final[tuple[Stage, ...]] = ("closed", "priced", "failed", "abandoned")
"""Final stages, which rewards do not change."""

EventKind = Literal["offer", "decided", "reward", "correction", "cost", "failure", "abandoned", "nothing"]
"""The kind of policy update that an event causes."""

GROWTH: Final = 1024
"""Generous upper bound on the bytes that rewards add to a row: at most a dozen numbers and four kinds."""


ACTION_KEY: Final = b"\x00action/"
"""Prefix of action rows. A query_id is printable ASCII, so no query's row can start with this."""

OFFER_KEY: Final = b"\x00offer/"
"""Prefix of the rows that list the available actions."""


class ActionRow(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decider-action.v1", tag_field="schema"
):
    """An action that has been offered; rows refer to it even after its model is gone. Key: ACTION_KEY + id.

    Attributes:
        position: Order of first appearance.
        anchor: Whether it belongs to the first catalogue, whose centre the features keep.
        embedding: s_a as little-endian float32.
        size: Number of parameters of its model; 0 if it was not known.
        base: Name that the efforts of its model share; empty if it has none.
    """

    action: str
    model: str
    position: int
    anchor: bool
    embedding: bytes
    size: float = 0.0
    base: str = ""

    @classmethod
    def of(cls, action: ActionVector, position: int, *, anchor: bool) -> ActionRow:
        """Return the row for an action being offered for the first time."""
        embedding = np.asarray(action.embedding).astype("<f4").tobytes()
        return cls(
            action=action.action_id,
            model=action.model,
            position=position,
            anchor=anchor,
            embedding=embedding,
            size=action.size,
            base=action.base,
        )

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return ACTION_KEY + self.action.encode()

    def vector(self) -> ActionVector:
        """Return the action as the policy's input."""
        embedding = np.frombuffer(self.embedding, "<f4").astype(np.float64)
        return ActionVector(self.action, self.model, embedding, self.size, self.base)


class OfferRow(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decider-offer.v1", tag_field="schema"
):
    """The actions available from a sequence number on, with their prices. Key: OFFER_KEY + seq.

    Attributes:
        actions: Ids of the actions.
        price_factors: Price of an eFLOP on each model whose price is not 1, or, if costs are in USD, each model's token
            prices.
        unit: Unit of costs, the same for the whole log.
        encoder: Identity of the query encoder, likewise; empty in rows of earlier releases.
        baseline: The action to take until the policy has learned from a graded answer; empty if one verifier scores all
            models.
        mixed: Whether no one verifier scores all models, so that no score replaces an unknown correctness.
        mixed_seq: Sequence number at which the catalogue last became mixed; -1 if it never did. From there on, the
            policy trusts what it learned from such scores less.
        newcomers: Models that this offer adds, of which nothing was known although something was known of others.
    """

    seq: int
    actions: tuple[str, ...]
    price_factors: dict[str, Rate] = {}
    unit: CostUnit = "eflops"
    encoder: str = ""
    baseline: str = ""
    mixed: bool = False
    mixed_seq: int = -1
    newcomers: tuple[str, ...] = ()

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return OFFER_KEY + str(self.seq).encode()


REFIT_KEY: Final = b"\x00refit/"
"""Key prefix for rows with a refit's estimates."""

REFIT_BYTES: Final = 1 << 20
"""Maximum size of the part of a result in one row, in bytes."""


class RefitRow(Struct, frozen=True, kw_only=True, tag="decider-refit.v1", tag_field="schema"):
    """One part of a refit's estimates. Key: REFIT_KEY + outcomes + "/" + part.

    Attributes:
        outcomes: Number of outcomes used.
        part, parts: Index of the part, from 0, and the number of parts.
        seq: The newest sequence number at the time.
        result: Bytes of this part of the result (`Refits.results`).
    """

    outcomes: int
    part: int
    parts: int
    seq: int
    result: bytes

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return REFIT_KEY + f"{self.outcomes}/{self.part}".encode()


def refit_rows(outcomes: int, result: bytes, seq: int, size: int = REFIT_BYTES) -> list[RefitRow]:
    """Return the rows for a result, each with at most `size` of its bytes."""
    pieces = [result[at : at + size] for at in range(0, len(result), size)]
    return [
        RefitRow(outcomes=outcomes, part=part, parts=len(pieces), seq=seq, result=piece)
        for part, piece in enumerate(pieces)
    ]


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decider-row.v1", tag_field="schema"):
    """One decision and its outcome. Key: query_id, followed by a space and the attempt number for later attempts.

    Attributes:
        attempt: Attempt number, 1 for the first.
        seq: Sequence number of the decision; decisions and updates share one sequence.
        clock: Number of decisions before this one.
        action: Id of the chosen action.
        embedding: s_q in little-endian float32.
        objective: The objective at the time of the decision.
        query_origin: Origin of the Query; a Query with the same id and another origin is a duplicate.
        context_origin: Origin of the Context.
        decision: The Decision's value as it was sent, without the question, which a redelivered Context contains.
        batch: Sequence number of the first decision made from the same state as this one; λ belongs to that state.
        learned_seq, corrected_seq, ended_seq: Sequence numbers of the updates; -1 for an update that has not happened.
        kinds: Kinds of the rewards applied, in order.
        paced: Whether the cost counts towards the objective's target; a control or pinned query's does not.
        reward_offset: Offset of the last reward applied, or of the one that closed the query with an earlier attempt.
        failure_offset: Offset of the AttemptFailed that ended the attempt; -1 if none did.
        tenant: The tenant that the outcome belongs to (`Query.account`).
        weight: 0 if the tenant had exceeded its share, so that nothing is learned; otherwise 1.
        paid: Cost of an outcome whose cost is not learned, for the tenant's account; 0 if unknown.
        entered: Correct as added to A or to that account; None if it was unknown and the imputed value was added.
        correct, score, log_cost, imputed: The current values of the raw terms.
        price_factor: Price of an eFLOP at the time: `log_cost` is ln(eFLOPs) plus its logarithm.
        tokens: If costs are in USD, the number of generated tokens and the number of prompt tokens billed.
        features: The request's categories, as in the Decision.
        session: The session the query belongs to, as in the Decision.
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
    batch: int
    attempt: int = 1
    stage: Stage = "pending"
    learned_seq: int = -1
    corrected_seq: int = -1
    ended_seq: int = -1
    kinds: tuple[Kind, ...] = ()
    reward_offset: int = -1
    failure_offset: int = -1
    paced: bool = True
    tenant: str = ""
    weight: int = 1
    paid: float = 0.0
    entered: float | None = None
    correct: float | None = None
    score: float = 0.0
    log_cost: float = 0.0
    imputed: float = 0.0
    price_factor: float = 1.0
    tokens: tuple[int, int] | None = None
    features: tuple[str, ...] = ()
    session: str = ""

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return self.name.encode()

    @property
    def name(self) -> str:
        """Return the attempt's name, which policies use as its id."""
        return attempt_id(self.query_id, self.attempt)

    @property
    def seqs(self) -> tuple[int, ...]:
        """Return the sequence numbers of the decision and of each change; -1 for a change that has not happened."""
        return self.seq, self.learned_seq, self.corrected_seq, self.ended_seq

    @property
    def last_seq(self) -> int:
        """Return the newest change's sequence number."""
        return max(self.seqs)

    def vector(self) -> Vector:
        """Return s_q as float64, shape (d_q,)."""
        return np.frombuffer(self.embedding, dtype="<f4").astype(np.float64)

    @property
    def turn(self) -> Turn:
        """Return this row as a turn in its session; the session is empty if there is none."""
        asked_ms = _TOLD.decode(self.decision).appended_ms if self.session else 0
        return Turn(self.session, self.action, asked_ms)

    def pending(self, *, abandoned: bool = False) -> Pending:
        """Return the decision, made or abandoned, as the policy's input."""
        paid = self.paid or None
        correct = self.entered if self.paid else None
        return Pending(
            self.name,
            self.vector(),
            self.action,
            self._target,
            self.tenant,
            abandoned,
            paid,
            correct,
            self.features,
        )

    @property
    def _target(self) -> Target | None:
        return Target.of(self.objective, self.tenant) if self.paced else None

    def observation(self, kind: OutcomeKind) -> Observation:
        """Return the outcome as the policy's input, with Correct as known at the time."""
        correct = None if kind == "cost" else self.correct if kind == "correction" else self.entered
        target, told, failed = None, None, kind == "failure"
        if kind == "correction" and (target := self._target) is not None:
            told = _TOLD.decode(self.decision).predicted
        return Observation(
            observation_id=self.name,
            embedding=self.vector(),
            action_id=self.action,
            correct=correct,
            score=self.score,
            log_cost=self._highest_log_cost() if failed else self.log_cost,
            imputed=self.imputed,
            objective=Objective.of(self.objective),
            clock=self.clock,
            price_factor=self.price_factor,
            tokens=self.tokens,
            tenant=self.tenant,
            kind=kind,
            seq={"correction": self.corrected_seq, "cost": self.ended_seq}.get(kind, self.learned_seq),
            learned_seq=self.learned_seq,
            target=target,
            predicted=None if told is None else told.correct,
            paid=self.paid or None if failed else None,
            tried=kind == "cost" and _TOLD.decode(self.decision).verified != "all",
            categories=self.features,
        )

    def _highest_log_cost(self) -> float:
        """Return the log of the upper cost bound, where a wrong answer earns nothing under any weights."""
        return min(max(math.log(self.objective.cost_range.high), -LOG_COST_LIMIT), LOG_COST_LIMIT)


class _Told(Struct):
    predicted: Predicted | None = None
    verified: Verified = "all"
    appended_ms: int = 0


_TOLD: Final = msgspec.json.Decoder(_Told)

AnyRow = Row | ActionRow | OfferRow | RefitRow

LEFT_OUT: Final = "(left out)"
"""Placeholder for the question in a row's Decision."""


def without_question(decision: Decision) -> bytes:
    """Return a Decision as stored in a row: without the question, which may be a megabyte."""
    query = msgspec.structs.replace(
        decision.query,
        text=LEFT_OUT,
        messages=None,
        reference=None,
        grader=None,
        metadata={},
        stop=(),
        options=None,
        session=None,
    )
    return encode(msgspec.structs.replace(decision, query=query))


def with_question(value: bytes, query: Query) -> Decision:
    """Return the Decision stored in a row, with its full query put back."""
    return msgspec.structs.replace(decode(value, Decision), query=query)


def encode_row(row: AnyRow, limit: int = MAX_VALUE) -> bytes:
    """Return a row's value.

    Args:
        row: The row.
        limit: Maximum number of bytes.

    Raises:
        RecordTooLarge: The row would exceed the limit; reject the source record before it is decided.
    """
    value = msgspec.json.encode(row)
    if len(value) > limit:
        raise RecordTooLarge(
            type(row).__name__, "", f"takes {len(value)} bytes of {limit}; shorten the query"
        )
    return value


def decode_row(key: bytes, value: bytes) -> AnyRow:
    """Decode a row from a record's value.

    Raises:
        CorruptState: The value is not a row, or comes from a version that this release does not know.
    """
    try:
        row: AnyRow = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptState(f"row {key!r}", str(error), "a row of this release", FIX_LOG) from None
    return row


def own_row(key: bytes, value: bytes) -> AnyRow | None:
    """Return the row in a log record; None if the record is not a row, or is a row for another key.

    The learner never writes such a record, but anyone with write access to its topic can.

    Raises:
        CorruptState: The record is a row from another release, which may contain data that must not be lost.
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
    own = {str(kind.__struct_config__.tag) for kind in (Row, ActionRow, OfferRow, RefitRow)}
    return schema.startswith("decider-") and schema not in own


_DECODER: Final = msgspec.json.Decoder(AnyRow)
