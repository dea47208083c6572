"""The gateway over HTTP: all its routes as one ASGI application, and the address on which it listens."""

import logging
import os
import socket
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import UniscaleError
from streams.gateway.auth import ApiKeys, check_host, is_local
from streams.gateway.chat_api.endpoint import chat
from streams.gateway.endpoint import Call, RouteGuard, cross_origin, reply
from streams.gateway.errors import ApiError, refusal
from streams.gateway.http_metrics import HttpMetrics
from streams.gateway.messages_api import endpoint as messages
from streams.gateway.responses_api import endpoint as responses
from streams.gateway.routes import Page, routes
from streams.gateway.service import GatewayService
from streams.http.server import Server, server_of

# All routes of the gateway as one ASGI application.

_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]
_SHOWN: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")


class Routes:
    """The HTTP side of one gateway.

    Args:
        gateway: The gateway.
        hosts: Host names that requests may be addressed to.
    """

    def __init__(self, gateway: GatewayService, hosts: frozenset[str]) -> None:
        self.gateway = gateway
        page = Page(gateway.keys, hosts)
        self.guard = RouteGuard(gateway, hosts, page.key_of)
        self._listed: list[BaseRoute] = [
            *(
                Route(path, self.guard(handle), methods=[method])
                for method, path, handle in [
                    ("POST", "/v1/chat/completions", chat),
                    ("POST", "/v1/responses", responses.create),
                    ("GET", "/v1/responses/{id}", responses.retrieve),
                    ("POST", "/v1/messages", messages.create),
                    ("POST", "/v1/messages/count_tokens", messages.count_tokens),
                    *routes(gateway.services),
                ]
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
        measured = HttpMetrics(Starlette(routes=[*self._listed, *rest]), self.gateway.runtime.metrics)
        return _without_slash(measured)

    async def live(self, request: Request) -> Response:
        """GET /health/live: the process responds."""
        return reply({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """GET /health/ready: the topics have been read to their ends. Also returns how many models are being served."""
        control = self.gateway.runtime.control
        serving, names = control.serving(), control.catalogue.model_names
        return reply(
            {
                "status": "ready",
                "queries": len(self.gateway.index),
                "waiting": len(self.gateway.searches.requests),
                "models": {"ready": sum(name in serving for name in names), "of": len(names)},
            }
        )

    async def options(self, request: Request) -> Response:
        """OPTIONS on any path: CORS preflight requests. Needs no key."""
        try:
            check_host(request.headers.get("host"), request.headers.get("origin"), self.guard.hosts)
        except ApiError as error:
            return refusal(error, request)
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
        if path == "/v1/completions":
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
    """Treat `/v1/models/` as `/v1/models`, because with a redirect some clients would lose the body of a POST."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/") and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/")}
        await app(scope, receive, send)

    return called


# The address on which the gateway listens.

log = logging.getLogger("streams.gateway")

_BACKLOG: Final = 2048  # uvicorn's own

LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


class OpenGateway(UniscaleError):
    """The gateway could be reached from other machines without any API key. Add a key first."""


class AddressTaken(UniscaleError):
    """The gateway cannot listen on its address. Choose another port."""


def check_address(keys: ApiKeys, host: str, hosts: frozenset[str] = frozenset()) -> None:
    """Refuse to be reachable from other machines while no key exists, because every request would be allowed.

    Args:
        keys: The API keys.
        host: Address the gateway listens on.
        hosts: Host names that requests may be addressed to; any of these implies a proxy in front of this machine.

    Raises:
        OpenGateway: the gateway would be reachable; the message says how to add a key.
    """
    if keys.has_keys:
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


async def serve(service: GatewayService, host: str, port: int, hosts: frozenset[str] = frozenset()) -> Server:
    """Serve HTTP alongside the service until it stops, and return the server.

    Raises:
        OpenGateway: see `check_address`.
        AddressTaken: see `listen`.
    """
    check_address(service.keys, host, hosts)
    bound = listen(host, port)
    server = server_of(service.runtime, Routes(service, LOCAL_HOSTS | hosts).app())

    async def run() -> None:
        with bound:
            await server.serve(sockets=[bound])

    service.runtime.background("http", run)
    return server


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        AddressTaken: the address cannot be used; the message names the setting.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise AddressTaken(
            f"gateway_port: the gateway cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}). "
            "To fix this: stop what listens there, or choose another port with UNISCALE_GATEWAY_PORT"
        ) from None
