"""The response to a completion request, whole or as a stream, from its search's records: what the protocols share."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, TypeAlias

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from agents.catalogue.cost_model import CostModel
from schemas.answer import Answer
from schemas.chunk import AnswerChunk, Shown
from schemas.decision import Decision
from schemas.errors import RecordError
from schemas.forest import Forest, before_stop
from schemas.query import ToolCall
from schemas.search import SearchStep
from streams.gateway import answer_details
from streams.gateway.endpoint import Call, EventStream, body_of
from streams.gateway.errors import ApiError, ClientGone, of_answer, of_record
from streams.gateway.open_requests import QueryRecord, Queue
from streams.gateway.request import ChatRequest, digest
from streams.gateway.searches import Admitted
from streams.gateway.upstream_message import calls
from streams.trace import TRACEPARENT

# The part of a running search that can already be streamed: the steps shared by every path that can still win.


def settled_text(forest: Forest) -> str:
    """Return the text that every possible answer of this search starts with.

    The answer will be a path still being drafted, the best completed one, or, while none is completed, one that was cut
    off. What all of these share is final. A search of width 1 has one path, so it streams step by step. Text that may
    be the start of a client's stop text is held back.

    Args:
        forest: The search as in a SearchStep, with the newest drafts pending.
    """
    ends = list(forest.pending or forest.live)
    if forest.best >= 0:
        ends.append(forest.best)
    else:
        ends += [at for at, draft in enumerate(forest.drafts) if draft.fate in ("cut", "stopped")]
    if not ends:
        return ""
    shared = forest.path(ends[0])
    for end in ends[1:]:
        other = forest.path(end)
        same = 0
        while same < min(len(shared), len(other)) and shared[same] == other[same]:
            same += 1
        shared = shared[:same]
    text = "".join(forest.drafts[at].text for at in shared)
    return before_stop(text, forest.limits.stop)


# One request whose query has been sent, and the response to it, whole or as a stream.

_BEAT_LOOKS: Final = 10
"""Number of polls without a record between two heartbeats of a stream: five seconds."""

Parse: TypeAlias = Callable[[Call, bytes], ChatRequest]
"""Reads a protocol's request from the body of a call. Raises ApiError 400 or 404."""


async def answered(call: Call, parse: Parse, response: "type[CompletionResponse]") -> Response:
    """Return the response to a request for a completion.

    Args:
        call: The request.
        parse: Reads its body.
        response: Class of the protocol's responses.

    Raises:
        ApiError: before any part of the response is sent.
    """
    began_s = call.gateway.runtime.monotonic()
    body = await body_of(call.request)
    call.who.require("ask")
    asked = parse(call, body)
    if asked.session_id is None:
        asked = msgspec.structs.replace(asked, session_id=call.request.headers.get("x-session-id"))
    with ExitStack() as held, _named(asked):
        asked = call.gateway.submission.honoured(asked, call.who)
        held.enter_context(await call.gateway.limits.completion(call.who, call.is_gone))
        if asked.stream:
            held.enter_context(call.gateway.limits.stream(call.who))
        admitted = await call.gateway.submission.submit(
            asked,
            call.who,
            digest=digest(body, asked.translated.protocol),
            idempotency_key=call.request.headers.get("idempotency-key"),
            is_retry=_retries(call.request) > 0,
            traceparent=call.request.headers.get(TRACEPARENT),
        )
        this = response(call, asked, admitted, began_s)
        return await (this.stream(held) if asked.stream else this.whole())


@contextmanager
def _named(asked: ChatRequest) -> Iterator[None]:
    """Make errors name fields as the request's protocol does."""
    try:
        yield
    except RecordError as error:
        raise of_record(error).renamed(asked.translated.names) from None
    except ApiError as error:
        raise error.renamed(asked.translated.names) from None


