"""uvicorn in the event loop of a room, which has its own way to stop."""

import contextlib
from typing import Any, Final

import uvicorn

from streams.runtime.base import Runtime

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request's head: whoever sends more is cut off."""


class Server(uvicorn.Server):
    """uvicorn that leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Leave signals to the worker."""
        yield


def server_of(runtime: Runtime, app: Any, **where: Any) -> Server:
    """Return a server that ends when the room does; the caller runs its `serve`.

    Args:
        runtime: The room's.
        app: An ASGI application.
        where: `host` and `port`, unless `serve` is given a socket.
    """
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, http="h11", lifespan="off",
        h11_max_incomplete_event_size=HEAD_BYTES, timeout_keep_alive=30, server_header=False, **where,
    )  # fmt: skip
    server = Server(config)

    async def stop() -> None:
        server.should_exit = True

    runtime.on_stop(stop)
    return server
