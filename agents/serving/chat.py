"""The engine of any OpenAI-compatible `/v1/chat/completions`: whole answers, priced by the tokens the server counts."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix, check_seeds
from agents.serving.errors import ContentFilteredError, EngineReplyError
from agents.serving.http import JsonServer, all_of
from schemas.forest import Count, Finish
from schemas.prices import Billed
from schemas.query import Message
from schemas.search import Served

PATH = "/v1/chat/completions"

_ROOM = 16
"""Approximate number of tokens that a server's chat template adds to a message."""

_TOKEN_BYTES = 3
"""Bytes per prompt token, a low estimate for prose and code: the server's tokenizer is not available here."""


class ChatEngine:
    """Answers with a model behind chat completions. Closing the engine closes its connections to the server.

    Args:
        server: The server.
        model: The model's name in the catalogue.
        endpoint: Its entry's endpoint.
        instruction: A system message for conversations without one.
    """

    def __init__(self, server: JsonServer, model: str, endpoint: Endpoint, *, instruction: str = "") -> None:
        self.model = model
        self.served = Served(name="chat", model=endpoint.model)
        self._server, self._endpoint, self._instruction = server, endpoint, instruction

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` answers for each prefix, which has no steps; see `Engine.generate`.

        Sends one request per answer, or one per prefix if the server supports `n` (`native_n`).
        """
        check_seeds(prefixes, n, seeds)
        asked = [prefix for prefix in prefixes for _ in range(n)]
        if self._endpoint.native_n and len(asked) > 1 and all(each == asked[0] for each in asked):
            return await self._completions(asked[0], len(asked), seeds[0], sampling)
        pairs = zip(asked, seeds, strict=True)
        made: list[list[Drafted]] = await all_of(
            self._completions(prefix, 1, seed, sampling) for prefix, seed in pairs
        )
        return [answer for answers in made for answer in answers]

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _completions(self, prefix: Prefix, n: int, seed: int, sampling: Sampling) -> list[Drafted]:
        endpoint = self._endpoint
        messages = self._messages(prefix.messages)
        body: dict[str, Any] = {
            **endpoint.extra_body,
            "model": endpoint.model,
            "messages": messages,
            endpoint.max_tokens_field: self._most(messages, prefix, sampling),
        }
        if endpoint.seed:
            body["seed"] = seed
        if n > 1:
            body["n"] = n
        return await self._server.post(PATH, body, lambda reply: _drafts(reply, self.model, n))

    def _messages(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        dialogue = [{"role": message.role, "content": message.text} for message in messages]
        if self._instruction and all(each["role"] != "system" for each in dialogue):
            dialogue.insert(0, {"role": "system", "content": self._instruction})
        return dialogue

    def _most(self, messages: Sequence[dict[str, str]], prefix: Prefix, sampling: Sampling) -> int:
        """Return `max_tokens` of an answer: servers refuse requests whose prompt and answer may exceed the context."""
        prompt = sum(len(each["content"].encode()) // _TOKEN_BYTES + _ROOM for each in messages)
        bounds = [sampling.step_tokens, self._endpoint.context_tokens - prompt]
        if prefix.max_tokens is not None:
            bounds.append(prefix.max_tokens)
        return max(1, min(bounds))


# The fields of a reply that are read; servers send many more.


class ContentPart(Struct):
    """One part of a multi-part message."""

    text: str = ""


class ChatMessage(Struct):
    """The message of a choice. Its reasoning is billed, but is not part of the answer."""

    content: str | list[ContentPart] | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        """Return its text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatChoice(Struct):
    """One answer."""

    message: ChatMessage
    finish_reason: str | None = None


class PromptDetails(Struct):
    """Breakdown of the prompt's tokens."""

    cached_tokens: Count | None = None


class CompletionDetails(Struct):
    """Breakdown of the completion's tokens."""

    reasoning_tokens: Count | None = None


class Usage(Struct):
    """The tokens that the server counted, over all choices."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None

    @property
    def billed(self) -> Billed:
        """Return it in the form used in records."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Billed(
            input=self.prompt_tokens,
            cached_input=(prompt.cached_tokens or 0) if prompt else 0,
            output=self.completion_tokens,
            reasoning=(completion.reasoning_tokens or 0) if completion else 0,
        )


class ChatReply(Struct):
    """A reply of `/v1/chat/completions`."""

    choices: list[ChatChoice]
    usage: Usage | None = None


def _drafts(reply: dict[str, Any], model: str, n: int) -> list[Drafted]:
    try:
        read = msgspec.convert(reply, ChatReply)
    except msgspec.ValidationError as error:
        raise EngineReplyError(f"{PATH}: {model}: unexpected reply: {error}") from error
    if len(read.choices) != n:
        fix = "; set endpoint.native_n to false" if n > 1 else ""
        raise EngineReplyError(f"{PATH}: {model}: {len(read.choices)} choices for a request of {n}{fix}")
    if any(c.finish_reason == "content_filter" or c.message.refusal for c in read.choices):
        raise ContentFilteredError(
            f"{model}: the server withheld the completion, by a content filter or a refusal"
        )
    if read.usage is None or not read.usage.prompt_tokens:
        raise EngineReplyError(
            f"{PATH}: {model}: the reply does not say how many tokens it took (usage), and its cost follows from that; "
            "have the server count them"
        )
    # For several choices the server reports only the sum.
    each, more = divmod(read.usage.completion_tokens, n)
    return [
        Drafted(
            text=choice.message.text,
            tokens=each + (at < more),
            finish=_finish(choice.finish_reason),
            prompt_tokens=read.usage.prompt_tokens,
            billed=read.usage.billed if at == 0 else None,
        )
        for at, choice in enumerate(read.choices)
    ]


def _finish(reason: str | None) -> Finish:
    return "length" if reason == "length" else "eos"
