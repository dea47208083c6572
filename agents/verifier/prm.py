"""The verifier protocol and its process reward models: in this process, on a server, or recorded (§3.3)."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from agents.catalogue.models import VerifierModel
from agents.serving.errors import (
    DeadlinePassedError,
    EngineDiedError,
    EngineReplyError,
    PromptTooLongError,
    ServingError,
)
from agents.serving.http import Sender
from agents.serving.prompts import ChatPrompts
from agents.serving.recorded import Recording
from agents.serving.registry import (
    HostingOptions,
    load_into,
    one_of,
    prompts_of,
    served_name,
    servers_of,
    start_host,
)
from agents.serving.retries import USUAL, Retries, retrying, within
from agents.serving.vllm_host import EngineHost
from agents.serving.vllm_requests import Pooling
from agents.verifier.formats import Format, Rendered, SkyworkFormat, StepTagFormat
from schemas.search import Scored, SearchStep, Served, Verification

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Scores from a process reward model's output, by pure functions that are strict about counts.
#
# A reply whose number of rows differs from the number of step tags is an error. Public implementations turn it into a
# score of zero, which silently prunes a good path.

ROUNDING = 1e-6  # a float32 softmax may leave [0, 1] by about this much


class ScoreCountError(ServingError):
    """The numbers of scores and steps differ in a verifier's reply. Check its step tag and pooling type."""


class ScoreRangeError(ServingError):
    """A verifier returned NaN or a score outside [0, 1]. Check its activation and weights."""


def last_score(rows: "NDArray[np.float32]", rendered: "Rendered", good_label: int, model: str) -> float:
    """Return the score of a path's last step.

    Args:
        rows: Class probabilities, one row per step tag (STEP pooling) or per token (ALL pooling).
        rendered: The prompt, with the positions of its step tags.
        good_label: Column for the class `right`.
        model: Name of the model, for errors.

    Raises:
        ScoreCountError: The number of rows matches neither the step tags nor the tokens, or the column does not exist.
        ScoreRangeError: The score is not a probability.
    """
    if len(rows) == len(rendered.positions):
        row = rows[-1]
    elif len(rows) == len(rendered.token_ids):
        row = rows[rendered.positions[-1]]
    else:
        raise ScoreCountError(
            f"{model}: {len(rows)} scores for {len(rendered.positions)} steps in "
            f"{len(rendered.token_ids)} tokens; check the verifier's step tag and pooling type"
        )
    if good_label >= len(row):
        raise ScoreCountError(
            f"{model}: {len(row)} classes, but good_label is {good_label}; correct good_label"
        )
    score = float(row[good_label])
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise ScoreRangeError(
            f"{model}: a score of {score} is not a probability; check the pooler's activation"
        )
    return min(1.0, max(0.0, score))


class PoolingItem(msgspec.Struct):
    """One prompt's part of a `/pooling` reply."""

    index: int
    data: list[list[float] | float]


class PoolingReply(msgspec.Struct):
    """The fields used from a `/pooling` reply."""

    data: list[PoolingItem]


def pooling_rows(reply: dict[str, Any], prompts: int) -> "list[NDArray[np.float32]]":
    """Return the rows for each prompt from a `/pooling` reply, in prompt order.

    Raises:
        EngineReplyError: The reply does not contain one set of rows per prompt.
    """
    try:
        items = msgspec.convert(reply, PoolingReply).data
    except msgspec.ValidationError as error:
        raise EngineReplyError(f"/pooling: unexpected reply: {error}") from error
    if sorted(item.index for item in items) != list(range(prompts)):
        raise EngineReplyError(f"/pooling: {len(items)} results for {prompts} prompts")
    try:
        rows = [
            np.asarray(item.data, dtype=np.float32) for item in sorted(items, key=lambda item: item.index)
        ]
    except ValueError as error:
        raise EngineReplyError(f"/pooling: rows of unequal length: {error}") from error
    return [each[:, None] if each.ndim == 1 else each for each in rows]


# The verifier protocol, and process reward models in this process or on a server.
#
# A verifier scores only each path's last step, in [0, 1]. The search computes the path means (§3.3).


class Verifier(Protocol):
    """The protocol for verifiers, which score steps.

    Attributes:
        served: Name and version of the running model, for the Verification.
        host: The engine host if the model runs in this process; otherwise None.
    """

    served: Served
    host: EngineHost | None

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        """Return a score for each path's last step, and the number of tokens read for it.

        Args:
            question: The question being answered.
            paths: The texts of each path's steps, root first, including delimiters.

        Raises:
            PromptTooLongError: A path's last step does not fit into the verifier's context.
            ScoreCountError: The model returned the wrong number of scores.
            EngineFaultError: Another attempt may succeed.
            EngineDiedError: Only restarting the process helps.
        """
        ...

    async def close(self) -> None:
        """Free the verifier's resources."""
        ...


