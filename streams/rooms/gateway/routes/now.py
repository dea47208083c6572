"""`/v1/now`: what the deployment does, as the page's first view shows it."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from streams.control import Control
from streams.rooms.gateway.index import statistics
from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.routes.guard import Listing, reply, whole
from streams.rooms.gateway.service import Service


class Now:
    """Current activity.

    Args:
        service: What the route calls.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> Listing:
        """Return the routes."""
        return [("GET", "/v1/now", self.now)]

    async def now(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/now."""
        who.require("read")
        runtime, index = self.service.runtime, self.service.index
        found = statistics.now(
            index.latest(whole(request, "limit", 1000, 10_000), who.sees), runtime.now_ms()
        )
        known = index.latest(index.most, who.sees)
        return reply({**found, "uplift": statistics.uplift(known), "models": models(runtime.control)})


def models(control: Control) -> list[dict[str, Any]]:
    """Return each model of the catalogue, and whether an executor serves it now."""
    serving = control.serving()
    return [
        {"name": model.name, "group": model.group, "serving": model.name in serving}
        for model in control.catalogue.models
    ]
