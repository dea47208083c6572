"""What goes into an engine and what comes out: token ids in, text or rows out. Imports no vLLM."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec

from agents.serving.errors import ServingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SEED_LIMIT = 1 << 63  # vLLM's protocol and torch both take a signed 64-bit integer


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One draft to generate.

    Attributes:
        prompt_token_ids: The whole prompt, template and prefix included.
        seed: Of this draft alone, 0 <= seed < 2**63: drafts of the same prompt differ only in it.
        max_tokens: Maximum number of tokens to generate.
        temperature: 0 is greedy.
        top_p: Nucleus; 1 keeps all.
        top_k: Most likely tokens kept; 0 keeps all.
        stop: Strings that end the draft; kept in its text.
    """

    prompt_token_ids: Sequence[int]
    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


class GeneratedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """One generated draft, as vLLM reports it.

    Attributes:
        text: Decoded output without special tokens, with the stop string.
        token_ids: Every generated token, the end-of-sequence token included.
        finish: `stop` or `length`.
        stop: The stop string or stop token met; None with `stop` means end of sequence.
        prompt_tokens: Length of the prompt.
        cached_tokens: How many of them came from the prefix cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: str
    stop: str | int | None
    prompt_tokens: int
    cached_tokens: int = 0


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to classify token by token.

    Attributes:
        prompt_token_ids: The whole prompt.
    """

    prompt_token_ids: Sequence[int]


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one pooled prompt.

    Attributes:
        rows: Class probabilities, shape (positions, labels), float32; positions are the step tags in
            order, or every token.
        prompt_tokens: Length of the prompt.
    """

    rows: "NDArray[np.float32]"
    prompt_tokens: int


Request = Generation | Pooling
Output = GeneratedDraft | Pooled


# Requests submitted together: the unit between a caller's future and an engine's batch.


class RequestGroup:
    """Requests answered together by one future.

    Args:
        number: Unique in the host; names the requests to vLLM.
        requests: In the order of the outputs.
        future: Resolved by the engine thread, or cancelled by the caller.
    """

    def __init__(self, number: int, requests: Sequence[Request], future: "Future[list[Output]]") -> None:
        self.ids = [f"{number}-{index}" for index in range(len(requests))]
        self.requests = requests
        self.future = future
        self._outputs: dict[int, Output] = {}

    def take(self, index: int, output: Output) -> None:
        """Store one output; resolve the future with the last."""
        self._outputs[index] = output
        if len(self._outputs) == len(self.requests) and self._still_wanted():
            self.future.set_result([self._outputs[index] for index in range(len(self.requests))])

    def fail(self, error: ServingError) -> None:
        """Resolve the future with an error."""
        if self._still_wanted():
            self.future.set_exception(error)

    def _still_wanted(self) -> bool:
        return not self.future.done() and self.future.set_running_or_notify_cancel()
