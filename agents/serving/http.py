"""JSON over HTTP with time-outs and bounded retry, for engines and verifiers that are servers elsewhere.

A request that can never succeed is refused at once; one that another attempt may answer is repeated with
growing pauses, at most `attempts` times in all. Repeating is safe: a request carries its own seed, so a reply
lost on the way costs work and changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec

from agents.serving.errors import (
    EngineBusyError,
    EngineFaultError,
    EngineReplyError,
    EngineTimeoutError,
    EngineUnreachableError,
    RequestRefusedError,
)

SHOWN_CHARACTERS = 300  # of a server's complaint, in our error


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a server is and how patient to be with it.

    Attributes:
        url: Root of the server, before `/v1`, e.g. `http://localhost:8000`.
        api_key: Sent as a bearer token when not empty; never shown in an error.
        connect_timeout_s: Longest wait for a connection.
        read_timeout_s: Longest wait for a reply; a busy server queues.
        attempts: Tries in all, the first included.
        pause_s: Pause before the second try; doubles with each further one.
        longest_pause_s: Bound on a pause, and on a server's Retry-After.
        connections: Most requests in flight at once.
    """

    url: str
    api_key: str = ""
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 300.0
    attempts: int = 5
    pause_s: float = 0.25
    longest_pause_s: float = 8.0
    connections: int = 256

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} must start with http:// or https://")
        if self.attempts < 1 or self.connections < 1:
            raise ValueError("attempts, connections: must be at least 1")

    def __repr__(self) -> str:
        return f"ServerSettings(url={self.url!r})"


class JsonServer:
    """A server that takes and returns JSON.

    Args:
        settings: Where it is.
        sleep: Awaited between attempts with seconds.
    """

    def __init__(
        self, settings: ServerSettings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.settings = settings
        self.retries = 0
        self._sleep = sleep
        self._room = asyncio.Semaphore(settings.connections)
        headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._client = httpx.AsyncClient(
            base_url=settings.url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=httpx.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=None),
            limits=httpx.Limits(
                max_connections=settings.connections, max_keepalive_connections=settings.connections
            ),
            # A proxy from the environment must not sit between an executor and its engine unasked.
            trust_env=False,
        )

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON object a server replies with.

        Raises:
            RequestRefusedError: The server refuses this request (4xx).
            EngineFaultError: The last of `attempts` tries failed; the subclass says how.
        """
        content = msgspec.json.encode(body)
        pause_s = self.settings.pause_s
        for attempt in range(1, self.settings.attempts + 1):
            try:
                async with self._room:
                    return await self._post_once(path, content)
            except EngineFaultError as error:
                if attempt == self.settings.attempts:
                    raise type(error)(f"{error} (after {attempt} attempts)") from error
                asked_s = error.asked_s if isinstance(error, EngineBusyError) else 0.0
                self.retries += 1
                await self._sleep(min(max(pause_s, asked_s), self.settings.longest_pause_s))
                pause_s *= 2
        raise AssertionError("unreachable: attempts is at least 1")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _post_once(self, path: str, content: bytes) -> dict[str, Any]:
        where = f"{self.settings.url.rstrip('/')}{path}"
        try:
            reply = await self._client.post(
                path, content=content, headers={"Content-Type": "application/json"}
            )
        except httpx.ConnectTimeout as error:
            raise EngineUnreachableError(
                f"{where}: no connection in {self.settings.connect_timeout_s:g} s"
            ) from error
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"{where}: no reply in {self.settings.read_timeout_s:g} s") from error
        except httpx.TransportError as error:
            raise EngineUnreachableError(
                f"{where}: {error or type(error).__name__}; is the server up?"
            ) from error
        if reply.status_code != httpx.codes.OK:
            raise _refusal(where, reply)
        try:
            decoded = msgspec.json.decode(reply.content)
        except msgspec.DecodeError as error:
            raise EngineReplyError(f"{where}: the reply is not JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise EngineReplyError(f"{where}: the reply is not a JSON object")
        return decoded


def _refusal(where: str, reply: httpx.Response) -> EngineFaultError | RequestRefusedError:
    status = reply.status_code
    said = f"{where}: HTTP {status}: {_complaint(reply)}"
    if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
        busy = EngineBusyError(said)
        busy.asked_s = _retry_after_s(reply)
        return busy
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.REQUEST_TIMEOUT:
        return EngineFaultError(said)
    return RequestRefusedError(said)


def _complaint(reply: httpx.Response) -> str:
    try:
        body = msgspec.json.decode(reply.content)
    except msgspec.DecodeError:
        return reply.text[:SHOWN_CHARACTERS]
    if isinstance(body, dict):
        error = body.get("error", body)
        body = error.get("message", error) if isinstance(error, dict) else error
    return str(body)[:SHOWN_CHARACTERS]


def _retry_after_s(reply: httpx.Response) -> float:
    try:
        return max(0.0, float(reply.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0  # an HTTP date: our own pause is as good
