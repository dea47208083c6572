"""Fewer and smaller fetches: incremental sessions (KIP-227), which aiokafka lacks, and a minimum interval.

An aiokafka fetch lists all partitions, and the response describes all of them. With the 64 partitions of an executor,
that takes about 0.6 ms of Python, usually for a single record, and as much work on the broker. In a session, a fetch
lists only what has changed since the last one, and the response contains only partitions with new records.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka.protocol.fetch import FetchRequest

from streams.runtime.kafka.clients.connections import EMBEDDED_WAIT_MS

# A fetch returns as soon as there is one record, so under load nearly every record would cost its own fetch. The first
# fetch after an idle period is not delayed. Twice this interval saves 9 % of a record's processor time, four times 14 %
# (streams.bench.echo); but a search has a dozen hops, and each would wait half of the interval longer on average.
FETCH_INTERVAL_S = 0.005

# A fetch that finds nothing occupies its node for 1.5 s, as faust sets it. While partitions are assigned and tables
# recovered, positions move, and what is wanted next must not wait behind a fetch from where they were.
MOVING_WAIT_MS = 50

_SESSIONS_SINCE = 7
_LAST_EPOCH = 2**31 - 1

_Place = tuple[str, int]


class _InSession(FetchRequest):  # type: ignore[misc]
    """A fetch that lists only what has changed since the previous one of its session."""

    def __init__(self, whole: FetchRequest, session: "_Session") -> None:
        super().__init__(
            whole._max_wait_ms, whole._min_bytes, whole._max_bytes, whole._isolation_level, whole._topics,
            whole._rack_id,
        )  # fmt: skip
        self._session = session
        self._topics: Any = whole._topics

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class.API_VERSION < _SESSIONS_SINCE:
            return super().build(request_struct_class)
        changed, forgotten = self._session.turn_to(self._topics)
        self._topics = changed
        request: Any = super().build(request_struct_class)
        request.session_id, request.session_epoch = self._session.id, self._session.epoch
        request.forgotten_topics_data = forgotten
        return request


class _Session:
    """What one broker remembers about our fetches."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        """0 requests a new session, which replaces the one with this id."""
        self._known: dict[_Place, tuple[int, int]] = {}

    def turn_to(self, topics: Any) -> tuple[list[Any], list[Any]]:
        """Return the changed and the forgotten partitions, which tell the broker exactly what is wanted."""
        wanted = {
            (topic, partition): (position, most)
            for topic, partitions in topics
            for partition, position, most in partitions
        }
        known = self._known if self.epoch else {}
        changed: dict[str, list[tuple[int, int, int]]] = {}
        for (topic, partition), (position, most) in wanted.items():
            if known.get((topic, partition)) != (position, most):
                changed.setdefault(topic, []).append((partition, position, most))
        forgotten: dict[str, list[int]] = {}
        for topic, partition in known.keys() - wanted.keys():
            forgotten.setdefault(topic, []).append(partition)
        self._known = wanted
        return list(changed.items()), list(forgotten.items())

    def go_on(self, session_id: int) -> None:
        """Record a response; a broker that keeps no session returns 0."""
        self.id = session_id
        self.epoch = (1 if self.epoch == _LAST_EPOCH else self.epoch + 1) if session_id else 0

    def restart(self) -> None:
        """Request a new session next, because it is uncertain what the broker knows."""
        self.epoch = 0


class FetchSessions:
    """aiokafka's client as a fetcher sees it, with one session for each node."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sessions: dict[Any, _Session] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, node_id: Any, request: Any, **kwargs: Any) -> Any:
        """Send a request; a fetch goes into the node's session."""
        if not isinstance(request, FetchRequest):
            return await self._client.send(node_id, request, **kwargs)
        session = self._sessions.setdefault(node_id, _Session())
        for _ in range(2):
            try:
                response = await self._client.send(node_id, _InSession(request, session), **kwargs)
            except BaseException:  # a cancelled request may have arrived
                session.restart()
                raise
            if response.API_VERSION < _SESSIONS_SINCE:
                break
            if not response.error_code:
                session.go_on(response.session_id)
                break
            # The broker has forgotten the session or disagrees about its epoch: try once more, with a full fetch.
            session.id = 0
            session.restart()
        return response


def improve(fetcher: Any, *, embedded: bool = False, moving: Callable[[], bool] = lambda: False) -> None:
    """Add sessions to an aiokafka fetcher, and space out fetches from one node so that each returns more records.

    The embedded broker keeps no sessions and wakes no waiting fetch: fetches from it wait briefly instead.

    A delayed fetch already contains its positions. If a position moves in the meantime, aiokafka drops what was fetched
    for it, as it does when that happens while a request is in flight.

    Args:
        fetcher: The fetcher of a consumer that has started.
        embedded: Whether the broker is the embedded one.
        moving: Says whether positions are about to move; a fetch then waits for records only briefly.
    """
    if embedded:
        fetcher._fetch_max_wait_ms = min(fetcher._fetch_max_wait_ms, EMBEDDED_WAIT_MS)
    else:
        fetcher._client = FetchSessions(fetcher._client)
    fetch, open_at = fetcher._proc_fetch_request, dict[Any, float]()
    time = asyncio.get_running_loop().time

    async def paced(assignment: Any, node_id: Any, request: Any) -> bool:
        try:
            if (wait_s := open_at.get(node_id, 0.0) - time()) > 0:
                await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            return False  # as the fetch itself does: the assignment is gone
        open_at[node_id] = time() + FETCH_INTERVAL_S
        if moving():
            request._max_wait_ms = min(request._max_wait_ms, MOVING_WAIT_MS)
        return bool(await fetch(assignment, node_id, request))

    fetcher._proc_fetch_request = paced
