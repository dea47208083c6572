"""The protocol of all policies (UniScale §3.2, Alg. 1): what they are asked and told, and what they answer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from agents.bandit.errors import InvalidObjective, InvalidObservation
from schemas.objective import ObjectiveInForce, scalar

# What policies are asked and told, and what they answer (UniScale §3.2, Alg. 1); their protocol is `Policy`.

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

TERMS: Final = ("correct", "score", "log_cost", "one")
"""Columns of B: the reward of Eq. 4 is linear in them for every choice of weights and cost bounds."""

Reason = Literal["policy", "warm-up", "floor", "control"]
Cohort = Literal["policy", "control"]
OutcomeKind = Literal["reward", "correction", "cost", "failure"]


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the reward's terms: w₁·Correct + w₂·Score + w₃·(1 − C̃) − λ·C (Eq. 4, and a shadow price λ).

    C̃ = (log C − log_cost_min) / (log_cost_max − log_cost_min) is never clipped, because an exact change of objective
    needs it linear in log C. Weights are normalised to sum 1; otherwise α would change its meaning.

    >>> Objective(correct=1, score=1, cost=2, log_cost_min=0.0, log_cost_max=2.0).coefficients.tolist()
    [0.25, 0.25, -0.25, 0.5]
    """

    correct: float
    score: float
    cost: float
    log_cost_min: float
    log_cost_max: float
    shadow_price: float = 0.0
    coefficients: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate and normalise.

        Raises:
            InvalidObjective: A weight or the shadow price is negative or not finite, all weights are zero, or bounds
                are not in order.
        """
        weights = {"correct": self.correct, "score": self.score, "cost": self.cost}
        for name, weight in weights.items():
            if not np.isfinite(weight) or weight < 0:
                raise InvalidObjective(name, weight, "give a finite weight, zero or more")
        total = sum(weights.values())
        if total <= 0:
            raise InvalidObjective("weights", total, "give at least one weight above zero")
        low, high = self.log_cost_min, self.log_cost_max
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise InvalidObjective(
                "log_cost bounds", (low, high), "give finite bounds, the minimum below the maximum"
            )
        if not 0.0 <= self.shadow_price < np.inf:
            raise InvalidObjective("shadow_price", self.shadow_price, "give zero or more, finite")
        # Weights that sum to 1 already stay as they are, bit by bit, when they are read back from a state.
        if abs(total - 1.0) > 1e-12:
            for name, weight in weights.items():
                object.__setattr__(self, name, weight / total)
        slope = self.cost / (high - low)
        coefficients = np.array([self.correct, self.score, -slope, slope * high])
        coefficients.setflags(write=False)
        object.__setattr__(self, "coefficients", coefficients)

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, in_force: ObjectiveInForce) -> Objective:
        """Return an objective in force as coefficients."""
        w, bounds = in_force.weights, in_force.cost_range
        low, high = float(np.log(bounds.low)), float(np.log(bounds.high))
        return cls(w.correct, w.score, w.cost, low, high, in_force.price)

    def reward(self, correct: float, score: float, log_cost: float) -> float:
        """Return r of Eq. 4 for one outcome."""
        weights, bounds = (self.correct, self.score, self.cost), (self.log_cost_min, self.log_cost_max)
        return scalar(weights, bounds, self.shadow_price, correct, score, log_cost)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an objective by mean cost or by accuracy; exactly one of the two is given.

    Attributes:
        key: Identity of the objective.
        mean_cost: Mean eFLOPs per query.
        accuracy: Share of the accuracy that is predicted to be within reach.
        tenant: On whose queries it is to be met.
    """

    key: str
    mean_cost: float | None = None
    accuracy: float | None = None
    tenant: str = ""

    @classmethod
    def of(cls, in_force: ObjectiveInForce, tenant: str) -> Target | None:
        """Return a tenant's target under an objective in force; None if it states weights.

        The key includes the target, so a new target is paced from the start and a repeated one is not.
        """
        named, mean_cost, accuracy = in_force.name or "", in_force.mean_cost, in_force.accuracy
        if mean_cost is not None:
            return cls(f"{named}/mean_cost={mean_cost!r}", mean_cost=mean_cost, tenant=tenant)
        if accuracy is not None:
            return cls(f"{named}/accuracy={accuracy!r}", accuracy=accuracy, tenant=tenant)
        return None

    @property
    def account_id(self) -> tuple[str, str]:
        """Return tenant and key: each tenant has an account of its own under each objective."""
        return self.tenant, self.key


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """What the decisions of a paced objective came to since its target was set, those of all tenants together.

    Attributes:
        shadow_price: λ in force, per eFLOP, of the tenant who asks.
        mean_cost: Mean eFLOPs per query: realised where it is known, predicted where it is not yet.
        predicted, correct: Mean predicted and mean true accuracy of the queries whose outcome is known; None before.
    """

    shadow_price: float
    mean_cost: float
    predicted: float | None = None
    correct: float | None = None


