"""The gateway as a service: it follows the topics into its index, and serves all routes as one ASGI application."""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.answer import Answer
from schemas.control import KeyEntry, decode_control
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.record import Record, decode
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep
from streams.gateway.auth import SPENT_MS, Gate, check_host, is_local
from streams.gateway.chat import chat
from streams.gateway.coordinator import RequestCoordinator
from streams.gateway.endpoint import Call, RouteGuard, cross_origin, reply
from streams.gateway.errors import ApiError, refusal
from streams.gateway.index import Index
from streams.gateway.routes import Page, routes
from streams.http.server import Server, server_of
from streams.log.base import ConsumerRecord, Since
from streams.runtime.runtime import Runtime, ServiceSpec

# All routes of the gateway as one ASGI application.

_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]
_SHOWN: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")


class Routes:
    """The HTTP side of one gateway.

    Args:
        coordinator: The gateway's coordinator.
        hosts: Host names that requests may be addressed to.
        services: Services whose consumer groups are shown.
    """

    def __init__(
        self, coordinator: RequestCoordinator, hosts: frozenset[str], services: Sequence[ServiceSpec] = ()
    ) -> None:
        self.coordinator = coordinator
        page = Page(coordinator.gate, hosts)
        self.guard = RouteGuard(coordinator, hosts, page.key_of)
        self._listed: list[BaseRoute] = [
            *(
                Route(path, self.guard(handle), methods=[method])
                for method, path, handle in [("POST", "/v1/chat/completions", chat), *routes(services)]
            ),
            *page.routes(),
            # Probes call no model and need no key.
            Route("/health/live", self.live),
            Route("/health/ready", self.ready),
        ]

    def app(self) -> ASGIApp:
        """Return the ASGI application."""
        rest = [
            Route("/{rest:path}", self.options, methods=["OPTIONS"]),
            Route("/{rest:path}", self.guard(self.nothing), methods=_METHODS),
        ]
        return _without_slash(Starlette(routes=[*self._listed, *rest]))

    async def live(self, request: Request) -> Response:
        """GET /health/live: the process responds."""
        return reply({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """GET /health/ready: topics are read to their ends. Also returns how many models are being served."""
        control = self.coordinator.runtime.control
        serving, names = control.serving(), control.catalogue.model_names
        return reply(
            {
                "status": "ready",
                "queries": len(self.coordinator.index),
                "waiting": len(self.coordinator.waiting),
                "models": {"ready": sum(name in serving for name in names), "of": len(names)},
            }
        )

    async def options(self, request: Request) -> Response:
        """OPTIONS on any path: CORS preflight requests. Needs no key."""
        try:
            check_host(request.headers.get("host"), request.headers.get("origin"), self.guard.hosts)
        except ApiError as error:
            return refusal(error)
        allow = ", ".join([*self._methods(request.scope), "OPTIONS"])
        headers = {"allow": allow, **cross_origin(request)}
        if "origin" in request.headers:
            wanted = request.headers.get("access-control-request-headers", "authorization, content-type")
            headers |= {
                "access-control-allow-methods": allow,
                "access-control-allow-headers": wanted,
                "access-control-max-age": "600",
            }
        return Response(status_code=204, headers=headers)

    async def nothing(self, call: Call) -> Response:
        """Any other path: 404 in OpenAI's format; 405 where the path exists, but not with this method."""
        scope, method, path = call.request.scope, call.request.method, call.request.url.path
        if allowed := self._methods(scope):
            allow = ", ".join(allowed)
            raise ApiError(
                405,
                f"{method} is not allowed on {path[:200]}; use {allow}",
                code="method_not_allowed",
                headers={"allow": allow},
            )
        hint = ""
        if path in ("/v1/completions", "/v1/responses"):
            hint = "; ask with POST /v1/chat/completions"
        for candidate in (f"/v1{path}", path.removeprefix("/v1")):
            if candidate != path and self._methods({**scope, "path": candidate}):
                hint = f"; did you mean {candidate[:200]}? The base URL of a client ends with /v1, once"
                break
        raise ApiError(404, f"{method} {path[:200]} does not exist here{hint}", code="unknown_url")

    def _methods(self, scope: Scope) -> list[str]:
        """Return the methods that a path supports."""
        return [
            method
            for method in _SHOWN
            if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in self._listed)
        ]


def _without_slash(app: ASGIApp) -> ASGIApp:
    """Treat `/v1/models/` as `/v1/models`: with a redirect, some clients would lose the body of a POST."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/") and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/")}
        await app(scope, receive, send)

    return called


# The gateway as a service: it follows the topics into its index, and serves HTTP.

log = logging.getLogger("streams.gateway")

_BACKLOG: Final = 2048  # uvicorn's own

LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


class OpenGateway(UniscaleError):
    """The gateway could be reached from other machines without any API key. Add a key first."""


class AddressTaken(UniscaleError):
    """The gateway cannot listen on its address. Choose another port."""


class GatewayService:
    """One gateway.

    Args:
        runtime: The way to the topics.
        recent: How many queries the index keeps, and how many records per partition are read at startup.
        services: Services whose consumer groups are shown.
    """

    def __init__(self, runtime: Runtime, recent: int, services: Sequence[ServiceSpec] = ()) -> None:
        self.runtime = runtime
        self.services = services
        self.recent = recent
        settings = runtime.settings
        self.gate = Gate(settings.queries.max_in_flight, settings.gateway.streams, settings.gateway.reads)
        self.index = Index(recent, timeout_s=settings.queries.timeout_s, group_by=settings.gateway.group_by)
        self.coordinator = RequestCoordinator(runtime, self.index, self.gate)
        runtime.closers.append(self.coordinator.deciders.close)

    async def follow(self) -> None:
        """Read the topics to their current ends, and keep reading."""
        topics = self.runtime.topics
        await self.runtime.log.tail([topics.control], self._on_control, begin="beginning")
        index, coordinator, begun = self.index, self.coordinator, set[int]()

        def on_query(query: Query, raw: ConsumerRecord) -> None:
            # Earlier records of the partition are not read, or were removed.
            index.moves |= raw.partition not in begun and raw.offset > 0
            begun.add(raw.partition)
            index.query(query, raw.timestamp_ms)

        followed: tuple[tuple[str, type[Record], Callable[[Any, ConsumerRecord], object]], ...] = (
            (topics.query, Query, on_query),
            (topics.decision, Decision, coordinator.on_decision),
            # Before the Answers: Rewards are read further back and contain the cost and the API key.
            (topics.reward, Reward, coordinator.on_reward),
            (topics.answer, Answer, coordinator.on_answer),
            (topics.feedback, Feedback, lambda given, raw: index.note_feedback(given)),
            (topics.dead_letter, DeadLetter, coordinator.on_dead_letter),
        )
        # With much traffic, a day of Rewards takes minutes to read: skip it if no key has a quota.
        counts = self.gate.has_quotas or not self.gate.has_keys
        spent = Since(self.runtime.clock.now_ms() - SPENT_MS, least=self.recent) if counts else self.recent
        for topic, kind, take in followed:
            begin = spent if topic == topics.reward else self.recent
            await self.runtime.log.tail([topic], _decoded(kind, take), begin=begin)
        # Only new steps can still be streamed.
        await self.runtime.log.tail([topics.search_step], self._on_step, begin="end")

    def routes(self, hosts: frozenset[str] = frozenset()) -> Routes:
        """Return the HTTP side."""
        return Routes(self.coordinator, LOCAL_HOSTS | hosts, self.services)

    def check_address(self, host: str, hosts: frozenset[str] = frozenset()) -> None:
        """Refuse to be reachable from other machines while no key exists: without keys, every request is allowed.

        Args:
            host: Address the gateway listens on.
            hosts: Host names that requests may be addressed to; any of these implies a proxy in front of this machine.

        Raises:
            OpenGateway: saying how to add a key.
        """
        if self.gate.has_keys:
            return
        foreign = sorted(hosts - LOCAL_HOSTS)
        if not is_local(host):
            what = f"gateway_host: {host} can be reached from other machines"
        elif foreign:
            what = f"gateway_hosts: {', '.join(foreign)} can be asked from other machines, through a proxy"
        else:
            return
        raise OpenGateway(
            f"{what}, and there is no API key. Add one (`python -m streams keys add NAME --tenant T`), or listen "
            "on 127.0.0.1 without UNISCALE_GATEWAY_HOSTS"
        )

    def _on_control(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):  # `control` itself reports unreadable records
            if not record.value:
                return
            entry = decode_control(record.value)
            if isinstance(entry, KeyEntry):
                self.gate.change(entry)
            self.coordinator.marks.note(entry, record.timestamp_ms)

    def _on_step(self, record: ConsumerRecord) -> None:
        key = record.key.decode(errors="replace") if record.key else ""
        if key in self.coordinator.waiting:
            with contextlib.suppress(UniscaleError):
                self.coordinator.waiting.seen(key, decode(record.value, SearchStep))


def _decoded(
    kind: type[Record], take: Callable[[Any, ConsumerRecord], object]
) -> Callable[[ConsumerRecord], None]:
    """Return a function that decodes a record and passes both on; unreadable ones are reported by their service."""

    def on_record(raw: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):
            take(decode(raw.value, kind), raw)

    return on_record


async def serve(service: GatewayService, host: str, port: int, hosts: frozenset[str] = frozenset()) -> Server:
    """Serve HTTP alongside the service until it stops, and return the server.

    Raises:
        OpenGateway: see `check_address`.
        AddressTaken: see `listen`.
    """
    service.check_address(host, hosts)
    bound = listen(host, port)
    server = server_of(service.runtime, service.routes(hosts).app())

    async def run() -> None:
        with bound:
            await server.serve(sockets=[bound])

    service.runtime.background("http", run)
    return server


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

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
