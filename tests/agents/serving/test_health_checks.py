"""Probes: whose fault a refusal is, when a model is suspended, and what a probe may cost."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import (
    EndpointSuspendedError,
    EngineReplyError,
    EngineUnreachableError,
    RequestRefusedError,
)
from agents.serving.health_checks import Prober, ProbeRules
from agents.serving.registry import Loaded, ModelRegistry
from streams.runtime.memory import run
from tests.agents.serving.test_registry import model, states

SAMPLING = Sampling(temperature=0.7, step_tokens=8, depth_limit=4)


def on_virtual_clock(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def ran(**fixtures: Any) -> None:
        run(test(**fixtures))

    return ran


class Engine:
    """Refuses while `wrong` is an error, hangs or returns nothing while it says so, and says `text` otherwise."""

    def __init__(self) -> None:
        self.wrong: Exception | str = ""
        self.text = "5"
        self.asked: list[tuple[str, Sampling]] = []

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        await asyncio.sleep(1.0)
        self.asked += [(prefix.messages[0].text, sampling) for prefix in prefixes]
        if isinstance(self.wrong, Exception):
            raise self.wrong
        if self.wrong == "hangs":
            await asyncio.sleep(1e6)
        if self.wrong == "returns nothing":
            return []
        return [Drafted(text=self.text, tokens=1, finish="eos")] * n

    async def close(self) -> None:
        """Nothing is held."""


def prober(engine: Engine, **rules: Any) -> Prober:
    clock = asyncio.get_running_loop().time
    return Prober(cast(Any, engine), lambda: SAMPLING, ProbeRules(**rules), clock)


async def ticked(probed: Prober, seconds: float) -> None:
    for _ in range(int(seconds / 2)):
        probed.tick()
        await asyncio.sleep(2.0)


@on_virtual_clock
async def test_verdict_reuses_a_probe_under_a_minute_old() -> None:
    engine = Engine()
    probed = prober(engine, question="Well?")
    verdicts = await asyncio.gather(probed.verdict(), probed.verdict())
    assert [each is not None and each.passed for each in verdicts] == [True, True]
    assert engine.asked == [("Well?", SAMPLING)], "one question, with the parameters of a search"
    engine.wrong = RequestRefusedError("HTTP 400")
    await asyncio.sleep(59.0)
    known = await probed.verdict()
    assert known is not None
    assert (known.passed, known.age_s) == (True, pytest.approx(59.0))
    await asyncio.sleep(1.0)
    later = await probed.verdict()
    assert later is not None
    assert not later.passed


@on_virtual_clock
async def test_a_spent_budget_leaves_whose_fault_it_is_unknown() -> None:
    engine = Engine()
    engine.wrong = EngineUnreachableError("no connection")
    probed = prober(engine, per_minute=2)
    assert [await probed.verdict() for _ in range(5)] == [None] * 5, (
        "infrastructure says nothing of the model"
    )
    assert len(engine.asked) == 2
    assert not probed.suspended


@pytest.mark.parametrize(
    "wrong",
    [RequestRefusedError("HTTP 400"), EngineReplyError("no JSON"), "hangs", "empty", "returns nothing"],
    ids=str,
)
@on_virtual_clock
async def test_three_failed_probes_suspend_until_one_passes(wrong: Exception | str) -> None:
    engine = Engine()
    if wrong == "empty":
        engine.text = " \n"
    else:
        engine.wrong = wrong
    told: list[bool] = []
    probed = prober(engine, timeout_s=20.0)
    probed._told = told.append
    await ticked(probed, 100.0)
    assert engine.asked == [], "nothing is asked of a model whose queries do not fail"
    probed.suspect()
    await ticked(probed, 50.0 if wrong == "hangs" else 20.0)
    assert not probed.suspended
    assert "operator's question" in probed.why
    await ticked(probed, 40.0)
    assert probed.suspended
    assert told[:3] == [False] * 3
    engine.wrong, engine.text = "", "5"
    await ticked(probed, 100.0)
    assert (probed.suspended, probed.why, told[-1]) == (False, "", True)
    asked = len(engine.asked)
    await ticked(probed, 600.0)
    assert len(engine.asked) == asked, "what passes is left alone"


@on_virtual_clock
async def test_probes_of_a_suspended_model_become_rare() -> None:
    engine = Engine()
    engine.wrong = RequestRefusedError("HTTP 400")
    probed = prober(engine, per_minute=1)
    probed.suspect()
    await ticked(probed, 60.0)
    assert len(engine.asked) == 1
    await ticked(probed, 3600.0)
    assert 10 < len(engine.asked) < 25, "five minutes apart in the end"


@on_virtual_clock
async def test_a_model_that_fails_its_probes_is_not_asked_and_says_why() -> None:
    engine = Engine()

    async def load(entry: Any) -> Loaded:
        return Loaded(cast(Any, engine))

    registry = ModelRegistry(load, clock=asyncio.get_running_loop().time)
    seen: list[tuple[str, bool]] = []
    registry.probed = lambda name, passed: seen.append((name, passed))
    assert await registry.get(model("a")) is cast(Any, engine)
    assert await registry.verdict("b") is None, "nobody knows of a model that is not here"
    engine.wrong = RequestRefusedError("http://a/v1: HTTP 400: unknown parameter 'seed'")
    registry.suspect("a")
    for _ in range(20):
        await registry.probe()
        await asyncio.sleep(2.0)
    assert states(registry) == {"a": "suspended"}
    assert "unknown parameter 'seed'" in registry.health()[0].why
    with pytest.raises(EndpointSuspendedError, match="not asked before it passes a probe"):
        await registry.get(model("a"))
    engine.wrong = ""
    for _ in range(20):
        await registry.probe()
        await asyncio.sleep(2.0)
    assert states(registry) == {"a": "ready"}
    assert await registry.get(model("a")) is cast(Any, engine)
    assert seen[-1] == ("a", True)
    await registry.close()
