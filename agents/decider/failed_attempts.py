"""Failed attempts: what closes their rows, what a further attempt inherits, and which models it must not use.

The executor writes an AttemptFailed instead of an Answer, and only the decider acts on it (`Decider.retry_failed`). The
result is either another Decision or the Answer in the record. The rows record which of the two happened, so
redelivering the record has the same outcome.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from agents.bandit.policy import check_log_cost
from agents.catalogue.models import Catalogue
from agents.decider.rewards import RowTransition, ended_by_failure
from agents.decider.rows import Row
from agents.decider.shares import TeachingShares
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.failure import EarlierAttempt
from schemas.query import Query, QueryContext

MAX_ERROR_CHARS: Final = 200
"""Maximum number of characters of an error to repeat in later records."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An AttemptFailed, with everything the decider needs to act on it.

    Attributes:
        record: The record.
        offset: The record's offset in its topic.
        context: The query's Context; None if the topic no longer has it.
        cost: The attempt's cost, in the unit of its objective; None if nothing ran or the cost is unknown.
        in_time: Whether the query has time left for a search.
    """

    record: AttemptFailed
    offset: int
    context: QueryContext | None = None
    cost: float | None = None
    in_time: bool = True


@dataclass(frozen=True, slots=True)
class RetryResult:
    """The result for one AttemptFailed: the next Decision, the Answer that ends the query, nothing, or an error.

    Attributes:
        query_id: The query's id.
        value: The next Decision's bytes.
        group: The executor group that is sent the Decision, in addition to the Decision topic.
        answer: The Answer that ends the query; None if there is a next Decision.
        rows: Rows to write first; none if the record was delivered before.
        refused: Why the next Decision could not be made, although attempts, time and budget were left.
    """

    query_id: str
    value: bytes | None = None
    group: str = ""
    answer: Answer | None = None
    rows: tuple[tuple[bytes, bytes], ...] = ()
    refused: UniscaleError | None = None
    error: UniscaleError | None = None


@dataclass(frozen=True, slots=True)
class PreviousAttempts:
    """What a further attempt inherits from those before it.

    Attributes:
        decision: The last attempt's Decision, whose objective and cohort stay in force.
        earlier: All attempts so far.
    """

    decision: Decision
    earlier: tuple[EarlierAttempt, ...]

    @classmethod
    def of(cls, decision: Decision, failure: Failure) -> PreviousAttempts:
        """Return what the next attempt inherits from a failed one, given that one's Decision and failure."""
        answer = failure.record.answer
        attempt = EarlierAttempt(
            attempt=decision.attempt,
            seq=decision.seq,
            action=decision.action,
            fault=answer.fault,
            cause=answer.cause,
            error=(answer.error or "")[:MAX_ERROR_CHARS],
            tokens=answer.billed.output if answer.billed else answer.generated_tokens,
            cost=failure.cost or 0.0,
        )
        return cls(decision, (*decision.earlier, attempt))

    def affordable(self, query: Query) -> bool:
        """Return whether the attempts so far have left any of a query's budget."""
        budget = query.budget
        if budget is None:
            return True
        tokens, cost = (sum(each.tokens for each in self.earlier), sum(each.cost for each in self.earlier))
        bounds = ((budget.tokens, tokens), (budget.eflops, cost), (budget.usd, cost))
        return all(most is None or spent < most for most, spent in bounds)

    def excluded_models(self, catalogue: Catalogue, usable: Collection[str]) -> frozenset[str]:
        """Return the models to exclude: those that failed, and all others whose every server was at fault.

        Args:
            catalogue: The models.
            usable: Models the query could otherwise use. If none would remain, only failed models are excluded.
        """
        servers = {
            model.name: {urlsplit(url).netloc for url in model.endpoint.servers} for model in catalogue.models
        }
        failed = frozenset(each.action.model for each in self.earlier)
        ours = (each.action.model for each in self.earlier if each.fault == "infrastructure")
        at_fault = {server for name in ours for server in servers.get(name, ())}
        siblings = frozenset(name for name, own in servers.items() if own and own <= at_fault)
        return failed | siblings if set(usable) - failed - siblings else failed


def failed(row: Row, failure: Failure, seq: int, shares: TeachingShares, *, learn: bool) -> RowTransition:
    """Return a failed attempt's final row, with the policy update.

    If the model is at fault, the policy learns a wrong answer, as it would from such an Answer's Reward (decision 18).
    Otherwise, it learns nothing.

    Args:
        row: The row.
        failure: How the attempt failed.
        seq: The next sequence number.
        shares: The tenants of earlier outcomes; as for `apply_reward`.
        learn: Whether anything may be learned from the query.

    Raises:
        InvalidObservation: The cost is out of range; nothing has changed.
    """
    change: dict[str, Any] = {"failure_offset": failure.offset}
    if failure.cost is not None:
        check_log_cost(row.query_id, math.log(failure.cost))
        change["paid"] = failure.cost
    at_fault = failure.record.answer.fault == "model"
    return ended_by_failure(row, seq, change, shares, at_fault=at_fault, learn=learn)


def superseded(row: Row, offset: int, seq: int) -> RowTransition:
    """Return the final row of a later attempt whose query was ended by an earlier one; nothing is learned from it."""
    change = {"reward_offset": offset, "stage": "abandoned", "ended_seq": seq}
    return RowTransition("abandoned", msgspec.structs.replace(row, **change))


def is_open_attempt(row: Row, record: AttemptFailed) -> bool:
    """Return whether an AttemptFailed belongs to a row's attempt and that attempt is still open."""
    answer, action = record.answer, record.answer.action
    return (row.stage, row.seq) == ("pending", answer.seq) and action is not None and action.id == row.action
