"""`/v1/dead-letters`: what could not be handled. For operators only, because dead letters hold every client's data."""

from starlette.requests import Request
from starlette.responses import Response

from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.routes.guard import Listing, reply, whole
from streams.rooms.gateway.service import Service


class Letters:
    """Dead letters.

    Args:
        service: What the routes call.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> Listing:
        """Return the routes."""
        return [("GET", "/v1/dead-letters", self.letters)]

    async def letters(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/dead-letters."""
        who.require("admin")
        data = [
            {
                "object": "dead-letter", "created": at_ms // 1000, "room": letter.room, "error": letter.error,
                "reason": letter.reason, "field": letter.field, "origin": letter.key, "query_id": letter.query_id,
                "attempts": letter.attempts,
            }
            for at_ms, letter in self.service.index.letters(whole(request, "limit", 100, 1000))
        ]  # fmt: skip
        return reply({"object": "list", "data": data})
