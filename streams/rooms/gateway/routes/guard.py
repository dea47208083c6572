"""What every route shares: who may come in, how bodies and parameters are read, how errors leave."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from streams.rooms.gateway.limits import Credential, Gate, check_host
from streams.rooms.gateway.openai.errors import ApiError, invalid
from streams.rooms.gateway.openai.request import MAX_BODY
from streams.rooms.gateway.service import ClientGone

log = logging.getLogger("streams.gateway")

BODY_S: Final = 30.0
"""Seconds a client may take to send its body."""

# The rest of the body is not worth reading.
_HANG_UP: Final = {"connection": "close"}

Handle: TypeAlias = Callable[[Request, Credential, str], Awaitable[Response]]
"""A route's work: request, who asks, id of the request."""

Listing: TypeAlias = list[tuple[str, str, Handle]]
"""Method, path and handle of routes."""


class Guard:
    """Checks host and key before a route's work, and turns every error into OpenAI's shape.

    Args:
        gate: Keys and limits.
        hosts: Host names that requests may be addressed to.
        session_key: The API key behind a browser's session.
    """

    def __init__(
        self, gate: Gate, hosts: frozenset[str], session_key: Callable[[Request], str | None]
    ) -> None:
        self._gate = gate
        self._hosts = hosts
        self._session_key = session_key

    def __call__(self, handle: Handle) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a route's work."""

        async def guarded(request: Request) -> Response:
            request_id = f"req_{uuid.uuid4().hex}"
            try:
                check_host(request.headers.get("host"), request.headers.get("origin"), self._hosts)
                who = self._gate.credential(_bearer(request) or self._session_key(request))
                response = await handle(request, who, request_id)
                response.headers.setdefault("x-request-id", request_id)
                return response
            except ApiError as error:
                headers = {"x-request-id": request_id, **error.headers}
                return Response(error.body(), error.status, headers, "application/json")
            except (ClientGone, ClientDisconnect):
                return Response(status_code=499)
            except Exception:
                log.exception("%s %s failed (%s)", request.method, request.url.path, request_id)
                why = f"internal error; report {request_id} to the operator"
                body = ApiError(500, why, type="api_error", code="internal").body()
                return Response(body, 500, {"x-request-id": request_id}, "application/json")

        return guarded


async def body_of(request: Request) -> bytes:
    """Return a request's body.

    Raises:
        ApiError: 413 above MAX_BODY, as soon as it is; 408 when it takes too long.
    """
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                found += part
                if len(found) > MAX_BODY:
                    raise ApiError(
                        413,
                        f"the body has more than {MAX_BODY} bytes; send less",
                        code="too_large",
                        headers=_HANG_UP,
                    )
    except TimeoutError:
        why = f"the body did not come within {BODY_S:.0f} s"
        raise ApiError(408, why, code="body_timeout", headers=_HANG_UP) from None
    return bytes(found)


async def object_of(request: Request, *fields: str) -> dict[str, Any]:
    """Return a request's body as a JSON object.

    Raises:
        ApiError: see `body_of`; 400 for what is not an object, or has a field beside these.
    """
    try:
        found = orjson.loads(await body_of(request))
    except orjson.JSONDecodeError as error:
        raise invalid(None, f"the body is not JSON in UTF-8 ({error})", "invalid_json") from None
    if not isinstance(found, dict):
        raise invalid(None, "the body must be a JSON object", "invalid_json")
    if unknown := sorted(set(found) - set(fields)):
        raise invalid(unknown[0], f"{unknown[0]} is not a field; give {', '.join(fields)}")
    return found


def whole(request: Request, name: str, default: int, most: int) -> int:
    """Return a query parameter that is a whole number from 1 to `most`. Raises ApiError 400."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise invalid(name, f"{name} must be a whole number from 1 to {most}")
    return int(text)


def reply(body: dict[str, Any], status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(body), status, media_type="application/json")


def _bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None
