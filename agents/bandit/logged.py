"""Outcomes of single configurations, read from a log or a recording, and the prior learned from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from agents.bandit.contextual import Contextual
from agents.bandit.features import with_counts
from agents.bandit.history import History
from agents.bandit.policy import ActionVector, Matrix
from agents.bandit.prior import CAP, teach
from agents.catalogue.models import Catalogue
from agents.embedding import Encoder, embed_actions
from schemas.action import Action
from schemas.errors import InvalidField, UniscaleError
from schemas.objective import CostUnit


class LogError(UniscaleError):
    """A log of outcomes cannot be used. The message names the file, the row, the field and the fix."""


class LoggedOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one configuration on one question.

    Attributes:
        text: The text to embed. For a conversation, its newest message comes first.
        action: The configuration, model/qp/cp/bs.
        correct: 1, 0 or a grade in between.
        score: The verifier's score of the answer; None without a verifier.
        cost: Cost of the search, in `unit`; eFLOPs exclude the model's price factor.
        propensity: Probability that the configuration was chosen; 1 if all configurations were run.
        unit: Unit of the cost.
        tokens: If costs are in USD, the number of generated tokens billed.
        prompt_tokens: If costs are in USD, the number of prompt tokens billed.
        question_id: Identifies the question in the file that a recording was made from; empty in a log.
        features: The request's categories, each as `key=value`.
    """

    text: str
    action: str
    correct: float
    score: float | None = None
    cost: float
    propensity: float
    unit: CostUnit = "eflops"
    tokens: int | None = None
    prompt_tokens: int | None = None
    question_id: str = ""
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject values that are invalid in a history; the message names the field."""
        if self.text.strip() in NOTHING:
            raise ValueError(f"text is {self.text!r}; give the question")
        Action.parse(self.action)
        for name in ("correct", "score"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is {value}; give a grade from 0 to 1")
        if not 0.0 < self.cost < float("inf"):
            raise ValueError(f"cost is {self.cost}; give the cost of the search, above 0")
        if not 0.0 < self.propensity <= 1.0:
            raise ValueError(
                f"propensity is {self.propensity}; give a probability above 0, and 1 if all were run"
            )


NOTHING = ("", "nan", "NaN", "NA", "null", "None")
"""Strings that stand for missing text in files."""


def logged_outcome(fields: Mapping[str, Any], where: str, context: Sequence[str] = ()) -> LoggedOutcome:
    """Return the outcome described by a row. Numbers may be text, as in CSV.

    Args:
        fields: The row's columns.
        where: Name of the row, for error messages.
        context: Names of the columns with categories. Columns that contain text are added to `features`.

    Raises:
        LogError: A field is missing or invalid; the message names the field and the row.
    """
    if absent := [column for column in context if column not in fields]:
        raise LogError(f"{where}: has no column {absent[0]!r}; correct --context, or leave it out")
    if context:
        shown = [f"{column}={fields[column]}" for column in context if isinstance(fields[column], str)]
        fields = {**fields, "features": [each for each in shown if not each.endswith("=")]}
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    try:
        return msgspec.convert(given, LoggedOutcome, strict=False)
    except (msgspec.ValidationError, InvalidField) as error:
        raise LogError(
            f"{where}: {error}; a row has text, action (model/qp/cp/bs), correct, cost and propensity"
        ) from None


def prior_of_log(
    rows: Iterable[LoggedOutcome],
    policy: Contextual,
    encoder: Encoder,
    catalogue: Catalogue,
    cap: float = CAP,
) -> tuple[bytes, int]:
    """Return the prior learned from outcomes, and the number of distinct questions.

    Args:
        rows: The outcomes.
        policy: A policy with the deployment's settings and no actions.
        encoder: The deployment's encoder.
        catalogue: The deployment's catalogue.
        cap: Weight of the prior: it counts as at most this many observations.

    Raises:
        LogError: There are no outcomes, or one has a different unit or a model that is not in the catalogue.
    """
    log = list(rows)
    if not log:
        raise LogError("there is no outcome to learn from; record some first")
    for row in log:
        _require_fit(row, catalogue)
    # The same text with different categories is a different question.
    asked = list(dict.fromkeys((row.text, row.features) for row in log))
    place = {each: at for at, each in enumerate(asked)}
    seen = list(dict.fromkeys(row.action for row in log))
    # Untried models are added too, because their sizes are known.
    tried = {Action.parse(each).model for each in seen}
    seen += [Action(model=name, qp=1, cp=1, bs=1).id for name in catalogue.model_names if name not in tried]
    position = {action: at for at, action in enumerate(seen)}
    policy.offer([_vector(each, encoder.dimension, catalogue) for each in seen])
    in_usd = catalogue.unit == "usd"
    history = History(
        queries=queries_of([text for text, _ in asked], encoder),
        question=np.array([place[row.text, row.features] for row in log]),
        action=np.array([position[row.action] for row in log]),
        correct=np.array([row.correct for row in log]),
        score=np.array([row.correct if row.score is None else row.score for row in log]),
        # If costs are in USD, tokens are learned instead, because prices may change.
        log_cost=np.log([max(row.tokens or 0, 1) if in_usd else row.cost for row in log]),
        propensity=np.array([row.propensity for row in log]),
        log_prompt=np.log([max(row.prompt_tokens or 0, 1) for row in log if in_usd]),
        categories=[shown for _, shown in asked] if any(shown for _, shown in asked) else (),
    )
    return teach(policy, history, cap, catalogue.cost_basis), len(asked)


def _require_fit(row: LoggedOutcome, catalogue: Catalogue) -> None:
    if (model := Action.parse(row.action).model) not in catalogue.model_names:
        raise LogError(
            f"model {model!r} of an outcome is not in the catalogue ({', '.join(catalogue.model_names)}); "
            "add its entry, or leave out its lines"
        )
    if row.unit != catalogue.unit:
        raise LogError(
            f"an outcome costs {row.cost:g} {row.unit}, but the catalogue counts in {catalogue.unit}"
        )
    if row.unit == "usd" and (row.tokens is None or row.prompt_tokens is None):
        raise LogError("an outcome in USD lacks tokens or prompt_tokens, from which its cost is predicted")


def _vector(action: str, dimension: int, catalogue: Catalogue) -> ActionVector:
    model = catalogue.model(Action.parse(action).model)
    return ActionVector(action, model.name, np.eye(1, dimension)[0], float(model.parameters), model.base)


def queries_of(texts: Sequence[str], encoder: Encoder) -> Matrix:
    """Return the embeddings, rounded to float32 as in records, followed by the surface counts, shape (Q, d + 9)."""
    return with_counts(embed_actions(encoder, list(texts), None).astype("<f4").astype(np.float64), texts)
