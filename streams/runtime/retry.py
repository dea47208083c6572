"""Engine faults: bounded attempts with growing pauses, then the caller answers; fatal ones end the process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agents.serving.errors import ServingError
from streams.runtime.kafka.app import crash

log = logging.getLogger("streams.runtime.retry")

T = TypeVar("T")

_FIRST_PAUSE_S = 0.2


async def attempts(call: Callable[[], Awaitable[T]], most: int, what: str, on_fault: Callable[[], None]) -> T:
    """Return what `call` returns, tried up to `most` times.

    Args:
        call: Makes one attempt.
        most: Attempts.
        what: Named in the log.
        on_fault: Called at every failed attempt.

    Raises:
        ServingError: not retryable, or the last attempt failed.
    """
    pause_s = _FIRST_PAUSE_S
    for attempt in range(1, most + 1):
        try:
            return await call()
        except ServingError as error:
            on_fault()
            if error.fatal:
                crash(f"{what}: {error}", error)
            if not error.retryable or attempt == most:
                raise
            log.warning("%s: attempt %d of %d: %s", what, attempt, most, error)
            await asyncio.sleep(pause_s)
            pause_s *= 2
    raise AssertionError("most is at least 1")
