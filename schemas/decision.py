"""Decision: the chosen action, with everything that replay, the join and off-policy evaluation need."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from schemas.action import Action
from schemas.chat import Requirement
from schemas.errors import InvalidField
from schemas.failure import EarlierAttempt
from schemas.forest import Count, PriceFactor
from schemas.objective import ObjectiveInForce
from schemas.prices import Prices
from schemas.query import Origin, Query
from schemas.record import Millis, Record, check_group
from schemas.spent import Spent

MAX_SEED = 2**63 - 1

Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]

Reason = Literal["policy", "warm-up", "floor", "pinned", "control", "baseline", "session"]

Cohort = Literal["policy", "control"]
"""policy: the policy chose the action. control: the query is in the control group, which always gets one fixed
action."""

Verified = Literal["all", "some", "none"]
"""Which catalogue models have a verifier, healthy or not. all: every model has the same verifier. some: not every model
has one, or they differ. none: no model has one."""


class Predicted(Struct, frozen=True, kw_only=True):
    """The reward terms predicted for an action, if the policy models them."""

    correct: float
    score: float
    log_cost: float


class ScoredAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action, with the score used to rank it.

    Attributes:
        action: The action's id, `model/qp/cp/bs`.
        mean: Predicted reward, θᵀx.
        width: Confidence width α·√(xᵀA⁻¹x), or the policy's equivalent.
        score: Mean plus width, used to rank actions.
        predicted: Its predicted reward terms, if the policy models them.
    """

    action: str
    mean: float
    width: float
    score: float
    predicted: Predicted | None = None


class PolicyState(Struct, frozen=True, kw_only=True):
    """The policy that chose the action, and the version of the policy's state.

    Attributes:
        name: Name of the policy.
        version: Number of rewards and corrections applied before the choice.
    """

    name: str
    version: Count


class Decision(Record, frozen=True, kw_only=True, tag="decision.v1"):
    """The action chosen for a query, or for a further attempt at it. Key: query_id.

    Attributes:
        query: The whole Query. The executor needs its text and budget; the aggregator, its reference and deadlines.
        origin: Position of the Query.
        action: The chosen action.
        group: The executor group that serves the action's model.
        seq: Sequence number in the single order of decisions and updates.
        seed: This query's seed; the seeds of its steps and paths are derived from it.
        objective: The weights and cost bounds in force.
        policy: Name and version of the policy.
        catalogue_version: Offset in `control` of the last change to the catalogue; −1 for the file alone.
        mean: Predicted reward of the action; None in warm-up, at the baseline or if pinned.
        width: Confidence width of the action.
        score: Mean plus width, used to rank actions.
        predicted: The predicted terms, if the policy models them.
        runners_up: The next best actions, best first.
        candidates: Number of actions available after masking.
        masked_models: Models left out because no live executor serves them.
        short_models: Models left out because the question and an answer may not fit into their context.
        required: The query's requirements (`Query.required`).
        unable_models: Models left out because they do not meet the requirements.
        reason: What determined the action: the policy, the warm-up, the exploration floor, the client's pin, the
            control group, the baseline (used until any answer's correctness is known), or the previous turn of the
            session (whose configuration is kept).
        cohort: `control` for a query in the control group. (`group` is the executor group.)
        session: Digest of the session the query belongs to, scoped by account; empty if there is none.
        randomised: Whether the cohort was drawn at random. The cohort of a pinned or warm-up query, for example, is
            not drawn, so such a query does not belong in a comparison of the cohorts.
        propensity: Probability of this action given the state and context, taking both the policy and the control
            group into account; None if unknown.
        propensity_draws: Number of Monte Carlo draws behind the propensity; 0 if exact.
        propensity_error: Standard error of the propensity; 0 if exact.
        appended_ms: Append time of the Query on the broker, ms since the epoch. Deadlines count from this time.
        price_factor: Price factor of the action's model at this time. Later changes do not affect this query.
        prices: Prices of the action's model at this time if costs are in USD; None if they are in eFLOPs.
        spent: Where the query's time has gone so far.
        verified: Which models had a verifier at this time. Unless it is `all`, a score never stands in for unknown
            correctness.
        attempt: Attempt number, 1 for the first. A later attempt has the first one's objective and cohort and is never
            `randomised`; its propensity is conditional on the exclusions.
        excluded: Models left out because an earlier attempt failed on them or on a model that shares their server.
        earlier: The earlier, failed attempts.
        features: The request's categories, each as `key=value`: those from the lists the operator named, and the
            product's own.
    """

    query: Query
    origin: Origin
    action: Action
    group: str
    seq: Count
    seed: Seed
    objective: ObjectiveInForce
    policy: PolicyState
    catalogue_version: int = -1
    mean: float | None = None
    width: float | None = None
    score: float | None = None
    predicted: Predicted | None = None
    runners_up: tuple[ScoredAction, ...] = ()
    candidates: Count = 0
    masked_models: tuple[str, ...] = ()
    short_models: tuple[str, ...] = ()
    required: tuple[Requirement, ...] = ()
    unable_models: tuple[str, ...] = ()
    reason: Reason = "policy"
    cohort: Cohort = "policy"
    session: str = ""
    randomised: bool = False
    propensity: Probability | None = None
    propensity_draws: Count = 0
    propensity_error: float = 0.0
    appended_ms: Millis = 0
    price_factor: PriceFactor = 1.0
    prices: Prices | None = None
    spent: Spent = field(default_factory=Spent)
    verified: Verified = "all"
    attempt: Count = 1
    excluded: tuple[str, ...] = ()
    earlier: tuple[EarlierAttempt, ...] = ()
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject a decision that no executor could run."""
        check_group("Decision", self.group)
        numbers = [each.attempt for each in self.earlier]
        # Compare the lengths first, because a record may claim any number of attempts.
        if len(numbers) != self.attempt - 1 or numbers != list(range(1, self.attempt)):
            why = f"is not attempts 1 to {self.attempt - 1}; give each that failed before attempt {self.attempt}"
            raise InvalidField("Decision", "earlier", why)

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.query.query_id
