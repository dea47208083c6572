"""The graded decisions on the broker as rows of `logged.jsonl`, which `python -m experiments prior --logged` reads."""

import math
from collections.abc import Iterator
from typing import Any

from agents.embedder.agent import embedded_text
from schemas.base import decode
from schemas.decision import Decision
from schemas.reward import Reward
from streams.runtime.kafka.clients import connections
from streams.settings import Settings
from streams.topics import Topics


def graded(settings: Settings, topics: Topics) -> Iterator[dict[str, Any]]:
    """Yield the row of each decision that is on the broker and has a propensity and a reward that graded it."""
    rewards: dict[str, Reward] = {}
    for record in connections.read_all(settings, [topics.reward], timeout_ms=200):
        reward = decode(record.value, Reward)
        if reward.correct is not None and reward.log_cost is not None:
            rewards[reward.query_id] = reward
    for record in connections.read_all(settings, [topics.decision], timeout_ms=200):
        decision = decode(record.value, Decision)
        found = rewards.pop(decision.query_id, None)
        if found is not None and (row := graded_row(decision, found)) is not None:
            yield row


def graded_row(decision: Decision, reward: Reward) -> dict[str, Any] | None:
    """Return a decision and what became of it as a row of a log; None where it has no propensity or no cost.

    Nor has a query with `learn: false` a row: a prior made from it would learn from it after all.

    `text` is what was embedded: a prior must read a question as the learner will, a conversation too. `cost` is in
    eFLOPs, as a prior is: what they cost is the catalogue's to say.
    """
    if reward.log_cost is None or not decision.propensity or not reward.learn:
        return None
    return {
        "text": embedded_text(decision.query),
        "action": decision.action.id,
        "correct": reward.correct,
        "score": reward.score,
        "cost": math.exp(reward.log_cost) / (reward.price.factor if reward.price else 1.0),
        "propensity": decision.propensity,
    }
