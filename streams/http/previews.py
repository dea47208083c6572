"""The decider's read-only HTTP endpoint for previews: what the policy would choose for a query, and why.

    POST /decide   a Query, as it travels on the topic  ->  200, a Preview (agents.decider.preview) as JSON
                                                            400, {"field", "message"}: the query would be refused
                                                            503, {"message"}: this decider cannot answer now

It does not affect decisions: nothing is learned, logged or sent. Authentication is left to the gateway, so it listens
on this machine only unless `decider_host` says otherwise.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agents.decider.preview import Preview
from schemas.errors import RecordError, UniscaleError
from schemas.query import Query
from schemas.record import MAX_VALUE, decode
from streams.http.server import server_of
from streams.log.base import Unavailable
from streams.runtime.runtime import Runtime

log = logging.getLogger("streams.decider")

PATH: Final = "/decide"

_REBIND_S: Final = 5.0


class PreviewEndpoint:
    """Serves previews over HTTP.

    Args:
        runtime: The decider's runtime.
        preview: Returns what would be chosen for a query; raises Unavailable if it cannot now, and UniscaleError if the
            query would be refused.
    """

    def __init__(self, runtime: Runtime, preview: Callable[[Query], Awaitable[Preview]]) -> None:
        self._runtime = runtime
        self._preview = preview

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(routes=[Route(PATH, self._decide, methods=["POST"])])

    async def _decide(self, request: Request) -> Response:
        # Refuse browsers: requests from pages carry Origin.
        if "origin" in request.headers:
            return _reply(403, {"message": "requests of web pages are not answered here; ask the gateway"})
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_VALUE:
                return _reply(400, {"field": "", "message": f"the query has more than {MAX_VALUE} bytes"})
        try:
            found = await self._preview(decode(bytes(body), Query))
        except Unavailable as error:
            return _reply(503, {"message": str(error)})
        except UniscaleError as error:
            field = error.field if isinstance(error, RecordError) else ""
            if error.instead:
                log.warning("a preview is refused: %s", error)
            why = error.why if isinstance(error, RecordError) else error.for_client
            return _reply(400, {"field": field, "message": why})
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def serve(self) -> None:
        """Serve the endpoint until the service stops. While the port is taken, this waits and decisions continue."""
        settings = self._runtime.settings.previews
        told = False
        while True:
            try:
                bound = socket.create_server((settings.host, settings.port))
                break
            except OSError as error:
                if not told:
                    where = f"{settings.host}:{settings.port}"
                    log.warning("no previews: decider_port %s cannot be opened (%s)", where, error)
                told = True
                await asyncio.sleep(_REBIND_S)
        with bound:
            await server_of(self._runtime, self.app()).serve(sockets=[bound])


def _reply(status: int, body: dict[str, str]) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
