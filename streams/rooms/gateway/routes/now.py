"""`/v1/now`: what the deployment does, as the page's first view shows it."""

import logging
import math
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from streams.control import Control
from streams.rooms import ROOMS
from streams.rooms.gateway.index import statistics
from streams.rooms.gateway.limits import Credential, Tenants
from streams.rooms.gateway.routes.guard import Listing, reply, whole
from streams.rooms.gateway.service import Service
from streams.runtime.errors import Unavailable

log = logging.getLogger("streams.gateway")

_ROOMS_S: Final = 10.0
"""Seconds for which what the broker says of the rooms is shown before it is asked again."""

_FRESH_S: Final = 3.0
"""Seconds for which a comparison of policy and control group is shown before new answers are counted in."""


class Now:
    """Current activity.

    Args:
        service: What the route calls.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._looked_s = -math.inf
        self._rooms_seen: list[dict[str, Any]] = []
        self._uplifts: dict[Tenants, tuple[int, float, dict[str, Any]]] = {}

    def routes(self) -> Listing:
        """Return the routes."""
        return [("GET", "/v1/now", self.now)]

    async def now(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/now."""
        who.require("read")
        runtime = self.service.runtime
        latest = self.service.index.latest(whole(request, "limit", 1000, 10_000), who.sees)
        minute, in_flight = self.service.index.activity(runtime.now_ms(), who.sees)
        return reply({
            "per_second": round(minute / 60, 3),
            "in_flight": in_flight,
            **statistics.now(latest),
            "uplift": self._uplift(who.sees),
            "models": models(runtime.control),
            # What waits is everybody's.
            "rooms": await self._rooms() if who.sees is None else [],
            "marks": self.service.marks.listed(),
        })  # fmt: skip

    async def _rooms(self) -> list[dict[str, Any]]:
        """Return each room with its workers and waiting records, as the broker told within the last seconds."""
        runtime = self.service.runtime
        now_s = runtime.monotonic()
        if now_s - self._looked_s >= _ROOMS_S:
            self._looked_s = now_s
            executors = tuple(dict.fromkeys(model.group for model in runtime.control.catalogue.models))
            names = {
                app: spec.name for spec in ROOMS.values() for app in spec.apps(runtime.topics, executors)
            }
            try:
                found = await runtime.groups(list(names))
            except Unavailable as error:
                log.warning("the consumer groups could not be read: %s", error)
                found = {}
            self._rooms_seen = [
                {
                    "room": app.removeprefix(runtime.settings.kafka.prefix),
                    "workers": found[app].members if app in found else None,
                    "waiting": sum(found[app].waiting.values()) if app in found else None,
                }
                for app in names
            ]
        return self._rooms_seen

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
    """Return each model of the catalogue, whether an executor serves it now, and what its executors say of it."""
    serving, told = control.serving(), control.health()
    found = []
    for model in control.catalogue.models:
        state, why = told.get(model.name, ("ready", "") if model.name in serving else ("silent", ""))
        found.append({
            "name": model.name, "group": model.group, "serving": model.name in serving, "state": state, "why": why,
        })  # fmt: skip
    return found
