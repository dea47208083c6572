"""The records that close the loop: Feedback from clients, Due from the timer, Reward to the decider."""

from typing import Any, Literal

from msgspec import Struct, field

from schemas.action import Action
from schemas.answer import Status
from schemas.decision import Verified
from schemas.errors import InvalidField
from schemas.failure import EarlierAttempt, Fault
from schemas.forest import Count, PriceFactor, Unit
from schemas.objective import CostUnit, ObjectiveInForce
from schemas.prices import Billed, Prices
from schemas.query import MAX_METADATA
from schemas.record import Millis, Record, check_finite, check_id, check_json, check_name

Kind = Literal["provisional", "final", "correction", "default"]
"""provisional: score and cost are known, but correctness is pending. final: everything is known at once, because the
answer was graded against the reference. correction: feedback supplied correctness after a provisional reward. default:
no feedback came, and the row closes without it."""

GradeSource = Literal["reference", "person", "judge"]
"""How an answer was graded: by comparison with a reference answer, by a person, or by a model acting as a judge."""

GradedBy = Literal["", "reference", "person", "judge", "score"]
"""Source of a reward's correctness. `score`: the answer was not graded, and the verifier's score takes its place."""

CLOSING: frozenset[Kind] = frozenset({"final", "correction", "default"})


class Feedback(Record, frozen=True, kw_only=True, tag="feedback.v1"):
    """A client's grade of an answer, possibly hours later. Key: query_id.

    Attributes:
        query_id: The query's id.
        correct: true, false, or a grade from 0 to 1.
        graded_by: Kind of source. The first Feedback wins, whatever its kind.
        source: Name of the source.
        learn: Whether the learner may learn from this grade; False if its source is not allowed to teach.
        metadata: Any data the client attaches; at most 16 KiB of JSON.
    """

    query_id: str
    correct: bool | float
    graded_by: GradeSource = "person"
    source: str = ""
    learn: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject a grade outside 0 to 1, or fields too large for a join row."""
        check_id("Feedback", self.query_id)
        if not 0.0 <= self.correct <= 1.0:
            raise InvalidField(
                "Feedback", "correct", f"is {self.correct}; give true, false or a grade from 0 to 1"
            )
        if self.source:
            check_name("Feedback", "source", self.source)
        if self.metadata:
            check_json("Feedback", "metadata", self.metadata, MAX_METADATA)

    @property
    def grade(self) -> float:
        """Return the correctness as a number from 0 to 1."""
        return float(self.correct)


class Due(Record, frozen=True, kw_only=True, tag="due.v1"):
    """A deadline that has passed. Key: query_id. Sent by the timer so that expiry is ordered with other records.

    Attributes:
        query_id: The query's id.
        kind: `timeout`: no Answer came; `feedback`: no feedback came; `parked`: an early Feedback found no Answer, or
            no Decision; `forget`: a query is known but its Decision never came; `crowded`: too many rewards are open,
            and this is the oldest one of the account with the most.
        deadline_ms: The deadline, in ms since the epoch on the broker's clock; for `crowded`, the time of selection.
        sent_ms: When the timer first sent the record, in ms since the epoch on the timer's own clock.
    """

    query_id: str
    kind: Literal["timeout", "feedback", "parked", "forget", "crowded"]
    deadline_ms: Millis
    sent_ms: Millis = 0

    def __post_init__(self) -> None:
        """Reject an id that cannot be a key."""
        check_id("Due", self.query_id)


class Cost(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cost of a search: its equivalent FLOPs (App. D.3) times its model's price factor, or the amount billed.

    Attributes:
        cost: The sum of the three parts; if costs are in USD, the amount billed.
        unit: Unit of `cost`. All other fields except the last two apply only if this is eFLOPs.
        prefill_eflops: Cost of reading the prompt.
        decoding_eflops: Cost of generating.
        verifier_eflops: Cost of scoring.
        compute_flops: Number of floating-point operations.
        memory_bytes: Number of bytes moved.
        intensity: FLOPs per byte of this hardware.
        factor: The price factor: the multiplier for `cost` and its three parts, but not for operations and bytes.
        billed: If costs are in USD, the tokens billed.
        prices: If costs are in USD, the prices of these tokens, from the Decision.
    """

    cost: float
    unit: CostUnit = "eflops"
    prefill_eflops: float = 0.0
    decoding_eflops: float = 0.0
    verifier_eflops: float = 0.0
    compute_flops: float = 0.0
    memory_bytes: float = 0.0
    intensity: float = 0.0
    factor: PriceFactor = 1.0
    billed: Billed | None = None
    prices: Prices | None = None


