"""The retry policy: which errors are tried again, after which pauses, and what a deadline cuts off."""

import asyncio
from collections.abc import Callable

import pytest

from agents.serving.errors import (
    DeadlinePassedError,
    EngineBusyError,
    EngineUnreachableError,
    RequestRefusedError,
    ServingError,
)
from agents.serving.retries import Retries, retrying, within


def tried(errors: list[Exception], retries: Retries) -> tuple[str | Exception, int, list[float]]:
    """Return the outcome, how often it was tried, and the pauses."""
    pauses: list[float] = []
    calls = 0

    async def call() -> str:
        nonlocal calls
        calls += 1
        if errors:
            raise errors.pop(0)
        return "done"

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> str:
        return await retrying(call, retries, sleep=pause)

    try:
        return asyncio.run(run()), calls, pauses
    except Exception as error:
        return error, calls, pauses


def busy(asked_s: float) -> EngineBusyError:
    error = EngineBusyError("busy")
    error.asked_s = asked_s
    return error


def test_a_fault_is_tried_again_after_growing_pauses() -> None:
    faults: list[Exception] = [EngineUnreachableError("slow")] * 3
    assert tried(faults, Retries(attempts=4)) == ("done", 4, [0.25, 0.5, 1.0])


def test_a_server_s_wish_is_heeded_up_to_a_limit() -> None:
    assert tried([busy(2.0), busy(8.0)], Retries(attempts=3)) == ("done", 3, [2.0, 8.0])
    long = busy(900.0)
    assert tried([long], Retries(attempts=3)) == (long, 1, []), "another model is to be asked"


def test_the_last_error_says_how_often_it_was_tried() -> None:
    outcome, calls, _ = tried([EngineUnreachableError("slow")] * 9, Retries(attempts=3))
    assert isinstance(outcome, EngineUnreachableError)
    assert (str(outcome), calls) == ("slow (after 3 attempts)", 3)


@pytest.mark.parametrize(
    "error", [RequestRefusedError("no"), DeadlinePassedError("late"), ValueError("ours")]
)
def test_what_another_attempt_cannot_mend_is_not_repeated(error: Exception) -> None:
    outcome, calls, pauses = tried([error], Retries(attempts=3))
    assert (outcome, calls, pauses) == (error, 1, [])


def test_a_deadline_cuts_off_attempts_and_pauses_alike() -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async def fail() -> None:
        raise EngineUnreachableError("slow")

    async def run(call: Callable[[], object]) -> None:
        with pytest.raises(DeadlinePassedError, match="q/3: the query's deadline passed"):
            await within(0.1, retrying(call, Retries(attempts=100, pause_s=30.0)), "q/3")  # type: ignore[arg-type]

    for call in (hang, fail):
        asyncio.run(asyncio.wait_for(run(call), 5))


def test_foreign_timeout_is_not_the_deadline() -> None:
    async def other() -> None:
        raise TimeoutError("of a library")

    with pytest.raises(TimeoutError, match="of a library"):
        asyncio.run(within(5.0, other(), "q/1"))
    with pytest.raises(ServingError):
        asyncio.run(within(0.0, asyncio.sleep(1), "q/1"))
