"""The learner's log: its rows, what a reward does to them, and the fold from rows to policy state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

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
    Policy,
    Target,
    Vector,
    check_log_cost,
    check_outcome,
    check_share,
)
from agents.decider.open_rows import OpenRows
from agents.decider.shares import TeachingShares
from schemas.decision import Decision, Predicted
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.objective import ObjectiveInForce
from schemas.query import Origin, Query
from schemas.record import MAX_VALUE, decode, encode
from schemas.reward import Kind, Reward

# What could be chosen, and when: the actions ever offered, which of them are on offer, and telling a policy so.
#
# An action keeps its row even after its model is gone, because the rows of decisions refer to it. Each offer holds
# from its sequence number until that of the next.

ACTION_KEY: Final = b"\x00action/"
"""Prefix of action rows. A query_id is printable ASCII, so no query's row can begin like this."""

OFFER_KEY: Final = b"\x00offer/"
"""Prefix of the rows that say which actions were on offer."""


class ActionRow(Struct, frozen=True, kw_only=True, tag="decider-action.v1", tag_field="schema"):
    """An action that was ever offered; rows refer to it even after its model is gone. Key: ACTION_KEY + id.

    Attributes:
        position: Order of first appearance.
        anchor: Whether it belongs to the first catalogue, whose centre the features keep.
        embedding: s_a as little-endian float32.
        size: Number of parameters of its model; 0 if it was not known.
    """

    action: str
    model: str
    position: int
    anchor: bool
    embedding: bytes
    size: float = 0.0

    @classmethod
    def of(cls, action: ActionVector, position: int, *, anchor: bool) -> ActionRow:
        """Return the row of an action that is offered for the first time."""
        embedding = np.asarray(action.embedding).astype("<f4").tobytes()
        return cls(
            action=action.action_id,
            model=action.model,
            position=position,
            anchor=anchor,
            embedding=embedding,
            size=action.size,
        )

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return ACTION_KEY + self.action.encode()

    def vector(self) -> ActionVector:
        """Return the action in the form that the policy takes."""
        embedding = np.frombuffer(self.embedding, "<f4").astype(np.float64)
        return ActionVector(self.action, self.model, embedding, self.size)


class OfferRow(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decider-offer.v1", tag_field="schema"
):
    """Which actions could be chosen from a sequence number on, and at what price factors. Key: OFFER_KEY + seq.

    Attributes:
        actions: Their ids.
        price_factors: What an eFLOP costs on each model where that is not 1.
    """

    seq: int
    actions: tuple[str, ...]
    price_factors: dict[str, float] = {}

    @property
    def key(self) -> bytes:
        """Return the row's key."""
        return OFFER_KEY + str(self.seq).encode()


REFIT_KEY: Final = b"\x00refit/"
"""Prefix of the rows that say what the policy estimated when it learned everything anew."""

REFIT_BYTES: Final = 1 << 20
"""Most bytes of a result in one of its rows."""


