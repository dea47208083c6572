"""uvicorn in a service's event loop, stopped by the service."""

import asyncio
import contextlib
import resource
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from streams.runtime.runtime import Runtime

HEAD_BYTES: Final = 64 * 1024
"""Maximum bytes of a request's head; larger ones close the connection."""


HEAD_S: Final = 30.0
"""Seconds to receive the whole head of a request, from the start of the connection or the previous response."""

WRITE_S: Final = 30.0
"""Seconds within which a client must read something, once the send buffers are full."""


class Connection(H11Protocol):
    """A connection with timeouts: uvicorn itself waits forever for a request's head and for a client to read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request's head. If there are too many connections, close the one that has waited longest."""
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since: float | None = None
        super().connection_made(transport)
        held = [
            each
            for each in self.connections
            if isinstance(each, Connection) and not each.transport.is_closing()
        ]
        if len(held) > most_connections():
            idle = [(each.idle_since, id(each), each) for each in held if each.idle_since is not None]
            min(idle, default=(0.0, 0, self))[2].transport.abort()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        super().connection_lost(exc)
        self._wait(None)

    def data_received(self, data: bytes) -> None:
        """Cancel the timeout once the head is complete."""
        super().data_received(data)
        self._note_head()

    def on_response_complete(self) -> None:
        """Wait for the next head, which may have arrived already."""
        self._await_head()
        super().on_response_complete()
        self._note_head()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        self._wait(WRITE_S)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Cancel the timeout: the client has read."""
        super().resume_writing()
        self._wait(None if self.idle_since is None else HEAD_S)

    def _await_head(self) -> None:
        self.idle_since = self.loop.time()
        self._wait(HEAD_S)

    def _note_head(self) -> None:
        if self.idle_since is not None and self.conn.their_state is not h11.IDLE:
            self.idle_since = None
            self._wait(None)

    def _wait(self, seconds: float | None) -> None:
        """Set a timeout in seconds from now, or none for None. It is not extended while the client reads nothing."""
        # The buffer may hold the end of a response, with pipelined requests after it.
        if self.flow.write_paused:
            return
        if self._timer is not None:
            self._timer.cancel()
        # Not `close`, which would wait for the client to read the rest.
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def most_connections() -> int:
    """Return the connection limit: three quarters of the file descriptors; the rest is for the broker and files."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)


class Server(uvicorn.Server):
    """uvicorn that leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Leave signals to the worker."""
        yield


def server_of(runtime: Runtime, app: Any, **where: Any) -> Server:
    """Return a server that ends when the service does; the caller runs its `serve`.

    Args:
        runtime: The service's runtime.
        app: An ASGI application.
        where: `host` and `port`, unless `serve` is given a socket.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=Connection,
        lifespan="off",
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_keep_alive=int(HEAD_S),
        server_header=False,
        **where,
    )
    server = Server(config)

    async def stop() -> None:
        server.should_exit = True

    runtime.closers.append(stop)
    return server
