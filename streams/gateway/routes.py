"""All routes beside chat completions: what would run, models, objectives, queries, dead letters, the page."""

import asyncio
import contextlib
import logging
import math
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from agents.catalogue.objectives import Objectives
from agents.decider.preview import PREVIEW, Configuration, Preview
from schemas.answer import Answer
from schemas.control import ObjectiveEntry
from schemas.decision import Decision, Predicted
from schemas.errors import RecordError
from schemas.record import encode
from schemas.search import SearchStep
from streams.control import Control
from streams.gateway import openai, request, statistics
from streams.gateway.auth import Credential, Gate, Tenants, check_host
from streams.gateway.exchange import Admitted, ClientGone, Deciders, Exchange, Seen
from streams.gateway.guard import EventStream, Listing, body_of, gone, object_of, reply, whole
from streams.gateway.index import Listed
from streams.gateway.openai import ApiError, invalid, no_model, not_found, of_json, of_record
from streams.gateway.request import parse, to_query
from streams.runtime.base import NotAllowed, Outgoing, Unavailable
from streams.services import SERVICES

# `/v1/decide`: which configuration a request would run, and why. Runs nothing and learns nothing.


class Decide:
    """Previews of decisions.

    Args:
        exchange: Model names and limits.
        deciders: Who answers.
    """

    def __init__(self, exchange: Exchange, deciders: Deciders) -> None:
        self.exchange = exchange
        self.deciders = deciders

    def routes(self) -> Listing:
        """Return the routes."""
        return [("POST", "/v1/decide", self.decide)]

    async def decide(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/decide: the body of a completion."""
        who.require("ask")
        asked = parse(await body_of(request), strict=self.exchange.runtime.settings.gateway.strict)
        wanted = self.exchange.asked(asked.model)
        query = to_query(asked, wanted, query_id=PREVIEW, tenant=who.tenant, kept={"key": who.key})
        self.exchange.gate.check(who, asked.model, query)
        self.exchange.preview(who)
        return reply(body(await self.deciders.preview(query)))


def body(found: Preview) -> dict[str, Any]:
    """Return a preview as JSON: the choice, then every configuration with what is predicted of it."""
    chosen = next(each for each in found.configurations if each.action == found.action)
    others = [each for each in found.configurations if each.action != found.action]
    return {
        "object": "decision.preview",
        "model": found.action.partition("/")[0],
        "action": found.action,
        "group": found.group,
        "reason": found.reason,
        "objective": openai.objective(found.objective),
        "shortfall": found.shortfall,
        "policy": {"name": found.policy.name, "version": found.policy.version},
        "seq": found.seq,
        "catalogue_version": found.catalogue_version,
        "candidates": len(found.configurations),
        "masked_models": list(found.masked_models),
        "served": found.served,
        "choice": _configuration(chosen),
        "grounds": [
            {"part": each.part, "mean": each.mean, "variance": each.variance} for each in found.grounds
        ],
        "runner_up": _configuration(others[0]) if others else None,
        "configurations": [_configuration(each) for each in found.configurations],
    }


def _configuration(each: Configuration) -> dict[str, Any]:
    return {
        "action": each.action,
        "mean": each.mean,
        "width": each.width,
        "score": each.score,
        "propensity": each.propensity,
        "predicted": None if each.predicted is None else _predicted(each.predicted),
    }


def _predicted(terms: Predicted) -> dict[str, float | None]:
    # A regression that has seen little may leave the range of a float.
    eflops = math.exp(terms.log_cost) if abs(terms.log_cost) < 700 else None
    return {"correct": terms.correct, "score": terms.score, "log_cost": terms.log_cost, "eflops": eflops}


# `/v1/dead-letters`: what could not be handled. For operators only, because dead letters hold every client's data.

log = logging.getLogger("streams.gateway")


class Letters:
    """Dead letters.

    Args:
        exchange: What the routes call.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def routes(self) -> Listing:
        """Return the routes."""
        return [
            ("GET", "/v1/dead-letters", self.letters),
            ("POST", "/v1/dead-letters/retry", self.retry),
        ]

    async def letters(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/dead-letters."""
        who.require("admin")
        data = [
            {
                "object": "dead-letter",
                "created": at_ms // 1000,
                "service": letter.service,
                "error": letter.error,
                "reason": letter.reason,
                "field": letter.field,
                "origin": letter.key,
                "query_id": letter.query_id,
                "attempts": letter.attempts,
                "retried": retried,
            }
            for at_ms, letter, retried in self.exchange.index.letters(whole(request, "limit", 100, 1000))
        ]
        return reply({"object": "list", "data": data})

    async def retry(self, request: Request, who: Credential, request_id: str) -> Response:
        """POST /v1/dead-letters/retry: {origin}. Sends its record again, once: a repeat answers `duplicate: true`."""
        who.require("admin")
        origin = (await object_of(request, "origin")).get("origin")
        if not isinstance(origin, str):
            raise invalid("origin", "origin is missing; give the origin of a dead letter")
        index = self.exchange.index
        if (letter := index.letter_of(origin)) is None:
            raise not_found("origin", origin[:200])
        if not index.retried(origin):
            return reply({"object": "dead-letter.retry", "origin": origin, "duplicate": True})
        found = False
        try:
            found = await self.exchange.runtime.send_again(letter.origin)
        except NotAllowed:
            raise ApiError(
                403,
                f"the broker does not let the gateway send {letter.origin.topic} again; do it as an operator: "
                f"`python -m streams dead-letters retry {origin}`",
                type="permission_error",
                param="origin",
                code="not_allowed",
            ) from None
        finally:
            if not found:
                index.retried(origin, False)
        if not found:
            kept = f"its dead letter has the first {len(letter.head)} of {letter.size} bytes"
            why = f"the topic no longer holds {origin}; {kept}"
            raise ApiError(410, why, param="origin", code="gone")
        log.info("dead letter %s sent again by %s", origin, who.name)
        return reply({"object": "dead-letter.retry", "origin": origin, "duplicate": False})


# `/v1/models`: the names that a request may use, every configuration on offer among them.


class Models:
    """The model lists.

    Args:
        exchange: What they call.
        started: When models are listed as created, in seconds since the epoch.
    """

    def __init__(self, exchange: Exchange, started: int) -> None:
        self.exchange = exchange
        self.started = started

    def routes(self) -> Listing:
        """Return the routes."""
        return [("GET", "/v1/models", self.models), ("GET", "/v1/models/{id:path}", self.model)]

    async def models(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/models."""
        return reply({"object": "list", "data": self._listing(who)})

    async def model(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/models/{id}, pins included."""
        name = request.path_params["id"]
        for each in self._listing(who):
            if each["id"] == name:
                return reply(each)
        raise no_model(name)

    def _listing(self, who: Credential) -> list[dict[str, Any]]:
        control = self.exchange.runtime.control
        found = request.listing(
            control.catalogue.model_names,
            control.objectives.named,
            self.exchange.configurations(),
            self.started,
        )
        return [each for each in found if _may_use(who, each["id"])]


def _may_use(who: Credential, name: str) -> bool:
    return who.entry is None or who.entry.allowed_models is None or name in who.entry.allowed_models


# `/v1/now`: what the deployment does, as the page's first view shows it.

_SERVICES_S: Final = 10.0
"""Seconds for which what the broker says of the services is shown before it is asked again."""

_FRESH_S: Final = 3.0
"""Seconds for which a comparison of policy and control group is shown before new answers are counted in."""


class Now:
    """Current activity.

    Args:
        exchange: What the route calls.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._looked_s = -math.inf
        self._services_seen: list[dict[str, Any]] = []
        self._uplifts: dict[Tenants, tuple[int, float, dict[str, Any]]] = {}

    def routes(self) -> Listing:
        """Return the routes."""
        return [("GET", "/v1/now", self.now)]

    async def now(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/now."""
        who.require("read")
        runtime = self.exchange.runtime
        latest = self.exchange.index.latest(whole(request, "limit", 1000, 10_000), who.sees)
        minute, in_flight = self.exchange.index.activity(runtime.now_ms(), who.sees)
        return reply(
            {
                "per_second": round(minute / 60, 3),
                "in_flight": in_flight,
                **statistics.now(latest, self.exchange.index.group_by),
                "uplift": self._uplift(who.sees),
                "models": models(runtime.control),
                # What waits is everybody's.
                "services": await self._services() if who.sees is None else [],
                "marks": self.exchange.marks.listed(),
            }
        )

    async def _services(self) -> list[dict[str, Any]]:
        """Return each service with its workers and waiting records, as the broker told within the last seconds."""
        runtime = self.exchange.runtime
        now_s = runtime.monotonic()
        if now_s - self._looked_s >= _SERVICES_S:
            self._looked_s = now_s
            executors = tuple(dict.fromkeys(model.group for model in runtime.control.catalogue.models))
            names = {
                app: spec.name for spec in SERVICES.values() for app in spec.apps(runtime.topics, executors)
            }
            try:
                found = await runtime.groups(list(names))
            except Unavailable as error:
                log.warning("the consumer groups could not be read: %s", error)
                found = {}
            self._services_seen = [
                {
                    "service": app.removeprefix(runtime.settings.kafka.prefix),
                    "workers": found[app].members if app in found else None,
                    "waiting": sum(found[app].waiting.values()) if app in found else None,
                }
                for app in names
            ]
        return self._services_seen

    def _uplift(self, tenants: Tenants) -> dict[str, Any]:
        """Return the comparison over all that is known, once for all who look at the same queries."""
        index, now_s = self.exchange.index, self.exchange.runtime.monotonic()
        kept = self._uplifts.get(tenants)
        if kept is not None and (kept[0] == index.changes or now_s - kept[1] < _FRESH_S):
            return kept[2]
        found = statistics.uplift(index.latest(index.most, tenants))
        self._uplifts[tenants] = (index.changes, now_s, found)
        return found


def models(control: Control) -> list[dict[str, Any]]:
    """Return each model of the catalogue, whether an executor serves it now, and what its executors say of it."""
    serving, told = control.serving(), control.health()
    found = []
    for model in control.catalogue.models:
        state, why = told.get(model.name, ("ready", "") if model.name in serving else ("silent", ""))
        found.append(
            {
                "name": model.name,
                "group": model.group,
                "serving": model.name in serving,
                "state": state,
                "why": why,
            }
        )
    return found


# `/v1/objectives`: what a query may be served for, by name.


class ObjectiveRoutes:
    """Objectives by name.

    Args:
        exchange: What the routes call.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def routes(self) -> Listing:
        """Return the routes."""
        return [
            ("GET", "/v1/objectives", self.objectives),
            ("PUT", "/v1/objectives/{name:path}", self.set_objective),
        ]

    async def objectives(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/objectives."""
        objectives = self.exchange.runtime.control.objectives
        data = [_objective(objectives, name) for name in sorted(objectives.named)]
        return reply({"object": "list", "data": data, "default": objectives.default})

    async def set_objective(self, request: Request, who: Credential, request_id: str) -> Response:
        """PUT /v1/objectives/{name}: {weights} or {mean_cost} or {accuracy}."""
        who.require("admin")
        given = await object_of(request, "weights", "mean_cost", "accuracy")
        try:
            record = msgspec.convert(
                {"name": request.path_params["name"], "op": "set", **given}, ObjectiveEntry
            )
            value = encode(record)
        except RecordError as error:
            raise of_record(error) from None
        except msgspec.ValidationError as error:
            raise of_json(error) from None
        runtime = self.exchange.runtime
        await runtime.send(Outgoing(runtime.topics.control, record.key.encode(), value))
        return reply({"object": "objective", "name": record.name, "accepted": True}, status=202)


def _objective(objectives: Objectives, name: str) -> dict[str, Any]:
    return {"object": "objective", **openai.objective(objectives.in_force(name))}


# The page at `/`: static files under a strict content policy, and a session that keeps the API key out of scripts.

FOLDER: Final = Path(__file__).parent / "static"
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
        """Return the API key behind a request's session; None where another page than ours may have sent it."""
        return self._sessions.get(request.cookies.get(COOKIE, "")) if is_own(request) else None

    async def index(self, request: Request) -> Response:
        """GET /."""
        return FileResponse(FOLDER / "index.html", headers=SECURE)

    async def session(self, request: Request) -> Response:
        """Say whether a session is needed (GET), open one with a key (POST), or end it (DELETE)."""
        try:
            check_host(request.headers.get("host"), request.headers.get("origin"), self.hosts)
            if request.method in ("POST", "DELETE") and not is_own(request):
                why = (
                    "sessions are begun and ended by the gateway's own page, as JSON; send an API key instead"
                )
                raise ApiError(403, why, type="permission_error", code="foreign_page")
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


def is_own(request: Request) -> bool:
    """Return whether a request may stand for the session that its cookie names: the gateway's own page sent it.

    Browsers send the cookie with what a page of any port of this host asks, and a form or `text/plain` without asking
    first. So the origin must be the gateway's own, port included, and what changes anything must be JSON.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:  # no script can set it, and it holds where a proxy changes the host
        own = site in ("same-origin", "none")
    else:
        own = origin is None or origin.partition("://")[2] == request.headers.get("host")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return own and (request.method in ("GET", "HEAD", "DELETE") or kind == "application/json")


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


# `/v1/queries` and `/v1/feedback`: the latest queries, the story of one, its events, and how well it was answered.

_BEAT_LOOKS: Final = 30
"""Polls without news between two heartbeats of an event stream: fifteen seconds."""


class Queries:
    """Queries by id.

    Args:
        exchange: What the routes call.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

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
        known, reward = self.exchange.index.find(query_id), self.exchange.index.reward_of(query_id)
        duplicate = await self.exchange.feedback(query_id, value, comment, who)
        # Of a query that has left the index only the aggregator knows.
        late = None if known is None else reward is not None and reward.closes
        return reply({"id": query_id, "object": "feedback", "duplicate": duplicate, "late": late})

    async def queries(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries: the newest of this tenant."""
        who.require("read")
        latest = self.exchange.index.latest(whole(request, "limit", 50, 1000), who.sees)
        return reply({"object": "list", "data": [_listed(each) for each in latest]})

    async def query(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries/{id}."""
        who.require("read")
        return reply(self._query(self._visible(request, who)))

    async def events(self, request: Request, who: Credential, request_id: str) -> Response:
        """GET /v1/queries/{id}/events: server-sent events decision, step, answer and reward, up to the closing one."""
        who.require("read")
        query_id = self._visible(request, who)
        known = self.exchange.index.find(query_id)
        created = known.created_ms // 1000 if known else 0
        admitted = Admitted(query_id, created, True, self.exchange.runtime.settings.queries.timeout_s)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.exchange.gate.stream(who))
            queue = stack.enter_context(self.exchange.waiting.on(query_id))
            is_gone = gone(request, self.exchange.gate, who)
            return EventStream(self._events(admitted, queue, is_gone), stack.pop_all())

    async def _events(
        self, admitted: Admitted, queue: "asyncio.Queue[Seen]", is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        with contextlib.suppress(ClientGone, ApiError):
            answer = None
            async for what in self.exchange.following.events(admitted, queue, is_gone):
                match what:
                    case Decision():
                        yield _named("decision", self._query(admitted.query_id)["decision"])
                    case SearchStep(forest=forest):
                        yield _named(
                            "step", {"step": forest.step, "search": openai.drafts(forest.drafts, ())}
                        )
                    case Answer():
                        answer = what
                        yield _named("answer", self._query(admitted.query_id))
            if answer is None:
                return
            quiet = 0
            async for reward in self.exchange.following.rewards(answer, queue, is_gone):
                if reward is not None:
                    yield _named("reward", openai.reward(reward))
                elif (quiet := quiet + 1) % _BEAT_LOOKS == 0:
                    yield b":\n\n"  # a comment: the feedback may come hours later

    def _query(self, query_id: str) -> dict[str, Any]:
        return openai.query_object(
            self.exchange.index.timeline(query_id), self.exchange.runtime.control.pricing
        )

    def _visible(self, request: Request, who: Credential) -> str:
        query_id: str = request.path_params["id"]
        self.exchange.ids.visible(query_id, who)
        return query_id


def _listed(each: Listed) -> dict[str, Any]:
    return {
        "id": each.query_id,
        "object": "query",
        "created": each.created_ms // 1000,
        "status": each.status or "pending",
        "question": each.question,
        "action": each.action,
        "objective": each.objective,
        "cohort": each.cohort,
        "eflops": each.eflops,
        "correct": each.correct,
    }


def _named(name: str, body: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"