class RefitRow(Struct, frozen=True, kw_only=True, tag="decider-refit.v1", tag_field="schema"):
    """A part of what the policy estimated when it learned everything anew. Key: REFIT_KEY + outcomes + "/" + part.

    Attributes:
        outcomes: Of how many outcomes it learned.
        part, parts: Number of the part, from 0, and how many there are.
        seq: Newest sequence number by then.
        result: Its bytes (`Refits.results`).
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
    """Return the rows of a result, none of more than `size` of its bytes."""
    pieces = [result[at : at + size] for at in range(0, len(result), size)]
    return [
        RefitRow(outcomes=outcomes, part=part, parts=len(pieces), seq=seq, result=piece)
        for part, piece in enumerate(pieces)
    ]


def refits_of(rows: Iterable[AnyRow], after: int = -1) -> dict[int, bytes]:
    """Return the results among the rows of a log, by outcomes; one of which a part is missing is left out.

    Args:
        rows: Rows in any order. Of a result that was written again, earlier parts may be left: the newest count.
        after: Last sequence number that the policy's state already contains; -1 for none. What was estimated by then is
            in that state, or of a history that was replaced by it (`repair`).
    """
    found: dict[int, list[RefitRow]] = {}
    for row in rows:
        if isinstance(row, RefitRow) and row.seq > after:
            found.setdefault(row.outcomes, []).append(row)
    results = {}
    for outcomes, written in found.items():
        newest = max(row.seq for row in written)
        parts = sorted((row for row in written if row.seq == newest), key=attrgetter("part"))
        if len(parts) == parts[0].parts:
            results[outcomes] = b"".join(part.result for part in parts)
    return results


NO_OFFER: Final = OfferRow(seq=-1, actions=())
"""Before the first offer."""


def offer(policy: Policy, row: OfferRow, actions: Mapping[str, ActionRow]) -> None:
    """Make exactly these actions choosable, at these price factors.

    Args:
        policy: The policy.
        row: What is on offer.
        actions: Every action ever added, by id.
    """
    policy.offer([actions[action_id].vector() for action_id in row.actions], row.price_factors)


def on_offer(rows: Iterable[object], seq: float = math.inf) -> OfferRow:
    """Return what was on offer at a sequence number, by default the last; NO_OFFER if nothing was yet.

    Args:
        rows: Rows of the log in any order.
        seq: The sequence number; an offer precedes the decision with the same number.
    """
    known = (row for row in rows if isinstance(row, OfferRow) and row.seq <= seq)
    return max(known, key=attrgetter("seq"), default=NO_OFFER)


def resume_offer(
    policy: Policy, rows: Iterable[object], seq: int, actions: Mapping[str, ActionRow]
) -> OfferRow:
    """Offer what was on offer at a sequence number, if anything was, and return it."""
    offered = on_offer(rows, seq)
    if offered is not NO_OFFER:
        offer(policy, offered, actions)
    return offered


def introduce(policy: Policy, actions: Iterable[ActionRow]) -> None:
    """Add the log's actions in order of appearance, those of the first catalogue together: they fix the centre."""
    known = sorted(actions, key=lambda row: row.position)
    policy.offer([row.vector() for row in known if row.anchor])
    policy.offer([row.vector() for row in known])


# The rows of the learner's log: one per decision, rewritten when a reward changes it; see `OfferRow` for the others.
#
# State is a fold over rows, never a matrix on the wire. A row is written when its decision is made (`pending`, with
# the whole Decision, so that a redelivered Context sends the same bytes again) and rewritten when a reward changes
# it. Each change has a sequence number in one order of decisions and updates, so that the fold repeats the live
# run. It also has the offsets it came from: after a crash, the learner trusts its rows more than the consumer
# group's commits.
#
#     pending ──provisional──▶ learned ──correction, default──▶ closed
#        ├──final, correction, default──────────────────────────▶ closed
#        ├──default of an answer that the client's bounds cut,
#        │  or that was neither scored nor graded───────────────▶ priced      (its cost alone is learned)
#        ├──final of an answer that its model failed to give────────────▶ failed      (that it was wrong is learned)
#        └──the first of a tenant that has taught enough (weight 0); a reward without score or cost,
#           or of a query with learn: false────────────────────▶ abandoned   (nothing is learned)

Stage = Literal["pending", "learned", "closed", "priced", "failed", "abandoned"]

ENDED: Final[tuple[Stage, ...]] = ("closed", "priced", "failed", "abandoned")
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
        decision: The Decision's value as it was sent, without the question: a redelivered Context brings that again.
        batch: Sequence number of the first decision made together with this one: λ is that of its state.
        learned_seq, corrected_seq, ended_seq: Sequence numbers of the updates; -1 where there was none.
        kinds: Rewards applied, in order.
        paced: Whether its cost counts against the objective's target; a control's or a pinned query's does not.
        reward_offset: Offset of the last reward applied.
        tenant: Among whose outcomes it counts (`Query.account`).
        weight: 0 where its tenant had taught enough: nothing is learned of it then.
        paid: What an outcome whose cost is not learned cost, for the account of its own tenant; 0 if nobody knows.
        entered: Correct as it entered A, or that account; None where it was not known, and the imputed value entered A.
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
    batch: int
    stage: Stage = "pending"
    learned_seq: int = -1
    corrected_seq: int = -1
    ended_seq: int = -1
    kinds: tuple[Kind, ...] = ()
    reward_offset: int = -1
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

    def pending(self, *, abandoned: bool = False) -> Pending:
        """Return the decision in the form that the policy takes, as it was made or abandoned."""
        paid = self.paid or None
        correct = self.entered if self.paid else None
        return Pending(
            self.query_id, self.vector(), self.action, self._target, self.tenant, abandoned, paid, correct
        )

    @property
    def _target(self) -> Target | None:
        return target_of(self.objective, self.tenant) if self.paced else None

    def observation(self, kind: OutcomeKind) -> Observation:
        """Return the outcome in the form that the policy takes, with Correct as it was known at the time."""
        correct = None if kind == "cost" else self.correct if kind == "correction" else self.entered
        target, told, failed = None, None, kind == "failure"
        if kind == "correction" and (target := self._target) is not None:
            told = _PREDICTED.decode(self.decision).predicted
        return Observation(
            observation_id=self.query_id,
            embedding=self.vector(),
            action_id=self.action,
            correct=correct,
            score=self.score,
            log_cost=self._highest_log_cost() if failed else self.log_cost,
            imputed=self.imputed,
            objective=policy_objective(self.objective),
            clock=self.clock,
            price_factor=self.price_factor,
            tenant=self.tenant,
            kind=kind,
            seq={"correction": self.corrected_seq, "cost": self.ended_seq}.get(kind, self.learned_seq),
            learned_seq=self.learned_seq,
            target=target,
            predicted=None if told is None else told.correct,
            paid=self.paid or None if failed else None,
        )

    def _highest_log_cost(self) -> float:
        """Return the upper bound of the costs, at which a wrong answer earns nothing under any weights."""
        return min(max(math.log(self.objective.cost_range.high), -LOG_COST_LIMIT), LOG_COST_LIMIT)


