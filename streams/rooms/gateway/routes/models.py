"""`/v1/models`: the names that a request may use, every configuration on offer among them."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.openai import names
from streams.rooms.gateway.openai.errors import no_model
from streams.rooms.gateway.routes.guard import Listing, reply
from streams.rooms.gateway.service import Service


class Models:
    """The model lists.

    Args:
        service: What they call.
        started: When models are listed as created, in seconds since the epoch.
    """

    def __init__(self, service: Service, started: int) -> None:
        self.service = service
        self.started = started

    def routes(self) -> Listing:
        """Return the routes."""
        return [("GET", "/v1/models", self.models), ("GET", "/v1/models/{id:path}", self.model)]

    async def models(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/models."""
        return reply({"object": "list", "data": self._listing(who)})

    async def model(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/models/{id}, pins included."""
        name = request.path_params["id"]
        for each in self._listing(who):
            if each["id"] == name:
                return reply(each)
        raise no_model(name)

    def _listing(self, who: Credential) -> list[dict[str, Any]]:
        control = self.service.runtime.control
        found = names.listing(
            control.catalogue.model_names,
            control.objectives.named,
            self.service.configurations(),
            self.started,
        )
        return [each for each in found if _may_use(who, each["id"])]


def _may_use(who: Credential, name: str) -> bool:
    return who.entry is None or who.entry.allowed_models is None or name in who.entry.allowed_models
