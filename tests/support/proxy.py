"""A TCP proxy between clients and some ports, which can cut, delay, half-close connections and lose what comes back.

It passes bytes on as they are. A broker that is to be reached through it advertises the proxy's port as its own.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Self, TypeVar

T = TypeVar("T")

TO_SERVER: Final = 0
TO_CLIENT: Final = 1
"""The two directions of a connection: requests, and what answers them."""

_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)


class Connection:
    """One client's connection: a socket at either end, and what has been done to it.

    Attributes:
        ended: Directions whose receiver was told that nothing more comes, although the sender goes on.
        gap: Whether something of what goes to the client is missing; nothing may follow it.
        over: Set when both sockets are closed.
    """

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.receivers = (server, client)
        self.ended: set[int] = set()
        self.gap = False
        self.over = asyncio.Event()

    def end(self, direction: int) -> None:
        """Tell the receiver of a direction that nothing more comes."""
        with contextlib.suppress(OSError, RuntimeError):  # it has left
            self.receivers[direction].write_eof()

    def abort(self) -> None:
        """Reset both sockets; what is on its way is lost."""
        for writer in self.receivers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        self.over.set()


class Road:
    """What lies between the clients of one port and the port: its connections, and what befalls them."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.open: set[Connection] = set()
        self.refuses = False
        self.delays_s = (0.0, 0.0)
        self.loses = False

    async def serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Pass on what one client and the server say, until both have ended."""
        server = None
        if not self.refuses:
            with contextlib.suppress(OSError):
                answers, server = await asyncio.open_connection("127.0.0.1", self.target)
        if server is None or self.refuses:
            client.transport.abort()
            return
        connection = Connection(client, server)
        self.open.add(connection)
        try:
            await asyncio.gather(
                self._pass_on(reader, connection, TO_SERVER), self._pass_on(answers, connection, TO_CLIENT)
            )
        finally:
            self.open.discard(connection)
            connection.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, connection: Connection, direction: int) -> None:
        receiver = connection.receivers[direction]
        try:
            while data := await reader.read(_CHUNK):
                await asyncio.sleep(self.delays_s[direction])
                connection.gap |= self.loses and direction == TO_CLIENT
                if direction in connection.ended or (connection.gap and direction == TO_CLIENT):
                    continue
                receiver.write(data)
                await receiver.drain()
        except OSError:
            if not connection.ended:
                connection.abort()
        if connection.ended:
            await connection.over.wait()  # neither end learns what the other has done
        connection.end(direction)


class Proxy:
    """Context manager of one listening port for each of some targets, served by a thread of its own.

    Args:
        count: How many ports.

    Attributes:
        ports: Where it listens, one port for each target.
    """

    def __init__(self, count: int) -> None:
        self._roads = [Road(0) for _ in range(count)]
        self._sockets = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in range(count)]
        self.ports = [int(each.getsockname()[1]) for each in self._sockets]
        self._listeners: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def lead(self, targets: Sequence[int]) -> None:
        """Say which port of this machine lies behind each of the proxy's own."""
        for road, target in zip(self._roads, targets, strict=True):
            road.target = target

    @contextlib.contextmanager
    def cut(self, roads: Collection[int]) -> Iterator[None]:
        """Reset every connection, and new ones at once."""
        self._set(roads, "refuses", True)
        self._abort(roads)
        yield
        self._set(roads, "refuses", False)

    @contextlib.contextmanager
    def delayed(self, roads: Collection[int], to_server_s: float, to_client_s: float) -> Iterator[None]:
        """Hold whatever comes back for so long, by direction."""
        self._set(roads, "delays_s", (to_server_s, to_client_s))
        yield
        self._set(roads, "delays_s", (0.0, 0.0))

    @contextlib.contextmanager
    def half_closed(self, roads: Collection[int], direction: int) -> Iterator[None]:
        """End one direction of the connections that are open, and hide from both ends what the other does about it."""

        def end() -> None:
            for connection in self._open(roads):
                connection.ended.add(direction)
                connection.end(direction)

        self._call(end)
        yield
        self._abort(roads, lambda connection: bool(connection.ended))

    @contextlib.contextmanager
    def losing_answers(self, roads: Collection[int]) -> Iterator[None]:
        """Drop all that servers say while what clients say arrives; then reset the connections that miss something."""
        self._set(roads, "loses", True)
        yield
        self._set(roads, "loses", False)
        self._abort(roads, lambda connection: connection.gap)

    def missing(self, roads: Collection[int]) -> int:
        """Return how many open connections miss an answer."""
        return self._call(lambda: sum(connection.gap for connection in self._open(roads)))

    def _set(self, roads: Collection[int], name: str, value: object) -> None:
        def assign() -> None:
            for at in roads:
                setattr(self._roads[at], name, value)

        self._call(assign)

    def _abort(
        self, roads: Collection[int], which: Callable[[Connection], bool] = lambda connection: True
    ) -> None:
        def abort() -> None:
            for each in self._open(roads):
                if which(each):
                    each.abort()

        self._call(abort)

    def _open(self, roads: Collection[int]) -> list[Connection]:
        return [connection for at in roads for connection in self._roads[at].open]

    def _call(self, what: Callable[[], T]) -> T:
        """Do something in the proxy's thread, and return what it returns."""

        async def do() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(10)

    def __enter__(self) -> Self:
        async def listen() -> None:
            for road, listening in zip(self._roads, self._sockets, strict=True):
                self._listeners.append(await asyncio.start_server(road.serve, sock=listening))

        self._thread.start()
        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)
        return self

    def __exit__(self, *raised: object) -> None:
        async def end() -> None:
            for listener in self._listeners:
                listener.close()
            for connection in self._open(range(len(self._roads))):
                connection.abort()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
