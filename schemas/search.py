"""A search between its steps: a SearchStep requests scores, and a Verification returns them.

The records carry the forest, so an executor keeps no durable state: a Verification is all it needs to continue.
"""

from typing import ClassVar

from msgspec import Struct, field

from schemas.chat import UpstreamChoice
from schemas.decision import Seed
from schemas.errors import InvalidField
from schemas.forest import Finish as Finish
from schemas.forest import Forest, Unit
from schemas.prices import Billed, Count
from schemas.query import Message
from schemas.record import Millis, Record, check_group, check_id
from schemas.spent import Seconds, Spent


class Served(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Name and version of an engine, and the model it ran."""

    name: str
    version: str = ""
    model: str = ""


class SearchStep(Record, frozen=True, kw_only=True, tag="search-step.v1"):
    """One step's drafts, to be scored. Key: query_id. The value is a zstd frame.

    For each (query_id, attempt, step), the first record by offset wins.

    Attributes:
        query_id: The query's id.
        group: The executor group that the Verification returns to.
        seq: The Decision's sequence number.
        seed: The query's seed. Each draft's seed is derived from it, the step and the path.
        messages: The conversation, to be rendered with the model's chat template.
        forest: The search so far. Its `pending` drafts are to be scored.
        spent: Where the query's time has gone so far.
        engine: The engine that generates text.
        sent_ms: When the record was sent, in ms since the epoch on the executor's clock.
        billed: Billed tokens so far, as counted by the upstream; None if the engine counts them itself.
        attempt: Number of the attempt that the step belongs to, 1 for the first.
        upstream: The upstream's reply, if the request was passed through whole. No verifier then scores the step.
    """

    framed: ClassVar[bool] = True

    query_id: str
    group: str
    seq: Count
    seed: Seed
    messages: tuple[Message, ...]
    forest: Forest
    spent: Spent = field(default_factory=Spent)
    engine: Served | None = None
    billed: Billed | None = None
    sent_ms: Millis = 0
    attempt: Count = 1
    upstream: UpstreamChoice | None = None

    def __post_init__(self) -> None:
        """Reject a step with nothing to score."""
        check_id("SearchStep", self.query_id)
        check_group("SearchStep", self.group)
        if not self.messages:
            raise InvalidField("SearchStep", "messages", "is empty; send the question")
        if not self.forest.pending:
            raise InvalidField(
                "SearchStep", "forest", "holds no draft to score; send a step after drafting it"
            )

    @property
    def step(self) -> int:
        """Return the step number, 1 for the first."""
        return self.forest.step

    @property
    def question(self) -> str:
        """Return the question as the verifier reads it: the user's messages in order."""
        said = [message.text for message in self.messages if message.role == "user"]
        return "\n\n".join(said or [message.text for message in self.messages])


class Scored(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The score of one draft.

    Attributes:
        score: v(s) in [0, 1].
        tokens: Number of tokens the verifier read to score the draft.
        shortened: Whether the path exceeded the verifier's context and was shortened by its policy.
    """

    score: Unit
    tokens: Count = 0
    shortened: bool = False


class Verification(Record, frozen=True, kw_only=True, tag="verification.v1"):
    """A scored step. Key: query_id. The value is a zstd frame.

    For each (query_id, attempt, step), the first record by offset wins.

    Attributes:
        search: The whole SearchStep.
        scores: One score per pending draft, in the same order.
        verifier: The verifier that scored the drafts.
        verify_s: Seconds spent in the verifier's engine.
    """

    framed: ClassVar[bool] = True

    search: SearchStep
    scores: tuple[Scored, ...]
    verifier: Served
    verify_s: Seconds = 0.0

    def __post_init__(self) -> None:
        """Reject a number of scores that differs from the number of drafts. A missing score never counts as 0."""
        if len(self.scores) != (drafts := len(self.search.forest.pending)):
            why = f"holds {len(self.scores)} for {drafts} drafts; score each draft once"
            raise InvalidField("Verification", "scores", why)

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.search.query_id

    @property
    def step(self) -> int:
        """Return the step number."""
        return self.search.step
