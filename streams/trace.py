"""A query's trace, derived from its records: its spans, with their start and end times and their attributes.

Nothing is measured for a trace, because the records contain append times and `Spent` anyway. A trace therefore costs
the services nothing, covers every process that took part, and has the same ids no matter which process derives it.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from schemas.answer import FAILURES, UNCOUNTED, Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.query import Query
from schemas.reward import Reward
from schemas.spent import Spent

Value: TypeAlias = str | int | float

TRACEPARENT: Final = "traceparent"
"""Key of a Query's W3C trace context, in its metadata or in the gateway's own data within the metadata."""

# No `gen_ai` name is stable yet, so each of them is written only here.
OPERATION: Final = "gen_ai.operation.name"
REQUESTED: Final = "gen_ai.request.model"
SERVED: Final = "gen_ai.response.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ERROR: Final = "error.type"

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True)
class Step:
    """A search step: when its drafts were sent to be scored, and how the query's time had been spent by then."""

    attempt: int
    number: int
    at_ms: int
    spent: Spent


@dataclass(frozen=True)
class SpanData:
    """One span, with times in ms since the epoch on the broker's clock.

    Attributes:
        key: Identifies the span within its query.
        parent: Key of the parent span; empty for the query's own span.
    """

    key: str
    name: str
    parent: str
    began_ms: float
    ended_ms: float
    attributes: Mapping[str, Value | None] = field(default_factory=dict)
    error: str = ""


