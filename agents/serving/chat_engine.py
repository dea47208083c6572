"""Engine for any OpenAI-compatible `/v1/chat/completions`: whole answers, billed by the server's token counts."""

import functools
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import Sampling
from agents.serving.chat_stream import ChatStream
from agents.serving.engine import Drafted, OnText, Prefix, check_seeds, conversation_of
from agents.serving.errors import ContentFilteredError, EngineReplyError, RequestRefusedError, ServingError
from agents.serving.http import Sender, T, all_of
from schemas.chat import ChatOptions, UpstreamChoice
from schemas.errors import InvalidField
from schemas.forest import Count, Finish
from schemas.prices import Billed
from schemas.query import Message, ToolCall
from schemas.search import Served

PATH = "/v1/chat/completions"

_ROOM = 16
"""Approximate number of tokens that a server's chat template adds to a message."""

_IMAGE = 1_024
"""Approximate number of tokens of an image."""

_AUDIO_CHARACTERS = 500
"""Approximate number of characters of base64 for each token of a recording: MP3 at 64 kbit/s, 25 tokens a second."""

_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")

_TOKEN_BYTES = 3
"""Bytes per prompt token. This is a low estimate for prose and code; the server's tokenizer is not available here."""


class ChatEngine:
    """Answers with a model behind chat completions. Closing the engine closes its connections to the server.

    Args:
        server: The server, or several of the same model.
        model: The model's name in the catalogue.
        endpoint: The endpoint in the model's catalogue entry.
        instruction: The deployment's system message for conversations without one, unless the endpoint has its own.
    """

    def __init__(self, server: Sender, model: str, endpoint: Endpoint, *, instruction: str = "") -> None:
        self.model = model
        self.served = Served(name="chat", model=endpoint.model)
        self._server, self._endpoint = server, endpoint
        self._instruction = endpoint.instruction or instruction

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` answers for each prefix; prefixes have no steps here. See `Engine.generate`.

        Sends one request per answer, or a single one if the server supports `n` (`native_n`) and all prefixes match.
        If a request fails, the error contains the tokens billed for the other requests and for an unusable reply.
        """
        check_seeds(prefixes, n, seeds)
        asked = [prefix for prefix in prefixes for _ in range(n)]
        requests = list(zip(asked, [1] * len(asked), seeds, strict=True))
        if self._endpoint.native_n and all(each == asked[0] for each in asked):
            requests = [(asked[0], len(asked), seeds[0])]
        bills: list[Billed] = []
        made: list[list[Drafted]] = await _with_bills(
            all_of(self._completions(*request, sampling, bills) for request in requests), bills
        )
        return [answer for answers in made for answer in answers]

    async def stream(
        self, step_id: str, prefix: Prefix, seed: int, sampling: Sampling, on_text: OnText
    ) -> Drafted:
        """Return one answer; see `StreamingEngine.stream`. Nothing is streamed if the endpoint's `stream` is false."""
        bills: list[Billed] = []
        streams = on_text if self._endpoint.stream else None
        [made] = await _with_bills(self._completions(prefix, 1, seed, sampling, bills, streams), bills)
        return made

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _completions(
        self,
        prefix: Prefix,
        n: int,
        seed: int,
        sampling: Sampling,
        bills: list[Billed],
        on_text: OnText | None = None,
    ) -> list[Drafted]:
        endpoint = self._endpoint
        body: dict[str, Any] = {
            **endpoint.extra_body,
            **self._asked(prefix.options),
            "model": endpoint.model,
            "messages": self._messages(prefix.messages),
            endpoint.max_tokens_field: self._most(prefix, sampling),
        }
        if endpoint.seed:
            body["seed"] = seed
        if n > 1:
            body["n"] = n
        if on_text is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return await self._server.post(
            PATH,
            body,
            lambda reply: _drafts(reply, self.model, n, prefix.whole, bills),
            None if on_text is None else lambda: ChatStream(f"{PATH}: {self.model}", on_text),
            conversation=conversation_of(prefix.messages),
        )

    def _asked(self, options: ChatOptions | None) -> dict[str, Any]:
        fields = {} if options is None else options.fields
        return {
            name: each for name, each in fields.items() if self._endpoint.sampling or name not in _SAMPLING
        }

    def _messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        dialogue = [_said(message) for message in messages]
        if self._instruction and all(each["role"] != "system" for each in dialogue):
            dialogue.insert(0, {"role": "system", "content": self._instruction})
        return dialogue

    def _most(self, prefix: Prefix, sampling: Sampling) -> int:
        """Return `max_tokens` for an answer. Servers refuse requests whose prompt and answer may exceed the context."""
        prompt = sum(_size(message) // _TOKEN_BYTES + _ROOM for message in prefix.messages)
        prompt += len(self._instruction.encode()) // _TOKEN_BYTES
        prompt += 0 if prefix.options is None else len(orjson.dumps(prefix.options.fields)) // _TOKEN_BYTES
        bounds = [sampling.step_tokens, self._endpoint.context_tokens - prompt]
        if prefix.max_tokens is not None:
            bounds.append(prefix.max_tokens)
        return max(1, min(bounds))


async def _with_bills(made: Awaitable[T], bills: list[Billed]) -> T:
    """Await a result. If it fails, add to the error what was billed for the replies that are lost."""
    try:
        return await made
    except ServingError as error:
        if bills:
            error.billed = functools.reduce(Billed.plus, bills)
        raise


def _said(message: Message) -> dict[str, Any]:
    """Return a message in the API's form."""
    said: dict[str, Any] = {"role": message.role, "content": list(message.parts) or message.content}
    if message.tool_calls:
        said["tool_calls"] = [_call(each) for each in message.tool_calls]
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    what = "input" if call.type == "custom" else "arguments"
    return {"id": call.id, "type": call.type, call.type: {"name": call.name, what: call.arguments}}


def _size(message: Message) -> int:
    return (
        message.images * _IMAGE * _TOKEN_BYTES
        + sum(message.audio) * _TOKEN_BYTES // _AUDIO_CHARACTERS
        + len(message.text.encode())
        + sum(len(call.arguments.encode()) for call in message.tool_calls)
    )


# The fields of a reply that are used; servers send many more.


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
    """One of a reply's answers."""

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
        """Return the usage in the form used in records."""
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


def _drafts(reply: dict[str, Any], model: str, n: int, whole: bool, bills: list[Billed]) -> list[Drafted]:
    """Return the answers in a reply, and append its bill to `bills`, even if the answers are unusable."""
    try:
        read = msgspec.convert(reply, ChatReply)
    except msgspec.ValidationError as error:
        raise EngineReplyError(f"{PATH}: {model}: unexpected reply: {error}") from error
    if read.usage is not None and read.usage.prompt_tokens:
        bills.append(read.usage.billed)
    if len(read.choices) != n:
        fix = "; set endpoint.native_n to false" if n > 1 else ""
        raise EngineReplyError(f"{PATH}: {model}: {len(read.choices)} choices for a request of {n}{fix}")
    withheld = (
        c.finish_reason == "content_filter" or (c.message.refusal and not whole) for c in read.choices
    )
    if any(withheld):
        raise ContentFilteredError(
            f"{model}: the server withheld the completion, by a content filter or a refusal"
        )
    if read.usage is None or not read.usage.prompt_tokens:
        raise EngineReplyError(
            f"{PATH}: {model}: the reply does not say how many tokens it took (usage), and its cost follows from that; "
            "have the server count them or, if it does so only without a stream, set endpoint.stream to false"
        )
    # For several choices, the server reports only the total.
    each, more = divmod(read.usage.completion_tokens, n)
    return [
        Drafted(
            text=choice.message.text,
            tokens=each + (at < more),
            finish=_finish(choice.finish_reason),
            prompt_tokens=read.usage.prompt_tokens,
            billed=read.usage.billed if at == 0 else None,
            upstream=_choice(reply["choices"][at], model) if whole else None,
        )
        for at, choice in enumerate(read.choices)
    ]


def _choice(choice: dict[str, Any], model: str) -> UpstreamChoice:
    """Return a choice as the server returned it. Raises RequestRefusedError if a record cannot carry it."""
    logprobs = choice.get("logprobs")
    try:
        return UpstreamChoice(
            message=choice["message"],
            finish_reason=choice.get("finish_reason") or "stop",
            logprobs="" if logprobs is None else orjson.dumps(logprobs).decode(),
        )
    except InvalidField as error:
        raise RequestRefusedError(f"{PATH}: {model}: the reply's {error.field} {error.why}") from error


def _finish(reason: str | None) -> Finish:
    return "length" if reason == "length" else "eos"