class _Told(Struct):
    predicted: Predicted | None = None


_PREDICTED: Final = msgspec.json.Decoder(_Told)

AnyRow = Row | ActionRow | OfferRow | RefitRow

LEFT_OUT: Final = "(left out)"
"""What a row has for the question of its Decision."""


def without_question(decision: Decision) -> bytes:
    """Return a Decision as a row keeps it: without what a client may have filled with a megabyte."""
    query = msgspec.structs.replace(
        decision.query, text=LEFT_OUT, messages=None, reference=None, metadata={}, stop=()
    )
    return encode(msgspec.structs.replace(decision, query=query))


def with_question(value: bytes, query: Query) -> Decision:
    """Return the Decision that a row keeps, for the query that it was made for."""
    return msgspec.structs.replace(decode(value, Decision), query=query)


@lru_cache(maxsize=1024)
def policy_objective(objective: ObjectiveInForce) -> Objective:
    """Return an objective in force as the policy's coefficients."""
    w, bounds = objective.weights, objective.cost_range
    low, high = float(np.log(bounds.low)), float(np.log(bounds.high))
    return Objective(w.correct, w.score, w.cost, low, high, objective.price)


def target_of(objective: ObjectiveInForce, tenant: str) -> Target | None:
    """Return a tenant's target under an objective; None if it states weights.

    The key includes the target, so a new target is paced from the start and a repeated one is not.
    """
    named = objective.name or ""
    if objective.mean_cost is not None:
        return Target(
            f"{named}/mean_cost={objective.mean_cost!r}", mean_cost=objective.mean_cost, tenant=tenant
        )
    if objective.accuracy is not None:
        return Target(f"{named}/accuracy={objective.accuracy!r}", accuracy=objective.accuracy, tenant=tenant)
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
    own = {str(kind.__struct_config__.tag) for kind in (Row, ActionRow, OfferRow, RefitRow)}
    return schema.startswith("decider-") and schema not in own


_DECODER: Final = msgspec.json.Decoder(AnyRow)


# What a reward does to the row of its decision.
#
# x enters A once, with the first reward that can be learned. A reward that is repeated, late or without a row changes
# nothing.

Verdict = Literal[
    "learned",
    "corrected",
    "closed",
    "priced",
    "failed",
    "abandoned",
    "duplicate",
    "differs",
    "late",
    "orphan",
    "unlearnable",
]
EventKind = Literal["offer", "decided", "reward", "correction", "cost", "failure", "abandoned", "nothing"]
"""What a policy is told of an event."""


class RewardRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to learn from a reward without correctness.

    Attributes:
        impute: Value used for Correct until it is known: the path's `score`, or a constant from 0 to 1.
        default: What to do if correctness never becomes known: `impute` keeps the imputed value, `wrong` counts it as
            0, `drop` keeps a row that has not entered A out of it.
    """

    impute: Literal["score"] | float = "score"
    default: Literal["impute", "wrong", "drop"] = "impute"

    def __post_init__(self) -> None:
        """Refuse a constant outside 0 to 1."""
        if self.impute != "score" and not 0.0 <= self.impute <= 1.0:
            raise ValueError(f"impute is {self.impute}; write score, or a number from 0 to 1")


class Move(Struct, frozen=True):
    """What to tell the policy after a reward."""

    what: EventKind
    row: Row


def applied(
    row: Row | None, reward: Reward, offset: int, seq: int, rules: RewardRules, shares: TeachingShares
) -> tuple[Verdict, Move | None]:
    """Return the verdict on a reward, and the changed row with what to tell the policy.

    Args:
        row: The decision's row; None if there is none.
        reward: The reward.
        offset: The reward's offset in its topic.
        seq: The next sequence number; a returned move has used it.
        rules: What to learn from a reward without correctness.
        shares: Who taught before; an outcome that is learned, or would have been, is added.

    Raises:
        InvalidObservation: A term is out of range; nothing has changed.
    """
    if row is None or reward.seq != row.seq or reward.action.id != row.action:
        return "orphan", None
    if reward.kind in row.kinds:
        return "differs" if _differs(row, reward) else "duplicate", None
    if row.stage in ENDED or (reward.kind == "provisional" and row.stage == "learned"):
        return "late", None
    change: dict[str, Any] = {"kinds": (*row.kinds, reward.kind), "reward_offset": offset}
    if row.stage == "learned":
        return _resolved(row, reward, seq, rules, change)
    score = reward.score_learned
    # What is learned is in eFLOPs: nobody knows what a cost in another unit is in these.
    log_cost = reward.log_cost if reward.objective.cost_range.unit == "eflops" else None
    if not (reward.learn or reward.closes):
        return "unlearnable", None
    if log_cost is not None:
        check_log_cost(row.query_id, log_cost)
    # The account is its own tenant's: what a search cost counts there, whatever is learned of it.
    paid = {} if log_cost is None else {"paid": math.exp(log_cost)}
    if reward.failed:
        change |= paid | {"entered": reward.correct}
        if not (reward.learn and _weighed(row, shares, change)):
            return _abandoned(row, seq, change)
        return "failed", _move(
            "failure", row, change | {"correct": reward.correct, "stage": "failed", "learned_seq": seq}
        )
    if reward.closes and reward.cost_only and score is None:
        score = 0.0  # of which nothing is learned
    if score is None or log_cost is None:
        return _abandoned(row, seq, change | paid) if reward.closes else ("unlearnable", None)
    if reward.kind == "default" and rules.default == "drop" and not reward.cost_only:
        return _abandoned(row, seq, change | paid)
    imputed = score if rules.impute == "score" else float(rules.impute)
    correct = 0.0 if _counts_as_wrong(reward, rules) and not reward.cost_only else reward.correct
    check_outcome(row.query_id, correct, score, log_cost, imputed)
    if not (reward.learn and _weighed(row, shares, change)):
        return _abandoned(row, seq, change | paid | {"entered": correct})
    change |= {
        "score": score,
        "log_cost": log_cost,
        "imputed": imputed,
        "entered": correct,
        "correct": correct,
        "price_factor": _factor(reward),
    }
    if reward.cost_only:
        return "priced", _move("cost", row, {**change, "stage": "priced", "ended_seq": seq})
    change |= {"stage": "closed" if reward.closes else "learned", "learned_seq": seq}
    return "learned", _move("reward", row, change)


def _weighed(row: Row, shares: TeachingShares, change: dict[str, Any]) -> int:
    """Return what an outcome that may be learned weighs; note it in its row, and among those of its tenant."""
    shares.add(row.tenant, weight := shares.weight(row.tenant))
    change["weight"] = weight
    return weight


def _differs(row: Row, reward: Reward) -> bool:
    """Return whether a reward contradicts one of its identity that was applied: its worker had lost the partition."""
    pairs = [(row.correct, reward.correct)]
    if (
        row.kinds[0] == reward.kind and row.stage != "failed"
    ):  # others bring no score, and no cost that is kept
        pairs += [(row.score, reward.score_learned), (row.log_cost, reward.log_cost)]
    return any(known is not None and told is not None and known != told for known, told in pairs)


def _counts_as_wrong(reward: Reward, rules: RewardRules) -> bool:
    """Return whether nobody said in time whether an answer is right; where its wait was cut short, nobody could."""
    return reward.kind == "default" and rules.default == "wrong" and not reward.closed_early


def _resolved(
    row: Row, reward: Reward, seq: int, rules: RewardRules, change: dict[str, Any]
) -> tuple[Verdict, Move | None]:
    """Close a row that is in A already: replace what was imputed, or let it stand."""
    change["stage"] = "closed"
    correct = 0.0 if _counts_as_wrong(reward, rules) else reward.correct
    if correct is None or not reward.learn:
        closed = msgspec.structs.replace(row, **change, ended_seq=seq)
        return "closed", Move("nothing", closed)
    check_share(row.query_id, "correct", correct)
    return "corrected", _move("correction", row, {**change, "correct": correct, "corrected_seq": seq})


def _abandoned(row: Row, seq: int, change: dict[str, Any]) -> tuple[Verdict, Move]:
    """End a row of which nothing is learned."""
    return "abandoned", _move("abandoned", row, {**change, "stage": "abandoned", "ended_seq": seq})


def _move(what: EventKind, row: Row, change: dict[str, Any]) -> Move:
    return Move(what, msgspec.structs.replace(row, **change))


def _factor(reward: Reward) -> float:
    return reward.price.factor if reward.price is not None else 1.0


# The events of a log, in their single order: what a policy is told, one event after the other.
#
# The live run, recovery and `verify-decisions` all tell a policy through `tell` and `offer`; the latter two
# take the events from `events`. So the three cannot diverge.

_ENDS: Final[dict[str, EventKind]] = {"abandoned": "abandoned", "priced": "cost"}


class LogEvent(NamedTuple):
    """One event of a log.

    Attributes:
        seq: Its sequence number; an offer precedes the decision with the same number.
        kind: What the policy is told of it.
        row: The present row.
    """

    seq: int
    kind: EventKind
    row: Row | OfferRow


def events(rows: Iterable[AnyRow], after: int = -1) -> list[LogEvent]:
    """Return every event of the log after a sequence number, in order.

    Args:
        rows: Rows in any order; rows of actions are no events.
        after: Last sequence number that the policy's state already contains; -1 for none.
    """
    found: list[LogEvent] = []
    for row in rows:
        if isinstance(row, OfferRow):
            found.append(LogEvent(row.seq, "offer", row))
        elif isinstance(row, Row):
            ended = _ENDS.get(row.stage, "nothing")
            found += [
                LogEvent(row.seq, "decided", row),
                LogEvent(row.learned_seq, "failure" if row.stage == "failed" else "reward", row),
                LogEvent(row.corrected_seq, "correction", row),
                LogEvent(row.ended_seq, ended, row),
            ]
    kept = (event for event in found if event.seq > after)
    return sorted(kept, key=lambda event: (event.seq, event.kind != "offer"))


def tell(policy: Policy, kind: EventKind, rows: Sequence[Row]) -> None:
    """Tell a policy, in order, about decisions or outcomes of one kind."""
    match kind:
        case "decided" | "abandoned":
            policy.decided([row.pending(abandoned=kind == "abandoned") for row in rows])
        case "reward" | "correction" | "cost" | "failure":
            policy.learn([row.observation(kind) for row in rows])
        case "offer" | "nothing":
            pass


def taught(rows: Iterable[Row], after: int = -1) -> list[tuple[str, int]]:
    """Return the tenant and the weight of every outcome after a sequence number, in order."""
    found = []
    for row in rows:
        at_end = row.stage == "priced" or not row.weight
        found.append((row.ended_seq if at_end else row.learned_seq, row.tenant, row.weight))
    return [(tenant, weight) for seq, tenant, weight in sorted(found) if seq > after]


# From rows to policy state: recovery, replay and the live run compute the same function of the log.
#
# A policy whose state depends only on the set of observations gets all decisions, then all updates, then all
# corrections, in large batches (BLAS-3). The others (networks, windows, ties of k-NN) are told in the order of the
# live run.

BATCH: Final = 2048
"""Rows per batch; each batch costs one factorisation, and takes 20 MB for joint vectors at d = 1,192."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Counts of what a fold told the policy."""

    decisions: int
    updates: int
    corrections: int
    outstanding: int
    last_seq: int
    clock: int


