"""Questions of two kinds for the contextual policy, its actions, and a run of it under an aim."""

from typing import Any

import numpy as np

from agents.bandit.contextual import Contextual, ContextualSettings
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.features import FeatureSettings
from agents.bandit.learner import choose
from agents.bandit.policy import ActionVector, Aim, Context, Objective, Observation, Pending

DIM = 21  # 12 of an embedding and nine counts
MODELS = (("small", 1e6), ("middle", 1e7), ("large", 1e8))
NEW = ("new", 2e7)


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


def live(
    policy: Contextual, rounds: int, *, aim: Aim, traffic: Traffic, price: float = 1.0, warm_up: int = 60
) -> dict[str, float]:
    """Run a policy under an aim; return mean accuracy and cost after the first 100 rounds."""
    right, spent = [], []
    for _ in range(rounds):
        query_id, query, hard = traffic.question()
        objective = Objective(1, 0, 0, 0, 30, policy.pacer.price(aim))
        warm = policy.version < warm_up
        if warm:
            chosen = policy.features.ids[int(traffic.rng.integers(len(policy.features.ids)))]
        else:
            chosen = choose(policy, [Context(query_id, query)], [objective], 1)[0].action_id
        policy.decided([Pending(query_id, query, chosen, None if warm else aim)])
        correct, log_cost = traffic.outcome(chosen, hard)
        log_cost += float(np.log(price))
        policy.learn([Observation(query_id, query, chosen, correct, correct, log_cost, correct, objective)])
        right.append(correct)
        spent.append(np.exp(log_cost))
    return {"accuracy": float(np.mean(right)), "cost": float(np.mean(spent))}
