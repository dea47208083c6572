"""From a prefix to the token ids that an engine continues, and from its result to a draft.

Records contain a path as text. Encoding a text again may give other tokens than the model generated; then the prefix
cache misses and the distribution differs. So the token ids of live paths are remembered here. Only paths that are not
remembered are encoded again, and counted.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from agents.executor.engine import Drafted, EngineCounts, Prefix
from agents.serving.errors import PromptTooLongError
from agents.serving.prompts import ChatPrompts
from agents.space.models import Sampling
from schemas.forest import Finish
from schemas.query import Message

REMEMBERED_PATHS = 16_384  # 32 queries in flight, 64 drafts a step, and then eight times over


_Path: TypeAlias = tuple[tuple[Message, ...], tuple[str, ...]]


class Continuation(Struct, frozen=True):
    """A prompt ready for an engine.

    Attributes:
        prefix: The prefix.
        prompt_ids: The whole prompt.
        answer_ids: The end of the prompt: the tokens of the path's steps so far.
        max_tokens: The least of what the step, the path and the context allow; 0 if the context is full.
    """

    prefix: Prefix
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    max_tokens: int


class Continuer:
    """Makes prompts for one model and interprets its output as drafts.

    Args:
        model: The model's name, for errors.
        prompts: The model's chat template and tokenizer.
        context_tokens: Its longest prompt plus output.
        counts: Counts of unusual events, to be updated.
        instruction: A system message for conversations without one, e.g. to reason step by step.
        remembered: Number of paths whose token ids are kept.
    """

    def __init__(
        self,
        model: str,
        prompts: ChatPrompts,
        context_tokens: int,
        counts: EngineCounts,
        *,
        instruction: str = "",
        remembered: int = REMEMBERED_PATHS,
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._context_tokens = context_tokens
        self._counts = counts
        self._instruction = instruction
        self._remembered = remembered
        self._paths: OrderedDict[_Path, tuple[int, ...]] = OrderedDict()

    def plan(self, prefix: Prefix, sampling: Sampling) -> Continuation:
        """Return what the engine has to continue.

        Raises:
            PromptTooLongError: The question alone fills the context. If a path fills it later, nothing is raised; its
                continuation has `max_tokens` 0.
        """
        question = self._prompts.prompt(self._dialogue(prefix.messages))
        answer = self._answer_ids(prefix)
        left = self._context_tokens - len(question) - len(answer)
        if left < 1 and not prefix.steps:
            self._counts.refused_prompts += 1
            raise PromptTooLongError(self._model, len(question), self._context_tokens)
        most = (
            sampling.step_tokens
            if prefix.max_tokens is None
            else min(sampling.step_tokens, prefix.max_tokens)
        )
        return Continuation(prefix, question + answer, answer, max(0, min(left, most)))

    def full(self, continuation: Continuation) -> Drafted:
        """Return the empty draft of a path whose context is full."""
        self._counts.full_contexts += 1
        return Drafted(
            text="", finish="context", tokens=0, prompt_tokens=len(continuation.prompt_ids), token_ids=()
        )

    def draft(
        self,
        continuation: Continuation,
        *,
        text: str,
        finish: Finish,
        token_ids: Sequence[int] | None,
        tokens: int,
    ) -> Drafted:
        """Return the draft that an engine generated, and remember its tokens for the next step.

        Args:
            continuation: What the engine continued.
            text: The generated text, with the delimiter.
            finish: Why it ended, as reported by the engine.
            token_ids: The generated tokens; None if the engine does not return them.
            tokens: Number of generated tokens.
        """
        prompt_tokens = len(continuation.prompt_ids)
        ids = None if token_ids is None else tuple(token_ids)
        if finish == "length" and prompt_tokens + tokens >= self._context_tokens:
            finish = "context"
        self._counts.full_contexts += finish == "context"
        self._counts.cut_steps += finish == "length"
        if ids and (finish == "length" or (finish == "separator" and self._whole(text, ids))):
            self._remember(continuation, text, ids)
        return Drafted(text=text, finish=finish, tokens=tokens, prompt_tokens=prompt_tokens, token_ids=ids)

    def text_of(self, continuation: Continuation) -> str:
        """Return a prompt as text, including special tokens, for servers that do not accept token ids."""
        return self._prompts.decode(continuation.prompt_ids, skip_special_tokens=False)

    def tokens_of(self, text: str) -> int:
        """Return the length of a text in tokens."""
        return len(self._prompts.encode(text))

    def _dialogue(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        dialogue = [(message.role, message.content) for message in messages]
        if self._instruction and all(role != "system" for role, _ in dialogue):
            dialogue.insert(0, ("system", self._instruction))
        return dialogue

    def _answer_ids(self, prefix: Prefix) -> tuple[int, ...]:
        if not prefix.steps:
            return ()
        path = (prefix.messages, prefix.steps)
        if (known := self._paths.get(path)) is not None:
            self._paths.move_to_end(path)
            return known
        self._counts.reencoded_paths += 1
        return self._prompts.encode("".join(prefix.steps))

    def _whole(self, text: str, ids: tuple[int, ...]) -> bool:
        """Return whether the text contains all of its tokens: the last one may extend beyond the delimiter."""
        return text.endswith(self._prompts.piece(ids[-1]))

    def _remember(self, continuation: Continuation, text: str, ids: tuple[int, ...]) -> None:
        prefix = continuation.prefix
        path = (prefix.messages, (*prefix.steps, text))
        self._paths[path] = continuation.answer_ids + ids
        self._paths.move_to_end(path)
        if len(self._paths) > self._remembered:
            self._paths.popitem(last=False)


def finish_of(finish_reason: str, stop: str | int | None, delimiter: str) -> Finish:
    r"""Return why a draft ended, from vLLM's two reasons.

    vLLM says `stop` for a stop string (named in the stop reason), for a stop token (its id) and for the
    end of sequence (no stop reason).

    >>> finish_of("stop", "\n\n", "\n\n"), finish_of("stop", None, "\n\n"), finish_of("length", None, "\n\n")
    ('separator', 'eos', 'length')
    """
    if finish_reason == "length":
        return "length"
    return "separator" if stop == delimiter else "eos"
