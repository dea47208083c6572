"""Engine faults: bounded attempts with growing pauses, then the caller answers; fatal ones crash the room."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agents.serving.errors import ServingError
from streams.runtime.base import Crash, Runtime

log = logging.getLogger("streams.runtime.retry")

T = TypeVar("T")

_FIRST_PAUSE_S = 0.2


async def attempts(
    runtime: Runtime, call: Callable[[], Awaitable[T]], what: str, most: int | None = None
) -> T:
    """Return what `call` returns, tried up to `engine_attempts` times.

    Args:
        runtime: Tells the settings, counts the faults and waits.
        call: Makes one attempt.
        what: Named in the log.
        most: Attempts, where they differ from the setting.

    Raises:
        ServingError: not retryable, or the last attempt failed.
        Crash: this process cannot serve any more.
    """
    most = most or runtime.settings.engine_attempts
    pause_s = _FIRST_PAUSE_S
    for attempt in range(1, most + 1):
        try:
            return await call()
        except ServingError as error:
            runtime.metrics.engine_faults.labels(runtime.room).inc()
            if error.fatal:
                raise Crash(f"{what}: {error}") from error
            if not error.retryable or attempt == most:
                raise
            log.warning("%s: attempt %d of %d: %s", what, attempt, most, error)
            await runtime.sleep(pause_s)
            pause_s *= 2
    raise AssertionError("most is at least 1")
