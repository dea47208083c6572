"""Makes priors for the contextual policy from history: a complete table of outcomes, or a log of single decisions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.bandit.contextual import Contextual
from agents.bandit.history import History
from agents.bandit.policy import ActionVector
from agents.bandit.prior import CAP, teach
from agents.bandit.registry import build_policy
from agents.catalogue.models import Catalogue
from agents.embedding import Encoder, embed_actions, encoder_id
from experiments.foreign import NOTHING, rows_of
from experiments.outcomes import OutcomeError, Outcomes, seen_by_contextual
from experiments.yardstick import is_history
from schemas.action import Action
from schemas.errors import InvalidField


def table_history(outcomes: Outcomes, queries: npt.NDArray[np.float64], index: Sequence[int]) -> History:
    """Return some questions of a complete table as history.

    Args:
        outcomes: The table.
        queries: Embedding and surface counts of all its questions.
        index: Indices of the questions of history.
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
    queries = seen_by_contextual(_embedded(encoder, texts), texts)
    actions = [
        ActionVector(arm.arm_id, arm.model, np.eye(1, encoder.dimension)[0], _size(arm.model, catalogue))
        for arm in outcomes.arms
    ]
    policy = _fresh(encoder, options, actions)
    return teach(policy, table_history(outcomes, queries, kept), cap, catalogue.cost_basis), len(kept)


def control_of(outcomes: Outcomes, catalogue: Catalogue, *, history_only: bool = False) -> str:
    """Return the recommended control action: the largest model's arm that is most accurate on history.

    Ties go to the cheaper one. The demo's baselines use it.
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


def prior_of_log(
    path: Path, encoder: Encoder, catalogue: Catalogue, options: Mapping[str, Any], *, cap: float = CAP
) -> tuple[bytes, int]:
    """Return a prior made from logged decisions, and the number of questions used.

    Raises:
        OutcomeError: a row lacks a column, its text is empty, or a value is not a number or not an action of the
            catalogue.
    """
    rows: list[tuple[str, Action, float, float, float, float]] = []
    for number, row in rows_of(path):
        if "text" in row and not _is_question(row["text"]):
            why = (
                f"text is {row['text']!r}; give what was asked (if a `learner export` wrote it, export again)"
            )
            raise OutcomeError(f"{path}, row {number}: {why}")
        try:
            action = Action.parse(str(row["action"]))
            correct, cost, propensity = (float(row[name]) for name in ("correct", "cost", "propensity"))
            score = float(row["score"]) if row.get("score") not in (None, "") else correct
            rows.append((row["text"], action, correct, cost, propensity, score))
        except (KeyError, TypeError, ValueError, InvalidField) as error:
            why = f"needs text, action (model/qp/cp/bs), correct, cost and propensity ({error!r}); correct it"
            raise OutcomeError(f"{path}, row {number}: {why}") from None
        if action.model not in catalogue.model_names:
            known = ", ".join(catalogue.model_names)
            raise OutcomeError(
                f"{path}, row {number}: model {action.model!r} is not in the catalogue ({known})"
            )
        if not cost > 0:
            raise OutcomeError(f"{path}, row {number}: cost is {cost}; give what the search cost, above 0")
    if not rows:
        raise OutcomeError(f"{path}: holds no row; log decisions first")
    texts = list(dict.fromkeys(row[0] for row in rows))
    at = {text: i for i, text in enumerate(texts)}
    seen = list(dict.fromkeys(row[1] for row in rows))
    # Models that the log never chose are included too, by their size.
    missing = [name for name in catalogue.model_names if name not in {a.model for a in seen}]
    seen += [Action(model=name, qp=1, cp=1, bs=1) for name in missing]
    place = {action: i for i, action in enumerate(seen)}
    actions = [
        ActionVector(a.id, a.model, np.eye(1, encoder.dimension)[0], _size(a.model, catalogue)) for a in seen
    ]
    history = History(
        queries=seen_by_contextual(_embedded(encoder, texts), texts),
        question=np.array([at[row[0]] for row in rows]),
        action=np.array([place[row[1]] for row in rows]),
        correct=np.array([row[2] for row in rows]),
        score=np.array([row[5] for row in rows]),
        log_cost=np.log([row[3] for row in rows]),
        propensity=np.array([row[4] for row in rows]),
    )
    return teach(_fresh(encoder, options, actions), history, cap, catalogue.cost_basis), len(texts)


def _is_question(text: object) -> bool:
    """Return whether a row has a question's text: the prior would treat all rows without one as the same question."""
    return isinstance(text, str) and text.strip() not in NOTHING


def _fresh(encoder: Encoder, options: Mapping[str, Any], actions: Sequence[ActionVector]) -> Contextual:
    dim = encoder.dimension
    policy = build_policy("contextual", options, query_dim=dim, action_dim=dim, encoder=encoder_id(encoder))
    if not isinstance(policy, Contextual):
        raise OutcomeError("options: floor, warm-up and control group are the deployment's; leave them out")
    policy.offer(actions)
    return policy


def _embedded(encoder: Encoder, texts: Sequence[str]) -> npt.NDArray[np.float64]:
    # Rounded to float32, as in records.
    return np.asarray(embed_actions(encoder, list(texts), None).astype("<f4"), dtype=np.float64)


def _size(model: str, catalogue: Catalogue) -> float:
    if model not in catalogue.model_names:
        return 0.0
    return float(catalogue.model(model).parameters)
