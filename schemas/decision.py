"""Decision: the chosen action with every term that replay, join and off-policy evaluation need."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from schemas.action import Action
from schemas.forest import Count, PriceFactor
from schemas.objective import ObjectiveInForce
from schemas.query import Origin, Query
from schemas.record import Millis, Record, check_group
from schemas.spent import Spent

MAX_SEED = 2**63 - 1

Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]

Reason = Literal["policy", "warm-up", "floor", "pinned", "control"]

Cohort = Literal["policy", "control"]
"""Whether the policy chose, or the query belongs to the control group, which always takes one action."""

Verified = Literal["all", "some", "none"]
"""Which models of the catalogue, whatever their health, a verifier scores. all: each, by the same one. some: not all,
or by different ones. none: not one."""


class ScoredAction(Struct, frozen=True, kw_only=True):
    """One action as it was scored.

    Attributes:
        action: Its id, `model/qp/cp/bs`.
        mean: Predicted reward, θᵀx.
        width: α·√(xᵀA⁻¹x), or what the policy has in its place.
        score: What was ranked: mean plus width.
    """

    action: str
    mean: float
    width: float
    score: float


class Predicted(Struct, frozen=True, kw_only=True):
    """The terms the policy expects of the chosen action, where it models them."""

    correct: float
    score: float
    log_cost: float


class PolicyState(Struct, frozen=True, kw_only=True):
    """Who chose, in which state.

    Attributes:
        name: Name of the policy.
        version: Rewards and corrections applied when it chose.
    """

    name: str
    version: Count


class Decision(Record, frozen=True, kw_only=True, tag="decision.v1"):
    """The action chosen for one query. Key: query_id.

    Attributes:
        query: The Query, whole: the executor needs text and budget, the aggregator reference and deadlines.
        origin: Where the Query lies.
        action: What was chosen.
        group: The executor group that serves its model.
        seq: Position in the one order of decisions and updates.
        seed: Seed of this query; those of steps and paths derive from it.
        objective: The weights and cost bounds in force.
        policy: Its name and version.
        catalogue_version: Offset in `control` of the last change of the catalogue; −1 for the file alone.
        mean: Predicted reward of the action; None in warm-up or when pinned.
        width: Its confidence width.
        score: What was ranked.
        predicted: The predicted terms, where the policy models them.
        runners_up: The best others, best first.
        candidates: How many actions could be chosen, after masks.
        masked_models: Models left out for want of a living executor.
        short_models: Models left out because their context may not hold the question and an answer.
        reason: What drew the action: the policy, the warm-up, the exploration floor, the client's pin or the
            control group.
        cohort: `control` for a query of the control group. (`group` is the executor group.)
        randomised: Whether a draw chose its cohort. Pinned queries and those of the warm-up, for instance, are not
            drawn, and have no place in a comparison of the two.
        propensity: Probability of this action given state and context, over policy and control group; None when
            it is not known.
        propensity_draws: Monte Carlo draws behind it; 0 when exact.
        propensity_error: Standard error of that estimate; 0 when exact.
        appended_ms: Append time of the Query on the broker, ms since the epoch: deadlines count from it.
        price_factor: What an eFLOP of the action's model costs: the query is priced at it, whatever it costs later.
        spent: Where its time has gone so far.
        verified: Which models a verifier scored when it was made. Unless `all`, no score stands in for a correctness
            that nobody told.
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
    reason: Reason = "policy"
    cohort: Cohort = "policy"
    randomised: bool = False
    propensity: Probability | None = None
    propensity_draws: Count = 0
    propensity_error: float = 0.0
    appended_ms: Millis = 0
    price_factor: PriceFactor = 1.0
    spent: Spent = field(default_factory=Spent)
    verified: Verified = "all"

    def __post_init__(self) -> None:
        """Refuse a decision that no executor could take up."""
        check_group("Decision", self.group)

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.query.query_id
