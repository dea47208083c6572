"""The protocol of all policies (UniScale §3.2, Alg. 1), and their input and output types."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from agents.bandit.errors import InvalidObjective, InvalidObservation
from schemas.objective import ObjectiveInForce, scalar
from schemas.prices import Rate

# The inputs and outputs of policies (UniScale §3.2, Alg. 1); their protocol is `Policy`.

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

TERMS: Final = ("correct", "score", "log_cost", "one")
"""Columns of B. Eq. 4's reward is linear in them for every choice of weights and cost bounds."""

Reason = Literal["policy", "warm-up", "floor", "control", "baseline", "session"]
Cohort = Literal["policy", "control"]
OutcomeKind = Literal["reward", "correction", "cost", "failure"]


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the reward's terms: w₁·Correct + w₂·Score + w₃·(1 − C̃) − λ·C (Eq. 4 with a shadow price λ).

    C̃ = (log C − log_cost_min) / (log_cost_max − log_cost_min) is never clipped: it must stay linear in log C so that
    objectives can be changed exactly. Weights are normalised to sum to 1, because their scale would otherwise change
    the meaning of α.

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
            InvalidObjective: A weight or the shadow price is negative or not finite, all weights are zero, or the
                bounds are in the wrong order.
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
        # Weights that already sum to 1 stay bit-identical when they are read back from a state.
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
        """Return the weights and coefficients of an objective in force."""
        w, bounds = in_force.weights, in_force.cost_range
        low, high = float(np.log(bounds.low)), float(np.log(bounds.high))
        return cls(w.correct, w.score, w.cost, low, high, in_force.price)

    def reward(self, correct: float, score: float, log_cost: float) -> float:
        """Return Eq. 4's r for one outcome."""
        weights, bounds = (self.correct, self.score, self.cost), (self.log_cost_min, self.log_cost_max)
        return scalar(weights, bounds, self.shadow_price, correct, score, log_cost)


@dataclass(frozen=True, slots=True)
class Target:
    """An objective's target for either mean cost or accuracy; exactly one of them is set.

    Attributes:
        key: Identity of the objective.
        mean_cost: Mean cost per query, in eFLOPs or USD.
        accuracy: Requested share of the accuracy predicted to be achievable.
        tenant: The tenant whose queries the target is to be met on.
    """

    key: str
    mean_cost: float | None = None
    accuracy: float | None = None
    tenant: str = ""

    @classmethod
    def of(cls, in_force: ObjectiveInForce, tenant: str) -> Target | None:
        """Return a tenant's target under an objective in force; None if the objective consists of weights.

        The key includes the target, so that pacing restarts for a new target but not for a repeated one.
        """
        named, mean_cost, accuracy = in_force.name or "", in_force.mean_cost, in_force.accuracy
        if mean_cost is not None:
            return cls(f"{named}/mean_cost={mean_cost!r}", mean_cost=mean_cost, tenant=tenant)
        if accuracy is not None:
            return cls(f"{named}/accuracy={accuracy!r}", accuracy=accuracy, tenant=tenant)
        return None

    @property
    def account_id(self) -> tuple[str, str]:
        """Return the tenant and the key, which identify the target's account."""
        return self.tenant, self.key


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """Results of all tenants' decisions under a paced objective since its target was set.

    Attributes:
        shadow_price: The requesting tenant's current λ, per unit of cost.
        mean_cost: Mean cost per query, in eFLOPs or USD: realised if known, otherwise predicted.
        predicted, correct: Mean predicted and mean true accuracy of the queries with known correctness; None before the
            first one.
    """

    shadow_price: float
    mean_cost: float
    predicted: float | None = None
    correct: float | None = None


