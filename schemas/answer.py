"""Answer: how a query ended, with the trace of its search in numbers."""

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
"""ok: a completed path. unfinished: no path completed; the best cut-off one is returned and flagged. budget: tokens,
eFLOPs or time ran out, best so far. expired: the deadline passed without an answer. failed: the engine failed.
rejected: the query could not be read, or no action could be chosen for it. cancelled: the client went away; the cost is
recorded, nothing is learned."""

FAILURES: Final[frozenset[Status]] = frozenset({"expired", "failed"})
"""Comparisons of policies count these as wrong answers."""

UNCOUNTED: Final[frozenset[Status]] = frozenset({"cancelled", "rejected"})
"""These say nothing about the choice of a configuration."""


class Completion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completed path, as an answer.

    Attributes:
        text: Its text.
        score: Its mean score, V(p); None if it was not scored.
        extracted: The answer in it, for instance the content of its last box.
    """

    text: str
    score: Unit | None = None
    extracted: str | None = None


class Probe(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model answered the operator's probe (`UNISCALE_PROBE_QUESTION`), sent the way a search sends a query.

    Attributes:
        passed: Whether it produced a text.
        age_s: Seconds between the end of the probe and the use of its result.
    """

    passed: bool
    age_s: Annotated[float, Meta(ge=0.0)] = 0.0


class CutStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that the deadline cut while an engine was working on it: all that is known about its cost.

    Attributes:
        parents: The draft that each of its drafts continues, -1 at the root.
        tokens: Upper bound on the tokens of a draft.
        prompt_tokens: Upper bound on the tokens of the prompt.
    """

    parents: tuple[int, ...]
    tokens: Count
    prompt_tokens: Count


class Answer(Record, frozen=True, kw_only=True, tag="answer.v1"):
    """How a query ended. Key: query_id. Its value is a zstd frame. Only the first in offset order counts.

    Attributes:
        query_id: The query's id.
        status: How it ended.
        by: The service that wrote it.
        action: The action that ran; None when none was chosen.
        attempt: Which attempt at the query it ends, 1 for the first.
        group: The executor group that ran it; empty when none did.
        seq: The Decision's sequence number; None without one.
        text: The chosen path's text; None when there is none, and empty if the upstream's message has tool calls or a
            refusal alone.
        complete: Whether the chosen path is completed: an unfinished one is never presented as an answer.
        extracted: The answer in it, for instance the content of its last box.
        score: The chosen path's mean score, V(p); None without a text, or if no verifier is in use for its model. The
            latter is not a fault and says nothing about the answer.
        answers: Up to `Query.n` completed paths, best first; empty if `n` is 1.
        path: Indices of the chosen path in the trace, root first.
        trace: Every draft of the search, parents before children; only the chosen path may carry its texts.
        limits: What bounded the search.
        prompt_tokens: L_in, tokens of the rendered prompt; 0 when nothing ran.
        depth: Steps of the chosen path.
        steps: Steps the search took.
        completed: Completed paths.
        shortened: Number of scores given to paths that the verifier's policy had shortened.
        spent: Where its time went; all 0 if it was rejected, or its record was sent to the dead-letter topic.
        engine: What generated.
        billed: The tokens that it was billed, as the upstream counted them; None where the engine counts them itself.
        upstream: What the upstream returned, if the request was passed through whole; None otherwise.
        verifier: What scored.
        error: Why it failed, expired, was rejected or cancelled, and what to do.
        cut: The step that its deadline cut; None if no engine was working on one.
        fault: `infrastructure` when the search failed through no fault of the action: nothing is learned. `model` when
            the model produced no text: it is learned as wrong, and its cost is charged but not learned.
        cause: Why a search ended without a text, if that may be its model's fault.
        probe: How the model answered the operator's probe at that time, if that decides whose fault a refusal is; None
            if it was not probed, or the minute's probes were used up.
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
        """Refuse an answer that contradicts itself."""
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
        """Return whether the client's own limits cut the chosen path, or its sampling distorted it.

        Its text then says nothing about the action.
        """
        if self.limits is not None and self.limits.distorted:
            return True
        finish = self.trace[self.path[-1]].finish if self.path else ""
        return finish == "stop" or (finish == "max_tokens" and not self.complete)

    @property
    def generated_tokens(self) -> int:
        """Return the tokens generated over all drafts."""
        return sum(draft.tokens for draft in self.trace)

    @property
    def verifier_tokens(self) -> int:
        """Return the tokens the verifier read over all drafts."""
        return sum(draft.verifier_tokens for draft in self.trace)
