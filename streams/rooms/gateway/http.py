"""The routes of the gateway: OpenAI's endpoints, and those that OpenAI does not have."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from agents.space.objectives import Objectives
from schemas.answer import Answer
from schemas.base import encode
from schemas.control import ObjectiveEntry
from schemas.decision import Decision
from schemas.errors import RecordError
from schemas.query import Weights
from schemas.search import SearchStep
from streams.control import Control
from streams.rooms.gateway import names, responses, statistics
from streams.rooms.gateway.chat import chat
from streams.rooms.gateway.errors import ApiError, invalid, not_found, of_record
from streams.rooms.gateway.index import Listed
from streams.rooms.gateway.limits import Credential, check_host
from streams.rooms.gateway.page import Page
from streams.rooms.gateway.request import MAX_BODY
from streams.rooms.gateway.service import Admitted, ClientGone, Service
from streams.runtime.base import Outgoing

log = logging.getLogger("streams.gateway")

_BODY_S: Final = 30.0
"""Seconds a client may take to send its body."""

Handle = Callable[[Request, Credential, str], Awaitable[Response]]


class Routes:
    """The HTTP side of one gateway.

    Args:
        service: What they call.
        hosts: Host names that requests may be addressed to.
        started: When the gateway started, in seconds since the epoch; models are listed as created then.
    """

    def __init__(self, service: Service, hosts: frozenset[str], started: int) -> None:
        self.service = service
        self.hosts = hosts
        self.started = started
        self.page = Page(service.gate, hosts)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        made: list[tuple[str, str, Handle]] = [
            ("POST", "/v1/chat/completions", self.chat),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{id:path}", self.model),
            ("POST", "/v1/feedback", self.feedback),
            ("GET", "/v1/queries", self.queries),
            ("GET", "/v1/now", self.now),
            ("GET", "/v1/dead-letters", self.letters),
            ("GET", "/v1/queries/{id}", self.query),
            ("GET", "/v1/queries/{id}/events", self.events),
            ("GET", "/v1/objectives", self.objectives),
            ("PUT", "/v1/objectives/{name:path}", self.set_objective),
        ]
        routes: list[BaseRoute] = [
            Route(path, self._guarded(handle), methods=[method]) for method, path, handle in made
        ]
        routes += [
            *self.page.routes(),
            Route("/health/live", self.live),
            Route("/health/ready", self.ready),
            Route("/metrics", self.metrics),
            Route(
                "/{rest:path}", self._guarded(self.nothing), methods=["GET", "POST", "PUT", "DELETE", "PATCH"]
            ),
        ]
        return Starlette(routes=routes)

    async def chat(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/chat/completions."""
        return await chat(request, await body_of(request), who, self.service, request_id)

    async def models(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/models."""
        return _json({"object": "list", "data": self._listing(who)})

    async def model(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/models/{id}, pins included."""
        name = request.path_params["id"]
        listed = {each["id"]: each for each in self._listing(who)}
        if name not in listed:
            if self.service.asked(name).pin is None:
                raise not_found("model", name, "model_not_found")
            return _json(names.entry(name, "concrete", self.started, "uniscale"))
        return _json(listed[name])

    def _listing(self, who: Credential) -> list[dict[str, Any]]:
        control = self.service.runtime.control
        found = names.listing(control.catalogue.model_names, control.objectives.named, self.started)
        if who.entry is not None and who.entry.allowed_models is not None:
            found = [each for each in found if each["id"] in who.entry.allowed_models]
        return found

    async def feedback(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/feedback: {id, value: true | false | 0..1, comment?}."""
        who.require("feedback")
        given = _object(await body_of(request))
        if unknown := set(given) - {"id", "value", "comment"}:
            raise invalid(
                sorted(unknown)[0], f"{sorted(unknown)[0]} is not a field; give id, value and comment"
            )
        query_id, value, comment = given.get("id"), given.get("value"), given.get("comment", "")
        if not isinstance(query_id, str):
            raise invalid("id", "id is missing; give the id of a completion")
        if isinstance(value, int | float):
            pass
        else:
            raise invalid("value", "value must be true, false or a number from 0 to 1")
        if not isinstance(comment, str) or len(comment) > 4000:
            raise invalid("comment", "comment must be a text of at most 4000 characters")
        duplicate = await self.service.feedback(query_id, value, comment, who)
        return _json({"id": query_id, "object": "feedback", "duplicate": duplicate})

    async def queries(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries: the newest of this tenant."""
        who.require("read")
        most = _whole(request, "limit", 50, 1000)
        listed = self.service.index.latest(most, self._tenant(who))
        return _json(
            {"object": "list", "data": [_listed(each) for each in listed if who.may_see(each.tenant)]}
        )

    async def now(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/now: current activity, as the page shows it."""
        who.require("read")
        runtime = self.service.runtime
        listed = self.service.index.latest(_whole(request, "limit", 1000, 10_000), self._tenant(who))
        found = statistics.now(listed, runtime.now_ms())
        known = self.service.index.latest(self.service.index.most, self._tenant(who))
        return _json({**found, "uplift": statistics.uplift(known), "models": health(runtime.control)})

    async def letters(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/dead-letters: for operators only, because dead letters hold every client's data."""
        who.require("admin")
        data = [
            {
                "object": "dead-letter", "created": at_ms // 1000, "room": letter.room, "error": letter.error,
                "reason": letter.reason, "field": letter.field, "origin": letter.key, "query_id": letter.query_id,
                "attempts": letter.attempts,
            }
            for at_ms, letter in self.service.index.letters(_whole(request, "limit", 100, 1000))
        ]  # fmt: skip
        return _json({"object": "list", "data": data})

    def _tenant(self, who: Credential) -> str | None:
        return None if who.entry is None or "admin" in who.entry.scopes else who.entry.tenant

    async def query(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries/{id}."""
        who.require("read")
        query_id = self._visible(request, who)
        index = self.service.index
        return _json(
            responses.story(
                query_id, index.decision_of(query_id), index.answer_of(query_id), index.reward_of(query_id),
                self.service.runtime.control.pricing,
            )
        )  # fmt: skip

    async def events(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries/{id}/events: server-sent events decision, step, answer, reward."""
        who.require("read")
        query_id = self._visible(request, who)
        known = self.service.index.find(query_id)
        created = known.created_ms // 1000 if known else 0
        admitted = Admitted(query_id, created, True, self.service.runtime.settings.timeout_s)
        return StreamingResponse(
            self._events(request, admitted),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )

    async def _events(self, request: Request, admitted: Admitted) -> AsyncIterator[bytes]:
        index, pricing = self.service.index, self.service.runtime.control.pricing

        def story() -> dict[str, Any]:
            at = admitted.query_id
            return responses.story(
                at, index.decision_of(at), index.answer_of(at), index.reward_of(at), pricing
            )

        with (
            contextlib.suppress(ClientGone, ApiError),
            self.service.waiting.on(admitted.query_id) as queue,
        ):
            async for what in self.service.events(admitted, queue, request.is_disconnected):
                match what:
                    case Decision():
                        yield _named("decision", story()["decision"])
                    case SearchStep(forest=forest):
                        yield _named(
                            "step", {"step": forest.step, "search": responses.drafts(forest.drafts, ())}
                        )
                    case Answer():
                        yield _named("answer", story())

    async def objectives(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/objectives."""
        objectives = self.service.runtime.control.objectives
        data = [_objective(objectives, name) for name in sorted(objectives.named)]
        return _json({"object": "list", "data": data, "default": objectives.default})

    async def set_objective(self, request: Request, who: Credential, request_id: str) -> Response:
        """PUT /v1/objectives/{name}: {weights} or {mean_cost} or {accuracy}."""
        who.require("admin")
        given = _object(await body_of(request))
        if unknown := set(given) - {"weights", "mean_cost", "accuracy"}:
            raise invalid(
                sorted(unknown)[0],
                f"{sorted(unknown)[0]} is not a field; give weights, mean_cost or accuracy",
            )
        try:
            weights = Weights(**given["weights"]) if isinstance(given.get("weights"), dict) else None
            record = ObjectiveEntry(
                name=request.path_params["name"], op="set", weights=weights, mean_cost=given.get("mean_cost"),
                accuracy=given.get("accuracy"),
            )  # fmt: skip
            value = encode(record)
        except RecordError as error:
            raise of_record(error) from None
        except TypeError as error:
            raise invalid("weights", f"{error}; give correct, score and cost as numbers") from None
        runtime = self.service.runtime
        await runtime.send(Outgoing(runtime.topics.control, record.key.encode(), value))
        return _json({"object": "objective", "name": record.name, "accepted": True}, status=202)

    async def nothing(self, request: Request, who: Credential, request_id: str) -> Response:
        """Any other path: 404 in OpenAI's format."""
        raise ApiError(
            404, f"{request.method} {request.url.path[:200]} does not exist here", code="unknown_url"
        )

    async def live(self, request: Request) -> Response:
        """GET /health/live: the process answers."""
        return _json({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """GET /health/ready: topics are read to their ends. Calls no model."""
        return _json(
            {"status": "ready", "queries": len(self.service.index), "waiting": len(self.service.waiting)}
        )

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self.service.runtime.metrics.text(), media_type="text/plain; version=0.0.4")

    def _visible(self, request: Request, who: Credential) -> str:
        query_id: str = request.path_params["id"]
        known = self.service.index.find(query_id)
        if known is None or not who.may_see(known.tenant):
            raise ApiError(
                404, f"id {query_id[:200]!r} does not exist, is older than what this gateway keeps, or is not yours",
                param="id", code="not_found",
            )  # fmt: skip
        return query_id

    def _guarded(self, handle: Handle) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            request_id = f"req_{uuid.uuid4().hex}"
            try:
                check_host(request.headers.get("host"), request.headers.get("origin"), self.hosts)
                who = self.service.gate.credential(_bearer(request) or self.page.key_of(request))
                response = await handle(request, who, request_id)
                response.headers.setdefault("x-request-id", request_id)
                return response
            except ApiError as error:
                return Response(
                    error.body(),
                    error.status,
                    {"x-request-id": request_id, **error.headers},
                    "application/json",
                )
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
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                found += part
                if len(found) > MAX_BODY:
                    raise ApiError(
                        413, f"the body has more than {MAX_BODY} bytes; send less", code="too_large"
                    )
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {_BODY_S:.0f} s", code="body_timeout") from None
    return bytes(found)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(None, f"the body is not JSON in UTF-8 ({error})", "invalid_json") from None
    if not isinstance(found, dict):
        raise invalid(None, "the body must be a JSON object", "invalid_json")
    return found


def _whole(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise invalid(name, f"{name} must be a whole number from 1 to {most}")
    return int(text)


def _bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def health(control: Control) -> list[dict[str, Any]]:
    """Return each model of the catalogue, and whether an executor serves it now."""
    serving = control.serving()
    return [
        {"name": model.name, "group": model.group, "serving": model.name in serving}
        for model in control.catalogue.models
    ]


def _listed(each: Listed) -> dict[str, Any]:
    return {
        "id": each.query_id, "object": "query", "created": each.created_ms // 1000,
        "status": each.status or "pending", "question": each.question, "action": each.action,
        "objective": each.objective, "cohort": each.cohort, "eflops": each.eflops, "correct": each.correct,
    }  # fmt: skip


def _objective(objectives: Objectives, name: str) -> dict[str, Any]:
    return {"object": "objective", **responses.objective(objectives.in_force(name))}


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def _named(name: str, body: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"
