"""What a process answers over HTTP (`/metrics`, `/health/live`, `/health/ready`), and uvicorn in a service's loop."""

import asyncio
import contextlib
import resource
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import h11
import uvicorn
from prometheus_client import CollectorRegistry, make_wsgi_app
from uvicorn.protocols.http.h11_impl import H11Protocol

from streams.runtime.base import Runtime

# uvicorn in the event loop of a service, which has its own way to stop.

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request's head: whoever sends more is cut off."""


HEAD_S: Final = 30.0
"""Seconds in which the whole head of a request must have come, from its connection's beginning or the answer before."""

WRITE_S: Final = 30.0
"""Seconds in which a client must take something of what is sent to it, once no more fits into the buffers."""


class Connection(H11Protocol):
    """A connection that no client holds for nothing: uvicorn itself waits for ever for a head, and for a reader."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head. Where connections run out, the one that has waited for longest makes room."""
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
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._wait(None)

    def data_received(self, data: bytes) -> None:
        """Note when a head is whole."""
        super().data_received(data)
        self._note_head()

    def on_response_complete(self) -> None:
        """Wait for the next head, which may have come already."""
        self._await_head()
        super().on_response_complete()
        self._note_head()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        self._wait(WRITE_S)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client reads."""
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
        """Give the connection so many seconds from now; None for any number. Who reads nothing gets no new ones."""
        # The end of an answer may be what did not fit, and further requests may lie behind it.
        if self.flow.write_paused:
            return
        if self._timer is not None:
            self._timer.cancel()
        # Not `close`, which would wait until the client has read the rest.
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def most_connections() -> int:
    """Return how many connections a server holds: three of four descriptors, the rest is for the broker and files."""
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
        runtime: The service's.
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

    runtime.on_stop(stop)
    return server


# What a process answers over HTTP: `/metrics`, `/health/live` and `/health/ready`.
#
# Live: the process answers and its event loop has run recently; restart it if not. Ready: it has recovered its
# tables, holds its partitions, none of them has stood still for five minutes, and it is not stopping. Neither calls
# a model or the broker, so a probe costs nothing and an outage elsewhere restarts nothing here.

# Loading a model or folding a long log holds the loop for a while; an engine step never does.
STUCK_S = 120.0

STALLED_S = 300.0
"""Time without progress in one partition after which a process is not ready, as in the alert PartitionStandsStill."""

Reply = tuple[str, str]


class Health:
    """State of one process, as probes see it.

    Args:
        clock: Seconds of a clock that never goes back.
        lag: Called at each beat with the seconds by which the loop came later than it should have.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, lag: Callable[[float], None] = lambda seconds: None
    ) -> None:
        self._clock = clock
        self._lag = lag
        self._turned = clock()
        self._state = "starting"
        self._stalled: dict[str, float] = {}

    def stalled(self, seconds: Mapping[str, float]) -> None:
        """Say how long each partition, as topic/partition, has stood still with records waiting."""
        self._stalled = dict(seconds)

    def ready(self) -> None:
        """Say that records are being handled."""
        self._state = "ready"

    def stopping(self) -> None:
        """Say that no further record is taken."""
        self._state = "stopping"

    async def beat(self, every_s: float = 0.1) -> None:
        """Note that the event loop turns, and how late, forever."""
        while True:
            self._turned = self._clock()
            await asyncio.sleep(every_s)
            self._lag(max(0.0, self._clock() - self._turned - every_s))

    def live(self) -> Reply:
        """Return the status line and the text of `/health/live`."""
        silent_s = self._clock() - self._turned
        if silent_s > STUCK_S:
            return "503 Service Unavailable", f"the event loop has not turned for {silent_s:.0f} s"
        return "200 OK", "live"

    def readiness(self) -> Reply:
        """Return the status line and the text of `/health/ready`."""
        status, text = self.live()
        if status != "200 OK":
            return status, text
        if self._state != "ready":
            return "503 Service Unavailable", self._state
        still = [f"{name} ({s:.0f} s)" for name, s in sorted(self._stalled.items()) if s > STALLED_S]
        if still:
            return "503 Service Unavailable", f"records wait and none is handled: {', '.join(still)}"
        return "200 OK", "ready"


def serve(host: str, port: int, registry: CollectorRegistry, health: Health) -> WSGIServer:
    """Answer on a port, in threads of their own; any other path than health shows the metrics."""
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        probe = {"/health/live": health.live, "/health/ready": health.readiness}.get(environ["PATH_INFO"])
        if probe is None:
            shown: Iterable[bytes] = metrics(environ, start_response)
            return shown
        status, text = probe()
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [text.encode() + b"\n"]

    server = make_server(host, port, app, _Server, _Quiet)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: probes come every few seconds."""