@dataclass(frozen=True, slots=True)
class ActionVector:
    """One known configuration: its identity, its model, and the embedding s_a of its description.

    Args:
        action_id: Identity of the configuration; it never changes.
        model: Name of its model, which per-model corrections use.
        embedding: s_a, shape (d_a,), float64, unit length.
        size: Number of parameters of its model; 0 if it is not known.
    """

    action_id: str
    model: str
    embedding: Vector
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class Context:
    """One query to decide: its embedding s_q, shape (d_q,), and the actions it may use (None: all active)."""

    query_id: str
    embedding: Vector
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One scored action: predicted mean, width α·√(xᵀA⁻¹x), and the score by which it was ranked."""

    action_id: str
    mean: float
    width: float
    score: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How a model differs from what was learned of it, as its latest outcomes show.

    Attributes:
        cost: What its searches cost, as a multiple of what was learned; 1 where that holds.
        accuracy_seq: Sequence number of the outcome that showed its accuracy to be another; it has been relearned
            since then. None where it holds.
    """

    cost: float = 1.0
    accuracy_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one part of the model contributes to a predicted accuracy.

    Attributes:
        part: Its name, such as `model × directions`: what is the model's own, as far as it depends on the query.
        mean: Its summand of the prediction.
        variance: Its summand of the prediction's variance, half of what it shares with other parts included; below 0
            where these outweigh its own.
    """

    part: str
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen action with every term that explains it.

    Attributes:
        candidates: Number of actions that could be chosen.
        propensity: Probability of this action given state and context. Exact if propensity_draws is 0, otherwise a
            Monte Carlo estimate; None if it is not known.
        propensity_error: Standard error of that estimate; 0.0 when exact.
        predicted: Predicted (Correct, Score, log C) of the chosen action, if the policy models the terms.
        version: Rewards and corrections applied to the state that chose.
        reason: Whether the policy, the warm-up, the exploration floor or the control group chose the action.
        cohort: Whether the query belongs to the policy or to the control group.
        randomised: Whether a random draw decided the cohort.
    """

    query_id: str
    action_id: str
    mean: float
    width: float
    score: float
    runners_up: tuple[Candidate, ...]
    propensity: float | None
    candidates: int = 0
    propensity_draws: int = 0
    propensity_error: float = 0.0
    predicted: tuple[float, float, float] | None = None
    version: int = 0
    reason: Reason = "policy"
    cohort: Cohort = "policy"
    randomised: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """A decision whose reward is outstanding: x is known, r is not.

    Attributes:
        target: That of its objective; None for plain weights, and in the control group, which is not paced.
        tenant: Who asks.
        abandoned: Whether it is taken back, as nothing will be learned of it.
        paid, correct: What its account then takes from its outcome; None where that is unknown.
    """

    observation_id: str
    embedding: Vector
    action_id: str
    target: Target | None = None
    tenant: str = ""
    abandoned: bool = False
    paid: float | None = None
    correct: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One decision with the raw terms of its reward.

    Attributes:
        correct: 1.0, 0.0 or a grade in between; None while it is not known.
        imputed: Value used for `correct` in B until it is known (docs/readings.md, "Two-stage reward").
        objective: The objective in force when the decision was made. Policies that learn a scalar reward use
            it; policies that learn one column per term ignore it.
        clock: Decisions made before this one; forgetting by discount counts in it.
        price_factor: What an eFLOP cost: `log_cost` is ln(eFLOPs) plus its logarithm.
        tenant: Who asked.
        kind: What is learned: the first reward; in a correction the true Correct, which replaces the imputed one; the
            cost alone, because the client's own bounds cut the answer; or a failure of the model, which is a wrong
            answer without a score. What that cost says nothing of what an answer costs: `log_cost` is then the
            upper bound of the objective's costs, at which a wrong answer earns nothing.
        seq, learned_seq: Sequence numbers of this outcome, and of the first of its decision that was learned.
        target, predicted: With a correction, that which the decision counts against, None where it counts against
            none, and the accuracy that was predicted of it.
        paid: With a failure, what it cost; None where nobody knows.
        tried: With a cost alone, whether its model counts as tried: where no score stands in for Correct, there may
            never be more to learn.
    """

    observation_id: str
    embedding: Vector
    action_id: str
    correct: float | None
    score: float
    log_cost: float
    imputed: float
    objective: Objective
    clock: int = 0
    price_factor: float = 1.0
    tenant: str = ""
    kind: OutcomeKind = "reward"
    seq: int = 0
    learned_seq: int = 0
    target: Target | None = None
    predicted: float | None = None
    paid: float | None = None
    tried: bool = False

    @property
    def entered(self) -> float:
        """Return the value of Correct that enters B: the true one if known, otherwise the imputed one."""
        return self.imputed if self.correct is None else self.correct

    def terms(self) -> Vector:
        """Return (Correct or imputed, Score, log C, 1), shape (4,)."""
        return np.array([self.entered, self.score, self.log_cost, 1.0])


@dataclass(slots=True)
class Prediction:
    """What a policy predicts of one context's allowed actions, and how likely it is to choose each.

    Recorded randomisation (`agents.bandit.exploration`) is functions from one prediction to another.

    Attributes:
        query_id: The context's.
        action_ids: The n actions.
        mean, width: Of the reward under the objective, shape (n,).
        score: By which the actions are ranked, shape (n,).
        chosen: Index of the action that was drawn; where nothing is random, that of the best score.
        probability: Probability of each action, shape (n,); None if not known.
        draws: Monte Carlo draws behind `probability`; 0 when exact.
        error: Standard error of the chosen action's probability; 0.0 when exact.
        predicted: Predicted (Correct, Score, log C) of the chosen action.
        terms: Returns those of every action, shape (n, 3), as long as nothing more is learned; None where the policy
            models the reward alone.
        reason: Whether the policy, the warm-up, the exploration floor or the control group chose the action.
        cohort: Whether the query belongs to the policy or to the control group.
        randomised: Whether a random draw decided the cohort.
    """

    query_id: str
    action_ids: Sequence[str]
    mean: Vector
    width: Vector
    score: Vector
    chosen: int
    probability: Vector | None
    draws: int = 0
    error: float = 0.0
    predicted: tuple[float, float, float] | None = None
    terms: Callable[[], Matrix] | None = None
    reason: Reason = "policy"
    cohort: Cohort = "policy"
    randomised: bool = False


def generator(seed: int, query_id: str, purpose: str) -> np.random.Generator:
    """Return the random stream of one query and purpose; it is the same on every machine and in any batch."""
    digest = hashlib.blake2b(f"{seed}\x1f{purpose}\x1f{query_id}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


# The protocol of all policies (UniScale §3.2, Alg. 1).
#
# A policy is asked (`predict`) and told (`offer`, `decided`, `learn`). It is pure: no clock, no global randomness,
# no I/O. The same state, contexts and seed give the same choices for any batch size, because every context has its
# own random generator, derived from the seed and the query_id.
#
# Policies do not detect repeated rewards: `agents.decider.rewards.applied` makes each happen once.

UNPRICED: Final[Mapping[str, float]] = {}
"""The price factors where every model charges just its eFLOPs."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a caller cannot see from anything else: how a policy must be driven.

    Attributes:
        order_free: Whether the state depends only on the set of observations, so that a fold may reorder and batch.
        counts_decisions: Whether a decision changes the next one before any reward, so that decisions are made one at
            a time.
        surface: Whether it reads the surface counts of the question behind the embedding (`agents.bandit.features`).
    """

    order_free: bool = True
    counts_decisions: bool = False
    surface: bool = False


class Refits:
    """When a policy is refitted, which takes a while, and what each refit estimated. This one: never.

    Attributes:
        results: What was estimated, by the number of outcomes. Who keeps the policy's log takes results out and writes
            them; before the log is folded they are put in, and read instead of estimated: on another processor an
            estimate may come out otherwise. Each says of which history it is; one of another is estimated again.
    """

    def __init__(self) -> None:
        self.results: dict[int, bytes] = {}

    def due(self, outcomes: int) -> bool:
        """Return whether a refit is due within so many more outcomes."""
        return False


class TargetSolver(Protocol):
    """What a policy answers of targets (`agents.bandit.pacing`)."""

    def shadow_price(self, target: Target) -> float:
        """Return λ, the shadow price of one eFLOP at which a target is met by now. Changes no state."""
        ...

    def shortfall(self, target: Target) -> float | None:
        """Return the best that is possible where a target cannot be met; None where it can, or nothing is known."""
        ...

    def status(self, target: Target) -> BudgetStatus | None:
        """Return what all tenants' decisions under an objective came to; None before the tenant's first."""
        ...


@runtime_checkable
class Policy(Protocol):
    """The protocol of all policies. One contract suite tests every implementation.

    Attributes:
        name: As Decisions and saved states name it.
        traits: How it must be driven.
    """

    name: str
    traits: Traits

    @property
    def refits(self) -> Refits:
        """Return what each refit estimated, and when the next one is due."""
        ...

    @property
    def pacer(self) -> TargetSolver | None:
        """Return what solves for λ under objectives by mean cost and by accuracy; None if it serves neither."""
        ...

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections applied."""
        ...

    def offer(self, actions: Sequence[ActionVector], price_factors: Mapping[str, float] = UNPRICED) -> None:
        """Choose from exactly these actions from now on. Outstanding rewards of others are still learned.

        Args:
            actions: What is on offer.
            price_factors: What an eFLOP costs on each model; 1 on those left out. A policy that learns what queries
                cost without price factors multiplies when it decides; any other has to learn new ones from rewards.
        """
        ...

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Predict the reward of every allowed action of every context, and draw one. Changes no state.

        The objective is asked for because a policy sums with its weights in an order of its own, down to the last bit.
        The seed is, because some sample what they predict: Thompson's θ, and which of equally near neighbours count.
        """
        ...

    def explain(self, context: Context, action_id: str) -> Sequence[Contribution]:
        """Return the parts whose means add up to the predicted accuracy of an action; none if the policy has none.

        Changes no state.
        """
        ...

    def drifted(self) -> Mapping[str, Drift]:
        """Return the models that its outcomes show to be other than was learned; none if it does not look."""
        ...

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Record decisions: they advance the decision clock and may count in widths, and in the accounts of targets.

        One that is abandoned stops counting in widths, and its account settles; the clock does not go back.
        """
        ...

    def learn(self, outcomes: Sequence[Observation]) -> None:
        """Learn outcomes in order, each as its kind says.

        With the first reward, x enters A once. A correction adds (correct − imputed)·x to the column of Correct only.
        A policy that cannot learn a cost alone takes the decision back. A failure is a first reward of an answer that
        is wrong; a policy that learns costs apart leaves its cost out, any other enters the one that it brings.
        """
        ...

    def state(self) -> bytes:
        """Serialise everything learned, with a format version and a checksum.

        From then on the policy has the same bits as one that loads it.
        """
        ...

    def load(self, data: bytes) -> None:
        """Become a state that a policy with the same settings serialised.

        Raises:
            CorruptState: The state is truncated or altered, or of another version, policy, dimension or setting.
        """
        ...


# Checks on an outcome before it enters A or B.

LOG_COST_LIMIT: Final = 200.0
"""Largest plausible |log C|: a search of 64 paths on a 32 B model costs e^38 eFLOPs. One row beyond it would outweigh
millions of true ones in the log-cost column."""


def check_share(subject: str, name: str, value: float) -> float:
    """Return a value in [0, 1], or raise InvalidObservation naming the field."""
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise InvalidObservation(subject, name, value, "give a finite value between 0 and 1")
    return value


def check_log_cost(subject: str, value: float) -> float:
    """Return a natural log cost that is finite and plausible, or raise InvalidObservation."""
    if not math.isfinite(value) or abs(value) > LOG_COST_LIMIT:
        raise InvalidObservation(subject, "log_cost", value, f"give ln(eFLOPs), within ±{LOG_COST_LIMIT:g}")
    return value


def check_outcome(subject: str, correct: float | None, score: float, cost: float, imputed: float) -> None:
    """Refuse an outcome with a term that is not finite or out of range."""
    if correct is not None:
        check_share(subject, "correct", correct)
    check_share(subject, "score", score)
    check_share(subject, "imputed", imputed)
    check_log_cost(subject, cost)