@dataclass(frozen=True, slots=True)
class ActionVector:
    """One configuration: its identity, its model, and the embedding s_a of its description.

    Args:
        action_id: Identity of the configuration; it never changes.
        model: Name of the configuration's model, used by per-model corrections.
        embedding: s_a, shape (d_a,), float64, unit length.
        size: Number of parameters of the model; 0 if unknown.
        base: Name that the efforts of one model share, if `model` is one of them; empty otherwise.
    """

    action_id: str
    model: str
    embedding: Vector
    size: float = 0.0
    base: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """One query to decide on: its embedding s_q, shape (d_q,), and the actions it may use (None: all active).

    Attributes:
        query_id: Id of the query, or of a further attempt at it. Every random draw is derived from this id.
        drawn: Whether to draw a cohort; False for a further attempt, which keeps the first one's.
        baseline: The action to take until any answer's correctness is known; empty for none.
        categories: The request's categories, each as `key=value`. Policies may ignore them.
    """

    query_id: str
    embedding: Vector
    allowed: frozenset[str] | None = None
    drawn: bool = True
    baseline: str = ""
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One scored action: predicted mean, confidence width α·√(xᵀA⁻¹x), and the score used to rank it.

    `predicted` has (Correct, Score, log C), if the policy models the terms.
    """

    action_id: str
    mean: float
    width: float
    score: float
    predicted: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """A model's detected drift: how its latest outcomes differ from what was learned.

    Attributes:
        cost: Cost of its searches, as a multiple of the learned cost; 1 without drift.
        accuracy_seq: Sequence number of the outcome that revealed a change in accuracy, which is relearned from then
            on; None without drift.
    """

    cost: float = 1.0
    accuracy_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Contribution:
    """One part of the regression's contribution to a predicted accuracy.

    Attributes:
        part: Name of the part, such as `model × directions`, the model-specific part that depends on the query.
        mean: The part's contribution to the prediction.
        variance: The part's contribution to the prediction's variance, including half of its covariances with other
            parts; negative if these outweigh its own variance.
    """

    part: str
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen action, with every term that explains it.

    Attributes:
        candidates: Number of actions that were available.
        propensity: Probability of this action given the state and context: exact if propensity_draws is 0, otherwise a
            Monte Carlo estimate. None if unknown.
        propensity_error: Standard error of the propensity; 0.0 if exact.
        predicted: Predicted (Correct, Score, log C) for the chosen action, if the policy models the terms.
        version: Number of rewards and corrections applied to the state before the choice.
        reason: What determined the action: the policy, the warm-up, the exploration floor, the control group, or the
            baseline.
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
    """A decision whose reward is outstanding: x is known, but r is not yet.

    Attributes:
        target: The objective's target; None for plain weights, and in the control group, which is not paced.
        tenant: The requesting tenant.
        abandoned: Whether the decision is withdrawn because nothing will be learned from it.
        paid, correct: If abandoned, the cost and correctness to enter in the account; None if unknown.
        categories: The context's categories.
    """

    observation_id: str
    embedding: Vector
    action_id: str
    target: Target | None = None
    tenant: str = ""
    abandoned: bool = False
    paid: float | None = None
    correct: float | None = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """One decision with the raw terms of its reward.

    Attributes:
        correct: 1.0, 0.0 or a grade in between; None while unknown.
        imputed: Value used in place of `correct` in B until `correct` is known (docs/readings.md, "Two-stage reward").
        objective: The objective in force when the decision was made. Policies that learn a scalar reward use
            it; policies that learn one column per term ignore it.
        clock: Number of decisions before this one, the time scale for discounting.
        price_factor: Price of an eFLOP at the time of the decision: `log_cost` is ln(eFLOPs) plus its logarithm.
        tokens: If costs are in USD, the number of generated tokens and the number of prompt tokens billed.
        tenant: The requesting tenant.
        kind: What to learn: a first reward; a correction, whose true Correct replaces the imputed one; a cost alone,
            because the client's own limits cut the answer short; or a model failure, which counts as a wrong answer
            without a score. A failure's cost says nothing about the cost of an answer, so its `log_cost` is the upper
            cost bound of the objective, where a wrong answer earns nothing.
        seq, learned_seq: Sequence numbers of this outcome, and of the decision's first learned outcome.
        target, predicted: For a correction, the target that the decision counts towards, or None, and the decision's
            predicted accuracy.
        paid: For a failure, its actual cost; None if unknown.
        tried: For a cost alone, whether its model counts as tried, because without a score in place of Correct there
            may never be more to learn.
        categories: The context's categories.
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
    tokens: tuple[int, int] | None = None
    tenant: str = ""
    kind: OutcomeKind = "reward"
    seq: int = 0
    learned_seq: int = 0
    target: Target | None = None
    predicted: float | None = None
    paid: float | None = None
    tried: bool = False
    categories: tuple[str, ...] = ()

    @property
    def entered(self) -> float:
        """Return the value of Correct to add to B: the true one if known, otherwise the imputed one."""
        return self.imputed if self.correct is None else self.correct

    def terms(self) -> Vector:
        """Return (Correct or imputed, Score, log C, 1), shape (4,)."""
        return np.array([self.entered, self.score, self.log_cost, 1.0])


