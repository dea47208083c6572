"""Remote models: JSON over HTTP with keys, time-outs, bounded retries and a circuit breaker."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal, Protocol, TypeVar

import httpx
import msgspec

from agents.catalogue.models import Sampling
from agents.serving.circuit_breaker import Breaker
from agents.serving.completion_stream import CompletionStream
from agents.serving.engine import (
    Continuation,
    Continuer,
    Drafted,
    OnText,
    Prefix,
    check_seeds,
    conversation_of,
    finish_of,
)
from agents.serving.errors import (
    ContentFilteredError,
    EndpointRefusedError,
    EndpointSuspendedError,
    EngineBusyError,
    EngineFaultError,
    EngineReplyError,
    EngineTimeoutError,
    EngineUnreachableError,
    HostClosedError,
    RequestRefusedError,
    ServingError,
    StreamBrokenError,
)
from agents.serving.event_stream import EventStream
from agents.serving.prompts import ChatPrompts
from agents.serving.retries import Retries, asks_for_long, retrying
from schemas.errors import UniscaleError
from schemas.search import Served

T = TypeVar("T")

# API keys by host: each endpoint receives only its own key.


class KeysError(UniscaleError, ValueError):
    """Keys cannot be read. Write `host=key` or `host:port=key`, several separated by commas."""


@dataclass(frozen=True)
class Keys:
    """API keys by host. They never appear in a repr or an error.

    Attributes:
        by_host: Keys by `host` or `host:port`; the latter takes precedence.
        by_name: Keys that entries of the catalogue file name, by key name and `host:port`.
    """

    by_host: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_name: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls,
        text: str,
        shared: str = "",
        urls: Iterable[str] = (),
        named: Iterable[tuple[str, str, str]] = (),
    ) -> "Keys":
        """Parse the keys in a deployment's settings.

        Args:
            text: `host=key,host:port=key`.
            shared: A key for the endpoints at `urls`.
            urls: The endpoints in the operator's catalogue file. A model added by a control record may have any
                address, so the shared key is not sent there.
            named: Key name, address and key of the endpoints in that file that name a key. Other endpoints must not be
                included, for the same reason.

        Raises:
            KeysError: A part is not `host=key`.

        >>> keys = Keys.read("a:8000=k1, b=k2", shared="k3", urls=["https://c.example/v1"])
        >>> [keys.of(url) for url in ("http://a:8000", "http://b:9", "https://c.example", "http://a:9")]
        ['k1', 'k2', 'k3', '']
        """
        found = {host: shared for url in urls if (host := _host(url))} if shared else {}
        for number, part in enumerate(filter(None, map(str.strip, text.split(","))), 1):
            host, _, key = part.partition("=")
            if not (host.strip() and key.strip()):
                raise KeysError(f"part {number} is not host=key; write host=key or host:port=key")
            found[host.strip().lower()] = key.strip()
        return cls(found, {(name, _host(url)): key for name, url, key in named if key})

    def of(self, url: str, name: str = "") -> str:
        """Return the key of an endpoint, by key name if the endpoint has one; empty if there is no key."""
        host = _host(url)
        if name and (own := self.by_name.get((name, host))):
            return own
        return self.by_host.get(host) or self.by_host.get(host.partition(":")[0], "")


def _host(url: str) -> str:
    """Return `host:port` of an address, with the scheme's default port if it has none; empty if it is invalid."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return ""
    port = parsed.port or (443 if parsed.scheme == "https" else 80)
    return f"{parsed.host}:{port}" if parsed.host else ""


# JSON over HTTP with time-outs, bounded retries and a circuit breaker, for remote models.

