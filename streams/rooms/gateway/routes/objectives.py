"""`/v1/objectives`: what a query may be served for, by name."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from agents.space.objectives import Objectives
from schemas.base import encode
from schemas.control import ObjectiveEntry
from schemas.errors import RecordError
from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.openai import responses
from streams.rooms.gateway.openai.errors import of_json, of_record
from streams.rooms.gateway.routes.guard import Listing, object_of, reply
from streams.rooms.gateway.service import Service
from streams.runtime.records import Outgoing


class ObjectiveRoutes:
    """Objectives by name.

    Args:
        service: What the routes call.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> Listing:
        """Return the routes."""
        return [
            ("GET", "/v1/objectives", self.objectives),
            ("PUT", "/v1/objectives/{name:path}", self.set_objective),
        ]

    async def objectives(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/objectives."""
        objectives = self.service.runtime.control.objectives
        data = [_objective(objectives, name) for name in sorted(objectives.named)]
        return reply({"object": "list", "data": data, "default": objectives.default})

    async def set_objective(self, request: Request, who: Credential, request_id: str) -> Response:
        """PUT /v1/objectives/{name}: {weights} or {mean_cost} or {accuracy}."""
        who.require("admin")
        given = await object_of(request, "weights", "mean_cost", "accuracy")
        try:
            record = msgspec.convert(
                {"name": request.path_params["name"], "op": "set", **given}, ObjectiveEntry
            )
            value = encode(record)
        except RecordError as error:
            raise of_record(error) from None
        except msgspec.ValidationError as error:
            raise of_json(error) from None
        runtime = self.service.runtime
        await runtime.send(Outgoing(runtime.topics.control, record.key.encode(), value))
        return reply({"object": "objective", "name": record.name, "accepted": True}, status=202)


def _objective(objectives: Objectives, name: str) -> dict[str, Any]:
    return {"object": "objective", **responses.objective(objectives.in_force(name))}
