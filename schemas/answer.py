"""Answer: how a query ended, with the trace of its search in numbers."""

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from schemas.action import Action
from schemas.errors import InvalidField
from schemas.forest import Count, Draft, Limits, Unit
from schemas.record import Record, check_id
from schemas.search import Served
from schemas.spent import Spent

Fault = Literal["", "infrastructure", "model"]
"""infrastructure: an endpoint, an engine or a machine failed, which says nothing about the action. model: the action's
model gave no text, which is as wrong as an answer can be; `cause` says how."""

Cause = Literal["", "timeout", "empty", "undecodable", "refused", "filtered"]
"""What ended a search without a text. timeout: its model generated until the time that the deployment gives a search
was over, or its server did not reply in time. empty: a completion without text. undecodable: a reply that is no
completion. refused: the model's server refused the request (400, 413, 422). filtered: a content filter withheld the
text. Empty: anything else."""

Status = Literal["ok", "unfinished", "budget", "expired", "failed", "rejected", "cancelled"]
"""ok: a completed path. unfinished: no path completed; the best cut-off one is returned and flagged.
budget: tokens, eFLOPs or time ran out, best so far. expired: the deadline passed without an answer.
failed: the engine could not. rejected: the query could not be read or chosen for. cancelled: whoever asked
went away; what was spent is priced, nothing is learned from it."""

FAILURES: Final[frozenset[Status]] = frozenset({"expired", "failed"})
"""Who is compared counts them as wrong answers."""

UNCOUNTED: Final[frozenset[Status]] = frozenset({"cancelled", "rejected"})
"""They say nothing about the choice of a configuration."""


QUESTIONABLE: Final[frozenset[Cause]] = frozenset({"refused", "filtered"})
"""Causes that are the question's fault unless the model fails the operator's question as well."""


class Completion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completed path, as an answer.

    Attributes:
        text: Its text.
        score: Its mean score, V(p); None where nothing scored it.
        extracted: The answer in it, for instance the content of its last box.
    """

    text: str
    score: Unit | None = None
    extracted: str | None = None


class Probe(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model made of the operator's question (`UNISCALE_PROBE_QUESTION`), sent as a search sends a query's.

    Attributes:
        passed: Whether it gave a text.
        age_s: Seconds from its end until it was used.
    """

    passed: bool
    age_s: Annotated[float, Meta(ge=0.0)] = 0.0


class CutStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that the deadline cut while an engine worked on it: nothing but this is known of what it cost.

    Attributes:
        parents: The draft that each of its drafts continues, -1 at the root.
        tokens: Tokens of a draft, at most.
        prompt_tokens: Tokens of the prompt, at most.
    """

    parents: tuple[int, ...]
    tokens: Count
    prompt_tokens: Count


class Answer(Record, frozen=True, kw_only=True, tag="answer.v1"):
    """How a query ended. Key: query_id. Its value is a zstd frame. The first in offset order counts.

    Attributes:
        query_id: The query's id.
        status: How it ended.
        by: The service that wrote it.
        action: What was run; None when nothing was chosen.
        group: The executor group that ran it; empty when none did.
        seq: The Decision's sequence number; None without one.
        text: The chosen path's text; None when there is none.
        complete: Whether the chosen path is a completed one: an unfinished one never passes for an answer.
        extracted: The answer in it, for instance the content of its last box.
        score: The chosen path's mean score, V(p); None without a text, or where nothing scored it: no verifier is in
            use for its model. That is no fault, and says nothing of the answer.
        answers: The best completed paths, best first, as many as `Query.n` asked for and were completed; empty
            where it asked for one.
        path: Indices of the chosen path in the trace, root first.
        trace: Every draft of the search, a parent before its children; texts of the chosen path at most.
        limits: What bounded the search.
        prompt_tokens: L_in, tokens of the rendered prompt; 0 when nothing was run.
        depth: Steps of the chosen path.
        steps: Steps the search took.
        completed: Completed paths.
        shortened: Scores given to a path that the verifier's policy had shortened.
        spent: Where its time went; all 0 where it was rejected, or a service gave up its record.
        engine: What generated.
        verifier: What scored.
        error: Why it failed, expired, was rejected or cancelled, and what to do.
        cut: The step that its deadline cut; None where none was in an engine's hands.
        fault: `infrastructure` when the search failed for no reason of its own: nothing is learned from it. `model`
            when its model gave no text: it is learned as wrong, and what it cost is charged but not learned.
        cause: What ended a search without a text, where that may be its model's fault.
        probe: Whether the model answered the operator's question at that time, where that decides whose fault a refusal
            is; None where nobody asked, or the probes of the minute were used up.
    """

    framed: ClassVar[bool] = True

    query_id: str
    status: Status
    by: str
    action: Action | None = None
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
        """Return whether the client's own bounds cut the chosen path: its text says nothing about the configuration."""
        finish = self.trace[self.path[-1]].finish if self.path else ""
        return finish == "stop" or (finish == "max_tokens" and not self.complete)

    @property
    def generated_tokens(self) -> int:
        """Return the tokens generated, over all drafts."""
        return sum(draft.tokens for draft in self.trace)

    @property
    def verifier_tokens(self) -> int:
        """Return the tokens the verifier read, over all drafts."""
        return sum(draft.verifier_tokens for draft in self.trace)
