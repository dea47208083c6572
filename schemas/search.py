"""A search between its steps: SearchStep requests scores, Verification returns them.

The records carry the forest, so that an executor keeps no durable state: a Verification is all it needs to continue.
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
    """Name and version of an engine and of the model it ran."""

    name: str
    version: str = ""
    model: str = ""


class SearchStep(Record, frozen=True, kw_only=True, tag="search-step.v1"):
    """The drafts of one step, for scoring. Key: query_id. Its value is a zstd frame.

    The first record per (query_id, attempt, step), in offset order, counts.

    Attributes:
        query_id: The query's id.
        group: The executor group its Verification returns to.
        seq: The Decision's sequence number.
        seed: Seed of the query; those of its drafts derive from it, the step and the path.
        messages: The conversation, to be rendered with the model's chat template.
        forest: The search so far; its `pending` drafts are to be scored.
        spent: Where its time has gone so far.
        engine: The engine that generates.
        sent_ms: When it was sent, ms since the epoch on the executor's clock.
        billed: The tokens so far as the upstream counted them; None where the engine counts them itself.
        attempt: Which attempt at the query it belongs to, 1 for the first.
        upstream: What the upstream returned, if the request was passed through whole: then no verifier scores the step.
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
        """Refuse a step with nothing to score."""
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
        """Return the number of the step, 1 for the first."""
        return self.forest.step

    @property
    def question(self) -> str:
        """Return the question as the verifier reads it: the user's messages, in order."""
        said = [message.text for message in self.messages if message.role == "user"]
        return "\n\n".join(said or [message.text for message in self.messages])


class Scored(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The score of one draft.

    Attributes:
        score: v(s) in [0, 1].
        tokens: Tokens the verifier read for it.
        shortened: Whether the path was over the verifier's context and was shortened by its policy.
    """

    score: Unit
    tokens: Count = 0
    shortened: bool = False


class Verification(Record, frozen=True, kw_only=True, tag="verification.v1"):
    """A scored step. Key: query_id. Its value is a zstd frame.

    The first record per (query_id, attempt, step), in offset order, counts.

    Attributes:
        search: The whole SearchStep.
        scores: One for each of its pending drafts, in their order.
        verifier: The verifier that scored.
        verify_s: Seconds in the verifier's engine.
    """

    framed: ClassVar[bool] = True

    search: SearchStep
    scores: tuple[Scored, ...]
    verifier: Served
    verify_s: Seconds = 0.0

    def __post_init__(self) -> None:
        """Refuse a number of scores that differs from the number of drafts: a missing score is never taken as 0."""
        if len(self.scores) != (drafts := len(self.search.forest.pending)):
            why = f"holds {len(self.scores)} for {drafts} drafts; score each draft once"
            raise InvalidField("Verification", "scores", why)

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.search.query_id

    @property
    def step(self) -> int:
        """Return the number of the step."""
        return self.search.step
