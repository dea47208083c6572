"""The engine of a remote server with an OpenAI-compatible `/v1/completions`.

The prompt is rendered here with the model's own chat template, so a step is continued as exactly as in process. vLLM
accepts and returns token ids, and reports which stop string it met. From a server that does neither, more than one step
is requested, and its text is cut at the delimiter here (`dialect="plain"`). That works with any server, but wastes what
was generated beyond the delimiter.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from agents.executor.engine import Drafted, EngineCounts, Prefix, check_seeds
from agents.executor.engines.continuation import Continuation, Continuer, finish_of
from agents.serving.errors import EngineReplyError
from agents.serving.http.server import JsonServer
from agents.serving.prompts import ChatPrompts
from agents.space.models import Sampling
from schemas.search import Served

T = TypeVar("T")
Dialect = Literal["vllm", "plain"]


class HttpEngine:
    """Drafts steps with a model on a server. Closing the engine closes its connections to the server.

    Args:
        server: The server.
        model: Its name in the catalogue.
        prompts: Its chat template, from a local copy of its tokenizer.
        context_tokens: Its longest prompt plus output, with which the server was started.
        served_name: Its name at the server; empty if it is the same as `model`.
        instruction: A system message for conversations without one.
        dialect: `vllm`, or `plain` for servers that do not report why a text stopped.
    """

    def __init__(
        self,
        server: JsonServer,
        model: str,
        prompts: ChatPrompts,
        *,
        context_tokens: int,
        served_name: str = "",
        instruction: str = "",
        dialect: Dialect = "vllm",
    ) -> None:
        self.model = model
        self.counts = EngineCounts()
        self.served = Served(name=f"openai-http/{dialect}", model=served_name or model)
        self.wasted_tokens = 0
        self._server = server
        self._dialect = dialect
        self._continuer = Continuer(model, prompts, context_tokens, self.counts, instruction=instruction)

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` drafts for each prefix, with one request per draft; see `Engine.generate`."""
        check_seeds(prefixes, n, seeds)
        plans = [plan for prefix in prefixes for plan in [self._continuer.plan(prefix, sampling)] * n]
        return await _all(self._draft(plan, seed, sampling) for plan, seed in zip(plans, seeds, strict=True))

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _draft(self, plan: Continuation, seed: int, sampling: Sampling) -> Drafted:
        if not plan.max_tokens:
            return self._continuer.full(plan)
        body: dict[str, Any] = {
            "model": self.served.model,
            "max_tokens": plan.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "n": 1,
        }
        if self._dialect == "plain":
            reply = await self._server.post(
                "/v1/completions", body | {"prompt": self._continuer.text_of(plan)}
            )
            return self._plain(plan, _choice(reply), sampling.delimiter)
        body |= {
            "prompt": plan.prompt_ids,
            "top_k": sampling.top_k,
            "stop": [sampling.delimiter],
            "include_stop_str_in_output": True,
            "skip_special_tokens": True,
            "return_token_ids": True,
        }
        return self._told(plan, _choice(await self._server.post("/v1/completions", body)), sampling.delimiter)

    def _told(self, plan: Continuation, choice: "Choice", delimiter: str) -> Drafted:
        if choice.token_ids is None:
            raise EngineReplyError(
                f"{self.model}: the server returned no token_ids, so it is not vLLM; use the plain dialect for it"
            )
        finish = finish_of(choice.finish_reason, choice.stop_reason, delimiter)
        ids = choice.token_ids
        return self._continuer.draft(plan, text=choice.text, finish=finish, token_ids=ids, tokens=len(ids))

    def _plain(self, plan: Continuation, choice: "Choice", delimiter: str) -> Drafted:
        step, found, beyond = choice.text.partition(delimiter)
        text = step + found
        tokens = self._continuer.tokens_of(text)
        self.wasted_tokens += self._continuer.tokens_of(beyond)
        finish = finish_of(choice.finish_reason, None, delimiter)
        return self._continuer.draft(
            plan, text=text, finish="separator" if found else finish, token_ids=None, tokens=tokens
        )


class Choice(msgspec.Struct):
    """The part of a completion that is used; servers send much more."""

    text: str
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class Choices(msgspec.Struct):
    """A response of `/v1/completions`."""

    choices: list[Choice]


def _choice(reply: dict[str, Any]) -> Choice:
    try:
        choices = msgspec.convert(reply, Choices).choices
    except msgspec.ValidationError as error:
        raise EngineReplyError(f"/v1/completions: unexpected reply: {error}") from error
    if len(choices) != 1:
        raise EngineReplyError(f"/v1/completions: {len(choices)} choices for a request of one")
    return choices[0]


async def _all(calls: "Sequence[Coroutine[Any, Any, T]] | Any") -> list[T]:
    """Await all; at the first failure, cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
