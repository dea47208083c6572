"""`/v1/now`: what the deployment does, as the page's first view shows it."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from streams.control import Control
from streams.rooms.gateway.index import statistics
from streams.rooms.gateway.limits import Credential, Tenants
from streams.rooms.gateway.routes.guard import Listing, reply, whole
from streams.rooms.gateway.service import Service

_FRESH_S: Final = 3.0
"""Seconds for which a comparison of policy and control group is shown before new answers are counted in."""


class Now:
    """Current activity.

    Args:
        service: What the route calls.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._uplifts: dict[Tenants, tuple[int, float, dict[str, Any]]] = {}

    def routes(self) -> Listing:
        """Return the routes."""
        return [("GET", "/v1/now", self.now)]

    async def now(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/now."""
        who.require("read")
        runtime = self.service.runtime
        latest = self.service.index.latest(whole(request, "limit", 1000, 10_000), who.sees)
        return reply({
            **statistics.now(latest, runtime.now_ms()),
            "uplift": self._uplift(who.sees),
            "models": models(runtime.control),
            "marks": self.service.marks.listed(),
        })  # fmt: skip

    def _uplift(self, tenants: Tenants) -> dict[str, Any]:
        """Return the comparison over all that is known, once for all who look at the same queries."""
        index, now_s = self.service.index, self.service.runtime.monotonic()
        kept = self._uplifts.get(tenants)
        if kept is not None and (kept[0] == index.changes or now_s - kept[1] < _FRESH_S):
            return kept[2]
        found = statistics.uplift(index.latest(index.most, tenants))
        self._uplifts[tenants] = (index.changes, now_s, found)
        return found


def models(control: Control) -> list[dict[str, Any]]:
    """Return each model of the catalogue, and whether an executor serves it now."""
    serving = control.serving()
    return [
        {"name": model.name, "group": model.group, "serving": model.name in serving}
        for model in control.catalogue.models
    ]
