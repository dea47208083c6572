"""The engine protocol (prefixes in, drafts of one step out), and the conversion of prefixes to token ids."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from agents.catalogue.models import Sampling
from agents.serving.errors import PromptTooLongError
from agents.serving.prompts import CACHED_BYTES, ChatPrompts, RecentTokens, digest
from schemas.chat import ChatOptions, UpstreamChoice
from schemas.forest import Finish
from schemas.prices import Billed
from schemas.query import Message, ToolCall
from schemas.search import Served

# The engine protocol: prefixes in, drafts of one step out.
#
# An engine serves one model: with vLLM in this process, on a remote server, or from a recording. The search treats them
# all alike. Every draft has its own seed, so its text does not depend on the rest of the batch, except through
# rounding, which can differ between batches.


class Drafted(Struct, frozen=True):
    """One draft that an engine generated.

    Attributes:
        text: The step with its delimiter. Empty if the model's context was already full.
        finish: Why it ended: `separator`, `eos`, `length` (cut at `step_tokens`; the path continues in the middle of
            the step) or `context` (the model's context is full; the path cannot continue).
        tokens: Number of tokens generated, including the end-of-sequence token.
        prompt_tokens: Length of the prompt before the draft: template, question and prefix. In a first step, this is
            L_in of the cost formulas.
        token_ids: The generated tokens, if the engine returns them.
        billed: Tokens billed for the draft's request, if an upstream counts them. If one request made several drafts,
            only the first has this field.
        upstream: The choice exactly as the upstream returned it, if the prefix's `whole` is set.
    """

    text: str
    tokens: int
    finish: Finish
    prompt_tokens: int = 0
    token_ids: tuple[int, ...] | None = None
    billed: Billed | None = None
    upstream: UpstreamChoice | None = None


class Prefix(Struct, frozen=True, kw_only=True):
    """What a draft continues: the conversation and the path's steps so far.

    Attributes:
        messages: The conversation, as in `Query.chat`.
        steps: The texts of the path's steps, in order, delimiters included; empty for a first step.
        max_tokens: Maximum tokens per draft, at least 1, in addition to the sampling's `step_tokens`; None for no
            limit.
        options: The client's options for a chat endpoint, such as tools and sampling parameters. Other engines ignore
            them and use only `Sampling`.
        whole: Whether to return everything in the upstream's reply, not only the text (`Drafted.upstream`).
    """

    messages: tuple[Message, ...]
    steps: tuple[str, ...] = ()
    max_tokens: int | None = None
    options: ChatOptions | None = None
    whole: bool = False


def conversation_of(messages: Sequence[Message]) -> bytes:
    """Return an identity of a conversation that is the same in all its turns: a digest of its beginning.

    >>> first = Message(role="user", content="How much is 2 plus 3?")
    >>> later = first, Message(role="assistant", content="5"), Message(role="user", content="And 4?")
    >>> conversation_of([first]) == conversation_of(later)
    True
    """
    last = next((at for at, each in enumerate(messages) if each.role == "user"), len(messages))
    return digest(tuple(messages[: last + 1]))


class Engine(Protocol):
    """One model that drafts steps.

    Attributes:
        model: Its name in the catalogue.
        served: Name and version of the serving software, for the Answer.
    """

    model: str
    served: Served

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` drafts for each prefix, grouped by prefix.

        Cancelling the call stops the work. If one draft fails, the whole call fails.

        Args:
            step_id: Identifies the step, e.g. `query_id/3`.
            prefixes: What to continue.
            n: Number of drafts per prefix.
            seeds: One per draft, 0 <= seed < 2**63; `seeds[i * n + k]` is for draft k of prefix i.
            sampling: Temperature, tokens per step, delimiter.

        Raises:
            PromptTooLongError: The question alone fills the model's context.
            RequestRefusedError: The model will never accept this request.
            EngineFaultError: The attempt failed; another may succeed.
            EngineDiedError: The engine died, and only a restart of the process helps.
        """
        ...

    async def close(self) -> None:
        """Free the engine's resources."""
        ...


Piece: TypeAlias = str | tuple[ToolCall, ...]
"""A piece of a draft's text, or all calls of tools so far, the last of them perhaps with a part of its arguments."""

OnText: TypeAlias = Callable[[Piece], None]
"""Function that receives the pieces of a draft as they arrive (`StreamingEngine.stream`)."""


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that can pass on a draft while the model is generating it."""

    async def stream(
        self, step_id: str, prefix: Prefix, seed: int, sampling: Sampling, on_text: OnText
    ) -> Drafted:
        """Return one draft, as `generate` would.

        Args:
            step_id: As in `generate`.
            prefix: What to continue.
            seed: Seed of the draft.
            sampling: As in `generate`.
            on_text: Called with each piece as it arrives. The pieces need not add up to the whole draft. After the
                first piece, the request is not sent again.

        Raises:
            ServingError: As in `generate`.
        """
        ...


def check_seeds(prefixes: Sequence[Prefix], n: int, seeds: Sequence[int]) -> None:
    """Reject a call whose number of seeds does not match its number of drafts.

    Raises:
        ValueError: They do not match. This is a bug in the caller, not a fault of the query.
    """
    if n < 1 or len(seeds) != len(prefixes) * n:
        raise ValueError(
            f"{len(prefixes)} prefixes with n={n} take {len(prefixes) * n} seeds, got {len(seeds)}"
        )


# From a prefix to the token ids that an engine continues, and from the engine's output to a draft.
#
# Records store a path as text. Encoding that text may yield different tokens from those that the model generated, which
# would miss the prefix cache and change the distribution. The token ids of live paths are therefore cached here. Only a
# path that is not in the cache, for instance after a restart, is encoded again.


class Continuation(Struct, frozen=True):
    """A prompt ready for an engine.

    Attributes:
        prefix: The prefix.
        question: Digest of its conversation.
        prompt_ids: The whole prompt.
        answer_ids: The end of the prompt: the tokens of the path's steps so far.
        max_tokens: The smallest of the step's, the path's and the context's limits; 0 if the context is full.
    """

    prefix: Prefix
    question: bytes
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    max_tokens: int


class Continuer:
    """Builds prompts for one model and turns its output into drafts.

    Args:
        model: The model's name, for errors.
        prompts: The model's chat template and tokenizer.
        context_tokens: The model's maximum tokens of prompt and output together.
        instruction: A system message for conversations without one, e.g. to reason step by step.
        remembered_bytes: Size of the cache of paths' token ids.
    """

    def __init__(
        self,
        model: str,
        prompts: ChatPrompts,
        context_tokens: int,
        *,
        instruction: str = "",
        remembered_bytes: int = CACHED_BYTES,
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._context_tokens = context_tokens
        self._instruction = instruction
        self._paths = RecentTokens(remembered_bytes)
        self._last: tuple[tuple[Message, ...], tuple[int, ...], bytes] = ((), (), b"")

    def plan(self, prefix: Prefix, sampling: Sampling) -> Continuation:
        """Return the prompt that the engine continues.

        Raises:
            PromptTooLongError: The question alone fills the context. A path that fills it later is not an error; its
                continuation has `max_tokens` 0.
        """
        question, key = self._question(prefix.messages)
        answer = self._answer_ids(prefix)
        left = self._context_tokens - len(question) - len(answer)
        if left < 1 and not prefix.steps:
            raise PromptTooLongError(self._model, len(question), self._context_tokens)
        most = (
            sampling.step_tokens
            if prefix.max_tokens is None
            else min(sampling.step_tokens, prefix.max_tokens)
        )
        return Continuation(prefix, key, question + answer, answer, max(0, min(left, most)))

    def full(self, continuation: Continuation) -> Drafted:
        """Return the empty draft of a path whose context is full."""
        return Drafted(
            text="", finish="context", tokens=0, prompt_tokens=len(continuation.prompt_ids), token_ids=()
        )

    def draft(
        self,
        continuation: Continuation,
        *,
        text: str,
        finish: Finish,
        token_ids: Sequence[int],
    ) -> Drafted:
        """Return the draft that an engine generated, and remember its tokens for the next step.

        Args:
            continuation: What the engine continued.
            text: The generated text, with the delimiter.
            finish: Why it ended, as reported by the engine.
            token_ids: The generated tokens.
        """
        prompt_tokens = len(continuation.prompt_ids)
        ids = tuple(token_ids)
        if finish == "length" and prompt_tokens + len(ids) >= self._context_tokens:
            finish = "context"
        if ids and (finish == "length" or (finish == "separator" and self._whole(text, ids))):
            self._remember(continuation, text, ids)
        return Drafted(text=text, finish=finish, tokens=len(ids), prompt_tokens=prompt_tokens, token_ids=ids)

    def _question(self, messages: tuple[Message, ...]) -> tuple[tuple[int, ...], bytes]:
        """Return a conversation's prompt and digest. The last is cached: it may be long, and all prefixes share it."""
        if messages is not self._last[0]:
            self._last = messages, self._prompts.prompt(self._dialogue(messages)), digest(messages)
        return self._last[1:]

    def _dialogue(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        dialogue = [(message.role, message.text) for message in messages]
        if self._instruction and all(role != "system" for role, _ in dialogue):
            dialogue.insert(0, ("system", self._instruction))
        return dialogue

    def _answer_ids(self, prefix: Prefix) -> tuple[int, ...]:
        if not prefix.steps:
            return ()
        known = self._paths.get(digest((self._question(prefix.messages)[1], prefix.steps)))
        return known if known is not None else self._prompts.encode("".join(prefix.steps))

    def _whole(self, text: str, ids: tuple[int, ...]) -> bool:
        """Return whether the text ends with the whole last token. The token may continue after the delimiter."""
        return text.endswith(self._prompts.piece(ids[-1]))

    def _remember(self, continuation: Continuation, text: str, ids: tuple[int, ...]) -> None:
        prefix = continuation.prefix
        path = digest((continuation.question, (*prefix.steps, text)))
        self._paths.put(path, continuation.answer_ids + ids)


def finish_of(finish_reason: str, stop: str | int | None, delimiter: str) -> Finish:
    r"""Return why a draft ended, from vLLM's finish reason and stop reason.

    vLLM's finish reason is `stop` in three cases, which its stop reason distinguishes: a stop string (the string), a
    stop token (its id), and the end of sequence (None).

    >>> finish_of("stop", "\n\n", "\n\n"), finish_of("stop", None, "\n\n"), finish_of("length", None, "\n\n")
    ('separator', 'eos', 'length')
    """
    if finish_reason == "length":
        return "length"
    return "separator" if stop == delimiter else "eos"
