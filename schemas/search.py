"""A search between its steps: SearchStep asks for scores, Verification brings them back.

The forest travels in the records as a tree, each step's text once with its parent, so that an executor keeps
nothing durable: a Verification is all it needs to go on. Nodes are in order of creation, a parent before its
children; a node's index is its identity.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from schemas.action import Action
from schemas.base import Record, check_id
from schemas.decision import Count, Seed
from schemas.errors import InvalidField
from schemas.query import Budget, Message

Finish = Literal["step", "end", "length"]
"""Why a draft stopped: at the step's delimiter, at the end of the sequence, or cut off by a token limit."""

Fate = Literal["open", "kept", "completed", "beam", "early", "cut"]
"""What became of a draft: not judged yet; expanded further; a completed path; left by the beam of BS; stopped
by the early-exit bound; cut off unfinished (token limit, depth limit, budget or deadline)."""

Unit = Annotated[float, Meta(ge=0.0, le=1.0)]


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One drafted step of one path.

    Attributes:
        parent: Index of the node it continues; −1 at the root.
        tree: Index of its subtree, 0 to QP − 1.
        text: What was generated, the delimiter included. Empty once no living path needs it.
        tokens: Tokens generated.
        finish: Why it stopped.
        score: The verifier's score; None when it was not scored (yet).
        fate: What became of it.
    """

    parent: int
    tree: Count
    text: str
    tokens: Count
    finish: Finish
    score: Unit | None = None
    fate: Fate = "open"


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an executor must know of the Decision to go on with a search.

    Attributes:
        messages: The conversation to render by the model's chat template.
        action: What was chosen.
        seed: Seed of the query.
        budget: What the search may spend.
        deadline_ms: When the query expires, ms since the epoch on the broker's clock; 0 means never.
    """

    messages: tuple[Message, ...]
    action: Action
    seed: Seed
    budget: Budget | None = None
    deadline_ms: int = 0


class Spent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a search has taken so far. Seconds are wall clock, summed over steps.

    Attributes:
        queue_s: Waiting for the executor to begin.
        generate_s: In the engine.
        verify_s: From a SearchStep's sending to its Verification's arrival.
        control_s: In the search itself.
        prompt_tokens: Tokens of the rendered prompt.
        wasted_tokens: Generated twice after a crash or a retry: in no price, but counted.
    """

    queue_s: float = 0.0
    generate_s: float = 0.0
    verify_s: float = 0.0
    control_s: float = 0.0
    prompt_tokens: Count = 0
    wasted_tokens: Count = 0


class SearchStep(Record, frozen=True, kw_only=True, tag="search-step.v1"):
    """The drafts of one step, for scoring. Key: query_id. Its value is a zstd frame.

    Attributes:
        query_id: The query's id.
        group: The executor group its Verification returns to.
        step: Number of the step, 0 for the first.
        task: What the executor needs to go on.
        nodes: The forest so far; the drafts of this step are the last.
        drafts: How many of the nodes, counted from the end, are to be scored.
        spent: What was taken so far.
        sent_ms: When it was sent, ms since the epoch, on the executor's clock.
    """

    framed: ClassVar[bool] = True

    query_id: str
    group: str
    step: Count
    task: Task
    nodes: tuple[Node, ...]
    drafts: Count
    spent: Spent = field(default_factory=Spent)
    sent_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse a forest that is no tree."""
        check_id("SearchStep", self.query_id)
        for index, node in enumerate(self.nodes):
            if not -1 <= node.parent < index:
                why = f"is {node.parent}; a parent comes before its children, −1 is the root"
                raise InvalidField("SearchStep", f"nodes[{index}].parent", why)
            if node.parent >= 0 and self.nodes[node.parent].tree != node.tree:
                raise InvalidField(
                    "SearchStep", f"nodes[{index}].tree", "differs from its parent's; keep the subtree"
                )
        if not 1 <= self.drafts <= len(self.nodes):
            why = f"is {self.drafts} of {len(self.nodes)} nodes; send at least one draft"
            raise InvalidField("SearchStep", "drafts", why)

    @property
    def first_draft(self) -> int:
        """Return the index of the first node to be scored."""
        return len(self.nodes) - self.drafts

    @property
    def question(self) -> str:
        """Return what the verifier reads as the question: all messages of the user, in order."""
        users = [message.content for message in self.task.messages if message.role == "user"]
        return "\n\n".join(users or [message.content for message in self.task.messages])

    def path(self, index: int) -> tuple[int, ...]:
        """Return the indices from the root to a node."""
        steps = [index]
        while (index := self.nodes[index].parent) >= 0:
            steps.append(index)
        return tuple(reversed(steps))

    def texts(self, index: int) -> tuple[str, ...]:
        """Return the step texts from the root to a node, in order: what a verifier scores."""
        return tuple(self.nodes[at].text for at in self.path(index))


class Scored(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The score of one draft.

    Attributes:
        score: v(s) in [0, 1].
        tokens: Tokens the verifier read for it.
        truncated: Whether the path was over the verifier's context and was shortened by its policy.
    """

    score: Unit
    tokens: Count = 0
    truncated: bool = False


class Served(Struct, frozen=True, kw_only=True):
    """Name and version of what ran: an engine or a verifier, and the model in it."""

    name: str
    version: str = ""
    model: str = ""


class Verification(Record, frozen=True, kw_only=True, tag="verification.v1"):
    """A scored step. Key: query_id. Its value is a zstd frame.

    Attributes:
        search: The SearchStep, whole.
        scores: One for each of its drafts, in their order.
        verifier: Who scored.
        verify_s: Seconds in the verifier's engine.
    """

    framed: ClassVar[bool] = True

    search: SearchStep
    scores: tuple[Scored, ...]
    verifier: Served
    verify_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a count of scores that differs from the count of drafts: never a silent zero."""
        if len(self.scores) != self.search.drafts:
            why = f"holds {len(self.scores)} for {self.search.drafts} drafts; score each draft once"
            raise InvalidField("Verification", "scores", why)

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.search.query_id

    @property
    def step(self) -> int:
        """Return the number of the step."""
        return self.search.step
