"""Probes: the operator's question, put to a model whose queries fail, tells a failing model from bad questions.

A model may refuse every request (a wrong template, a parameter that it does not know), or be asked what no model would
answer: a query alone cannot tell. So it is never a client's queries that suspend a model. They make its executor ask a
question of the operator's, with the parameters of any search; a model that fails it three times in a row is suspended
until it passes.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from agents.catalogue.models import Sampling
from agents.serving.engine import Engine, Prefix
from agents.serving.errors import ServingError
from schemas.answer import Probe
from schemas.query import Message

FRESH_S = 60.0
"""Seconds for which the outcome of a probe holds."""

MOST_FAILED = 3
"""Failed probes in a row that suspend a model."""

PAUSES_S = (10.0, 300.0)
"""Pause after a failed probe, and the bound on those of a suspended model, each twice the one before."""


class ProbeRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a deployment says about probes.

    Attributes:
        question: What is asked; any text answers it.
        timeout_s: Seconds in which the first step must come.
        per_minute: Most probes of one model in a minute; a provider may charge for them.
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
        ServingError: something else than the model failed.
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


class Prober:
    """Probes one model while its queries fail.

    Args:
        engine: The model's.
        sampling: Returns how searches sample it now.
        rules: The deployment's.
        clock: Seconds, monotonic.
        told: Called with whether each probe passed.

    Attributes:
        suspended: Whether it failed so many probes in a row that it is not to be asked.
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
        self._ended_s: float | None = None  # of the last probe that said something
        self._due_s: float | None = None
        self._began_s: deque[float] = deque()
        self._running: asyncio.Task[None] | None = None

    async def verdict(self) -> Probe | None:
        """Return the outcome of a recent probe, or else of one now.

        None if the probes of this minute are used up, or the probe met a fault of the infrastructure.
        """
        if (known := self._known()) is not None:
            return known
        if (running := self._started()) is not None:
            await asyncio.shield(running)  # others wait for it
        return self._known()

    def suspect(self) -> None:
        """Have the model probed soon: a query failed for what may be its fault."""
        if self._due_s is None:
            passed = self._known()
            self._due_s = self._clock() + (FRESH_S - passed.age_s if passed is not None else 0.0)

    def tick(self) -> None:
        """Begin a probe if one is due. Returns at once."""
        if self._due_s is not None and self._clock() >= self._due_s:
            self._started()

    async def close(self) -> None:
        """Drop the probe that is running."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _known(self) -> Probe | None:
        age_s = None if self._ended_s is None else self._clock() - self._ended_s
        return None if age_s is None or age_s >= FRESH_S else Probe(passed=not self._failed, age_s=age_s)

    def _started(self) -> asyncio.Task[None] | None:
        """Return the probe that is running, or a new one; None if the minute has had its probes."""
        if self._running is not None and not self._running.done():
            return self._running
        now_s = self._clock()
        while self._began_s and now_s - self._began_s[0] >= 60.0:
            self._began_s.popleft()
        if len(self._began_s) >= self._rules.per_minute:
            return None
        self._began_s.append(now_s)
        self._running = asyncio.create_task(self._probe())
        # Whoever waits is given an error that nobody expects; one that nobody waits for must not end in a warning.
        self._running.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._running

    async def _probe(self) -> None:
        try:
            why = await ask(self._engine, self._sampling(), self._rules)
        except ServingError:
            # Its server is away, or its breaker open: that says nothing of the model.
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
