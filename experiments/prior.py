"""Makes priors for the contextual policy from complete tables of outcomes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.bandit.contextual import Contextual
from agents.bandit.history import History
from agents.bandit.logged import queries_of
from agents.bandit.policy import ActionVector
from agents.bandit.prior import CAP, teach
from agents.bandit.registry import build_policy
from agents.catalogue.models import Catalogue
from agents.embedding import Encoder, encoder_id
from experiments.outcomes import OutcomeError, Outcomes
from experiments.yardstick import is_history


def table_history(
    outcomes: Outcomes,
    queries: npt.NDArray[np.float64],
    index: Sequence[int],
    categories: Sequence[tuple[str, ...]] = (),
) -> History:
    """Return some questions of a complete table as history.

    Args:
        outcomes: The table.
        queries: Embeddings and surface counts of all questions in the table.
        index: Indices of the history questions.
        categories: The categories of each question in the table; empty if no question has any.
    """
    chosen = list(index)
    n, arms = len(chosen), len(outcomes.arms)
    return History(
        queries=queries[chosen],
        question=np.repeat(np.arange(n), arms),
        action=np.tile(np.arange(arms), n),
        correct=outcomes.correct[:, chosen].mean(axis=0).ravel(),
        score=outcomes.score[:, chosen].mean(axis=0).ravel(),
        log_cost=np.log(outcomes.cost[:, chosen].mean(axis=0)).ravel(),
        propensity=np.ones(n * arms),
        categories=[categories[i] for i in chosen] if categories else (),
    )


def prior_of_outcomes(
    outcomes: Outcomes,
    encoder: Encoder,
    catalogue: Catalogue,
    options: Mapping[str, Any],
    *,
    cap: float = CAP,
    history_only: bool = False,
) -> tuple[bytes, int]:
    """Return a prior made from a complete table, and the number of questions used."""
    kept = [
        i for i, each in enumerate(outcomes.questions) if not history_only or is_history(each.question_id)
    ]
    texts = [each.text for each in outcomes.questions]
    queries = queries_of(texts, encoder)
    actions = [
        ActionVector(
            arm.arm_id,
            arm.model,
            np.eye(1, encoder.dimension)[0],
            _size(arm.model, catalogue),
            catalogue.model(arm.model).base if arm.model in catalogue.model_names else "",
        )
        for arm in outcomes.arms
    ]
    policy = _fresh(encoder, options, actions)
    return teach(policy, table_history(outcomes, queries, kept), cap, catalogue.cost_basis), len(kept)


def control_of(outcomes: Outcomes, catalogue: Catalogue, *, history_only: bool = False) -> str:
    """Return the recommended control action: whichever of the largest model's arms is most accurate on history.

    Ties go to the cheaper arm. The demo uses this action as a baseline.
    """
    kept = [
        i for i, each in enumerate(outcomes.questions) if not history_only or is_history(each.question_id)
    ]
    largest = max(
        {arm.model for arm in outcomes.arms}, key=lambda name: (_size(name, catalogue), name), default=""
    )
    own = [i for i, arm in enumerate(outcomes.arms) if arm.model == largest]
    accuracy = outcomes.correct[:, kept].mean(axis=(0, 1))
    cost = outcomes.cost[:, kept].mean(axis=(0, 1))
    return outcomes.arms[min(own, key=lambda i: (-accuracy[i], cost[i]))].arm_id


def _fresh(encoder: Encoder, options: Mapping[str, Any], actions: Sequence[ActionVector]) -> Contextual:
    dim = encoder.dimension
    policy = build_policy("contextual", options, query_dim=dim, action_dim=dim, encoder=encoder_id(encoder))
    if not isinstance(policy, Contextual):
        raise OutcomeError("options: floor, warm-up and control group are the deployment's; leave them out")
    policy.offer(actions)
    return policy


def _size(model: str, catalogue: Catalogue) -> float:
    if model not in catalogue.model_names:
        return 0.0
    return float(catalogue.model(model).parameters)
