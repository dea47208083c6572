"""The gateway as a room: it follows the topics into its index, and serves HTTP."""

import contextlib
import logging
import os
import socket
from typing import Final

from schemas.answer import Answer
from schemas.base import decode
from schemas.control import KeyEntry, decode_control
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep
from streams.rooms.gateway.deciders import Deciders
from streams.rooms.gateway.index.recent import Index
from streams.rooms.gateway.limits import Gate, is_local
from streams.rooms.gateway.routes.app import Routes
from streams.rooms.gateway.service import Service
from streams.runtime.base import Runtime
from streams.runtime.records import Record
from streams.runtime.web import Server, server_of

log = logging.getLogger("streams.gateway")

_BACKLOG: Final = 2048  # uvicorn's own

LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


class OpenGateway(UniscaleError):
    """The gateway would listen beyond this machine without any API key. Add a key first."""


class AddressTaken(UniscaleError):
    """The gateway's address cannot be listened on. Choose another port."""


class GatewayRoom:
    """One gateway.

    Args:
        runtime: The way to the topics.
        recent: How many queries the index keeps, and how many records a partition are read at the start.
    """

    def __init__(self, runtime: Runtime, recent: int) -> None:
        self.runtime = runtime
        self.recent = recent
        self.gate = Gate()
        self.index = Index(recent, timeout_s=runtime.settings.queries.timeout_s)
        self.service = Service(runtime, self.index, self.gate)
        self.deciders = Deciders.of(runtime.settings)
        runtime.on_stop(self.deciders.close)

    async def follow(self) -> None:
        """Read the topics to their current ends, and keep reading."""
        topics = self.runtime.topics
        await self.runtime.follow([topics.control], self._on_control, begin="beginning")
        for topic, take in (
            (topics.query, self._on_query),
            (topics.decision, self._on_decision),
            (topics.answer, self._on_answer),
            (topics.reward, self._on_reward),
            (topics.feedback, self._on_feedback),
            (topics.dead_letter, self._on_letter),
        ):
            await self.runtime.follow([topic], take, begin=self.recent)
        # Only what searches do from now on can still be streamed.
        await self.runtime.follow([topics.search_step], self._on_step, begin="end")

    def routes(self, hosts: frozenset[str] = frozenset()) -> Routes:
        """Return the HTTP side."""
        return Routes(self.service, self.deciders, LOCAL_HOSTS | hosts, self.runtime.now_ms() // 1000)

    def check_address(self, host: str) -> None:
        """Refuse to listen beyond this machine without keys.

        Raises:
            OpenGateway: saying how to add one.
        """
        if not is_local(host) and not self.gate.has_keys:
            raise OpenGateway(
                f"gateway_host: {host} can be reached from other machines, and there is no API key. Add one "
                "(`python -m streams keys add NAME --tenant T`), or listen on 127.0.0.1"
            )

    def _on_control(self, record: Record) -> None:
        with contextlib.suppress(UniscaleError):  # `control` itself reports what cannot be read
            if not record.value:
                return
            entry = decode_control(record.value)
            if isinstance(entry, KeyEntry):
                self.gate.change(entry)
            self.service.marks.note(entry, record.timestamp_ms)

    def _on_query(self, record: Record) -> None:
        with contextlib.suppress(UniscaleError):  # the embedder makes a dead letter of it
            self.index.query(decode(record.value, Query), record.timestamp_ms)

    def _on_decision(self, record: Record) -> None:
        with contextlib.suppress(UniscaleError):
            decision = decode(record.value, Decision)
            self.service.on_decision(decision, record.value or b"", record.timestamp_ms)

    def _on_answer(self, record: Record) -> None:
        with contextlib.suppress(UniscaleError):
            self.service.on_answer(decode(record.value, Answer), record.value or b"", record.timestamp_ms)

    def _on_reward(self, record: Record) -> None:
        with contextlib.suppress(UniscaleError):
            self.service.on_reward(decode(record.value, Reward), record.value or b"")

    def _on_feedback(self, record: Record) -> None:
        with contextlib.suppress(UniscaleError):
            told = decode(record.value, Feedback)
            self.index.told(told.query_id, told.source, told.grade)

    def _on_letter(self, record: Record) -> None:
        with contextlib.suppress(UniscaleError):
            letter = decode(record.value, DeadLetter)
            self.service.on_letter(letter, record.value or b"", record.timestamp_ms)

    def _on_step(self, record: Record) -> None:
        key = record.key.decode(errors="replace") if record.key else ""
        if key in self.service.waiting:
            with contextlib.suppress(UniscaleError):
                self.service.waiting.seen(key, decode(record.value, SearchStep))


async def serve(room: GatewayRoom, host: str, port: int, hosts: frozenset[str] = frozenset()) -> Server:
    """Serve HTTP beside the room until it stops, and return the server.

    Raises:
        OpenGateway: see `check_address`.
        AddressTaken: see `listen`.
    """
    room.check_address(host)
    bound = listen(host, port)
    server = server_of(room.runtime, room.routes(hosts).app())

    async def run() -> None:
        with bound:
            await server.serve(sockets=[bound])

    room.runtime.background("http", run)
    return server


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        AddressTaken: naming the setting.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise AddressTaken(
            f"gateway_port: the gateway cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}). "
            "To fix this: stop what listens there, or choose another port with UNISCALE_GATEWAY_PORT"
        ) from None
