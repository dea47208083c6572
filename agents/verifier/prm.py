"""The verifier protocol, and process reward models behind it: in this process or at a server.

A verifier scores the last step of each path given, in [0, 1]. The search takes path means (§3.3); the
verifier knows nothing of them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from agents.serving.errors import PromptTooLongError
from agents.serving.http.server import JsonServer
from agents.serving.retry import USUAL, Retries, retrying
from agents.serving.vllm.host import EngineHost
from agents.serving.vllm.requests import Pooling
from agents.verifier.formats import Format, Rendered
from agents.verifier.scores import ScoreCountError, last_score, pooling_rows
from schemas.search import Scored, Served

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Overflow = Literal["keep-tail", "refuse"]
"""What to do with a path over the verifier's context: drop its leading steps and score the rest, which the
Scored says (`shortened`), or refuse to score it."""


@dataclass
class VerifierCounts:
    """What a verifier met, since it was made. For metrics.

    Attributes:
        shortened_paths: Paths scored without their leading steps.
        dropped_steps: How many steps that were.
        refused_paths: Paths too long to score: `PromptTooLongError` was raised.
    """

    shortened_paths: int = 0
    dropped_steps: int = 0
    refused_paths: int = 0


class Verifier(Protocol):
    """Scores steps.

    Attributes:
        served: What runs, for the Verification.
        counts: What it met.
    """

    served: Served
    counts: VerifierCounts

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        """Return a score for the last step of each path, and the tokens read for it.

        Args:
            question: What is being answered.
            paths: The texts of each path's steps, root first, delimiters included.

        Raises:
            PromptTooLongError: A path does not fit the verifier, by the policy or at all.
            ScoreCountError: The model answered with another number of scores than it was asked for.
            EngineFaultError: Another attempt may succeed.
            EngineDiedError: Only a restart of the process helps.
        """
        ...

    async def close(self) -> None:
        """Free what the verifier holds."""
        ...


class RowSource(Protocol):
    """Classifies the tokens of prompts: an engine host, or a server."""

    async def rows(self, prompts: Sequence[Sequence[int]]) -> "list[NDArray[np.float32]]":
        """Return, for each prompt, class probabilities of shape (positions, labels)."""
        ...

    async def close(self) -> None:
        """Free what the source holds."""
        ...


class ProcessRewardModel:
    """A verifier that is a process reward model.

    Args:
        served: What runs.
        source: Classifies tokens.
        format: How a path is put to the model.
        good_label: Which class is `right`.
        context_tokens: The model's longest prompt.
        overflow: What to do with longer ones.
    """

    def __init__(
        self,
        served: Served,
        source: RowSource,
        format: Format,
        *,
        good_label: int,
        context_tokens: int,
        overflow: Overflow = "keep-tail",
    ) -> None:
        self.served = served
        self.counts = VerifierCounts()
        self._source = source
        self._format = format
        self._good_label = good_label
        self._context_tokens = context_tokens
        self._overflow = overflow

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        """Return a score for the last step of each path; see `Verifier.score`."""
        fitted = [self._fitted(question, path) for path in paths]
        replies = await self._source.rows([rendered.token_ids for rendered, _ in fitted])
        return [
            Scored(
                score=last_score(rows, rendered, self._good_label, self.served.model),
                tokens=len(rendered.token_ids),
                shortened=dropped > 0,
            )
            for (rendered, dropped), rows in zip(fitted, replies, strict=True)
        ]

    async def close(self) -> None:
        """Close the source of rows."""
        await self._source.close()

    def _fitted(self, question: str, path: Sequence[str]) -> tuple[Rendered, int]:
        """Return the prompt of a path and how many leading steps were dropped to make it fit."""
        rendered = self._format.render(question, path)
        dropped = 0
        while len(rendered.token_ids) > self._context_tokens and dropped < len(path) - 1:
            if self._overflow == "refuse":
                break
            # Long paths are rare and a step has tens of tokens, so one render a dropped step is cheap enough.
            dropped += 1
            rendered = self._format.render(question, path[dropped:])
        if len(rendered.positions) != len(path) - dropped:
            raise ScoreCountError(
                f"{self.served.model}: {len(rendered.positions)} step tags in a prompt of "
                f"{len(path) - dropped} steps; check that its chat template keeps the assistant's turn whole"
            )
        if len(rendered.token_ids) > self._context_tokens:
            self.counts.refused_paths += 1
            raise PromptTooLongError(
                self.served.model, len(rendered.token_ids), self._context_tokens, "path to verify"
            )
        self.counts.shortened_paths += dropped > 0
        self.counts.dropped_steps += dropped
        return rendered, dropped


class HostedRows:
    """Rows from a pooling model of an engine host.

    Args:
        host: Started, with the model loaded.
        model: Its name there.
        owns_host: Whether closing the source closes the host.
        retries: How often a batch that failed is tried.
    """

    def __init__(
        self, host: EngineHost, model: str, *, owns_host: bool = False, retries: Retries = USUAL
    ) -> None:
        self._host = host
        self._retries = retries
        self._model = model
        self._owns_host = owns_host

    async def rows(self, prompts: Sequence[Sequence[int]]) -> "list[NDArray[np.float32]]":
        """Return class probabilities for each prompt; errors as `EngineHost.run`."""
        requests = [Pooling(prompt_token_ids=ids) for ids in prompts]
        pooled = await retrying(lambda: self._host.run(self._model, requests), self._retries)
        return [each.rows for each in pooled]

    async def close(self) -> None:
        """Close the host, if it is this source's own."""
        if self._owns_host:
            await asyncio.to_thread(self._host.close)


class HttpRows:
    """Rows from a server's `/pooling` (vLLM). Closing closes the server's connections.

    Args:
        server: Where it is.
        model: Its name there.
        batch: Most prompts in one request.
    """

    def __init__(self, server: JsonServer, model: str, *, batch: int = 64) -> None:
        self._server = server
        self._model = model
        self._batch = batch

    async def rows(self, prompts: Sequence[Sequence[int]]) -> "list[NDArray[np.float32]]":
        """Return class probabilities for each prompt; errors as `JsonServer.post`."""
        parts = [prompts[start : start + self._batch] for start in range(0, len(prompts), self._batch)]
        replies = await asyncio.gather(*(self._part(part) for part in parts))
        return [rows for reply in replies for rows in reply]

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _part(self, prompts: Sequence[Sequence[int]]) -> "list[NDArray[np.float32]]":
        body = {
            "model": self._model,
            "task": "token_classify",
            "encoding_format": "float",
            "input": [list(prompt) for prompt in prompts],
        }
        return pooling_rows(await self._server.post("/pooling", body), len(prompts))
