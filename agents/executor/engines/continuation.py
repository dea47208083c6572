"""From a prefix to the token ids an engine continues, and from what it says back to a draft.

Pure but for counters. Token ids are kept from step to step where possible: encoding a text again may cut it
into other tokens than the model generated, and then neither the prefix cache nor the distribution is the same.
"""

from collections.abc import Sequence

from msgspec import Struct

from agents.executor.engine import Draft, EngineCounts, Finish, Prefix
from agents.serving.errors import PromptTooLongError
from agents.serving.prompts import ChatPrompts
from agents.space.models import Sampling


class Continuation(Struct, frozen=True):
    """A prompt ready for an engine.

    Attributes:
        token_ids: The whole prompt.
        max_tokens: What the step and the context allow, the smaller; 0 when the context is full.
    """

    token_ids: tuple[int, ...]
    max_tokens: int


class Continuer:
    """Makes prompts for one model and reads its drafts.

    Args:
        model: Named in errors.
        prompts: The model's chat template and tokenizer.
        context_tokens: Its longest prompt plus output.
        counts: Counted into.
        instruction: A system message for conversations that have none, e.g. to reason step by step.
    """

    def __init__(
        self, model: str, prompts: ChatPrompts, context_tokens: int, counts: EngineCounts, instruction: str = ""
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._context_tokens = context_tokens
        self._counts = counts
        self._instruction = instruction

    def plan(self, prefix: Prefix, sampling: Sampling) -> Continuation:
        """Return what the engine is to continue.

        Raises:
            PromptTooLongError: The question alone fills the context. A path that fills it later does not raise:
                its continuation has `max_tokens` 0.
        """
        messages = [(message.role, message.content) for message in prefix.messages]
        if self._instruction and all(role != "system" for role, _ in messages):
            messages.insert(0, ("system", self._instruction))
        ids = list(self._prompts.prompt(messages))
        for step in prefix.steps:
            if step.token_ids is None:
                self._counts.reencoded_steps += 1
            ids.extend(self._prompts.encode(step.text) if step.token_ids is None else step.token_ids)
        room = self._context_tokens - len(ids)
        if room < 1 and not prefix.steps:
            self._counts.refused_prompts += 1
            raise PromptTooLongError(self._model, len(ids), self._context_tokens)
        return Continuation(tuple(ids), max(0, min(room, sampling.step_tokens)))

    def text_of(self, continuation: Continuation) -> str:
        """Return a prompt as text, for servers that take no token ids; special tokens kept."""
        return str(self._prompts.tokenizer.decode(list(continuation.token_ids), skip_special_tokens=False))

    def tokens_of(self, text: str) -> int:
        """Return the length of a text in tokens."""
        return len(self._prompts.encode(text))

    def full(self, continuation: Continuation) -> Draft:
        """Return the empty draft of a path whose context is full."""
        self._counts.full_contexts += 1
        return Draft(text="", finish="context", tokens=0, token_ids=(), prompt_tokens=len(continuation.token_ids))

    def draft(
        self,
        continuation: Continuation,
        sampling: Sampling,
        *,
        text: str,
        finish: Finish,
        token_ids: Sequence[int] | None,
        tokens: int,
    ) -> Draft:
        """Return the draft an engine made of a continuation.

        Args:
            continuation: What it continued.
            sampling: Asked of it.
            text: With the delimiter.
            finish: As the engine tells; `length` becomes `context` where the context set the limit.
            token_ids: As the engine tells, or None.
            tokens: How many it generated.
        """
        prompt_tokens = len(continuation.token_ids)
        if finish == "length" and prompt_tokens + tokens >= self._context_tokens:
            finish = "context"
        self._counts.cut_steps += finish == "length"
        self._counts.full_contexts += finish == "context"
        exact = tuple(token_ids) if token_ids is not None else None
        # The last token may reach beyond the delimiter, where the text was cut: then only the text is right.
        if exact and finish == "separator" and not text.endswith(self._prompts.piece(exact[-1])):
            exact = None
        return Draft(text=text, finish=finish, tokens=tokens, token_ids=exact, prompt_tokens=prompt_tokens)


def finish_of(finish_reason: str, stop: str | int | None, delimiter: str) -> Finish:
    """Return why a draft ended, from vLLM's two reasons.

    vLLM says `stop` for a stop string (named in the stop reason), for a stop token (its id) and for the
    end of sequence (no stop reason).

    >>> finish_of("stop", "\\n\\n", "\\n\\n"), finish_of("stop", None, "\\n\\n"), finish_of("length", None, "\\n\\n")
    ('separator', 'eos', 'length')
    """
    if finish_reason == "length":
        return "length"
    return "separator" if stop == delimiter else "eos"
