"""A path longer than the verifier's context: which steps stay, what finding out costs, and who waits meanwhile."""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

from agents.serving.errors import DeadlinePassedError
from agents.serving.prompts import ChatPrompts
from agents.serving.retries import within
from agents.verifier.formats import Format, Rendered, SkyworkFormat, StepTagFormat
from agents.verifier.prm import ProcessRewardModel
from schemas.search import Served

CONTEXT = 64


class Source:
    """Gives every token the same score, and keeps the prompts."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    async def rows(self, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        self.prompts += map(tuple, prompts)
        return [np.full((len(prompt), 1), 0.5, np.float32) for prompt in prompts]

    async def close(self) -> None:
        """Hold nothing."""


class Counted:
    """Renders as another format does, in `seconds`; counts, and notes the threads."""

    def __init__(self, format: Format, seconds: float = 0.0) -> None:
        self._format, self._seconds = format, seconds
        self.renders = 0
        self.threads: set[int] = set()

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        self.renders += 1
        self.threads.add(threading.get_ident())
        time.sleep(self._seconds)
        return self._format.render(question, steps)


class OneTokenAStep:
    """A step is one token."""

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        return Rendered(tuple(range(len(steps))), tuple(range(len(steps))))


def model(format: Format, source: Source, tokenizing: Executor | None = None) -> ProcessRewardModel:
    return ProcessRewardModel(
        Served(name="x"), source, format, good_label=0, context_tokens=CONTEXT, tokenizing=tokenizing
    )


@pytest.fixture(scope="module")
def formats(micro) -> list[Format]:
    prompts = ChatPrompts.load(micro.path("micro-prm"))
    return [SkyworkFormat(prompts), StepTagFormat(prompts, "<|step|>")]


@pytest.mark.parametrize("which", [0, 1], ids=["skywork", "step-tags"])
def test_fewest_leading_steps_dropped_by_bisection(formats: list[Format], which: int) -> None:
    rng, dropped = random.Random(which), set()
    for _ in range(200):
        counted, source = Counted(formats[which]), Source()
        path = ["1 and 2 is 3.\n" * rng.randrange(3) + "a\n" for _ in range(rng.randint(1, 40))]
        [scored] = asyncio.run(model(counted, source).score("12 + 7?", [path]))
        fitting = (
            (first, ids)
            for first in range(len(path))
            if len(ids := formats[which].render("12 + 7?", path[first:]).token_ids) <= CONTEXT
        )
        first, ids = next(fitting)
        assert (source.prompts, scored.shortened) == ([ids], first > 0)
        assert counted.renders <= (7 if first else 1), "the whole path, and then a bisection"
        dropped.add(first)
    assert len(dropped) > 10


async def test_prompts_are_made_off_the_event_loop() -> None:
    counted, turns = Counted(OneTokenAStep(), seconds=0.005), 0
    verifier = model(counted, Source(), ThreadPoolExecutor(1))
    long = asyncio.gather(*(verifier.score("q", [["step"] * 80] * 8) for _ in range(2)))
    while not long.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert all(scored.shortened for scores in await long for scored in scores)
    assert turns > 16, "at least one between two paths"
    assert len(counted.threads) == 1
    assert threading.get_ident() not in counted.threads


async def test_a_deadline_ends_the_making_of_prompts_between_two_paths() -> None:
    counted = Counted(OneTokenAStep(), seconds=0.02)
    verifier = model(counted, Source(), ThreadPoolExecutor(1))
    with pytest.raises(DeadlinePassedError):
        await within(0.05, verifier.score("q", [["step"]] * 50), "q/1")
    made = counted.renders
    assert made < 50
    await asyncio.sleep(0.1)
    assert counted.renders <= made + 1
