"""Probes: test questions that show whether a model is failing or its queries are bad.

A failed query does not show what is at fault. The model may refuse every request, because of a wrong template or an
unknown parameter, or the query may be one that no model could have answered. Clients' queries therefore never suspend a
model. Instead, after a failed query, the executor asks the model a question chosen by the operator, with the sampling
parameters of an ordinary search. A model that fails this probe three times in a row is suspended until it passes one.
"""

import asyncio
import base64
import io
import wave
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec import Struct

from agents.catalogue.models import Sampling
from agents.serving.engine import Engine, Prefix, StreamingEngine
from agents.serving.errors import EngineBusyError, ServingError
from schemas.answer import Probe
from schemas.chat import Capability, ChatOptions
from schemas.query import Message

T = TypeVar("T")

FRESH_S = 60.0
"""Seconds for which the result of a probe is valid."""

MOST_FAILED = 3
"""Number of failed probes in a row after which a model is suspended."""

PAUSES_S = (10.0, 300.0)
"""Pause after a failed probe, and its upper bound. The pause doubles with each failed probe of a suspended model."""


class ProbeRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment's settings for probes.

    Attributes:
        question: The operator's question; any text counts as an answer.
        timeout_s: Seconds within which the answer's first step must arrive.
        per_minute: Maximum probes per minute and model, because a provider may charge for them.
    """

    question: str = "How much is 2 plus 3?"
    timeout_s: float = 60.0
    per_minute: int = 6


async def ask(
    engine: Engine,
    sampling: Sampling,
    rules: ProbeRules,
    *,
    step_id: str = "probe",
    max_tokens: int | None = None,
) -> str:
    """Ask a model the operator's question, and return what is wrong with the answer; empty if nothing is.

    Raises:
        ServingError: Something other than the model failed.
    """
    prefix = Prefix(messages=(Message(role="user", content=rules.question),), max_tokens=max_tokens)
    try:
        async with asyncio.timeout(rules.timeout_s):
            drafts = await engine.generate(step_id, [prefix], 1, [0], sampling)
    except TimeoutError:
        return f"no answer to the operator's question in {rules.timeout_s:g} s"
    except ServingError as error:
        if not error.cause:
            raise
        return f"{type(error).__name__} at the operator's question: {error}"
    if len(drafts) != 1:
        return f"{len(drafts)} answers to the operator's question in place of one"
    return "" if drafts[0].text.strip() else "an empty answer to the operator's question"


async def first_token(engine: Engine, sampling: Sampling, rules: ProbeRules) -> str:
    """Ask a server for one token of an answer, and return what was wrong with the reply; empty if nothing was.

    An overloaded server passes. The token need not be text, because a model may begin by reasoning.
    """
    prefix = Prefix(messages=(Message(role="user", content=rules.question),), max_tokens=1)
    reply = engine.generate("first token", [prefix], 1, [0], sampling)
    return (await _replied(reply, rules, f"{engine.model}: no answer to its first question"))[1]


async def _replied(reply: Awaitable[T], rules: ProbeRules, late: str) -> tuple[T | None, str]:
    """Return what a server replied, or None and what was wrong; an overloaded server has neither.

    Args:
        reply: The request.
        rules: The deployment's settings.
        late: What to say of a reply that does not come in time.
    """
    try:
        async with asyncio.timeout(rules.timeout_s):
            return await reply, ""
    except TimeoutError:
        return None, f"{late} in {rules.timeout_s:g} s"
    except EngineBusyError as error:
        return None, "" if error.overloaded else str(error)
    except ServingError as error:
        return None, str(error)


# A white PNG of 56 by 56 pixels; vision models refuse images smaller than one patch.
_IMAGE: Final = "data:image/png;base64," + "".join(
    (
        "iVBORw0KGgoAAAANSUhEUgAAADgAAAA4AQAAAACA/QazAAAAEElEQVR42mP4DwEMo/SQpAG+u4aIVGNb8gAAAABJ",
        "RU5ErkJggg==",
    )
)
_NUMBER: Final = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
_TRIALS: Final[dict[Capability, ChatOptions]] = {
    "tools": ChatOptions(
        tools=({"type": "function", "function": {"name": "add", "parameters": _NUMBER}},), tool_choice="auto"
    ),
    "json": ChatOptions(
        response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": _NUMBER}}
    ),
    "logprobs": ChatOptions(logprobs=True, top_logprobs=1),
}


async def tried(engine: Engine, sampling: Sampling, rules: ProbeRules, capability: Capability) -> str:
    """Send a request that needs a declared capability, and return why it failed; empty if the endpoint has it."""
    parts: tuple[dict[str, Any], ...] = ()
    asked: dict[str, Any] = {"type": "text", "text": rules.question}
    if capability == "images":
        parts = asked, {"type": "image_url", "image_url": {"url": _IMAGE}}
    elif capability == "audio":
        parts = asked, {"type": "input_audio", "input_audio": {"data": _silence(), "format": "wav"}}
    message = Message(role="user", content=rules.question, parts=parts)
    prefix = Prefix(messages=(message,), max_tokens=64, options=_TRIALS.get(capability), whole=True)
    reply = engine.generate(f"capability {capability}", [prefix], 1, [0], sampling)
    drafts, wrong = await _replied(reply, rules, "no reply")
    if drafts is None:
        return wrong
    [draft] = drafts
    missing = capability == "logprobs" and (draft.upstream is None or not draft.upstream.logprobs)
    return "the reply has no logprobs" if missing else ""


def _silence() -> str:
    """Return half a second of silence as WAV in base64; servers refuse recordings shorter than a tenth."""
    with io.BytesIO() as file:
        with wave.open(file, "wb") as recording:
            recording.setparams((1, 2, 16_000, 0, "NONE", "not compressed"))
            recording.writeframes(bytes(2 * 8_000))
        return base64.b64encode(file.getvalue()).decode()


async def streamed(engine: StreamingEngine, sampling: Sampling, rules: ProbeRules) -> str:
    """Request a stream from a server, and return what is wrong with the stream; empty if nothing is."""
    prefix = Prefix(messages=(Message(role="user", content=rules.question),), max_tokens=1)
    reply = engine.stream("stream", prefix, 0, sampling, lambda text: None)
    return (await _replied(reply, rules, "no end of the stream"))[1]


class Prober:
    """Probes one model after its queries have failed.

    Args:
        engine: The model's engine.
        sampling: Returns the current sampling of searches.
        rules: The deployment's settings.
        clock: Seconds, monotonic.
        told: Called after each probe with whether it passed.

    Attributes:
        suspended: Whether the model has failed `MOST_FAILED` probes in a row and gets no queries.
        why: What was wrong with the last probe; empty if it passed.
    """

    def __init__(
        self,
        engine: Engine,
        sampling: Callable[[], Sampling],
        rules: ProbeRules,
        clock: Callable[[], float],
        told: Callable[[bool], None] = lambda passed: None,
    ) -> None:
        self.suspended, self.why = False, ""
        self._engine, self._sampling, self._rules = engine, sampling, rules
        self._clock, self._told = clock, told
        self._failed = 0
        self._ended_s: float | None = None  # end of the last conclusive probe
        self._due_s: float | None = None
        self._began_s: deque[float] = deque()
        self._running: asyncio.Task[None] | None = None

    async def verdict(self) -> Probe | None:
        """Return the outcome of a recent probe, or of a new one.

        Return None if the limit of probes per minute is reached, or if something other than the model failed.
        """
        if (known := self._known()) is not None:
            return known
        if (running := self._started()) is not None:
            await asyncio.shield(running)  # shielded, because other callers wait for the same probe
        return self._known()

    def suspect(self) -> None:
        """Schedule a probe, because a query failed and the model may be at fault."""
        if self._due_s is None:
            passed = self._known()
            self._due_s = self._clock() + (FRESH_S - passed.age_s if passed is not None else 0.0)

    def tick(self) -> None:
        """Start a probe if one is due, without waiting for it."""
        if self._due_s is not None and self._clock() >= self._due_s:
            self._started()

    async def close(self) -> None:
        """Cancel the running probe."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _known(self) -> Probe | None:
        age_s = None if self._ended_s is None else self._clock() - self._ended_s
        return None if age_s is None or age_s >= FRESH_S else Probe(passed=not self._failed, age_s=age_s)

    def _started(self) -> asyncio.Task[None] | None:
        """Return the running probe, or start one; None if the limit of probes per minute is reached."""
        if self._running is not None and not self._running.done():
            return self._running
        now_s = self._clock()
        while self._began_s and now_s - self._began_s[0] >= 60.0:
            self._began_s.popleft()
        if len(self._began_s) >= self._rules.per_minute:
            return None
        self._began_s.append(now_s)
        self._running = asyncio.create_task(self._probe())
        # Retrieve the exception; otherwise asyncio warns if no caller awaits the task.
        self._running.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._running

    async def _probe(self) -> None:
        try:
            why = await ask(self._engine, self._sampling(), self._rules)
        except ServingError:
            # An unreachable server or an open breaker says nothing about the model.
            self._due_s = self._clock() + PAUSES_S[0]
            return
        self.why, self._ended_s = why, self._clock()
        self._failed = self._failed + 1 if why else 0
        self.suspended = self._failed >= MOST_FAILED
        self._due_s = None
        if why:
            first_s, most_s = PAUSES_S
            self._due_s = self._ended_s + min(first_s * 2.0 ** max(0, self._failed - MOST_FAILED), most_s)
        self._told(not why)
