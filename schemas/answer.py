"""Answer: how a query ended, with a numeric trace of its search."""

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from schemas.action import Action
from schemas.chat import UpstreamChoice
from schemas.errors import InvalidField
from schemas.failure import QUESTIONABLE, Cause, Fault
from schemas.forest import Count, Draft, Limits, Unit
from schemas.prices import Billed
from schemas.record import Record, check_id
from schemas.search import Served
from schemas.spent import Spent

Status = Literal["ok", "unfinished", "budget", "expired", "failed", "rejected", "cancelled"]
"""ok: a path was completed. unfinished: no path was completed; the best unfinished one is returned and flagged. budget:
the budget or the time ran out; the best path so far is returned. expired: the deadline passed without an answer.
failed: the engine failed. rejected: the query could not be read, or no action could be chosen for it. cancelled: the
client went away; the cost is recorded, but nothing is learned."""

FAILURES: Final[frozenset[Status]] = frozenset({"expired", "failed"})
"""Statuses that policy comparisons count as wrong answers."""

UNCOUNTED: Final[frozenset[Status]] = frozenset({"cancelled", "rejected"})
"""Statuses that do not count as results, because they do not depend on the chosen configuration."""


class Completion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completed path, as an answer.

    Attributes:
        text: The path's text.
        score: The path's mean score, V(p); None if it was not scored.
        extracted: The answer extracted from the text, for instance the content of its last box.
    """

    text: str
    score: Unit | None = None
    extracted: str | None = None


class Probe(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of the operator's probe of a model (`UNISCALE_PROBE_QUESTION`), sent as a search sends a query.

    Attributes:
        passed: Whether the model produced any text.
        age_s: Seconds from the end of the probe to the use of its result.
    """

    passed: bool
    age_s: Annotated[float, Meta(ge=0.0)] = 0.0


class CutStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that the deadline cut off while an engine was working on it, with everything known about its cost.

    Attributes:
        parents: For each draft of the step, the index of the draft it continues; -1 at the root.
        tokens: Upper bound on the number of tokens in each draft.
        prompt_tokens: Upper bound on the number of tokens in the prompt.
    """

    parents: tuple[int, ...]
    tokens: Count
    prompt_tokens: Count


class Answer(Record, frozen=True, kw_only=True, tag="answer.v1"):
    """How a query ended. Key: query_id. The value is a zstd frame. If there are several, the first by offset wins.

    Attributes:
        query_id: The query's id.
        status: How the query ended.
        by: The service that wrote the Answer.
        action: The action that ran; None if none was chosen.
        attempt: Number of the attempt that this Answer ends, 1 for the first.
        group: The executor group that ran the search; empty if none did.
        seq: The Decision's sequence number; None without a Decision.
        text: The chosen path's text; None if there is none, and empty if the upstream's message has only tool calls or
            a refusal.
        complete: Whether the chosen path is completed. An unfinished path is never presented as an answer.
        extracted: The answer extracted from the text, for instance the content of its last box.
        score: The chosen path's mean score, V(p); None if there is no text or no verifier is in use for its model. The
            latter is not a fault and says nothing about whether the answer is right.
        answers: Up to `Query.n` completed paths, best first; empty if `n` is 1.
        path: Indices of the chosen path in the trace, root first.
        trace: Every draft of the search, parents before children. Only the chosen path's drafts may have text.
        limits: The limits of the search.
        prompt_tokens: L_in, the number of tokens in the rendered prompt; 0 if nothing ran.
        depth: Number of steps in the chosen path.
        steps: Number of steps the search took.
        completed: Number of completed paths.
        shortened: Number of scores for paths that the verifier's policy had shortened.
        spent: Where the query's time went; all 0 if it was rejected, or its record was sent to the dead-letter topic.
        engine: The engine that generated the text.
        billed: Billed tokens, as counted by the upstream; None if the engine counts them itself.
        upstream: The upstream's reply, if the request was passed through whole; otherwise None.
        verifier: The verifier that scored the drafts.
        error: Why the query failed, expired, was rejected or was cancelled, and what to do.
        cut: The step that the deadline cut off; None if no engine was working on one.
        fault: `infrastructure` if the search failed through no fault of the action, in which case nothing is learned.
            `model` if the model produced no text; this is learned as a wrong answer, and the cost is charged but not
            learned.
        cause: Why the search ended without text, if the model may be at fault.
        probe: Result of the operator's probe of the model at that time, if it decides who is at fault for a refusal;
            None if the model was not probed, or that minute's probes were used up.
    """

    framed: ClassVar[bool] = True

    query_id: str
    status: Status
    by: str
    action: Action | None = None
    attempt: Count = 1
    group: str = ""
    seq: Count | None = None
    text: str | None = None
    complete: bool = False
    extracted: str | None = None
    score: Unit | None = None
    answers: tuple[Completion, ...] = ()
    path: tuple[int, ...] = ()
    trace: tuple[Draft, ...] = ()
    limits: Limits | None = None
    prompt_tokens: Count = 0
    depth: Count = 0
    steps: Count = 0
    completed: Count = 0
    shortened: Count = 0
    spent: Spent = field(default_factory=Spent)
    engine: Served | None = None
    billed: Billed | None = None
    upstream: UpstreamChoice | None = None
    verifier: Served | None = None
    error: str | None = None
    cut: CutStep | None = None
    fault: Fault = ""
    cause: Cause = ""
    probe: Probe | None = None

    def __post_init__(self) -> None:
        """Reject an answer that contradicts itself."""
        check_id("Answer", self.query_id)
        if self.status in ("ok", "unfinished") and self.text is None:
            raise InvalidField(
                "Answer", "text", f"is missing with status {self.status}; give the path's text"
            )
        if self.status in ("failed", "rejected") and not self.error:
            raise InvalidField("Answer", "error", f"is missing with status {self.status}; say why")
        if self.fault == "model" and (self.text is not None or not self.cause):
            raise InvalidField(
                "Answer", "fault", "is model with a text, or without a cause; say what left it without a text"
            )
        if self.fault == "model" and self.cause in QUESTIONABLE and (not self.probe or self.probe.passed):
            why = f"is model for a request that was {self.cause}, but no probe failed; leave it empty"
            raise InvalidField("Answer", "fault", why)
        for index, draft in enumerate(self.trace):
            if not -1 <= draft.parent < index:
                why = f"is {draft.parent}; a parent comes before its children, -1 is the root"
                raise InvalidField("Answer", f"trace[{index}].parent", why)
        if self.cut is not None and any(not -1 <= parent < len(self.trace) for parent in self.cut.parents):
            raise InvalidField(
                "Answer", "cut.parents", "names a draft outside the trace; send the whole trace"
            )
        if any(not 0 <= index < len(self.trace) for index in self.path):
            raise InvalidField("Answer", "path", "names a draft outside the trace; send the whole trace")

    @property
    def bounded(self) -> bool:
        """Return whether the client's own limits cut the chosen path, or the client's sampling parameters distorted it.

        If so, the text says nothing about the quality of the action.
        """
        if self.limits is not None and self.limits.distorted:
            return True
        finish = self.trace[self.path[-1]].finish if self.path else ""
        return finish == "stop" or (finish == "max_tokens" and not self.complete)

    @property
    def generated_tokens(self) -> int:
        """Return the number of tokens generated across all drafts."""
        return sum(draft.tokens for draft in self.trace)

    @property
    def verifier_tokens(self) -> int:
        """Return the number of tokens the verifier read across all drafts."""
        return sum(draft.verifier_tokens for draft in self.trace)
