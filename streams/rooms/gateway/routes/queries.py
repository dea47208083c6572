"""`/v1/queries` and `/v1/feedback`: the latest queries, the story of one, its events, and how well it was answered."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from schemas.answer import Answer
from schemas.decision import Decision
from schemas.search import SearchStep
from streams.rooms.gateway.following import Admitted, ClientGone
from streams.rooms.gateway.index.tables import Listed
from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.openai import responses
from streams.rooms.gateway.openai.errors import ApiError, invalid
from streams.rooms.gateway.routes.guard import Listing, object_of, reply, whole
from streams.rooms.gateway.service import Service

_BEAT_LOOKS: Final = 30
"""Polls without news between two heartbeats of an event stream: fifteen seconds."""


class Queries:
    """Queries by id.

    Args:
        service: What the routes call.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> Listing:
        """Return the routes."""
        return [
            ("POST", "/v1/feedback", self.feedback),
            ("GET", "/v1/queries", self.queries),
            ("GET", "/v1/queries/{id}", self.query),
            ("GET", "/v1/queries/{id}/events", self.events),
        ]

    async def feedback(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/feedback: {id, value: true | false | 0..1, comment?}."""
        who.require("feedback")
        given = await object_of(request, "id", "value", "comment")
        query_id, value, comment = given.get("id"), given.get("value"), given.get("comment", "")
        if not isinstance(query_id, str):
            raise invalid("id", "id is missing; give the id of a completion")
        if not isinstance(value, int | float):
            raise invalid("value", "value must be true, false or a number from 0 to 1")
        if not isinstance(comment, str) or len(comment) > 4000:
            raise invalid("comment", "comment must be a text of at most 4000 characters")
        known, reward = self.service.index.find(query_id), self.service.index.reward_of(query_id)
        duplicate = await self.service.feedback(query_id, value, comment, who)
        # Of a query that has left the index only the aggregator knows.
        late = None if known is None else reward is not None and reward.closes
        return reply({"id": query_id, "object": "feedback", "duplicate": duplicate, "late": late})

    async def queries(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries: the newest of this tenant."""
        who.require("read")
        latest = self.service.index.latest(whole(request, "limit", 50, 1000), who.sees)
        return reply({"object": "list", "data": [_listed(each) for each in latest]})

    async def query(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries/{id}."""
        who.require("read")
        return reply(self._story(self._visible(request, who)))

    async def events(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries/{id}/events: server-sent events decision, step, answer and reward, up to the closing one."""
        who.require("read")
        query_id = self._visible(request, who)
        known = self.service.index.find(query_id)
        created = known.created_ms // 1000 if known else 0
        admitted = Admitted(query_id, created, True, self.service.runtime.settings.queries.timeout_s)
        return StreamingResponse(
            self._events(request, admitted),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )

    async def _events(self, request: Request, admitted: Admitted) -> AsyncIterator[bytes]:
        with (
            contextlib.suppress(ClientGone, ApiError),
            self.service.waiting.on(admitted.query_id) as queue,
        ):
            answer = None
            async for what in self.service.following.events(admitted, queue, request.is_disconnected):
                match what:
                    case Decision():
                        yield _named("decision", self._story(admitted.query_id)["decision"])
                    case SearchStep(forest=forest):
                        yield _named(
                            "step", {"step": forest.step, "search": responses.drafts(forest.drafts, ())}
                        )
                    case Answer():
                        answer = what
                        yield _named("answer", self._story(admitted.query_id))
            if answer is None:
                return
            quiet = 0
            async for reward in self.service.following.rewards(answer, queue, request.is_disconnected):
                if reward is not None:
                    yield _named("reward", responses.reward(reward))
                elif (quiet := quiet + 1) % _BEAT_LOOKS == 0:
                    yield b":\n\n"  # a comment: the feedback may come hours later

    def _story(self, query_id: str) -> dict[str, Any]:
        index = self.service.index
        return responses.story(
            query_id, index.decision_of(query_id), index.answer_of(query_id), index.reward_of(query_id),
            self.service.runtime.control.pricing, index.total_s(query_id),
        )  # fmt: skip

    def _visible(self, request: Request, who: Credential) -> str:
        query_id: str = request.path_params["id"]
        self.service.ids.visible(query_id, who)
        return query_id


def _listed(each: Listed) -> dict[str, Any]:
    return {
        "id": each.query_id, "object": "query", "created": each.created_ms // 1000,
        "status": each.status or "pending", "question": each.question, "action": each.action,
        "objective": each.objective, "cohort": each.cohort, "eflops": each.eflops, "correct": each.correct,
    }  # fmt: skip


def _named(name: str, body: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"
