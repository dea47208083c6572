"""Prices from a load: two loads give two prices, on a scripted upstream whose speed is known."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import Sampling
from agents.serving.calibration import CalibrationFailed, Processed, calibrated, prices
from agents.serving.chat_engine import ChatEngine
from agents.serving.errors import EngineFaultError
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.retries import Retries
from schemas.prices import Prices
from tests.support.upstream import Body, Upstream

SAMPLING = Sampling(temperature=1.0, step_tokens=64, depth_limit=1)


def says(body: Body) -> str:
    """Take 50 ms for a prompt and 5 ms for a word."""
    words = min(20, body["max_tokens"])
    time.sleep(0.05 + 0.005 * (words - 1))
    return "word " * words


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream(says=says)
    yield made
    made.close()


def measured(upstream: Upstream, at_once: int = 4) -> tuple[Prices, list[Processed], list[float]]:
    bar: list[float] = []

    async def run() -> tuple[Prices, list[Processed]]:
        server = JsonServer(ServerSettings(url=upstream.url, retries=Retries(attempts=1)))
        engine = ChatEngine(server, "m", Endpoint(kind="chat", url=upstream.url, model="hosted"))
        try:
            found, halves = await calibrated(
                engine, SAMPLING, 3.6, at_once=at_once, seconds=1.0, clock=time.monotonic, ended=bar.append
            )
            return found, list(halves)
        finally:
            await engine.close()

    return *asyncio.run(run()), bar


def test_bill_of_both_loads_is_the_servers_price_for_its_time(upstream: Upstream) -> None:
    found, halves, bar = measured(upstream)
    for half in halves:
        bill = (half.prompt_tokens * found.input + half.tokens * found.output) / 1e6
        assert bill == pytest.approx(half.seconds * 3.6 / 3600, rel=0.01)
    usages = [usage for _, usage in upstream.log]
    assert sum(half.prompt_tokens for half in halves) == sum(each["prompt_tokens"] for each in usages)
    assert sum(half.tokens for half in halves) == sum(each["completion_tokens"] for each in usages)
    assert found.output > found.input, "a word took longer than a word of a prompt"
    assert bar == sorted(bar)
    assert bar[-1] >= 1.0


def test_no_two_prompts_begin_alike(upstream: Upstream) -> None:
    measured(upstream)
    starts = [body["messages"][0]["content"].split()[:3] for body, _ in upstream.log]
    assert len(set(map(tuple, starts))) == len(starts), "no cache saves the reading of a prompt"


def test_failing_request_ends_it(upstream: Upstream) -> None:
    upstream.spoilt = [(500, b"oops", {})]
    with pytest.raises(EngineFaultError, match="HTTP 500: oops"):
        measured(upstream)


@pytest.mark.parametrize(
    ("reading", "writing", "said"),
    [
        ((100, 10, 1.0), (100, 0, 1.0), "the server generated too little"),
        ((1000, 10, 1.0), (10, 10, 5.0), "busy with something else"),
    ],
)
def test_loads_that_say_nothing_are_refused(
    reading: tuple[int, int, float], writing: tuple[int, int, float], said: str
) -> None:
    loads = [Processed(prompt_tokens=p, tokens=t, seconds=s) for p, t, s in (reading, writing)]
    with pytest.raises(CalibrationFailed, match=said):
        prices(1.0, *loads)
