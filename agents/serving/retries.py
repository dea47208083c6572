"""The retry policy for requests to models, with tenacity: few attempts, exponential back-off, one deadline.

Only the code that sends a request repeats it; no caller repeats the step or the record. A repeated request gives the
same result, because it includes its seed. Still, a request on which the server may have worked is not repeated, because
it may be billed. `within` bounds everything, pauses included, by the query's deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeGuard, TypeVar

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from agents.serving.errors import DeadlinePassedError, EngineBusyError, ServingError

T = TypeVar("T")


class Retries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times and with which pauses a request is tried.

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
    """Return the result of `call`, which is repeated while its error is `retryable`.

    Args:
        call: Makes one attempt.
        retries: How many times to try, and with which pauses.
        sleep: Awaited with the seconds of a pause.

    Raises:
        ServingError: An error that is not retryable, or the last attempt's error with the number of attempts.
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
    """Return whether a server asked for a longer pause than retries make, so a different model must be chosen."""
    return isinstance(error, EngineBusyError) and error.asked_s > retries.longest_pause_s


async def within(seconds: float | None, call: Awaitable[T], what: str) -> T:
    """Return the result of `call`, or cancel it when the time is up.

    Args:
        seconds: Time left; None for no limit.
        call: The awaitable.
        what: Named in the error.

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