def fold(
    policy: Policy, rows: Iterable[AnyRow], after: int = -1, actions: Mapping[str, ActionRow] | None = None
) -> Folded:
    """Tell a policy everything in the log after a sequence number.

    Args:
        policy: The policy, with the actions of the log added, in its initial state or that of a snapshot.
        rows: Rows in any order.
        after: Last sequence number that the policy's state already contains; -1 for none.
        actions: Every action of the log by id, for policies whose state depends on what was on offer; None skips
            offers.
    """
    whole = list(rows)
    if actions and not policy.traits.order_free:
        resume_offer(policy, whole, after, actions)
    told = [event for event in events(whole, after) if event.kind != "nothing"]
    if policy.traits.order_free:
        order = {"decided": 0, "abandoned": 1, "cost": 1, "reward": 2, "failure": 2, "correction": 3}
        told = sorted((e for e in told if e.kind != "offer"), key=lambda e: (order[e.kind], e.seq))
    for kind, group in groupby(told, key=attrgetter("kind")):
        rows_of_kind = [event.row for event in group]
        if actions:
            for row in rows_of_kind:
                if isinstance(row, OfferRow):
                    offer(policy, row, actions)
        alike = [row for row in rows_of_kind if isinstance(row, Row)]
        for start in range(0, len(alike), BATCH):
            tell(policy, kind, alike[start : start + BATCH])
    counted = Counter(event.kind for event in told)
    decided = [row for row in whole if isinstance(row, Row)]
    return Folded(
        decisions=counted["decided"],
        updates=counted["reward"] + counted["failure"],
        corrections=counted["correction"],
        outstanding=sum(row.stage == "pending" for row in decided),
        last_seq=max((row.last_seq for row in decided), default=after),
        clock=max((row.clock + 1 for row in decided), default=0),
    )


