"""Servers of tests that speak HTTP from threads of this process."""

from http.server import ThreadingHTTPServer
from threading import Thread


class Server(ThreadingHTTPServer):
    """A server that listens from its making until `close`, one thread a request.

    By default five connections may wait, and the kernel lets further ones try again; and whoever ends a server waits
    for it to look up, which it does every half second.
    """

    daemon_threads = True
    request_queue_size = 256

    def listen(self) -> None:
        """Answer from a thread."""
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        """Listen no longer."""
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"
