"""An engine's inputs and outputs: token ids in, text or class probabilities out. Does not import vLLM."""

from collections.abc import Callable, Sequence
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
        seed: The draft's own seed, 0 <= seed < 2**63. Drafts of the same prompt differ only in their seeds.
        max_tokens: Maximum number of tokens to generate.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Probability mass of the nucleus; 1 keeps all tokens.
        top_k: Number of most likely tokens to keep; 0 keeps all.
        stop: Strings that end the draft; they stay in its text.
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
        token_ids: Every generated token, including the end-of-sequence token.
        finish: `stop` or `length`.
        stop: The stop string or stop token that ended it. If `finish` is `stop`, None stands for the end of sequence.
        prompt_tokens: Length of the prompt.
        cached_tokens: Number of prompt tokens from the prefix cache.
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
    """The class probabilities of one prompt.

    Attributes:
        rows: Class probabilities, shape (positions, labels), float32. The positions are the step tags in
            order, or every token.
        prompt_tokens: Length of the prompt.
    """

    rows: "NDArray[np.float32]"
    prompt_tokens: int


Request = Generation | Pooling
Output = GeneratedDraft | Pooled


# Requests submitted together, which share one future.


class RequestGroup:
    """Requests answered together by one future.

    Args:
        number: A number that is unique in the host; the requests' ids in vLLM begin with it.
        requests: The requests, in the order of the outputs.
        future: Resolved by the engine thread, or cancelled by the caller.
        on_text: Called by the engine thread with each piece of the text of the only request; None if nobody reads it
            before it is whole.
    """

    def __init__(
        self,
        number: int,
        requests: Sequence[Request],
        future: "Future[list[Output]]",
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self.ids = [f"{number}-{index}" for index in range(len(requests))]
        self.requests = requests
        self.future = future
        self.on_text = on_text
        self._outputs: dict[int, Output] = {}
        self._passed_on = 0

    def pass_on(self, text: str) -> None:
        """Pass on what is new in the text so far."""
        if self.on_text is not None and len(text) > self._passed_on and not self.future.done():
            self.on_text(text[self._passed_on :])
            self._passed_on = len(text)

    def take(self, index: int, output: Output) -> None:
        """Store one output; the last one resolves the future."""
        self._outputs[index] = output
        if len(self._outputs) == len(self.requests) and self._still_wanted():
            self.future.set_result([self._outputs[index] for index in range(len(self.requests))])

    def fail(self, error: ServingError) -> None:
        """Resolve the future with an error."""
        if self._still_wanted():
            self.future.set_exception(error)

    def _still_wanted(self) -> bool:
        return not self.future.done() and self.future.set_running_or_notify_cancel()
