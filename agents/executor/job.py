"""One step of a search that an engine is to draft."""

from dataclasses import dataclass, field

from agents.executor.next_step import Ask
from schemas.action import Action
from schemas.forest import Forest
from schemas.query import Message
from schemas.search import Spent


@dataclass(frozen=True)
class Job:
    """One step to draft: the search so far, and what to request from the engine.

    A SearchStep is the record of a step that has been drafted, and must contain drafts to score. A Job comes before it
    and is never sent; instead of drafts, it contains the request to the engine.
    """

    query_id: str
    group: str
    seq: int
    seed: int
    messages: tuple[Message, ...]
    forest: Forest
    ask: Ask
    spent: Spent = field(default_factory=Spent)

    @property
    def step(self) -> int:
        """The step that will be drafted, 1 for the first."""
        return self.ask.step

    @property
    def action(self) -> Action:
        """What is run."""
        return self.forest.action
