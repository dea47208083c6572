"""The page at `/`: static files under a strict content policy, and a session that keeps the API key out of scripts."""

import secrets
from collections import OrderedDict
from pathlib import Path
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from streams.rooms.gateway.limits import Gate, check_host
from streams.rooms.gateway.openai.errors import ApiError

FOLDER: Final = Path(__file__).parent.parent / "static"
COOKIE: Final = "uniscale_session"
SECURE: Final = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_MOST_SESSIONS: Final = 1000
_MOST_BODY: Final = 4096


class Page:
    """The page of one gateway and its sessions.

    A browser sends its key once; then a cookie that scripts cannot read stands for it, because an EventSource sends no
    headers. Sessions live in memory: after a restart one logs in again.

    Args:
        gate: Which keys there are.
        hosts: Host names that requests may be addressed to.
    """

    def __init__(self, gate: Gate, hosts: frozenset[str]) -> None:
        self.gate = gate
        self.hosts = hosts
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the page."""
        return [
            Route("/", self.index),
            Route("/session", self.session, methods=["GET", "POST", "DELETE"]),
            Mount("/static", _Secured(StaticFiles(directory=FOLDER))),
        ]

    def key_of(self, request: Request) -> str | None:
        """Return the API key behind a request's session."""
        return self._sessions.get(request.cookies.get(COOKIE, ""))

    async def index(self, request: Request) -> Response:
        """GET /."""
        return FileResponse(FOLDER / "index.html", headers=SECURE)

    async def session(self, request: Request) -> Response:
        """Say whether a session is needed (GET), open one with a key (POST), or end it (DELETE)."""
        try:
            check_host(request.headers.get("host"), request.headers.get("origin"), self.hosts)
            if request.method == "POST":
                return await self._begin(request)
        except ApiError as error:
            return Response(error.body(), error.status, error.headers, "application/json")
        if request.method == "DELETE":
            self._sessions.pop(request.cookies.get(COOKIE, ""), None)
            ended = Response(orjson.dumps({"logged_in": False}), media_type="application/json")
            ended.delete_cookie(COOKIE)
            return ended
        body = {"needed": self.gate.has_keys, "logged_in": self.key_of(request) is not None}
        return Response(
            orjson.dumps(body), media_type="application/json", headers={"cache-control": "no-store"}
        )

    async def _begin(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BODY:
                raise ApiError(413, f"the body has more than {_MOST_BODY} bytes", code="too_large")
        try:
            given = orjson.loads(bytes(body))
            key = given["key"] if isinstance(given, dict) else None
        except (orjson.JSONDecodeError, KeyError):
            key = None
        if not isinstance(key, str):
            raise ApiError(400, 'give an API key: {"key": …}', param="key")
        self.gate.credential(key)  # refuses a wrong one
        token = secrets.token_urlsafe(32)
        self._sessions[token] = key
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        begun = Response(orjson.dumps({"logged_in": True}), media_type="application/json")
        begun.set_cookie(
            COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
        )
        return begun


class _Secured:
    """Static files with the page's headers."""

    def __init__(self, files: StaticFiles) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in SECURE.items()]
            await send(message)

        await self._files(scope, receive, with_headers)
