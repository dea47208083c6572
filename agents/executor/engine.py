"""The engine protocol: prefixes in, drafts of one step out.

An engine serves one model. It may be vLLM in this process, a remote server or a recording; the search cannot tell.
Every draft has its own seed, so a path's text depends on its own identity and not on the rest of the batch, as far as
floating-point sums over different batches allow.
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
    """One draft that an engine generated.

    Attributes:
        text: The step with its delimiter. Empty if the model's context was full before it began.
        finish: Why it ended: `separator`, `eos`, `length` (cut at `step_tokens`; the path continues in the middle of
            the step) or `context` (the model's context is full; the path cannot continue).
        tokens: Number of tokens generated, including the end-of-sequence token.
        prompt_tokens: Length of the prompt before it: template, question and prefix. For a first step, it is L_in of
            the price.
        token_ids: The tokens generated, if the engine returns them.
    """

    text: str
    tokens: int
    finish: Finish
    prompt_tokens: int = 0
    token_ids: tuple[int, ...] | None = None


class Prefix(Struct, frozen=True, kw_only=True):
    """What a draft continues: the conversation and the path's steps so far.

    Attributes:
        messages: The conversation, as in `Query.chat`.
        steps: The texts of the path's steps, in order, delimiters included; empty for a first step.
        max_tokens: Most tokens of its drafts, above 0, if fewer than the sampling's `step_tokens`; None for no bound.
    """

    messages: tuple[Message, ...]
    steps: tuple[str, ...] = ()
    max_tokens: int | None = None


@dataclass
class EngineCounts:
    """Counts of unusual events since the engine was created; for metrics.

    Attributes:
        refused_prompts: Questions too long for the model, for which `PromptTooLongError` was raised.
        full_contexts: Drafts that ended with `context`.
        cut_steps: Drafts that ended with `length`.
        reencoded_paths: Prefixes that were encoded from their text again, because their token ids were no longer
            remembered, for instance after a restart.
    """

    refused_prompts: int = 0
    full_contexts: int = 0
    cut_steps: int = 0
    reencoded_paths: int = 0


class Engine(Protocol):
    """One model that drafts steps.

    Attributes:
        model: Its name in the catalogue.
        served: Name and version of what runs, for the Answer.
        counts: Counts of unusual events.
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
            n: Number of drafts for each.
            seeds: One per draft, 0 <= seed < 2**63; `seeds[i * n + k]` is for draft k of prefix i.
            sampling: Temperature, tokens per step, delimiter.

        Raises:
            PromptTooLongError: The question alone fills the model's context.
            RequestRefusedError: The model will never accept this request.
            EngineFaultError: Another attempt may succeed.
            EngineDiedError: Only a restart of the process helps.
        """
        ...

    async def close(self) -> None:
        """Free the engine's resources."""
        ...


def check_seeds(prefixes: Sequence[Prefix], n: int, seeds: Sequence[int]) -> None:
    """Refuse a call whose seeds do not match its drafts.

    Raises:
        ValueError: The caller made a mistake; the query is not at fault.
    """
    if n < 1 or len(seeds) != len(prefixes) * n:
        raise ValueError(
            f"{len(prefixes)} prefixes with n={n} take {len(prefixes) * n} seeds, got {len(seeds)}"
        )