class RowSource(Protocol):
    """The protocol for engine hosts and servers that classify a prompt's tokens."""

    async def rows(self, prompts: Sequence[Sequence[int]]) -> "list[NDArray[np.float32]]":
        """Return, for each prompt, class probabilities of shape (positions, labels)."""
        ...

    async def close(self) -> None:
        """Free the source's resources."""
        ...


class ProcessRewardModel:
    """A verifier that is a process reward model.

    Args:
        served: Name and version of the running model.
        source: Source of the tokens' class probabilities.
        format: Format for rendering a path as a prompt.
        good_label: Index of the class `right`.
        context_tokens: Maximum length of a prompt, in tokens. A longer path loses its leading steps, and its Scored is
            marked as `shortened`.
        tokenizing: Executor for rendering prompts, with one thread because tokenizers are not thread-safe. If None,
            they are rendered on the event loop, for a source that fills its batches from requests waiting there.
        host: See `Verifier.host`.
    """

    def __init__(
        self,
        served: Served,
        source: RowSource,
        format: Format,
        *,
        good_label: int,
        context_tokens: int,
        tokenizing: Executor | None = None,
        host: EngineHost | None = None,
    ) -> None:
        self.served = served
        self.host = host
        self._source = source
        self._tokenizing = tokenizing
        self._format = format
        self._good_label = good_label
        self._context_tokens = context_tokens

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        """Return a score for each path's last step; see `Verifier.score`."""
        # Paths are rendered one at a time, so that other steps' paths can be interleaved and a deadline takes effect.
        fitted = [await self._fit(question, path) for path in paths]
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
        if self._tokenizing is not None:
            self._tokenizing.shutdown(wait=False, cancel_futures=True)
        await self._source.close()

    async def _fit(self, question: str, path: Sequence[str]) -> tuple[Rendered, int]:
        if self._tokenizing is None:
            return self._fitted(question, path)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._tokenizing, self._fitted, question, path)

    def _fitted(self, question: str, path: Sequence[str]) -> tuple[Rendered, int]:
        """Return a path's prompt, and the number of leading steps dropped to make it fit."""

        @cache
        def without(dropped: int) -> Rendered:
            return self._format.render(question, path[dropped:])

        def fits(dropped: int) -> bool:
            return len(without(dropped).token_ids) <= self._context_tokens

        # Bisect for the smallest number of steps to drop, since dropping each shortens the prompt. The last step stays.
        dropped = 0 if fits(0) else bisect_left(range(len(path) - 1), True, key=fits)
        rendered = without(dropped)
        if len(rendered.positions) != len(path) - dropped:
            raise ScoreCountError(
                f"{self.served.model}: {len(rendered.positions)} step tags in a prompt of "
                f"{len(path) - dropped} steps; check that its chat template keeps the assistant's turn whole"
            )
        if len(rendered.token_ids) > self._context_tokens:
            raise PromptTooLongError(
                self.served.model, len(rendered.token_ids), self._context_tokens, "path to verify"
            )
        return rendered, dropped


class HostedRows:
    """Rows from a pooling model on an engine host.

    Args:
        host: A started host with the model loaded.
        model: Name of the model on the host.
        owns_host: Whether closing the source closes the host.
        retries: How many times a failed batch is retried, and how long to pause before each retry.
    """

    def __init__(
        self, host: EngineHost, model: str, *, owns_host: bool = False, retries: Retries = USUAL
    ) -> None:
        self._host = host
        self._retries = retries
        self._model = model
        self._owns_host = owns_host

    async def rows(self, prompts: Sequence[Sequence[int]]) -> "list[NDArray[np.float32]]":
        """Return class probabilities for each prompt. Raises the errors of `EngineHost.run`."""
        requests = [Pooling(prompt_token_ids=ids) for ids in prompts]
        pooled = await retrying(lambda: self._host.run(self._model, requests), self._retries)
        return [each.rows for each in pooled]

    async def close(self) -> None:
        """Close the host if this source owns it."""
        if self._owns_host:
            await asyncio.to_thread(self._host.close)


_BATCH = 64
"""Maximum number of prompts per request."""


class HttpRows:
    """Rows from a server's `/pooling` endpoint (vLLM). Closing the source closes the connections to the server.

    Args:
        server: The server, or several of the same model.
        model: Name of the model on the server.
    """

    def __init__(self, server: Sender, model: str) -> None:
        self._server = server
        self._model = model

    async def rows(self, prompts: Sequence[Sequence[int]]) -> "list[NDArray[np.float32]]":
        """Return class probabilities for each prompt. Raises the errors of `JsonServer.post`."""
        parts = [prompts[start : start + _BATCH] for start in range(0, len(prompts), _BATCH)]
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
        return await self._server.post("/pooling", body, lambda reply: pooling_rows(reply, len(prompts)))


