"""Several servers of one model, behind one catalogue entry.

Each server keeps its own circuit breaker, readiness and probes, so one that is down, hangs or answers badly gets no
queries while the others go on. Only if none is left is the whole model unavailable.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from agents.serving.errors import (
    EndpointRefusedError,
    EndpointSuspendedError,
    HostClosedError,
    ServingError,
)
from agents.serving.event_stream import EventStream
from agents.serving.http import JsonServer

T = TypeVar("T")

CONVERSATIONS: Final = 10_000
"""Number of recent conversations whose server is remembered."""


class Replicas:
    """Sends each request to one of several servers.

    A conversation stays with its server, whose prefix cache may have its beginning, as long as fewer than `busy`
    requests are in flight there. All others go to the server with the fewest requests in flight. A request that one
    server could not take is sent to the next.

    Args:
        servers: The servers.
        busy: Number of requests in flight from which on a conversation may leave its server.
    """

    def __init__(self, servers: Sequence[JsonServer], busy: int) -> None:
        self._servers = list(servers)  # in the order of their last request
        self._busy = busy
        self._last: OrderedDict[bytes, JsonServer] = OrderedDict()

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[dict[str, Any]], T],
        streamed: Callable[[], EventStream] | None = None,
        *,
        conversation: bytes = b"",
    ) -> T:
        """Send a request to one server, and to another if that one cannot take it; see `JsonServer.post`.

        Args:
            path: Path from the root of each server.
            body: The request's body.
            read: Parses the reply.
            streamed: Makes a reader for a stream.
            conversation: Which conversation the request belongs to; empty for none.

        Raises:
            ServingError: The last error, with the server that raised it (`server`).
        """
        failed: list[JsonServer] = []
        while True:
            able = [each for each in self._servers if each.takes_queries and each not in failed]
            server, others = self._chosen(conversation, able), len(able) > 1
            retries = msgspec.structs.replace(server.settings.retries, attempts=1) if others else None
            try:
                return await server.post(path, body, read, streamed, retries=retries)
            except ServingError as error:
                error.server = server.settings.url
                if not others or not _was_not_taken(error):
                    raise
                failed.append(server)

    async def close(self) -> None:
        """Close the connections."""
        for each in self._servers:
            await each.close()

    def _chosen(self, conversation: bytes, able: list[JsonServer]) -> JsonServer:
        last = self._last.get(conversation)
        if not able:
            # It refuses the request, with the reason.
            chosen = min(
                self._servers,
                key=lambda each: (not each.answered.is_set(), bool(each.barred), each.breaker.wait_s),
            )
        elif last in able and last.in_flight < self._busy:
            chosen = last
        else:
            chosen = min(able, key=lambda each: each.in_flight)
        self._servers.remove(chosen)
        self._servers.append(chosen)
        if conversation:
            self._last[conversation] = chosen
            self._last.move_to_end(conversation)
            if len(self._last) > CONVERSATIONS:
                self._last.popitem(last=False)
        return chosen


def _was_not_taken(error: ServingError) -> bool:
    """Return whether a server did no work for a request, so that sending it to another is not billed twice."""
    return error.retryable or isinstance(
        error, EndpointRefusedError | EndpointSuspendedError | HostClosedError
    )
