"""All routes of the gateway as one ASGI application."""

from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from streams.rooms.gateway.deciders import Deciders
from streams.rooms.gateway.limits import Credential, check_host
from streams.rooms.gateway.openai.chat import chat
from streams.rooms.gateway.openai.errors import ApiError
from streams.rooms.gateway.routes.decide import Decide
from streams.rooms.gateway.routes.guard import Guard, body_of, cross_origin
from streams.rooms.gateway.routes.letters import Letters
from streams.rooms.gateway.routes.models import Models
from streams.rooms.gateway.routes.now import Now
from streams.rooms.gateway.routes.objectives import ObjectiveRoutes
from streams.rooms.gateway.routes.page import Page
from streams.rooms.gateway.routes.probes import Probes
from streams.rooms.gateway.routes.queries import Queries
from streams.rooms.gateway.service import Service

_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]
_SHOWN: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")


class Routes:
    """The HTTP side of one gateway.

    Args:
        service: What the routes call.
        deciders: Who says what would be chosen.
        hosts: Host names that requests may be addressed to.
        started: When the gateway started, in seconds since the epoch; models are listed as created then.
    """

    def __init__(self, service: Service, deciders: Deciders, hosts: frozenset[str], started: int) -> None:
        self.service = service
        self.deciders = deciders
        self.page = Page(service.gate, hosts)
        self.guard = Guard(service.gate, hosts, self.page.key_of)
        self.started = started

    def app(self) -> ASGIApp:
        """Return the ASGI application."""
        service = self.service
        listed = [
            ("POST", "/v1/chat/completions", self.chat),
            *Decide(service, self.deciders).routes(),
            *Models(service, self.started).routes(),
            *Queries(service).routes(),
            *Now(service).routes(),
            *Letters(service).routes(),
            *ObjectiveRoutes(service).routes(),
        ]
        self._listed: list[BaseRoute] = [
            Route(path, self.guard(handle), methods=[method]) for method, path, handle in listed
        ]
        self._listed += [*self.page.routes(), *Probes(service).routes()]
        rest = [
            Route("/{rest:path}", self.options, methods=["OPTIONS"]),
            Route("/{rest:path}", self.guard(self.nothing), methods=_METHODS),
        ]
        return _without_slash(Starlette(routes=[*self._listed, *rest]))

    async def chat(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/chat/completions."""
        return await chat(request, await body_of(request), who, self.service, request_id)

    async def options(self, request: Request) -> Response:
        """OPTIONS of any path: what a browser asks before a page of another origin may call it. Needs no key."""
        try:
            check_host(request.headers.get("host"), request.headers.get("origin"), self.guard.hosts)
        except ApiError as error:
            return Response(error.body(), error.status, error.headers, "application/json")
        allow = ", ".join([*self._methods(request.scope), "OPTIONS"])
        headers = {"allow": allow, **cross_origin(request)}
        if "origin" in request.headers:
            wanted = request.headers.get("access-control-request-headers", "authorization, content-type")
            headers |= {
                "access-control-allow-methods": allow, "access-control-allow-headers": wanted,
                "access-control-max-age": "600",
            }  # fmt: skip
        return Response(status_code=204, headers=headers)

    async def nothing(self, request: Request, who: Credential, request_id: str) -> Response:
        """Any other path: 404 in OpenAI's format; 405 where the path exists, but not with this method."""
        method, path = request.method, request.url.path
        if allowed := self._methods(request.scope):
            allow = ", ".join(allowed)
            raise ApiError(
                405, f"{method} is not allowed on {path[:200]}; use {allow}", code="method_not_allowed",
                headers={"allow": allow},
            )  # fmt: skip
        hint = ""
        if path in ("/v1/completions", "/v1/responses"):
            hint = "; ask with POST /v1/chat/completions"
        for candidate in (f"/v1{path}", path.removeprefix("/v1")):
            if candidate != path and self._methods({**request.scope, "path": candidate}):
                hint = f"; did you mean {candidate[:200]}? The base URL of a client ends with /v1, once"
                break
        raise ApiError(404, f"{method} {path[:200]} does not exist here{hint}", code="unknown_url")

    def _methods(self, scope: Scope) -> list[str]:
        """Return the methods that a path has."""
        return [
            method
            for method in _SHOWN
            if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in self._listed)
        ]


def _without_slash(app: ASGIApp) -> ASGIApp:
    """Take `/v1/models/` for `/v1/models`: a redirect would lose the body of a POST in some clients."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/") and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/")}
        await app(scope, receive, send)

    return called