# The verifier for recordings. It needs no model and scores instantly.


class RecordedVerifier:
    """Verifier that looks up path scores in a recording.

    Args:
        recording: The recording.
    """

    def __init__(self, recording: Recording) -> None:
        self.served = Served(name="recorded")
        self.host: EngineHost | None = None
        self._recording = recording

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        """Return the recorded score of each path's last step.

        Raises:
            RecordingError: A path was not recorded.
        """
        return [self._scored(question, path) for path in paths]

    async def close(self) -> None:
        """Do nothing: a recording has no connections."""

    def _scored(self, question: str, path: Sequence[str]) -> Scored:
        node = self._recording.scored(question, path)
        assert node.step is not None  # a path has at least one step
        return Scored(score=node.step.score, tokens=node.prompt_tokens + node.step.tokens)


# From a catalogue entry to a verifier, hosted in this process or on a server.

SKYWORK_LABEL = 0  # Skywork's only column is the sigmoid of the value


async def start_verifier(
    entry: VerifierModel, options: HostingOptions, host: EngineHost | None = None
) -> ProcessRewardModel:
    """Load a verifier or connect to it; return once it can score.

    Args:
        entry: The verifier's catalogue entry.
        options: The deployment's hosting options.
        host: A started host to load the verifier into, closed by the caller. If None, a host is started that closes
            with the verifier.

    Raises:
        EngineStartError: The model or its tokenizer could not be loaded.
        EngineEnvironmentError: This process cannot host vLLM.
    """
    prompts = prompts_of(entry, options)
    source: RowSource
    if entry.endpoint.kind == "http":
        host = None
        served = Served(name="http-pooling", model=entry.name)
        servers = servers_of(entry, options)
        for each in servers:
            each.answered.set()  # nothing asks a verifier whether it is up
        source = HttpRows(one_of(servers, entry), served_name(entry))
    else:
        owns_host = host is None
        host = host or await start_host(options)
        if entry.name not in host.context_tokens:
            try:
                await load_into(host, entry, options)
            except ServingError:
                if owns_host:
                    host.close()
                raise
        served = Served(name=host.vllm_name, version=host.vllm_version, model=entry.name)
        source = HostedRows(host, entry.name, owns_host=owns_host, retries=options.retries)
    return ProcessRewardModel(
        served,
        source,
        format_for(entry, prompts, options.verifier_system),
        good_label=entry.step_tags.good_label if entry.step_tags else SKYWORK_LABEL,
        context_tokens=entry.engine.context_tokens,
        tokenizing=ThreadPoolExecutor(1, "tokenizing"),
        host=host,
    )


async def ask(verifier: Verifier, question: str) -> None:
    """Have a verifier score a step for the operator's question before any client's, to see whether it crashes.

    Raises:
        EngineDiedError: The verifier crashed.
    """
    try:
        await verifier.score(question, [["2 + 3 = 5"]])
    except EngineDiedError:
        raise
    except ServingError:
        pass  # it did not crash


def format_for(entry: VerifierModel, prompts: ChatPrompts, system: str = "") -> Format:
    """Return a verifier's prompt format.

    Raises:
        EngineStartError: The tokenizer lacks the step tag, or has it under a different id.
    """
    if entry.step_tags is None:
        return SkyworkFormat(prompts)
    return StepTagFormat(prompts, entry.step_tags.tag, tag_id=entry.step_tags.tag_id, system=system)


# SearchStep to Verification: every draft in a step is scored, in order.


async def verify(
    search: SearchStep, *, verifier: Verifier, clock: Callable[[], float], now_ms: int | None = None
) -> Verification:
    """Score a step's pending drafts.

    The result depends only on the step, and only a step's first Verification counts, so scoring a redelivered step
    again has no effect.

    Args:
        search: The step.
        verifier: The verifier.
        clock: Monotonic clock, in seconds.
        now_ms: Time since the epoch, for checking the query's deadline; None for no deadline.

    Raises:
        DeadlinePassedError: The query expired before the step was scored.
        ServingError: Any error from `Verifier.score`. Its class determines whether to try again.
    """
    began = clock()
    paths = [search.forest.steps(index) for index in search.forest.pending]
    until_ms = search.forest.limits.expires_ms
    left_s = None if now_ms is None or until_ms is None else (until_ms - now_ms) / 1000
    what = f"{search.query_id}/{search.step}"
    if left_s is not None and left_s <= 0:
        raise DeadlinePassedError(f"{what}: the query's deadline passed before its step was scored")
    scores = await within(left_s, verifier.score(search.question, paths), what)
    return Verification(
        search=search, scores=tuple(scores), verifier=verifier.served, verify_s=max(0.0, clock() - began)
    )
