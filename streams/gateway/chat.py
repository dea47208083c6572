"""`POST /v1/chat/completions`: one request, one search; whole, or as a stream of chunks."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from agents.reward.outcome import CostModel
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.forest import Forest, first_stop
from schemas.search import SearchStep
from streams.gateway import responses
from streams.gateway.endpoint import Call, EventStream, body_of
from streams.gateway.errors import ApiError, ClientGone, of_answer
from streams.gateway.open_requests import QueryRecord, Queue
from streams.gateway.request import ChatRequest, digest, parse
from streams.gateway.searches import Admitted

# The part of a running search that can already be streamed: the steps shared by every path that can still win.


def settled_text(forest: Forest) -> str:
    """Return the text that every possible answer of this search starts with.

    The answer will be a path still being drafted, the best completed one, or, while none is completed, one that was cut
    off. What all of these share is final. A search of width 1 has one path, so it streams step by step. Text that may
    be the start of a client's stop text is held back.

    Args:
        forest: The search as a SearchStep carries it, with the newest drafts pending.
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
    stops = forest.limits.stop
    if (found := first_stop(text, stops)) is not None:
        return text[: found[0]]
    held = max((len(s) for stop in stops for s in _beginnings(stop) if text.endswith(s)), default=0)
    return text[: len(text) - held]


def _beginnings(stop: str) -> list[str]:
    return [stop[:length] for length in range(1, len(stop))]


# `POST /v1/chat/completions`: one request, one search; whole, or as a stream of chunks.

_BEAT_LOOKS: Final = 10
"""Polls without a record between two heartbeats of a stream: five seconds."""


async def chat(call: Call) -> Response:
    """POST /v1/chat/completions.

    Raises:
        ApiError: before anything is sent.
    """
    runtime = call.gateway.runtime
    began_s = runtime.monotonic()
    body = await body_of(call.request)
    call.who.require("ask")
    efforts = runtime.control.catalogue.efforts
    asked = parse(body, efforts=efforts, strict=runtime.settings.gateway.strict)
    with ExitStack() as held:
        held.enter_context(await call.gateway.gate.completion(call.who, call.is_gone))
        if asked.stream:
            held.enter_context(call.gateway.gate.stream(call.who))
        admitted = await call.gateway.submission.submit(
            asked,
            call.who,
            digest=digest(body),
            idempotency_key=call.request.headers.get("idempotency-key"),
            is_retry=_retries(call.request) > 0,
        )
        turn = _Turn(call, asked, admitted, began_s)
        return await (turn.stream(held) if asked.stream else turn.whole())


