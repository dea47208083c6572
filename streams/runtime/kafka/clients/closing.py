"""Stop an aiokafka client without waiting for its connections to be taken down.

Over TLS, aiokafka's `stop` returns once the broker has answered the end of the connection. Some answers never come, and
the transport gives up after 30 seconds: longer than a rebalance may take, and nothing depends on it.
"""

import asyncio
import logging
from typing import Any, Final, Protocol

log = logging.getLogger("streams.kafka")

PATIENCE_S: Final = 2.0

_closing: set[asyncio.Task[Any]] = set()


class Stoppable(Protocol):
    """A consumer or producer of aiokafka."""

    async def stop(self) -> None:
        """Flush what is pending and close the connections."""


async def stop(client: Stoppable, patience_s: float = PATIENCE_S) -> None:
    """Stop a client; after `patience_s` seconds return, and let it end in the background."""
    task = asyncio.create_task(client.stop())
    _closing.add(task)
    task.add_done_callback(_ended)
    await asyncio.wait({task}, timeout=patience_s)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise error


def _ended(task: asyncio.Task[Any]) -> None:
    _closing.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("closing a connection failed: %r", error)
