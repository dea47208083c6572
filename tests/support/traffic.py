"""Questions of two kinds for the contextual policy, its actions, and a run of it under a target."""

from dataclasses import replace
from typing import Any

import numpy as np

from agents.bandit.contextual import Contextual, ContextualSettings
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.features import FeatureSettings
from agents.bandit.learner import choose
from agents.bandit.policy import ActionVector, Context, Objective, Observation, Pending, Target

DIM = 21  # 12 of an embedding and nine counts
MODELS = (("small", 1e6), ("middle", 1e7), ("large", 1e8))
NEW = ("new", 2e7)
PLAIN = Objective(1, 0, 0, 0, 30)


def single(query: np.ndarray) -> np.ndarray:
    """Return a query as the log keeps it, in single precision."""
    return np.asarray(query.astype("<f4"), dtype=np.float64)


def contextual(**changes: Any) -> Contextual:
    return Contextual(
        ContextualFeatures(FeatureSettings(DIM, 4, query_rank=11)), ContextualSettings(**changes)
    )


def actions(models: tuple[tuple[str, float], ...] = MODELS) -> list[ActionVector]:
    rng = np.random.default_rng(1)
    return [
        ActionVector(f"{model}/{qp}/1/1", model, rng.normal(size=4), size)
        for model, size in models
        for qp in (1, 4, 16)
    ]


class Traffic:
    """Questions of two kinds: hard ones only the large model solves; cost follows size and width."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.made = 0

    def question(self) -> tuple[str, np.ndarray, bool]:
        self.made += 1
        hard = bool(self.rng.random() < 0.5)
        query = self.rng.normal(size=DIM) * 0.1
        query[12:] = np.abs(query[12:]) + (3.0 if hard else 1.0)
        return f"q{self.made}", single(query), hard

    def outcome(self, action: str, hard: bool) -> tuple[float, float]:
        model, qp, *_ = action.split("/")
        level = {"small": 0, "middle": 1, "new": 1, "large": 2}[model]
        chance = (0.1 + 0.4 * level) if hard else (0.85 + 0.05 * level)
        log_cost = np.log(1e3 * dict((*MODELS, NEW))[model] * int(qp)) + 0.1 * self.rng.normal()
        return float(self.rng.random() < chance), float(log_cost)


def decide(policy: Contextual, asked: Context, target: Target) -> tuple[str, Objective]:
    """Return what a policy chooses at the price that a target now sets, and the objective that has this price."""
    objective = replace(PLAIN, shadow_price=policy.pacer.shadow_price(target))
    return choose(policy, [asked], [objective], 1)[0].action_id, objective


def learn(
    policy: Contextual,
    asked: Context,
    action: str,
    outcome: tuple[float, float],
    *,
    target: Target | None = None,
    objective: Objective = PLAIN,
    score: float | None = None,
) -> None:
    """Let a policy decide an action under a target and learn what came of it.

    Args:
        policy: It learns.
        asked: The query.
        action: Its action.
        outcome: Whether it was correct, 0 or 1, and the natural logarithm of its cost.
        target: Under which it was decided.
        objective: By which it was decided.
        score: The verifier's; None for what is correct.
    """
    policy.decided([Pending(asked.query_id, asked.embedding, action, target)])
    (correct, log_cost), terms = outcome, (asked.query_id, asked.embedding, action)
    policy.learn(
        [Observation(*terms, correct, correct if score is None else score, log_cost, correct, objective)]
    )


def teach(
    policy: Contextual,
    traffic: Traffic,
    rounds: int,
    *,
    in_turn: bool = False,
    target: Target | None = None,
    longer: float = 1.0,
) -> None:
    """Let a policy learn from actions drawn at random or in turn; the middle model's cost `longer` times as much."""
    ids = policy.features.ids
    for at in range(rounds):
        query_id, query, hard = traffic.question()
        action = ids[at % len(ids) if in_turn else int(traffic.rng.integers(len(ids)))]
        correct, log_cost = traffic.outcome(action, hard)
        log_cost += float(np.log(longer)) if action.startswith("middle") else 0.0
        learn(policy, Context(query_id, query), action, (correct, log_cost), target=target)


def live(
    policy: Contextual,
    rounds: int,
    *,
    target: Target,
    traffic: Traffic,
    price: float = 1.0,
    warm_up: int = 60,
) -> dict[str, float]:
    """Run a policy under a target; return mean accuracy and cost after the first 100 rounds."""
    right, spent = [], []
    for _ in range(rounds):
        query_id, query, hard = traffic.question()
        asked = Context(query_id, query)
        warm = policy.version < warm_up
        chosen, objective = decide(policy, asked, target)
        if warm:
            chosen = policy.features.ids[int(traffic.rng.integers(len(policy.features.ids)))]
        correct, log_cost = traffic.outcome(chosen, hard)
        log_cost += float(np.log(price))
        learn(
            policy, asked, chosen, (correct, log_cost), target=None if warm else target, objective=objective
        )
        right.append(correct)
        spent.append(np.exp(log_cost))
    return {"accuracy": float(np.mean(right)), "cost": float(np.mean(spent))}
