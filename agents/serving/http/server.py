"""JSON over HTTP with time-outs, bounded retry and a circuit breaker, for models served elsewhere."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec

from agents.serving.errors import (
    EndpointRefusedError,
    EndpointSuspendedError,
    EngineBusyError,
    EngineFaultError,
    EngineReplyError,
    EngineTimeoutError,
    EngineUnreachableError,
    RequestRefusedError,
    ServingError,
)
from agents.serving.http.breaker import Breaker
from agents.serving.retry import Retries, retrying

SHOWN_CHARACTERS = 300  # of a server's complaint, in our error
_REFUSES_US = (
    httpx.codes.UNAUTHORIZED,
    httpx.codes.FORBIDDEN,
    httpx.codes.NOT_FOUND,
    httpx.codes.PROXY_AUTHENTICATION_REQUIRED,
)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a server is and how patient to be with it.

    Attributes:
        url: Root of the server, before `/v1`, e.g. `http://localhost:8000`.
        api_key: Sent as a bearer token when not empty; never shown in an error.
        connect_timeout_s: Longest wait for a connection.
        read_timeout_s: Longest wait for a reply; a busy server queues.
        silent_s: A request that is cancelled after so long without a reply counts against the endpoint: a
            server that hangs must not be asked forever because queries run out of time first.
        retries: How often a request is tried.
        connections: Most requests in flight at once.
    """

    url: str
    api_key: str = ""
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 300.0
    silent_s: float = 60.0
    retries: Retries = Retries()
    connections: int = 256

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} must start with http:// or https://")
        if self.connections < 1:
            raise ValueError("connections: must be at least 1")

    def __repr__(self) -> str:
        return f"ServerSettings(url={self.url!r})"


class JsonServer:
    """A server that takes and returns JSON.

    Args:
        settings: Where it is.
        sleep: Awaited between attempts with seconds.
        clock: Seconds, monotonic.
        breaker: Counts what becomes of requests; by default one of its own.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
    ) -> None:
        self.settings = settings
        self.retries = 0
        self.breaker = breaker or Breaker(clock)
        self._sleep = sleep
        self._clock = clock
        self._places = asyncio.Semaphore(settings.connections)
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
            RequestRefusedError: the server refuses this request (4xx).
            EndpointRefusedError: the server refuses us (401, 403, 404).
            EndpointSuspendedError: its breaker is open.
            EngineFaultError: the last attempt failed; the subclass says how.
        """
        content = msgspec.json.encode(body)
        return await retrying(
            lambda: self._attempt("POST", path, content),
            self.settings.retries,
            on_retry=self._count_retry,
            sleep=self._sleep,
        )

    async def probe(self) -> None:
        """Ask a half-open endpoint which models it has, so that no query has to find out that it is still down."""
        if self.breaker.state != "half-open":
            return
        try:
            await self._attempt("GET", "/v1/models", None)
        except ServingError as error:
            # Not every server lists its models. An answer, even a refusal of this path, is an answer.
            if not isinstance(error, EndpointRefusedError):
                self.breaker.failed(str(error))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _count_retry(self) -> None:
        self.retries += 1

    async def _attempt(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        where = f"{self.settings.url.rstrip('/')}{path}"
        async with self._places:
            if self.breaker.state == "open":
                raise EndpointSuspendedError(
                    f"{where}: no requests for another {self.breaker.wait_s:.0f} s, because {self.breaker.why}"
                )
            began = self._clock()
            try:
                reply = await self._once(where, method, path, content)
            except asyncio.CancelledError:
                if self._clock() - began >= self.settings.silent_s:
                    self.breaker.failed(f"{where}: no reply in {self._clock() - began:.0f} s")
                raise
            except ServingError as error:
                if not error.infrastructure:
                    self.breaker.succeeded()  # it answered: the request was at fault
                elif not (isinstance(error, EngineBusyError) and error.overloaded):
                    self.breaker.failed(str(error))
                raise
            if method == "POST":
                self.breaker.succeeded()
            return reply

    async def _once(self, where: str, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        try:
            reply = await self._client.request(
                method, path, content=content, headers={"Content-Type": "application/json"}
            )
        except httpx.ConnectTimeout as error:
            raise EngineUnreachableError(
                f"{where}: no connection in {self.settings.connect_timeout_s:g} s"
            ) from error
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"{where}: no reply in {self.settings.read_timeout_s:g} s") from error
        except httpx.DecodingError as error:
            raise EngineReplyError(
                f"{where}: the reply's content encoding is damaged ({error}); check the server or a proxy before it"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise EngineUnreachableError(
                f"{where}: {error or type(error).__name__}; is the server up?"
            ) from error
        if reply.status_code != httpx.codes.OK:
            raise _refusal(where, reply)
        try:
            decoded = msgspec.json.decode(reply.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise EngineReplyError(f"{where}: the reply is not JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise EngineReplyError(f"{where}: the reply is not a JSON object")
        return decoded


def _refusal(where: str, reply: httpx.Response) -> ServingError:
    status = reply.status_code
    said = f"{where}: HTTP {status}: {_complaint(reply)}"
    if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
        busy = EngineBusyError(said)
        busy.asked_s = _retry_after_s(reply)
        busy.overloaded = status == httpx.codes.TOO_MANY_REQUESTS
        return busy
    if status in _REFUSES_US:
        return EndpointRefusedError(said)
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.REQUEST_TIMEOUT:
        return EngineFaultError(said)
    return RequestRefusedError(said)


def _complaint(reply: httpx.Response) -> str:
    try:
        body = msgspec.json.decode(reply.content)
        if isinstance(body, dict):
            error = body.get("error", body)
            body = error.get("message", error) if isinstance(error, dict) else error
        return str(body)[:SHOWN_CHARACTERS]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return reply.text[:SHOWN_CHARACTERS]


def _retry_after_s(reply: httpx.Response) -> float:
    try:
        return max(0.0, float(reply.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0  # an HTTP date: our own pause is as good
