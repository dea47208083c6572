"""Why a search produced no text, and a query's earlier, failed attempts."""

from typing import Final, Literal

from msgspec import Struct

from schemas.action import Action
from schemas.forest import Count

Fault = Literal["", "infrastructure", "model"]
"""infrastructure: an endpoint, an engine or a machine failed, through no fault of the action. model: the action's model
produced no text, which counts as a wrong answer; `cause` gives the reason."""

Cause = Literal["", "timeout", "empty", "undecodable", "refused", "filtered"]
"""Why a search ended without text. timeout: the model was still generating when the deployment's time limit for a
search ran out, or its server did not reply in time. empty: the completion had no text. undecodable: the reply was not a
completion. refused: the model's server refused the request (400, 413, 422). filtered: a content filter withheld the
text. The empty string: anything else."""

QUESTIONABLE: Final[frozenset[Cause]] = frozenset({"refused", "filtered"})
"""Causes blamed on the question, unless the model fails the operator's probe as well."""


class EarlierAttempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt at a query that failed before any text was sent.

    Attributes:
        attempt: Number of the attempt, 1 for the first.
        seq: Sequence number of its Decision.
        action: The action that ran.
        fault: What was at fault.
        cause: Why the attempt ended without text, if the model may be at fault.
        error: The error message.
        tokens: Number of tokens generated.
        cost: The attempt's cost, in the unit of its objective; 0 if nothing ran or the cost is unknown.
    """

    attempt: Count
    seq: Count
    action: Action
    fault: Fault = ""
    cause: Cause = ""
    error: str = ""
    tokens: Count = 0
    cost: float = 0.0


def attempt_id(query_id: str, attempt: int) -> str:
    """Return an attempt's id: the query id for the first, and `id number` for later ones (ids contain no spaces).

    >>> attempt_id("q-1", 1), attempt_id("q-1", 2)
    ('q-1', 'q-1 2')
    """
    return query_id if attempt == 1 else f"{query_id} {attempt}"
