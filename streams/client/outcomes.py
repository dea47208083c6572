"""Records the outcome of every configuration on a user's own questions, to make a prior from."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from agents.bandit.logged import LoggedOutcome, logged_outcome
from agents.embedding import embedded_text
from schemas.action import Action
from schemas.query import Query
from schemas.reward import Reward
from streams.client.recorded import rows_of


def cells(
    questions: Sequence[Query], actions: Sequence[Action], done: Iterable[LoggedOutcome]
) -> Iterator[tuple[Query, Action]]:
    """Yield each question with every configuration it has no outcome for yet, question by question."""
    known = {(each.question_id, each.action) for each in done}
    for question in questions:
        yield from ((question, each) for each in actions if (question.query_id, each.id) not in known)


def pinned(question: Query, action: Action, query_id: str) -> Query:
    """Return a query that runs one configuration on a question, without learning or waiting for feedback."""
    return replace(question, query_id=query_id, pin_action=action.id, learn=False, feedback_wait_s=0.0)


def outcome_of(
    query: Query,
    reward: Reward,
    *,
    propensity: float,
    question_id: str = "",
    features: tuple[str, ...] = (),
) -> LoggedOutcome | None:
    """Return the outcome reported by a Reward; None if its correctness or cost is unknown, or if the query failed.

    A failed model's cost says nothing about the cost of an answer, so a prior must not learn from it.
    """
    if reward.correct is None or reward.log_cost is None or reward.failed:
        return None
    factor = reward.price.factor if reward.price else 1.0
    billed = reward.price.billed if reward.price else None
    return LoggedOutcome(
        text=embedded_text(query),
        action=reward.action.id,
        correct=reward.correct,
        score=reward.score,
        cost=math.exp(reward.log_cost) / factor,
        propensity=propensity,
        unit=reward.objective.cost_range.unit,
        tokens=billed.output if billed else None,
        prompt_tokens=billed.input if billed else None,
        question_id=question_id,
        features=features,
    )


def read_outcomes(path: Path, context: Sequence[str] = ()) -> Iterator[LoggedOutcome]:
    """Yield the outcomes in a file of JSON lines, CSV or Parquet.

    Args:
        path: The file.
        context: The columns that contain the request's categories.

    Raises:
        LogError: a row is not an outcome; the message names the row and the field.
        QuestionError: the file has an unsupported format.
        OSError: the file cannot be read.
    """
    for where, fields in rows_of(path):
        yield logged_outcome(fields, where, context)