class Charge(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The amount that a query counts towards the daily spending limit of its API key.

    Attributes:
        key: Digest of the API key.
        eflops: Cost of the query's search, in eFLOPs; an upper bound if the deadline cut off a step.
        usd: The same amount in USD, if costs are in USD.
    """

    key: str
    eflops: float = 0.0
    usd: float = 0.0


class Reward(Record, frozen=True, kw_only=True, tag="reward.v1"):
    """The raw terms of one query's reward. Key: policy shard. Applied once per reward_id.

    Attributes:
        reward_id: query_id/kind.
        query_id: The query's id.
        kind: Stage of the reward.
        seq: The Decision's sequence number.
        action: The action that ran.
        status: How the query ended.
        correct: 1, 0 or a grade in between; None if not (yet) known.
        score: The chosen path's mean score; None without a path, or if the answer was not scored (`unscored`).
        log_cost: Natural logarithm of the cost, `price.cost`; None if nothing ran.
        price: The cost and its parts.
        objective: The objective in force at the Decision.
        reward: The scalar reward under this objective, for monitoring; None if a term is missing.
        graded_by: Source of `correct`; empty if correctness is not (yet) known, or if a model's fault left nothing to
            grade.
        grader: Name and version of the grader that compared the answer with the Query's reference, recorded because a
            change of grader alone shifts accuracy. Empty if the grade came from feedback.
        rule: Where the grader found the answer and which rule decided, such as `box/number` or `last-line/exact`;
            docs/grading.md lists them. Empty if `grader` is empty, and in older records.
        latency_s: Seconds from the Query's append to the Answer's, on the broker's clock.
        fault: As in the Answer. After an `infrastructure` fault there is no score and nothing is learned. After a
            `model` fault the kind is `final` and `correct` is 0; the wrong answer is learned, and the model counts as
            tried. The cost is charged but not learned, because a failure is cheap.
        learn: As in the Query. If False, nothing is learned.
        bounded: Whether the client's own `max_tokens` or `stop` cut the answer, or its sampling parameters distorted
            it. If so, correctness is never known, and only the cost is learned.
        unscored: Whether the answer was not scored. If its correctness is known, that takes the place of the score, so
            that w₁ and w₂ add up; otherwise only the cost is learned.
        charge: The amount that counts towards the API key's limits; set only in a query's first reward, and None if
            there is no API key or nothing ran.
        missing: Why the cost or the grade could not be computed; empty if both were.
        closed_early: Whether the wait for feedback was cut short because too many rewards were open. Correctness is
            then unknown, but not because feedback failed to come.
        verified: As in the Decision. Unless it is `all`, scores from different models are not comparable, so `correct`
            takes the place of the score; if `correct` is not known, only the cost is learned.
        attempt: Number of the attempt that the Answer ends, 1 for the first. `seq`, `action`, `price` and `log_cost`
            are those of this attempt; `charge` covers all attempts.
        earlier: The earlier, failed attempts.
    """

    reward_id: str
    query_id: str
    kind: Kind
    seq: Count
    action: Action
    status: Status
    correct: Unit | None
    score: Unit | None
    log_cost: float | None
    price: Cost | None
    objective: ObjectiveInForce
    reward: float | None = None
    graded_by: GradedBy = ""
    grader: str = ""
    rule: str = ""
    latency_s: float | None = None
    fault: Fault = ""
    learn: bool = True
    bounded: bool = False
    unscored: bool = False
    charge: Charge | None = None
    missing: str = ""
    closed_early: bool = False
    verified: Verified = "all"
    attempt: Count = 1
    earlier: tuple[EarlierAttempt, ...] = ()

    def __post_init__(self) -> None:
        """Reject terms that contradict the kind."""
        check_id("Reward", self.query_id)
        check_finite("Reward", log_cost=self.log_cost, reward=self.reward, latency_s=self.latency_s)
        if self.reward_id != reward_id(self.query_id, self.kind):
            raise InvalidField("Reward", "reward_id", f"is {self.reward_id!r}; write query_id/kind")
        if self.kind in ("final", "correction") and self.correct is None:
            raise InvalidField(
                "Reward", "correct", f"is null in a {self.kind}; send provisional or default instead"
            )
        if self.kind in ("provisional", "default") and self.correct is not None:
            raise InvalidField(
                "Reward", "correct", f"is known in a {self.kind}; send final or correction instead"
            )
        if self.failed and (self.kind, self.correct, self.score) != ("final", 0.0, None):
            why = f"is model in a {self.kind} with correct {self.correct} and score {self.score}"
            raise InvalidField("Reward", "fault", f"{why}; send final with correct 0 and no score")
        if self.bounded and self.kind != "default":
            why = f"is true in a {self.kind}; send default, because an answer that was cut is not graded"
            raise InvalidField("Reward", "bounded", why)
        if self.closed_early and self.kind != "default":
            why = f"is true in a {self.kind}; send default, because its feedback was not awaited"
            raise InvalidField("Reward", "closed_early", why)
        unit = self.objective.cost_range.unit
        if self.price is not None and self.price.unit != unit:
            why = f"is {self.price.unit} under an objective in {unit}; count both in one unit"
            raise InvalidField("Reward", "price.unit", why)
        if self.unscored and self.score is not None:
            raise InvalidField(
                "Reward", "unscored", f"is true with a score of {self.score}; send one of the two"
            )

    @property
    def closes(self) -> bool:
        """Return whether this is the query's last reward."""
        return self.kind in CLOSING

    @property
    def cost(self) -> float | None:
        """Return the total cost of all attempts; None if nothing ran or the cost is unknown."""
        before = sum(each.cost for each in self.earlier)
        return before + self.price.cost if self.price is not None else before or None

    @property
    def failed(self) -> bool:
        """Return whether the model produced no text. This is learned as a wrong answer; the cost is not learned."""
        return self.fault == "model"

    @property
    def learnable(self) -> bool:
        """Return whether the score and the cost are both known. Without them, nothing may enter the matrix A."""
        return self.score_learned is not None and self.log_cost is not None

    @property
    def score_learned(self) -> float | None:
        """Return the value learned for Score: the score, or correctness if not all models share one verifier."""
        return self.correct if self._by_correctness else self.score

    @property
    def cost_only(self) -> bool:
        """Return whether only the cost is learned, because correctness and score do not reflect the action."""
        return self.bounded or (self._by_correctness and self.correct is None)

    @property
    def _by_correctness(self) -> bool:
        return self.unscored or self.verified != "all"


def reward_id(query_id: str, kind: Kind) -> str:
    """Return a reward's id. A reward is applied once, however often it is delivered.

    >>> reward_id("q-1", "final")
    'q-1/final'
    """
    return f"{query_id}/{kind}"
