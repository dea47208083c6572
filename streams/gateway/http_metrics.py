"""Metrics of the gateway's HTTP requests, as ASGI middleware: number, duration, and time until a stream begins."""

from time import monotonic
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streams.metrics import Metrics

TENANT: Final = "uniscale.tenant"
"""Scope key under which authentication stores the tenant of the API key; absent before that, "" without a tenant."""


class HttpMetrics:
    """Counts and times every request of an application.

    A request is labelled with the pattern of its route, so that clients cannot create labels.

    Args:
        app: The application, whose router stores the route in the scope.
        metrics: The process's metrics.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, metrics = monotonic(), self._metrics
        status, streams, begun = 499, False, False  # 499, as in nginx: the client left before any response

        async def sent(message: Message) -> None:
            nonlocal status, streams, begun
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
                if _is_stream(message):
                    metrics.http_open_streams.inc()
                    streams = True
            elif streams and message.get("body") and not begun:
                begun = True
                metrics.http_first_chunk.labels(_route(scope)).observe(monotonic() - began_s)

        try:
            await self._app(scope, receive, sent)
        finally:
            if streams:
                metrics.http_open_streams.dec()
            tenant = scope.get(TENANT, "")
            metrics.http_requests.labels(_route(scope), str(status), tenant).inc()
            metrics.http_seconds.labels(_route(scope)).observe(monotonic() - began_s)


def _is_stream(start: Message) -> bool:
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"]
    )


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", "")
    return "other" if path in ("", "/{rest:path}") else path
