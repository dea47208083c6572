"""HTTP endpoints of a process: `/metrics`, `/health/live` and `/health/ready`."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

# Live: the process responds and its event loop has run recently; restart it if not. Ready: it has recovered its
# tables, owns its partitions, none of them has stalled for five minutes, and it is not stopping. Neither probe calls a
# model or the broker, so probes are cheap and an outage elsewhere causes no restarts.

# Loading a model or folding a long log blocks the loop for a while; an engine step never does.
STUCK_S = 120.0

STALLED_S = 300.0
"""Seconds without progress in one partition before a process is not ready, as in the alert PartitionStandsStill."""

Reply = tuple[str, str]


class Health:
    """State of one process, as reported to health probes.

    Args:
        clock: Monotonic clock, in seconds.
        lag: Called at each beat with the event loop's lateness, in seconds.
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
        """Report how long each partition (topic/partition) has stalled with records waiting, in seconds."""
        self._stalled = dict(seconds)

    def ready(self) -> None:
        """Report that records are being handled."""
        self._state = "ready"

    def stopping(self) -> None:
        """Report that no further records are accepted."""
        self._state = "stopping"

    async def beat(self, every_s: float = 0.1) -> None:
        """Record forever that the event loop runs, and report how late it is."""
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
    """Serve the probes on a port, in separate threads; every other path returns the metrics."""
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
        """Do not log requests: probes come every few seconds."""
