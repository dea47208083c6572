"""The engine protocol: prefixes in, drafts of one step out.

An engine serves one model. Behind it stands vLLM in this process, a server elsewhere, or a recording; the search
cannot tell. Every draft has its own seed, so that a path's text hangs on its own identity and not on what
else was in the batch, as far as floating-point sums over another batch allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import Struct

from agents.space.models import Sampling
from schemas.query import Message

Finish = Literal["separator", "eos", "length", "context"]
"""Why a draft ended.

separator: the delimiter closed the step; the path goes on.
eos: the model ended the answer; the path is complete.
length: cut at `step_tokens`, in the middle of a step; neither complete nor closed.
context: the model's context is full; the path cannot go on and is not complete.
"""


class Draft(Struct, frozen=True, kw_only=True):
    """One generated step.

    Attributes:
        text: The step with its delimiter; empty when the context was full before it began.
        finish: Why it ended.
        tokens: How many tokens were generated, the end-of-sequence token included.
        token_ids: Those tokens, when the path can be continued from them; None when it has to be continued
            from the text, because the engine does not tell, or a token reached beyond the delimiter.
        prompt_tokens: Length of the prompt before it: template, question and prefix. For a first step this
            is the price's L_in.
    """

    text: str
    finish: Finish
    tokens: int
    token_ids: tuple[int, ...] | None = None
    prompt_tokens: int = 0


class Prefix(Struct, frozen=True, kw_only=True):
    """What a draft continues: the conversation and the steps taken so far.

    Attributes:
        messages: The conversation, as `Query.chat` has it.
        steps: The drafts of the path, in order; empty for a first step.
    """

    messages: tuple[Message, ...]
    steps: tuple[Draft, ...] = ()


@dataclass
class EngineCounts:
    """What an engine met that was not a plain draft, since it was made. For metrics.

    Attributes:
        refused_prompts: Questions too long for the model: `PromptTooLongError` was raised.
        full_contexts: Drafts that ended with `context`.
        cut_steps: Drafts that ended with `length`.
        reencoded_steps: Steps continued from their text because their token ids were not at hand.
    """

    refused_prompts: int = 0
    full_contexts: int = 0
    cut_steps: int = 0
    reencoded_steps: int = 0


class Engine(Protocol):
    """One model that drafts steps."""

    model: str
    versions: dict[str, str]
    counts: EngineCounts

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Draft]:
        """Return `n` drafts for each prefix, prefix by prefix.

        Cancelling the call stops the work. A failure fails the whole call.

        Args:
            step_id: Names the step in errors and at the server, e.g. `query_id/3`.
            prefixes: What to continue.
            n: Drafts for each.
            seeds: One a draft, 0 <= seed < 2**63, `seeds[i * n + k]` for draft k of prefix i.
            sampling: Temperature, tokens a step, delimiter.

        Raises:
            PromptTooLongError: The question alone fills the model's context.
            RequestRefusedError: The model will never take this request.
            EngineFaultError: Another attempt may succeed.
            EngineDiedError: Only a restart of the process helps.
        """
        ...

    async def close(self) -> None:
        """Free what the engine holds."""
        ...


def check_seeds(prefixes: Sequence[Prefix], n: int, seeds: Sequence[int]) -> None:
    """Refuse a call whose seeds do not match its drafts.

    Raises:
        ValueError: A mistake of the caller, not of the query.
    """
    if n < 1 or len(seeds) != len(prefixes) * n:
        raise ValueError(f"{len(prefixes)} prefixes with n={n} take {len(prefixes) * n} seeds, got {len(seeds)}")
