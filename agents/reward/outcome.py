"""An Answer's cost and grade: the aggregator's logic outside the join.

Both are computed once, after the Decision and the Answer have arrived (`join.to_value`), and enter the fold as a
`ScoredAnswer`.
"""

from agents.catalogue.cost_model import CostModel, cost_of, cost_of_cut
from agents.catalogue.models import Architecture
from agents.grading.grade import AskGrader, Grade, Undecided, grade
from agents.reward.join_row import ScoredAnswer
from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.grader import Grader
from schemas.reward import Cost

MAX_MISSING = 500
"""Maximum number of characters in the reason for a missing term, since an error may quote the reference."""


def gradable(reference: object, answer: Answer, grader: Grader | None = None) -> bool:
    """Return whether an Answer must be graded.

    An Answer is not graded if it was cancelled, was cut by the client's own bounds, or has no text through its model's
    fault. In the last case it is wrong, whatever the reference.
    """
    graded = answer.status != "cancelled" and not answer.bounded and answer.fault != "model"
    return graded and (reference is not None or (grader is not None and not grader.needs_reference))


def value(
    reference: object,
    answer: Answer,
    *,
    cost_model: CostModel,
    ask: AskGrader,
    grader: Grader | None = None,
    generator: Architecture | None = None,
) -> ScoredAnswer:
    """Return an Answer's reward terms. Blocks while grading.

    A term that cannot be computed is None, and `missing` states the reason; the query is closed nevertheless. An Answer
    without text is wrong. A cancelled search has only a cost. An answer cut by the client's own bounds is not graded,
    because it is neither right nor wrong.

    Args:
        reference: The Query's reference to grade against, if any.
        answer: The Answer.
        cost_model: The cost model, with the architectures of models and verifiers.
        ask: Function that asks a grading process if no exact rule decides.
        grader: The grader for comparing the answer with the reference; None for the default.
        generator: The model's architecture at the time of the Decision; None for the catalogue's.

    Raises:
        Undecided: No exact rule decides, and `ask` does not wait for a grading process.
    """
    missing: list[str] = []
    price: Cost | None = None
    lost = 0.0
    graded: Grade | None = None
    try:
        price = cost_of(answer, cost_model, generator)
        lost = cost_of_cut(answer, cost_model, generator)
    except (UniscaleError, ValueError, ArithmeticError) as error:
        missing.append(f"price: {error}")
    try:
        if gradable(reference, answer, grader):
            graded = grade(answer.text or "", reference, ask=ask, grader=grader)
    except Undecided:
        raise
    except Exception as error:  # the row must be closed whatever error a reference causes in a grader
        missing.append(f"correct: {type(error).__name__}: {error}")
    # Outages and cancelled searches do not reflect the action. Without a score, the learner abandons both.
    scored = answer.text is not None and not answer.fault and answer.status != "cancelled"
    return ScoredAnswer(
        status=answer.status,
        score=answer.score if scored else None,
        unscored=scored and answer.score is None,
        price=price,
        cut_cost=lost,
        correct=None if graded is None else float(graded.correct),
        grader="" if graded is None else f"{graded.grader} {graded.version}",
        rule="" if graded is None else graded.rule,
        fault=answer.fault,
        bounded=answer.bounded,
        missing="; ".join(missing)[:MAX_MISSING],
        attempt=answer.attempt if answer.seq is not None else 0,
    )