class _Turn:
    """One request whose query has been sent."""

    def __init__(self, call: Call, asked: ChatRequest, admitted: Admitted, began_s: float) -> None:
        self.call = call
        self.asked = asked
        self.admitted = admitted
        self.gateway = call.gateway
        self.decision: Decision | None = None
        self._began_s = began_s
        self._streaming = False

    async def _is_gone(self) -> bool:
        """Return whether the client disconnected before the response started."""
        return not self._streaming and await self.call.is_gone()

    def _may_return(self) -> bool:
        """Return whether a disconnected client hit its own timeout: the official clients then retry.

        They send their timeout. Once a stream has started they do not retry.
        """
        waits_s = _client_timeout_s(self.call.request)
        return not self._streaming and waits_s is not None and self._took_s >= waits_s

    @property
    def _took_s(self) -> float:
        return self.gateway.runtime.monotonic() - self._began_s

    @property
    def _cost_model(self) -> CostModel:
        return self.gateway.runtime.control.cost_model

    async def whole(self) -> Response:
        """Return the completion once the search has ended."""
        with self._open() as queue:
            async for what in self._events(queue):
                if isinstance(what, Decision):
                    self.decision = what
                elif isinstance(what, Answer):
                    await self._check_client()
                    return self._completion(what)
        raise AssertionError("events end with the Answer or an error")

    def _completion(self, answer: Answer) -> Response:
        if (error := of_answer(answer)) is not None:
            error.headers |= self._headers()
            raise error
        body = responses.completion(
            answer, self.decision, self._cost_model, self.admitted.created, self._took_s, self.asked.ignored
        )
        return Response(orjson.dumps(body), media_type="application/json", headers=self._headers())

    async def stream(self, held: ExitStack) -> Response:
        """Return a stream. Its headers wait for the Decision, so that they can contain the choice.

        Errors before the Decision set the status; later ones are events of the stream.

        Args:
            held: What to close with the stream.
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
        """Do not start a response to a disconnected client: its retry should get it. Raises ClientGone."""
        if await self.call.is_gone():
            raise ClientGone

    def _events(self, queue: Queue) -> AsyncIterator[QueryRecord | None]:
        return self.gateway.searches.events(self.admitted, queue, self.call.is_gone)

    async def _until_chosen(self, events: AsyncIterator[QueryRecord | None]) -> Answer | None:
        async for what in events:
            if isinstance(what, Decision):
                self.decision = what
                return None
            if isinstance(what, Answer):
                if (error := of_answer(what)) is not None:
                    error.headers |= self._headers()
                    raise error
                return what
        return None

    async def _chunks(
        self, first: Answer | None, events: AsyncIterator[QueryRecord | None]
    ) -> AsyncIterator[bytes]:
        shown, quiet = "", 0
        try:
            yield self._chunk({"role": "assistant", "content": "", "refusal": None})
            if first is not None:
                for part in self._end(first, shown):
                    yield part
                return
            async for what in events:
                if what is None:
                    quiet += 1
                    if quiet >= _BEAT_LOOKS:
                        quiet = 0
                        yield self._chunk({})
                    continue
                quiet = 0
                if isinstance(what, SearchStep):
                    text = settled_text(what.forest)
                    if text.startswith(shown) and len(text) > len(shown):
                        yield self._chunk({"content": text[len(shown) :]})
                        shown = text
                    if self.asked.extension.progress:
                        yield self._progress(what)
                elif isinstance(what, Answer):
                    for part in self._end(what, shown):
                        yield part
        except ClientGone:
            return
        except ApiError as error:
            yield responses.event({"error": error.fields()})

    def _end(self, answer: Answer, shown: str) -> list[bytes]:
        if (error := of_answer(answer)) is not None:
            return [responses.event({"error": error.fields()})]
        text = answer.text or ""
        if not text.startswith(shown):
            # Streamed text cannot be retracted: better an error than a text that no path produced.
            error = ApiError(
                502,
                "the answer does not begin with what was streamed; ask again without stream",
                type="api_error",
                code="stream_diverged",
            )
            return [responses.event({"error": error.fields()})]
        parts = [self._chunk({"content": text[len(shown) :]})] if len(text) > len(shown) else []
        details = responses.details(answer, self.decision, self._cost_model, self._took_s)
        details["ignored"] = list(self.asked.ignored)
        parts.append(self._chunk({}, responses.finish_reason(answer), uniscale=details))
        if self._with_usage:
            parts.append(self._chunk({}, choices=[], usage=responses.usage(answer)))
        return [*parts, responses.DONE]

    def _progress(self, step: SearchStep) -> bytes:
        forest = step.forest
        return self._chunk(
            {},
            uniscale={
                "progress": {
                    "step": forest.step,
                    "drafts": len(forest.drafts),
                    "live": len({forest.drafts[at].parent for at in forest.pending}),
                    "completed": len(forest.completed_paths),
                    "best": forest.path_score(forest.best) if forest.best >= 0 else None,
                    "tokens": forest.generated_tokens,
                }
            },
        )

    @property
    def _with_usage(self) -> bool:
        return self.asked.stream_options is not None and bool(self.asked.stream_options.include_usage)

    @property
    def _model(self) -> str:
        return self.decision.action.model if self.decision else self.asked.model

    def _chunk(self, delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
        if self._with_usage:
            more.setdefault("usage", None)
        return responses.chunk(
            self.admitted.query_id,
            self.admitted.created,
            self._model,
            responses.fingerprint(self.decision),
            delta=delta,
            finish=finish,
            **more,
        )

    def _headers(self) -> dict[str, str]:
        call, ignored = self.call, ", ".join(self.asked.ignored)
        debug = call.request.headers.get("x-uniscale-debug", "").lower() in ("1", "true")
        return {
            **({"x-uniscale-ignored": ignored} if ignored else {}),
            **responses.headers(self.decision, self.admitted.query_id, call.id, debug=debug),
            **self.gateway.submission.limits(call.who),
        }


def _retries(request: Request) -> int:
    count = request.headers.get("x-stainless-retry-count", "0")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 4 else 0


def _client_timeout_s(request: Request) -> float | None:
    """Return the timeout of OpenAI's client in seconds; Node's sends whole seconds, rounded down."""
    for name in ("x-stainless-timeout", "x-stainless-read-timeout"):
        text = request.headers.get(name, "")
        if text.replace(".", "", 1).isdigit() and text.isascii() and len(text) < 12:
            return float(text)
    return None