class CompletionResponse(ABC):
    """The response to a request whose query has been sent. Each protocol defines its own body and stream events.

    Args:
        call: The request.
        asked: Its body.
        admitted: Its query.
        began_s: When it arrived, in seconds of the runtime's monotonic clock.

    Attributes:
        decision: The Decision, once it is known.
        shown: The part of the answer that is known to be final.
    """

    def __init__(self, call: Call, asked: ChatRequest, admitted: Admitted, began_s: float) -> None:
        self.call = call
        self.asked = asked
        self.admitted = admitted
        self.gateway = call.gateway
        self.decision: Decision | None = None
        self.shown = Shown()
        self._began_s = began_s
        self._streaming = False

    @abstractmethod
    def body(self, answer: Answer) -> dict[str, Any]:
        """Return the whole response. The Answer has a text; only with a budget may it have none."""

    @abstractmethod
    def begin(self) -> list[bytes]:
        """Return the events that begin a stream."""

    @abstractmethod
    def text(self, text: str) -> list[bytes]:
        """Return the events for more of the answer's text."""

    @abstractmethod
    def called(self, at: int, call: ToolCall, more: str) -> list[bytes]:
        """Return the events for more of the arguments of a call; the first piece begins it.

        Args:
            at: Its number among the answer's calls, from 0.
            call: The call with its arguments so far.
            more: The piece.
        """

    @abstractmethod
    def end(self, answer: Answer) -> list[bytes]:
        """Return the events that end a stream, once all text and calls have been sent."""

    @abstractmethod
    def failed(self, error: ApiError) -> list[bytes]:
        """Return the events that end a stream without an answer."""

    @abstractmethod
    def beat(self) -> list[bytes]:
        """Return a heartbeat of a stream."""

    def progress(self, step: SearchStep) -> list[bytes]:
        """Return the events that report the progress of the search; none in most protocols."""
        return []

    @property
    def took_s(self) -> float:
        """Return the seconds since the request arrived."""
        return self.gateway.runtime.monotonic() - self._began_s

    @property
    def cost_model(self) -> CostModel:
        """Return the cost model of the current catalogue."""
        return self.gateway.runtime.control.cost_model

    @property
    def model(self) -> str:
        """Return the model that runs or, while that is unknown, the model requested."""
        return self.decision.action.model if self.decision else self.asked.model

    def details(self, answer: Answer) -> dict[str, Any]:
        """Return the object `uniscale` of the response."""
        found = answer_details.details(answer, self.decision, self.cost_model, self.took_s)
        return {**found, "ignored": list(self.asked.ignored)}

    async def _is_gone(self) -> bool:
        """Return whether the client disconnected before the response started."""
        return not self._streaming and await self.call.is_gone()

    def _may_return(self) -> bool:
        """Return whether a disconnected client may have reached its own timeout, after which it may retry.

        The official clients send their timeout in a header. Once a stream has started, they do not retry.
        """
        waits_s = _client_timeout_s(self.call.request)
        return not self._streaming and waits_s is not None and self.took_s >= waits_s

    async def whole(self) -> Response:
        """Return the response once the search has ended."""
        with self._open() as queue:
            async for what in self._events(queue):
                if isinstance(what, Decision):
                    self.decision = what
                elif isinstance(what, Answer):
                    await self._check_client()
                    return self._response(what)
        raise AssertionError("events end with the Answer or an error")

    def _response(self, answer: Answer) -> Response:
        if (error := of_answer(answer)) is not None:
            error.headers |= self._headers()
            raise error
        headers = self._headers()
        if (cost := answer_details.usd(answer, self.decision, self.cost_model)) is not None:
            headers["x-litellm-response-cost"] = repr(cost)  # read by dashboards
        return Response(orjson.dumps(self.body(answer)), media_type="application/json", headers=headers)

    async def stream(self, held: ExitStack) -> Response:
        """Return a stream. Its headers wait for the Decision, so that they can contain the choice.

        Errors before the Decision set the status; later ones are events of the stream.

        Args:
            held: Resources to close with the stream.
        """
        events = self._events(held.enter_context(self._open()))
        first = await self._until_chosen(events)
        await self._check_client()
        self._streaming = True
        headers = {**self._headers(), "x-accel-buffering": "no"}
        return EventStream(self._chunks(first, events), held.pop_all(), headers)

    def _open(self) -> AbstractContextManager[Queue]:
        return self.gateway.searches.open(self.admitted, self._is_gone, self._may_return)

    async def _check_client(self) -> None:
        """Do not start a response to a disconnected client: its retry should get the response. Raises ClientGone."""
        if await self.call.is_gone():
            raise ClientGone

    def _events(self, queue: Queue) -> AsyncIterator[QueryRecord | None]:
        return self.gateway.searches.events(self.admitted, queue, self.call.is_gone)

    async def _until_chosen(self, events: AsyncIterator[QueryRecord | None]) -> Answer | None:
        async for what in events:
            if isinstance(what, Decision):
                self.decision = what
                return None
            if isinstance(what, AnswerChunk):  # topics are followed independently
                self.shown.add(what)
            if isinstance(what, Answer):
                if (error := of_answer(what)) is not None:
                    error.headers |= self._headers()
                    raise error
                return what
        return None

    async def _chunks(
        self, first: Answer | None, events: AsyncIterator[QueryRecord | None]
    ) -> AsyncIterator[bytes]:
        quiet = 0
        try:
            for part in (*self.begin(), *self._known()):
                yield part
            if first is not None:
                for part in self._end(first):
                    yield part
                return
            async for what in events:
                parts: list[bytes] = []
                quiet = quiet + 1 if what is None else 0
                if quiet >= _BEAT_LOOKS:
                    quiet = 0
                    parts = self.beat()
                elif isinstance(what, Decision):  # another attempt
                    self.decision = what
                elif isinstance(what, SearchStep | AnswerChunk):
                    parts = self._more(what)
                    if isinstance(what, SearchStep) and self.asked.extension.progress:
                        parts = [*parts, *self.progress(what)]
                elif isinstance(what, Answer):
                    parts = self._end(what)
                for part in parts:
                    yield part
        except ClientGone:
            return
        except ApiError as error:
            for part in self.failed(error.renamed(self.asked.translated.names)):
                yield part

    def _known(self) -> list[bytes]:
        """Return the events for what is known before the stream begins."""
        parts = self.text(self.shown.text) if self.shown.text else []
        for at, call in enumerate(self.shown.calls):
            parts += self.called(at, call, call.arguments)
        return parts

    def _more(self, what: SearchStep | AnswerChunk) -> list[bytes]:
        """Add what a record says to what is shown, and return the events for the part that was new."""
        if isinstance(what, SearchStep):
            text, known = settled_text(what.forest), self.shown.text
            more = text[len(known) :] if text.startswith(known) else ""
            self.shown.text += more
            return self.text(more) if more else []
        if self.decision is not None and what.attempt < self.decision.attempt:
            return []
        more = self.shown.add(what)
        if not more:
            return []
        if what.call is None:
            return self.text(more)
        return self.called(what.call.index, self.shown.calls[-1], more)

    def _end(self, answer: Answer) -> list[bytes]:
        if (error := of_answer(answer)) is not None:
            return self.failed(error.renamed(self.asked.translated.names))
        text, made, known = answer.text or "", calls(answer), self.shown
        if not text.startswith(known.text) or not _continues(made, known.calls):
            # What was streamed cannot be retracted, and an error is better than an answer that no model gave.
            return self.failed(
                ApiError(
                    502,
                    "the answer does not begin with what was streamed; ask again without stream",
                    type="api_error",
                    code="stream_diverged",
                )
            )
        parts = self.text(text[len(known.text) :]) if len(text) > len(known.text) else []
        for at, call in enumerate(made):
            begun = known.calls[at].arguments if at < len(known.calls) else None
            if begun is None or len(call.arguments) > len(begun):
                parts += self.called(at, call, call.arguments[len(begun or "") :])
        return [*parts, *self.end(answer)]

    def _headers(self) -> dict[str, str]:
        call, ignored = self.call, ", ".join(self.asked.ignored)
        debug = call.request.headers.get("x-uniscale-debug", "").lower() in ("1", "true")
        return {
            **({"x-uniscale-ignored": ignored} if ignored else {}),
            **answer_details.headers(self.decision, self.admitted.query_id, call.id, debug=debug),
            **self.gateway.submission.limits(call.who),
        }


def _continues(made: Sequence[ToolCall], known: Sequence[ToolCall]) -> bool:
    """Return whether an answer's calls begin with those that are known, of which only the last may be incomplete."""
    if not known:
        return True
    *whole, last = known
    if len(made) < len(known) or tuple(made[: len(whole)]) != tuple(whole):
        return False
    same = msgspec.structs.replace(made[len(whole)], arguments="") == msgspec.structs.replace(
        last, arguments=""
    )
    return same and made[len(whole)].arguments.startswith(last.arguments)


def _retries(request: Request) -> int:
    count = request.headers.get("x-stainless-retry-count", "0")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 4 else 0


def _client_timeout_s(request: Request) -> float | None:
    """Return the timeout of OpenAI's client in seconds; the Node client sends whole seconds, rounded down."""
    for name in ("x-stainless-timeout", "x-stainless-read-timeout"):
        text = request.headers.get(name, "")
        if text.replace(".", "", 1).isdigit() and text.isascii() and len(text) < 12:
            return float(text)
    return None