SHOWN_CHARACTERS = 300  # maximum length of a server's error message as quoted in ours
MOST_REPLY_BYTES = 32 << 20  # after decompression; many times the size of a verifier's largest reply
PATIENT = 0.2  # share of `silent_s` that a cancelled request must have waited to count as a failure
_EVENTS = "text/event-stream"
PROBE_S = 5.0  # a server that is up answers at once
_REQUEST_AT_FAULT = (
    httpx.codes.BAD_REQUEST,
    httpx.codes.REQUEST_ENTITY_TOO_LARGE,
    httpx.codes.UNPROCESSABLE_ENTITY,
)
_TRY_AGAIN = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address, time-outs and retries of a server.

    Attributes:
        url: Root of the server, before `/v1`, e.g. `http://localhost:8000`.
        api_key: Sent as a bearer token when not empty; never shown in an error.
        connect_timeout_s: Longest wait for a connection.
        read_timeout_s: Longest wait for a reply, including the time that a busy server queues the request.
        silent_s: After requests have waited this long in total without any reply, each request cancelled after at least
            a fifth of that time counts as a failure of the endpoint. Without this, the breaker of a hanging server
            would never open if queries always ran out of time before the read time-out.
        retries: Number of attempts per request, and the pauses between them.
        connections: Maximum requests in flight.
        headers: Sent with each request.
    """

    url: str
    api_key: str = ""
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 300.0
    silent_s: float = 60.0
    retries: Retries = Retries()
    connections: int = 256
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"ServerSettings(url={self.url!r})"


class JsonServer:
    """A server that accepts and returns JSON.

    Args:
        settings: Its address and time-outs.
        sleep: Awaited with the seconds between attempts.
        breaker: Counts successes and failures; by default a new one.

    Attributes:
        answered: Set once the server has answered any request. Before that, it may still be loading its weights.
        first: If set, sends a first question once the server is up, and returns what was wrong with the answer. The
            server counts as having answered only if nothing was wrong. The breaker limits how often the question is
            sent.
        why: Why the last readiness check failed.
        barred: Why the model here fails the operator's probe; empty if it does not, or the server is the only one.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        breaker: Breaker | None = None,
    ) -> None:
        self.settings = settings
        self.breaker = breaker or Breaker(time.monotonic)
        self.answered, self.why, self.barred = asyncio.Event(), "", ""
        self.first: Callable[[], Coroutine[Any, Any, str]] | None = None
        self._asking: asyncio.Task[str] | None = None
        self._sleep = sleep
        self._places = asyncio.Semaphore(settings.connections)
        self._silence = _Silence()
        self._callers = 0
        self._idle = asyncio.Event()
        self._idle.set()
        key = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._base = settings.url.rstrip("/").removesuffix("/v1")
        self._client = httpx.AsyncClient(
            base_url=self._base,
            headers=key | settings.headers,
            timeout=httpx.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=None),
            limits=httpx.Limits(
                max_connections=settings.connections, max_keepalive_connections=settings.connections
            ),
            # Ignore proxies set in the environment.
            trust_env=False,
        )

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[dict[str, Any]], T],
        streamed: Callable[[], EventStream] | None = None,
        *,
        conversation: bytes = b"",
        retries: Retries | None = None,
    ) -> T:
        """Send a request and return the server's JSON reply as parsed by `read`.

        Args:
            path: Path from the root of the server.
            body: The request's body, sent as JSON.
            read: Parses the reply; raises EngineReplyError if it is invalid. Only a reply that it accepts counts as a
                success of the endpoint.
            streamed: Makes a reader for the reply, if `body` asks for a stream. Plain JSON is accepted too.
            conversation: As for `Replicas.post`; ignored here, because there is only this server.
            retries: Number of attempts, and the pauses between them; by default as in the settings.

        Raises:
            RequestRefusedError: The server refuses this request (400, 413, 422).
            EndpointRefusedError: The server refuses every request (any other status that is not transient).
            EndpointSuspendedError: The endpoint's breaker is open.
            EngineFaultError: The last attempt failed; the subclass says how.
        """
        content = msgspec.json.encode(body)
        self._callers += 1
        self._idle.clear()
        try:
            return await retrying(
                lambda: self._attempt(path, content, read, streamed() if streamed is not None else None),
                retries or self.settings.retries,
                sleep=self._sleep,
            )
        finally:
            self._callers -= 1
            if not self._callers:
                self._idle.set()

    @property
    def in_flight(self) -> int:
        """Return the number of requests that have no reply yet."""
        return self._callers

    @property
    def takes_queries(self) -> bool:
        """Return whether queries may be sent here: it has answered, its breaker is not open and it is not barred."""
        return self.answered.is_set() and not self.barred and self.breaker.state != "open"

    async def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path, requested once and regardless of the breaker.

        Raises:
            ServingError: The server returned no JSON object; the subclass says why.
        """
        return await self._once(self._where(path), "GET", path, None)

    async def knock(self) -> None:
        """Check whether a server that has not answered yet is up, from its model list or else its health endpoint."""
        if self.answered.is_set():
            return
        for path in ("/v1/models", "/health"):
            if not (why := await self._fault(path)):
                if await self._is_answering():
                    self.answered.set()
                return
            self.why = why

    async def _is_answering(self) -> bool:
        """Return whether the first question was answered. If not within `PROBE_S`, the next call waits for it again."""
        if self.first is None:
            return True
        if self._asking is None:
            if self.breaker.state == "open":
                return False
            self._asking = asyncio.create_task(self.first())
        if not (await asyncio.wait([self._asking], timeout=PROBE_S))[0]:
            self.why = "has not answered its first question yet"
            return False
        asked, self._asking = self._asking, None
        self.why = asked.result()
        return not self.why

    async def probe(self) -> None:
        """Request the model list of a half-open endpoint, so that no query has to fail if it is still down."""
        if self.breaker.state != "half-open":
            return
        if why := await self._fault("/v1/models"):
            self.breaker.failed(why)

    async def _fault(self, path: str) -> str:
        """Return why a request for a path got no answer; empty if it got one, whatever the status."""
        where = self._where(path)
        try:
            async with asyncio.timeout(PROBE_S):
                await self._once(where, "GET", path, None)
        except TimeoutError:
            return f"{where}: no reply in {PROBE_S:g} s"
        except (EndpointRefusedError, RequestRefusedError, EngineReplyError):
            pass  # not every server has this path, and vLLM's health has no content
        except ServingError as error:
            return "" if _has_too_much_to_do(error) else str(error)
        return ""

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def close(self) -> None:
        """Close the connections."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._client.aclose()

    def _where(self, path: str) -> str:
        return f"{self._base}{path}"

    async def _attempt(
        self,
        path: str,
        content: bytes,
        read: Callable[[dict[str, Any]], T],
        streamed: EventStream | None,
    ) -> T:
        where = self._where(path)
        async with self._places:
            if self.breaker.state == "open":
                raise EndpointSuspendedError(
                    f"{where}: no requests for another {self.breaker.wait_s:.0f} s, because {self.breaker.why}"
                )
            self._silence.asked(began := time.monotonic())
            answered = True
            try:
                found = read(await self._once(where, "POST", path, content, streamed))
            except asyncio.CancelledError:
                answered, now = False, time.monotonic()
                # A short wait does not count: the client may have allowed its search only half a second.
                waited = now - began >= self.settings.silent_s * PATIENT
                if waited and (silent_s := self._silence.seconds(now)) >= self.settings.silent_s:
                    self.breaker.failed(f"{where}: no reply in {silent_s:.0f} s")
                raise
            except ServingError as error:
                if not error.infrastructure:
                    self.breaker.succeeded()  # it answered; the request was at fault
                elif asks_for_long(error, self.settings.retries):
                    self.breaker.rest(error.asked_s, str(error))
                elif not _has_too_much_to_do(error):
                    self.breaker.failed(str(error))
                if error.retryable and streamed is not None and streamed.began:
                    raise StreamBrokenError(str(error)) from error
                raise
            finally:
                self._silence.ended(time.monotonic(), answered=answered)
            self.breaker.succeeded()
            return found

    async def _once(
        self,
        where: str,
        method: str,
        path: str,
        content: bytes | None,
        streamed: EventStream | None = None,
    ) -> dict[str, Any]:
        try:
            status, headers, data = await self._whole(where, method, path, content, streamed)
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
                f"{where}: {error or type(error).__name__}; is the server up, and is its address right?"
            ) from error
        except RuntimeError as error:  # httpx raises it if the client is closed
            if not self._client.is_closed:
                raise
            raise HostClosedError(
                f"{where}: the connection was closed, because its model's entry changed"
            ) from error
        if status != httpx.codes.OK:
            raise _refusal(where, status, headers, data)
        if streamed is not None and headers.get("content-type", "").startswith(_EVENTS):
            return streamed.whole()
        try:
            decoded = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise EngineReplyError(f"{where}: the reply is not JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise EngineReplyError(f"{where}: the reply is not a JSON object")
        return decoded

    async def _whole(
        self,
        where: str,
        method: str,
        path: str,
        content: bytes | None,
        streamed: EventStream | None,
    ) -> tuple[int, httpx.Headers, bytes]:
        """Return status, headers and content of a reply, which `streamed` reads as it arrives."""
        headers = {"Content-Type": "application/json"}
        async with self._client.stream(method, path, content=content, headers=headers) as reply:
            parts, size = [], 0
            async for part in reply.aiter_bytes():
                parts.append(part)
                if streamed is not None:
                    streamed.take(part)
                size += len(part)
                if size > MOST_REPLY_BYTES:
                    raise EngineReplyError(f"{where}: the reply has more than {MOST_REPLY_BYTES} bytes")
            return reply.status_code, reply.headers, b"".join(parts)


class Sender(Protocol):
    """A model's server, or several servers of the same model."""

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[dict[str, Any]], T],
        streamed: Callable[[], EventStream] | None = None,
        *,
        conversation: bytes = b"",
    ) -> T:
        """Send a request; see `JsonServer.post`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class _Silence:
    """Total time that requests have waited since the endpoint last answered one; idle time does not count."""

    def __init__(self) -> None:
        self._waiting = 0
        self._since = 0.0
        self._before_s = 0.0

    def asked(self, now: float) -> None:
        """Record that a request is sent."""
        if not self._waiting:
            self._since = now
        self._waiting += 1

    def ended(self, now: float, *, answered: bool) -> None:
        """Record the end of a request."""
        self._waiting -= 1
        self._before_s = 0.0 if answered else self.seconds(now)
        self._since = now

    def seconds(self, now: float) -> float:
        """Return the seconds waited so far. Call it only while a request is waiting, or as the last one ends."""
        return self._before_s + now - self._since


def _has_too_much_to_do(error: ServingError) -> bool:
    """Return whether an endpoint is healthy but overloaded."""
    return isinstance(error, EngineBusyError) and error.overloaded


_ADVICE: dict[int, str] = {
    httpx.codes.UNAUTHORIZED: "; check its key: endpoint.key_env of a chat endpoint, UNISCALE_ENGINE_KEYS, or "
    "UNISCALE_ENGINE_KEY",
    httpx.codes.PAYMENT_REQUIRED: "; its account is empty",
    httpx.codes.FORBIDDEN: "; check what its key may do",
    httpx.codes.NOT_FOUND: "; check endpoint.url, and the model's name there: endpoint.model of a chat endpoint, "
    "endpoint.served_name of an http one",
}
"""What to do if an endpoint refuses every request, keyed by status."""


def _refusal(where: str, status: int, headers: httpx.Headers, data: bytes) -> ServingError:
    said = f"{where}: HTTP {status}: {_complaint(data)}{_ADVICE.get(status, '')}"
    if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
        busy = EngineBusyError(said)
        busy.asked_s = _retry_after_s(headers)
        busy.overloaded = status == httpx.codes.TOO_MANY_REQUESTS
        return busy
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status in _TRY_AGAIN:
        return EngineFaultError(said)
    # A redirect, an empty account or a wrong path makes every request fail, so this request is not at fault.
    return RequestRefusedError(said) if status in _REQUEST_AT_FAULT else EndpointRefusedError(said)


def _complaint(data: bytes) -> str:
    try:
        body = msgspec.json.decode(data)
        if isinstance(body, dict):
            error = body.get("error", body)
            body = error.get("message", error) if isinstance(error, dict) else error
        return str(body)[:SHOWN_CHARACTERS]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace")[:SHOWN_CHARACTERS]


def _retry_after_s(headers: httpx.Headers) -> float:
    """Return how many seconds a server asks to wait, as a number or as a date by its own clock (RFC 9110, 10.2.3).

    Return 0 if the header is missing or unreadable.
    """
    asked = headers.get("retry-after", "0")
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        until, now = (parsedate_to_datetime(each) for each in (asked, headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):  # a date without a time zone cannot be compared
        return 0.0


# The engine of a remote vLLM server, at its `/v1/completions`.
#
# The prompt is rendered here with the model's own chat template, so a path is continued exactly as it would be by an
# engine in this process. vLLM accepts and returns token ids, and reports the stop string that ended a completion.


class HttpEngine:
    """Drafts steps with a model on a server. Closing the engine closes its connections to the server.

    Args:
        server: The server, or several of the same model.
        model: The model's name in the catalogue.
        prompts: The model's chat template, from a local copy of its tokenizer.
        context_tokens: The server's limit on prompt plus output.
        served_name: The model's name on the server; empty if it is the same as `model`.
        instruction: A system message for conversations without one.
    """

    def __init__(
        self,
        server: Sender,
        model: str,
        prompts: ChatPrompts,
        *,
        context_tokens: int,
        served_name: str = "",
        instruction: str = "",
    ) -> None:
        self.model = model
        self.served = Served(name="openai-http/vllm", model=served_name or model)
        self._server = server
        self._continuer = Continuer(model, prompts, context_tokens, instruction=instruction)

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` drafts for each prefix, with one request per draft; see `Engine.generate`."""
        check_seeds(prefixes, n, seeds)
        plans = [plan for prefix in prefixes for plan in [self._continuer.plan(prefix, sampling)] * n]
        return await all_of(
            self._draft(plan, seed, sampling) for plan, seed in zip(plans, seeds, strict=True)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def stream(
        self, step_id: str, prefix: Prefix, seed: int, sampling: Sampling, on_text: OnText
    ) -> Drafted:
        """Return one draft; see `StreamingEngine.stream`."""
        return await self._draft(self._continuer.plan(prefix, sampling), seed, sampling, on_text)

    async def _draft(
        self,
        plan: Continuation,
        seed: int,
        sampling: Sampling,
        on_text: OnText | None = None,
    ) -> Drafted:
        if not plan.max_tokens:
            return self._continuer.full(plan)
        body: dict[str, Any] = {
            "model": self.served.model,
            "max_tokens": plan.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "n": 1,
            "prompt": plan.prompt_ids,
            "top_k": sampling.top_k,
            "stop": [sampling.delimiter],
            "include_stop_str_in_output": True,
            "skip_special_tokens": True,
            "return_token_ids": True,
        }
        if on_text is not None:
            body["stream"] = True
        choice = await self._server.post(
            "/v1/completions",
            body,
            lambda reply: _choice(reply, self.model, plan.max_tokens),
            None if on_text is None else lambda: CompletionStream(f"/v1/completions: {self.model}", on_text),
            conversation=conversation_of(plan.prefix.messages),
        )
        finish = finish_of(choice.finish_reason, choice.stop_reason, sampling.delimiter)
        return self._continuer.draft(plan, text=choice.text, finish=finish, token_ids=choice.token_ids or ())


class CompletionChoice(msgspec.Struct):
    """The fields of a completion that are used; servers send many more."""

    text: str
    finish_reason: Literal["stop", "length", "content_filter"]
    stop_reason: str | int | None = None
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]] | None = None


class Choices(msgspec.Struct):
    """A response of `/v1/completions`."""

    choices: list[CompletionChoice]


def _choice(reply: dict[str, Any], model: str, most_tokens: int) -> CompletionChoice:
    try:
        choices = msgspec.convert(reply, Choices).choices
    except msgspec.ValidationError as error:
        raise EngineReplyError(f"/v1/completions: unexpected reply: {error}") from error
    if len(choices) != 1:
        raise EngineReplyError(f"/v1/completions: {len(choices)} choices for a request of one")
    [choice] = choices
    if choice.finish_reason == "content_filter":
        raise ContentFilteredError(f"{model}: a content filter at the server withheld the completion")
    if choice.token_ids is None:
        raise EngineReplyError(f"{model}: the server returned no token_ids, so it is not vLLM")
    if len(choice.token_ids) > most_tokens or (choice.text and not choice.token_ids):
        raise EngineReplyError(
            f"{model}: the server returned {len(choice.token_ids)} token_ids for a text of {len(choice.text)} "
            f"characters, of {most_tokens} tokens that it was asked for"
        )
    return choice


async def all_of(calls: "Sequence[Coroutine[Any, Any, T]] | Any") -> list[T]:
    """Await all calls concurrently; at the first failure, cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
