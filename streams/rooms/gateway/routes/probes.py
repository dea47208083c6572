"""Probes and metrics. None of them calls a model or needs a key."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from streams.rooms.gateway.routes.guard import reply
from streams.rooms.gateway.service import Service


class Probes:
    """What orchestrators and Prometheus ask.

    Args:
        service: What the routes look at.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/health/live", self.live),
            Route("/health/ready", self.ready),
            Route("/metrics", self.metrics),
        ]

    async def live(self, request: Request) -> Response:
        """GET /health/live: the process answers."""
        return reply({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """GET /health/ready: topics are read to their ends. Says too how many models an executor serves now."""
        control = self.service.runtime.control
        serving = control.serving()
        return reply(
            {
                "status": "ready",
                "queries": len(self.service.index),
                "waiting": len(self.service.waiting),
                "models": {
                    "ready": sum(name in serving for name in control.catalogue.model_names),
                    "of": len(control.catalogue.model_names),
                },
            }
        )

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self.service.runtime.metrics.text(), media_type="text/plain; version=0.0.4")
