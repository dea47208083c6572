"""Shared by all routes: authentication, and reading bodies and parameters."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

import orjson
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from streams.gateway.auth import Credential, check_host
from streams.gateway.errors import ApiError, invalid, response_to
from streams.gateway.http_metrics import TENANT
from streams.gateway.request import MAX_BODY, json_object
from streams.gateway.service import GatewayService

BODY_S: Final = 30.0
"""Seconds a client may take to send its body."""

_READ: Final = 4
"""Multiple of the size limit that is read from a body before closing, so that clients can read the refusal."""

# Do not read the rest of the body.
_HANG_UP: Final = {"connection": "close"}


class Call(Struct, frozen=True):
    """An authenticated request, as passed to a route.

    Attributes:
        gateway: The gateway.
        request: The request.
        who: The caller.
        id: The request's id, in its headers and in the process log.
    """

    gateway: GatewayService
    request: Request
    who: Credential
    id: str

    async def is_gone(self) -> bool:
        """Return whether no one can read a response any more: the client has disconnected, or its key was revoked."""
        return not self.gateway.keys.knows(self.who) or await self.request.is_disconnected()


Handle: TypeAlias = Callable[[Call], Awaitable[Response]]
"""A route's handler."""

Listing: TypeAlias = list[tuple[str, str, Handle]]
"""Method, path and handler of routes."""


class RouteGuard:
    """Checks host and API key before a route's handler; maps exceptions to responses (`streams.gateway.errors`).

    Args:
        gateway: The gateway.
        hosts: Host names that requests may be addressed to.
        session_key: Returns the API key of a request's browser session.
    """

    def __init__(
        self,
        gateway: GatewayService,
        hosts: frozenset[str],
        session_key: Callable[[Request], str | None],
    ) -> None:
        self._gateway = gateway
        self.hosts = hosts
        self._session_key = session_key

    def __call__(self, handle: Handle) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a route's handler."""

        async def guarded(request: Request) -> Response:
            request_id = f"req_{uuid.uuid4().hex}"
            headers = {"x-request-id": request_id, "request-id": request_id}  # OpenAI's, and Anthropic's
            try:
                check_host(request.headers.get("host"), request.headers.get("origin"), self.hosts)
                headers |= cross_origin(request)
                who = self._gateway.keys.credential(_key(request) or self._session_key(request))
                request.scope[TENANT] = who.tenant or ""
                if request.method in ("GET", "HEAD"):
                    self._gateway.limits.read(who, self._gateway.runtime.clock.now_ms())
                with self._gateway.limits.request(who):
                    response = await handle(Call(self._gateway, request, who, request_id))
            except Exception as error:
                response = response_to(error, request, request_id)
            for name, value in headers.items():
                response.headers.setdefault(name, value)
            return response

        return guarded


class EventStream(StreamingResponse):
    """Server-sent events.

    Args:
        parts: The events.
        held: Resources to close with the stream, even if the client disconnected before the first event.
        headers: Headers of the response.
    """

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        held: AbstractContextManager[Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            parts, headers={**(headers or {}), "cache-control": "no-cache"}, media_type="text/event-stream"
        )
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with self._held:
            await super().__call__(scope, receive, send)


def cross_origin(request: Request) -> dict[str, str]:
    """Return the headers that let a page of an allowed origin read the response (CORS); sessions are not shared."""
    origin = request.headers.get("origin")
    if not origin:
        return {}
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": "x-request-id, request-id, x-uniscale-query-id, x-uniscale-model, "
        "x-uniscale-action, x-uniscale-ignored, retry-after, x-should-retry",
        "vary": "origin",
    }


async def body_of(request: Request, most: int = MAX_BODY) -> bytes:
    """Return a request's body.

    Raises:
        ApiError: 413 for more than `most` bytes; 408 if the body takes too long to arrive; 415 if it is compressed.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        # Keep the connection: if it closes while a client is sending, the client may never read the reason.
        why = f"content-encoding {coding[:40]!r} is not supported; send the body as plain JSON"
        raise ApiError(415, why, param="content-encoding", code="unsupported_encoding")
    found, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    found += part
                elif size > _READ * most:
                    break
    except TimeoutError:
        if size <= most:
            why = f"the body did not come within {BODY_S:.0f} s"
            raise ApiError(408, why, code="body_timeout", headers=_HANG_UP) from None
    if size > most:
        why = f"the body has more than {most} bytes; send less"
        raise ApiError(413, why, code="too_large", headers=_HANG_UP)
    return bytes(found)


async def object_of(request: Request, *fields: str, most: int = MAX_BODY) -> dict[str, Any]:
    """Return a request's body as a JSON object.

    Raises:
        ApiError: see `body_of`; 400 if the body is not an object, or has other fields.
    """
    found = json_object(await body_of(request, most))
    if unknown := sorted(set(found) - set(fields)):
        why = f"{unknown[0][:200]} is not a field; give {', '.join(fields)}"
        raise invalid(unknown[0], why, "unknown_parameter")
    return found


def int_param(request: Request, name: str, default: int, most: int) -> int:
    """Return a query parameter that is a whole number from 1 to `most`. Raises ApiError 400."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise invalid(name, f"{name} must be a whole number from 1 to {most}")
    return int(text)


def reply(body: dict[str, Any], status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(body), status, media_type="application/json")


def _key(request: Request) -> str | None:
    """Return the API key of a request: OpenAI's clients send it as a bearer token, Anthropic's as `x-api-key`."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    found = token.strip() if kind.lower() == "bearer" else ""
    return found or request.headers.get("x-api-key", "").strip() or None
