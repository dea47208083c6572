"""The engine protocol: prefixes in, drafts of one step out.

An engine serves one model. Behind it stands vLLM in this process, a server elsewhere, or a recording; the
search cannot tell. Every draft has its own seed, so that a path's text depends on its own identity and not on
what else was in the batch, as far as floating-point sums over another batch allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from agents.space.models import Sampling
from schemas.forest import Finish
from schemas.query import Message
from schemas.search import Served


class Drafted(Struct, frozen=True):
    """One draft as an engine made it: a generated step.

    Attributes:
        text: The step with its delimiter. Empty when the model's context was full before it began.
        finish: Why it ended: `separator`, `eos`, `length` (cut at `step_tokens`, the path goes on in the
            middle of a step) or `context` (the model's context is full, the path cannot go on).
        tokens: How many tokens were generated, the end-of-sequence token included.
        prompt_tokens: Length of the prompt before it: template, question and prefix. For a first step this
            is the price's L_in.
        token_ids: The tokens generated, where the engine tells them.
    """

    text: str
    tokens: int
    finish: Finish
    prompt_tokens: int = 0
    token_ids: tuple[int, ...] | None = None


class Prefix(Struct, frozen=True, kw_only=True):
    """What a draft continues: the conversation and the steps taken so far.

    Attributes:
        messages: The conversation, as `Query.chat` has it.
        steps: The texts of the path's steps, in order, delimiters included; empty for a first step.
    """

    messages: tuple[Message, ...]
    steps: tuple[str, ...] = ()


@dataclass
class EngineCounts:
    """What an engine met that was not a plain draft, since it was made. For metrics.

    Attributes:
        refused_prompts: Questions too long for the model: `PromptTooLongError` was raised.
        full_contexts: Drafts that ended with `context`.
        cut_steps: Drafts that ended with `length`.
        reencoded_paths: Prefixes whose token ids were no longer remembered, after a restart for instance,
            and were made from the text again.
    """

    refused_prompts: int = 0
    full_contexts: int = 0
    cut_steps: int = 0
    reencoded_paths: int = 0


class Engine(Protocol):
    """One model that drafts steps.

    Attributes:
        model: Its name in the catalogue.
        served: What runs, for the Answer.
        counts: What it met.
    """

    model: str
    served: Served
    counts: EngineCounts

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` drafts for each prefix, prefix by prefix.

        Cancelling the call stops the work. A failure fails the whole call.

        Args:
            step_id: Names the step in errors and at the server, e.g. `query_id/3`.
            prefixes: What to continue.
            n: Drafts for each.
            seeds: One a draft, 0 <= seed < 2**63; `seeds[i * n + k]` is draft k of prefix i.
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
        raise ValueError(
            f"{len(prefixes)} prefixes with n={n} take {len(prefixes) * n} seeds, got {len(seeds)}"
        )