def untold(rows: Sequence[Row], after: int = -1) -> CorruptState | None:
    """Return the first missing or repeated sequence number of a log as an error; None if the log is complete.

    Decisions and updates share one sequence without gaps, so a row that was lost or not yet read leaves a gap.

    Args:
        rows: Rows in any order.
        after: Last sequence number that a snapshot already contains; -1 for none.
    """
    found = sorted((seq, row.query_id) for row in rows for seq in row.seqs if seq > after)
    for wanted, (seq, query_id) in enumerate(found, after + 1):
        if seq != wanted:
            other = found[wanted - after - 2][1] if seq < wanted else None
            why = (
                f"row {query_id!r} has {seq}" + (f", as row {other!r} has" if other else "") + f"; {FIX_LOG}"
            )
            return CorruptState("the log's next sequence number", seq, wanted, why)
    return None


# What the decider returns: for each record a Decision, a changed row or an error; and the result of a recovery.


@dataclass(frozen=True, slots=True)
class Decided:
    """The result for one Context: a Decision to send, or the error for its dead letter.

    Attributes:
        value: The Decision's bytes; None with an error, or if the query has ended and its row has left the log.
        group: The executor group that also gets it, besides the topic `action-decision`.
        row: Key and value to write before sending; None if the row exists already (a redelivery).
    """

    query_id: str
    value: bytes | None = None
    group: str = ""
    row: tuple[bytes, bytes] | None = None
    error: UniscaleError | None = None

    @property
    def resent(self) -> bool:
        """Return whether this is a redelivery: the same bytes are sent again, or nothing if the query has ended."""
        return self.error is None and self.row is None


@dataclass(frozen=True, slots=True)
class Learned:
    """The result for one Reward: rows to write, nothing, or the error for its dead letter.

    Attributes:
        rows: Its query's row as it is now. Where a call has made the policy learn everything anew, the last changed row
            is followed by what was estimated then.
    """

    query_id: str
    verdict: Verdict | None = None
    rows: tuple[tuple[bytes, bytes], ...] = ()
    error: UniscaleError | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery.

    Attributes:
        folded: What the policy was told in addition to the snapshot.
        snapshot_version: Sequence number of the snapshot used; -1 for none.
        refused: Newer snapshots that were damaged, each with its reason.
        next_context, next_reward: First offsets that the log does not cover. If the group's commit is ahead of the log,
            reading restarts here.
        carried: Rows, by key, that come from the snapshot because the log no longer has them.
        foreign: Keys of skipped records, which the learner cannot have written, in the log and in the snapshots' topic.
        open_rows: The chunks of open decisions of the snapshot used.
    """

    folded: Folded
    snapshot_version: int
    refused: tuple[CorruptState, ...]
    next_context: int
    next_reward: int
    carried: Mapping[bytes, bytes]
    foreign: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
    open_rows: OpenRows = field(default_factory=OpenRows)
