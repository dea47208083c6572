"""The retry policy for requests to models, with tenacity: few attempts, exponential back-off, one deadline.

Only the code that sends a request retries it; callers never retry a step or a record. A retried request gives the same
result, because it contains its seed. Even so, a request that the server may have started is not retried, because it may
be billed. `within` limits the total time, pauses included, to the query's deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeGuard, TypeVar

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from agents.serving.errors import DeadlinePassedError, EngineBusyError, ServingError

T = TypeVar("T")


class Retries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a request is tried, and how long to pause between attempts.

    Attributes:
        attempts: Maximum number of tries, including the first.
        pause_s: Seconds before the second try; they double with each further try.
        longest_pause_s: Maximum pause; if a server's Retry-After is longer, the request is not retried.
    """

    attempts: int = 3
    pause_s: float = 0.25
    longest_pause_s: float = 8.0


USUAL = Retries()


async def retrying(
    call: Callable[[], Awaitable[T]],
    retries: Retries,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Return the result of `call`, retrying it as long as its error is `retryable` and attempts are left.

    Args:
        call: Makes one attempt.
        retries: Number of attempts, and the pauses between them.
        sleep: Called with the length of each pause, in seconds, and awaited.

    Raises:
        ServingError: The error, if it is not retryable; otherwise that of the last attempt, with the number of
            attempts.
    """

    def pause_s(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.asked_s if isinstance(error, EngineBusyError) else 0.0
        own_s = retries.pause_s * 2 ** (state.attempt_number - 1)
        return float(min(max(own_s, asked_s), retries.longest_pause_s))

    async def attempt() -> T:  # tenacity awaits only coroutine functions
        return await call()

    def passes(error: BaseException) -> bool:
        return isinstance(error, ServingError) and error.retryable and not asks_for_long(error, retries)

    policy = AsyncRetrying(
        retry=retry_if_exception(passes),
        stop=stop_after_attempt(retries.attempts),
        wait=pause_s,
        sleep=sleep,
        retry_error_callback=_given_up,
    )
    return await policy(attempt)


def asks_for_long(error: BaseException, retries: Retries) -> TypeGuard[EngineBusyError]:
    """Return whether a server asked for a longer pause than retries allow, so that another model must be chosen."""
    return isinstance(error, EngineBusyError) and error.asked_s > retries.longest_pause_s


async def within(seconds: float | None, call: Awaitable[T], what: str) -> T:
    """Return the result of `call`, or cancel it when the time is up.

    Args:
        seconds: Time left; None for no limit.
        call: The awaitable.
        what: Description of the call, for the error.

    Raises:
        DeadlinePassedError: The time is up.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlinePassedError(f"{what}: the query's deadline passed before the model replied") from error


def _given_up(state: RetryCallState) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, ServingError)
    last = type(error)(f"{error} (after {state.attempt_number} attempts)")
    vars(last).update(vars(error))  # such as the pause that a busy server asked for
    raise last from error
