"""All routes of the gateway as one ASGI application."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from streams.rooms.gateway.deciders import Deciders
from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.openai.chat import chat
from streams.rooms.gateway.openai.errors import ApiError
from streams.rooms.gateway.routes.decide import Decide
from streams.rooms.gateway.routes.guard import Guard, body_of
from streams.rooms.gateway.routes.letters import Letters
from streams.rooms.gateway.routes.models import Models
from streams.rooms.gateway.routes.now import Now
from streams.rooms.gateway.routes.objectives import ObjectiveRoutes
from streams.rooms.gateway.routes.page import Page
from streams.rooms.gateway.routes.probes import Probes
from streams.rooms.gateway.routes.queries import Queries
from streams.rooms.gateway.service import Service

_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]


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

    def app(self) -> Starlette:
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
        routes: list[BaseRoute] = [
            Route(path, self.guard(handle), methods=[method]) for method, path, handle in listed
        ]
        routes += [
            *self.page.routes(),
            *Probes(service).routes(),
            Route("/{rest:path}", self.guard(self.nothing), methods=_METHODS),
        ]
        return Starlette(routes=routes)

    async def chat(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/chat/completions."""
        return await chat(request, await body_of(request), who, self.service, request_id)

    async def nothing(self, request: Request, who: Credential, request_id: str) -> Response:
        """Any other path: 404 in OpenAI's format."""
        raise ApiError(
            404, f"{request.method} {request.url.path[:200]} does not exist here", code="unknown_url"
        )