@dataclass
class QueryTrace:
    """The records of one query that its trace is derived from, with append times in ms since the epoch."""

    query_id: str
    query: Query | None = None
    asked_ms: int = 0
    context_ms: int = 0
    decisions: dict[int, tuple[int, Decision]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    failures: dict[int, tuple[int, AttemptFailed]] = field(default_factory=dict)
    answer: tuple[int, Answer] | None = None
    reward: tuple[int, Reward] | None = None

    @property
    def context(self) -> tuple[str, str, str]:
        """Return the trace id, the id of the remote parent ("" for none) and the flags, in hex."""
        given = None
        if self.query is not None:
            given = self.query.kept.get(TRACEPARENT) or self.query.metadata.get(TRACEPARENT)
        return parsed(given) or (hashlib.sha256(f"trace {self.query_id}".encode()).hexdigest()[:32], "", "01")

    def span_id(self, key: str) -> str:
        """Return the id of a span, in hex."""
        return hashlib.sha256(f"span {key} {self.query_id}".encode()).hexdigest()[:16]

    def spans(self, *, contents: bool = False) -> Iterator[SpanData]:
        """Yield an answered query's spans up to its Answer, each parent before its children.

        Args:
            contents: Whether to include the question and the answer.
        """
        if self.answer is None or not self.asked_ms:
            return
        answered_ms, answer = self.answer
        yield SpanData(
            "query",
            "query",
            "",
            self.asked_ms,
            answered_ms,
            {
                OPERATION: "chat",
                "uniscale.query.id": self.query_id,
                "uniscale.account": None if self.query is None else self.query.account or None,
                "uniscale.status": answer.status,
                "uniscale.attempts": answer.attempt,
                **(self._contents(answer) if contents else {}),
            },
            _error(answer, answer.status),
        )
        if self.context_ms:
            first = self.decisions.get(1)
            embed_s = None if first is None else first[1].spent.embed_s
            told = {"uniscale.embed_s": embed_s}
            yield SpanData("admission", "admission", "query", self.asked_ms, self.context_ms, told)
        for attempt, (decided_ms, decision) in sorted(self.decisions.items()):
            yield from self._attempt(attempt, decided_ms, decision, answered_ms, answer)

    def grading(self) -> Iterator[SpanData]:
        """Yield the span from the Answer to the Reward that closed the query."""
        if self.answer is None or self.reward is None:
            return
        rewarded_ms, reward = self.reward
        told: dict[str, Value | None] = {
            "uniscale.reward.kind": reward.kind,
            "uniscale.reward": reward.reward,
            "uniscale.correct": reward.correct,
            "uniscale.score": reward.score,
            "uniscale.graded_by": reward.graded_by or None,
        }
        if reward.price is not None:
            told[f"uniscale.cost.{reward.price.unit}"] = reward.price.cost
        yield SpanData("grading", "grading", "query", self.answer[0], rewarded_ms, told)

    def _attempt(
        self, attempt: int, decided_ms: int, decision: Decision, answered_ms: int, answer: Answer
    ) -> Iterator[SpanData]:
        before = self.failures.get(attempt - 1)
        begun_ms = (before[0] if before is not None else self.context_ms) or decided_ms
        told: dict[str, Value | None] = {
            "uniscale.action": decision.action.id,
            "uniscale.policy": decision.policy.name,
            "uniscale.reason": decision.reason,
            "uniscale.propensity": decision.propensity,
            "uniscale.objective": decision.objective.name,
            "uniscale.seq": decision.seq,
        }
        yield SpanData(f"decision {attempt}", "decision", "query", begun_ms, decided_ms, told)
        ended_ms, ended = answered_ms, answer
        if (failed := self.failures.get(attempt)) is not None:
            ended_ms, ended = failed[0], failed[1].answer
        key = f"attempt {attempt}"
        yield SpanData(
            key,
            f"chat {decision.action.model}",
            "query",
            decided_ms,
            ended_ms,
            _search(decision, ended),
            _error(ended, ended.cause or ended.status),
        )
        taken = decision.spent
        steps = sorted((s for s in self.steps if s.attempt == attempt), key=lambda s: s.number)
        for at, step in enumerate(steps):
            after = steps[at + 1].spent if at + 1 < len(steps) else ended.spent
            began_ms = step.at_ms - 1000 * (step.spent.generate_s - taken.generate_s)
            name = f"{attempt}.{step.number}"
            yield SpanData(f"step {name}", f"step {step.number}", key, began_ms, step.at_ms)
            scored_s = after.verify_s + after.transit_s - step.spent.verify_s - step.spent.transit_s
            # The times come from two clocks, so a verification may seem to outlast its attempt by a few milliseconds.
            ended_at = min(step.at_ms + 1000 * max(0.0, scored_s), ended_ms)
            yield SpanData(f"verification {name}", f"verification {step.number}", key, step.at_ms, ended_at)
            taken = step.spent

    def _contents(self, answer: Answer) -> dict[str, Value | None]:
        asked = None if self.query is None else self.query.question
        return {INPUT_MESSAGES: asked, OUTPUT_MESSAGES: answer.text}


def parsed(traceparent: object) -> tuple[str, str, str] | None:
    """Return a `traceparent`'s trace id, parent id and flags, in hex; None if it is not valid."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return found[1], found[2], found[3]


def _error(answer: Answer, why: str) -> str:
    return why if answer.status in FAILURES | UNCOUNTED else ""


def _search(decision: Decision, ended: Answer) -> dict[str, Value | None]:
    """Return the attributes of an attempt's span."""
    billed, error = ended.billed, _error(ended, ended.cause or ended.status)
    return {
        OPERATION: "chat",
        REQUESTED: decision.action.model,
        SERVED: None if ended.engine is None else ended.engine.model or None,
        INPUT_TOKENS: ended.prompt_tokens if billed is None else billed.input,
        OUTPUT_TOKENS: ended.generated_tokens if billed is None else billed.output,
        CACHED_TOKENS: None if billed is None else billed.cached_input,
        REASONING_TOKENS: None if billed is None else billed.reasoning,
        "uniscale.steps": ended.steps,
        "uniscale.score": ended.score,
        "uniscale.queue_s": ended.spent.queue_s,
        ERROR: error or None,
        "uniscale.error": ended.error if error else None,
    }


def step_of(plain: Mapping[str, Any], at_ms: int) -> Step:
    """Return the step in a SearchStep given as plain JSON; decoding whole forests would take ten times as long.

    Raises:
        KeyError, TypeError, ValueError: the JSON is not a SearchStep.
    """
    return Step(
        int(plain.get("attempt", 1)), int(plain["forest"]["step"]), at_ms, Spent(**plain.get("spent", {}))
    )


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's environment variables request traces over OTLP."""
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return not is_off(environ) and any(environ.get(name) for name in endpoints)


def is_off(environ: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's environment variables turn traces off."""
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return disabled or environ.get("OTEL_TRACES_EXPORTER") == "none"
