"""Answer: how a query ended, with the trace of its search in numbers."""

from typing import ClassVar, Literal

from msgspec import Struct, field

from schemas.action import Action
from schemas.base import Record, check_id
from schemas.decision import Count
from schemas.errors import InvalidField
from schemas.search import Fate, Served, Spent, Unit

Status = Literal["ok", "unfinished", "budget", "expired", "failed", "rejected"]
"""ok: a completed path. unfinished: no path completed, the best cut-off one is returned and flagged.
budget: the budget ran out, best so far. expired: the deadline passed, best so far.
failed: the engine could not. rejected: the query could not be read or chosen for."""

BEST_SO_FAR: frozenset[Status] = frozenset({"ok", "unfinished", "budget", "expired"})


class TraceRow(Struct, frozen=True, array_like=True):
    """One draft in numbers: `[parent, tokens, score, fate]` on the wire.

    Attributes:
        parent: Index of the row it continues; −1 at the root.
        tokens: Tokens generated.
        score: The verifier's score; None when it was not scored, and so costs no verification.
        fate: What became of it.
    """

    parent: int
    tokens: Count
    score: Unit | None
    fate: Fate


class Answer(Record, frozen=True, kw_only=True, tag="answer.v1"):
    """How a query ended. Key: query_id. Its value is a zstd frame. The first in offset order counts.

    Attributes:
        query_id: The query's id.
        status: How it ended.
        by: The room that wrote it.
        action: What was run; None when nothing was chosen.
        seq: The Decision's place in the order; None without one.
        text: The chosen path's text; None when there is none.
        extracted: The answer in it, for instance the content of its last box.
        score: The chosen path's mean score.
        path: Indices of the chosen path in the trace, root first.
        trace: Every draft of the search, a parent before its children.
        depth: Steps of the chosen path.
        steps: Steps the search took.
        completed: Completed paths.
        spent: Seconds and tokens taken, per stage.
        verified_tokens: Tokens the verifier read.
        truncated: Scores given to a shortened path.
        engine: What generated.
        verifier: What scored.
        error: Why it failed, expired or was rejected, and what to do.
    """

    framed: ClassVar[bool] = True

    query_id: str
    status: Status
    by: str
    action: Action | None = None
    seq: Count | None = None
    text: str | None = None
    extracted: str | None = None
    score: Unit | None = None
    path: tuple[int, ...] = ()
    trace: tuple[TraceRow, ...] = ()
    depth: Count = 0
    steps: Count = 0
    completed: Count = 0
    spent: Spent = field(default_factory=Spent)
    verified_tokens: Count = 0
    truncated: Count = 0
    engine: Served | None = None
    verifier: Served | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        """Refuse an answer that contradicts itself."""
        check_id("Answer", self.query_id)
        if self.status in ("ok", "unfinished") and self.text is None:
            raise InvalidField(
                "Answer", "text", f"is missing with status {self.status}; give the chosen path's text"
            )
        if self.status in ("failed", "rejected") and not self.error:
            raise InvalidField("Answer", "error", f"is missing with status {self.status}; say why")
        for index, row in enumerate(self.trace):
            if not -1 <= row.parent < index:
                why = f"has parent {row.parent}; a parent comes before its children, −1 is the root"
                raise InvalidField("Answer", f"trace[{index}]", why)
        if any(not 0 <= index < len(self.trace) for index in self.path):
            raise InvalidField("Answer", "path", "names a row outside the trace; send the whole trace")

    @property
    def generated_tokens(self) -> int:
        """Return the tokens generated over all drafts."""
        return sum(row.tokens for row in self.trace)
