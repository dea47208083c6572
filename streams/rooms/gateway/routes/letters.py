"""`/v1/dead-letters`: what could not be handled. For operators only, because dead letters hold every client's data."""

import logging

from starlette.requests import Request
from starlette.responses import Response

from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.openai.errors import ApiError, invalid, not_found
from streams.rooms.gateway.routes.guard import Listing, object_of, reply, whole
from streams.rooms.gateway.service import Service
from streams.runtime.errors import NotAllowed

log = logging.getLogger("streams.gateway")


class Letters:
    """Dead letters.

    Args:
        service: What the routes call.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> Listing:
        """Return the routes."""
        return [
            ("GET", "/v1/dead-letters", self.letters),
            ("POST", "/v1/dead-letters/retry", self.retry),
        ]

    async def letters(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/dead-letters."""
        who.require("admin")
        data = [
            {
                "object": "dead-letter", "created": at_ms // 1000, "room": letter.room, "error": letter.error,
                "reason": letter.reason, "field": letter.field, "origin": letter.key, "query_id": letter.query_id,
                "attempts": letter.attempts, "retried": retried,
            }
            for at_ms, letter, retried in self.service.index.letters(whole(request, "limit", 100, 1000))
        ]  # fmt: skip
        return reply({"object": "list", "data": data})

    async def retry(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/dead-letters/retry: {origin}. Sends its record again, once: a repeat answers `duplicate: true`."""
        who.require("admin")
        origin = (await object_of(request, "origin")).get("origin")
        if not isinstance(origin, str):
            raise invalid("origin", "origin is missing; give the origin of a dead letter")
        index = self.service.index
        if (letter := index.letter_of(origin)) is None:
            raise not_found("origin", origin[:200])
        if not index.retried(origin):
            return reply({"object": "dead-letter.retry", "origin": origin, "duplicate": True})
        found = False
        try:
            found = await self.service.runtime.send_again(letter.origin)
        except NotAllowed:
            raise ApiError(
                403, f"the broker does not let the gateway send {letter.origin.topic} again; do it as an operator: "
                f"`python -m streams dead-letters retry {origin}`",
                type="permission_error", param="origin", code="not_allowed",
            ) from None  # fmt: skip
        finally:
            if not found:
                index.retried(origin, False)
        if not found:
            kept = f"its dead letter has the first {len(letter.head)} of {letter.size} bytes"
            why = f"the topic no longer holds {origin}; {kept}"
            raise ApiError(410, why, param="origin", code="gone")
        log.info("dead letter %s sent again by %s", origin, who.name)
        return reply({"object": "dead-letter.retry", "origin": origin, "duplicate": False})