@dataclass(slots=True)
class Prediction:
    """A policy's predictions for the allowed actions of one context, and the probability of choosing each.

    The functions that add randomisation (`agents.bandit.exploration`) map one prediction to another.

    Attributes:
        query_id: Id of the context's query.
        action_ids: Ids of the n actions.
        mean, width: Predicted mean and confidence width of the reward under the objective, shape (n,).
        score: The scores used to rank the actions, shape (n,).
        chosen: Index of the drawn action; without randomness, of the action with the best score.
        probability: Probability of each action, shape (n,); None if unknown.
        draws: Number of Monte Carlo draws behind `probability`; 0 if exact.
        error: Standard error of the chosen action's probability; 0.0 if exact.
        predicted: Predicted (Correct, Score, log C) for the chosen action.
        terms: Function that returns every action's predicted terms, shape (n, 3), valid until more is learned; None if
            the policy models the reward alone.
        reason: What determined the action: the policy, the warm-up, the exploration floor, the control group, or the
            baseline.
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
    """Return the random generator for one query and purpose, which is the same on every machine and in any batch."""
    digest = hashlib.blake2b(f"{seed}\x1f{purpose}\x1f{query_id}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


# The protocol of all policies (UniScale §3.2, Alg. 1).
#
# A policy predicts (`predict`) and is updated (`offer`, `decided`, `learn`). It is pure: no clock, no global
# randomness, no I/O. The same state, contexts and seed yield the same choices for any batch size, because every context
# has its own random generator, derived from the seed and the query_id.
#
# Policies do not detect repeated rewards: `agents.decider.rewards.applied` ensures that each is learned once.

UNPRICED: Final[Mapping[str, Rate]] = {}
"""Price factors that make an eFLOP cost 1 on every model."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a policy that its caller must respect.

    Attributes:
        order_free: Whether the state depends only on the set of observations, so that a fold may reorder and batch
            them.
        counts_decisions: Whether a decision changes the next one even before any reward, so that decisions must be made
            one at a time.
        surface: Whether the policy uses the surface counts that follow the embedding (`agents.bandit.features`).
    """

    order_free: bool = True
    counts_decisions: bool = False
    surface: bool = False


class Refits:
    """The schedule of a policy's refits, which are slow, and their estimates. This base class never refits.

    Attributes:
        results: The estimates, keyed by number of outcomes. The owner of the policy's log moves them from here to the
            log, and puts them back before folding the log. Refits then reuse them, because recomputed estimates may
            differ between processors. Each result identifies its history; for any other history, the policy makes new
            estimates.
    """

    def __init__(self) -> None:
        self.results: dict[int, bytes] = {}

    def due(self, outcomes: int) -> bool:
        """Return whether a refit is due within this many more outcomes."""
        return False


class TargetSolver(Protocol):
    """The interface through which a policy answers questions about targets (`agents.bandit.pacing`)."""

    def shadow_price(self, target: Target) -> float:
        """Return λ, the shadow price per unit of cost that currently meets a target. No state changes."""
        ...

    def shortfall(self, target: Target) -> float | None:
        """Return the closest feasible value for an infeasible target; None if feasible, or before any outcome."""
        ...

    def status(self, target: Target) -> BudgetStatus | None:
        """Return the results of all tenants' decisions under an objective; None before this tenant's first one."""
        ...


@runtime_checkable
class Policy(Protocol):
    """The protocol of all policies. A single contract test suite covers every implementation.

    Attributes:
        name: Name of the policy in Decisions and saved states.
        traits: Properties that its caller must respect.
    """

    name: str
    traits: Traits

    @property
    def refits(self) -> Refits:
        """Return the schedule of refits, with the estimates of each."""
        ...

    @property
    def pacer(self) -> TargetSolver | None:
        """Return the solver for λ under mean-cost and accuracy targets; None if the policy does not support targets."""
        ...

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections applied."""
        ...

    @property
    def graded(self) -> bool:
        """Return whether any answer's correctness is known, from an outcome or a prior. Failures do not count."""
        ...

    def untried(self, models: Iterable[str]) -> set[str]:
        """Return those of these models that nothing is known of, if something is known of others."""
        ...

    def offer(
        self,
        actions: Sequence[ActionVector],
        price_factors: Mapping[str, Rate] = UNPRICED,
        newcomers: Iterable[str] = (),
    ) -> None:
        """Set the available actions from now on. Outstanding rewards for removed actions are still learned.

        Args:
            actions: The available actions.
            price_factors: Price of an eFLOP on each model, 1 for models not listed, or, if costs are in USD, the
                model's token prices. A policy that learns costs without prices applies them when it decides; any other
                policy has to learn new prices from rewards.
            newcomers: Models added by this offer that are `untried`. They get more optimism than models that are
                offered while nothing is known of any.
        """
        ...

    def distrust_scores(self, seq: int) -> None:
        """Trust what was learned from scores in place of Correct less, because the catalogue has become mixed.

        A policy that does not relearn a model's accuracy after drift ignores this. Repeated calls change nothing.

        Args:
            seq: Sequence number of the first offer without one verifier for all models.
        """
        ...

    def predict(
        self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Prediction]:
        """Predict the reward of every allowed action for every context, and draw one action each. No state changes.

        The objectives are arguments because each policy sums the weighted terms in its own order, which affects the
        last bit. The seed is an argument because some policies sample their predictions: Thompson sampling draws θ, and
        k-NN draws which of several equally near neighbours count.
        """
        ...

    def explain(self, context: Context, action_id: str) -> Sequence[Contribution]:
        """Return the parts whose means add up to an action's predicted accuracy, if the policy has such parts.

        No state changes.
        """
        ...

    def drifted(self) -> Mapping[str, Drift]:
        """Return the models with detected drift; none if the policy does not detect drift."""
        ...

    def left_out(self) -> Sequence[str]:
        """Return the request categories that there is no room for; none if the policy uses no categories."""
        ...

    def decided(self, decisions: Sequence[Pending]) -> None:
        """Record decisions. They advance the decision clock, and may count in confidence widths and targets' accounts.

        An abandoned decision stops counting in widths and is settled in its account; the clock does not advance.
        """
        ...

    def learn(self, outcomes: Sequence[Observation]) -> None:
        """Learn outcomes in order, each according to its kind.

        A first reward adds x to A once. A correction adds (correct − imputed)·x to Correct's column only. A policy that
        cannot learn a cost alone abandons the decision. A failure is a first reward for a wrong answer: a policy that
        learns costs separately ignores its cost, and any other policy learns the `log_cost` it is given.
        """
        ...

    def state(self) -> bytes:
        """Serialise everything learned, with a format version and a checksum.

        After this call, the policy is bit-identical to one that loads the result.
        """
        ...

    def load(self, data: bytes) -> None:
        """Restore a state that a policy with the same settings serialised.

        Raises:
            CorruptState: The state is truncated or altered, or has a different version, policy, dimension or setting.
        """
        ...


# Validation of an outcome before it is added to A and B.

LOG_COST_LIMIT: Final = 200.0
"""Largest plausible |log C|: a search of 64 paths on a 32 B model costs e^38 eFLOPs. One row beyond this limit would
outweigh millions of true ones in the log-cost column."""


def check_share(subject: str, name: str, value: float) -> float:
    """Return the value if it is in [0, 1]; otherwise raise an InvalidObservation that names the field."""
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise InvalidObservation(subject, name, value, "give a finite value between 0 and 1")
    return value


def check_log_cost(subject: str, value: float) -> float:
    """Return the natural log cost if it is finite and plausible; otherwise raise InvalidObservation."""
    if not math.isfinite(value) or abs(value) > LOG_COST_LIMIT:
        raise InvalidObservation(subject, "log_cost", value, f"give ln(cost), within ±{LOG_COST_LIMIT:g}")
    return value


def check_outcome(subject: str, correct: float | None, score: float, cost: float, imputed: float) -> None:
    """Reject an outcome with a term that is not finite or out of range."""
    if correct is not None:
        check_share(subject, "correct", correct)
    check_share(subject, "score", score)
    check_share(subject, "imputed", imputed)
    check_log_cost(subject, cost)
