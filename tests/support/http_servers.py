"""Servers of tests that speak HTTP from threads of this process."""

import contextlib
import json
import socket
import sys
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from agents.serving.circuit_breaker import FAILURES, Breaker


class Server(ThreadingHTTPServer):
    """A server that listens from its making until `close`, one thread a request.

    By default five connections may wait, and the kernel lets further ones try again; and whoever ends a server waits
    for it to look up, which it does every half second.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *how: Any) -> None:
        self._connections = set[socket.socket]()
        super().__init__(*how)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Know the connection, so that it can be closed."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *about: Any) -> None:
        """Say nothing of a client that hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*about)

    def listen(self) -> None:
        """Answer from a thread."""
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        """Listen no longer, and close the connections that clients keep, as the end of a process does."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class JsonHandler(BaseHTTPRequestHandler):
    """Reads JSON, writes JSON or given bytes, and says nothing on standard error."""

    protocol_version = "HTTP/1.1"

    def body(self) -> Any:
        """Return what was sent."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole reply."""
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (self.send_response_only if "Date" in (headers or {}) else self.send_response)(status)
        self.send_header("Content-Length", str(len(raw)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def reply_slowly(self, content: Any, until: Event) -> None:
        """Begin a reply, and send spaces, which JSON allows, until an event is set; then the content."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while not until.wait(1.0):
            self.wfile.write(b"1\r\n \r\n")
        raw = json.dumps(content).encode()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(raw), raw))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def about_to_open(clock: Callable[[], float]) -> Breaker:
    """A circuit breaker that the next failure opens."""
    breaker = Breaker(clock)
    for _ in range(FAILURES - 1):
        breaker.failed("no connection")
    return breaker
