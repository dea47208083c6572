"""All routes except those for completions: previews, models, objectives, queries, dead letters and the page."""

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import msgspec
from msgspec import json
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from agents.catalogue.objectives import Objectives
from agents.decider.preview import Configuration, Preview
from schemas.answer import Answer, Status
from schemas.control import ObjectiveEntry
from schemas.decision import Decision
from schemas.objective import CostUnit
from schemas.record import encode
from schemas.reward import GradeSource
from schemas.search import SearchStep
from schemas.spent import Spent
from streams.control_follower import Control
from streams.gateway import answer_details, sse, statistics
from streams.gateway.answer_details import picked
from streams.gateway.auth import ApiKeys, Tenants, check_host
from streams.gateway.endpoint import Call, EventStream, Listing, body_of, int_param, object_of, reply
from streams.gateway.errors import ApiError, ClientGone, invalid, no_model, not_found, of_json, refusal
from streams.gateway.index import MARGIN_S, Filter, IndexedQuery, Listed
from streams.gateway.model_list import listing
from streams.gateway.open_requests import Queue
from streams.gateway.request import parse
from streams.gateway.searches import Admitted
from streams.gateway.service import GatewayService
from streams.gateway.sse import named_event
from streams.log.base import NotAllowed, Outgoing, Unavailable
from streams.runtime.runtime import Runtime, ServiceSpec

# `/v1/decide`: which configuration a request would run, and why. It runs nothing, and nothing is learned.


async def decide(call: Call) -> Response:
    """POST /v1/decide: which configuration a chat completion would run, and why. It runs nothing."""
    call.who.require("ask")
    runtime = call.gateway.runtime
    efforts = runtime.control.catalogue.efforts
    asked = parse(await body_of(call.request), efforts=efforts, strict=runtime.settings.gateway.strict)
    asked = call.gateway.submission.honoured(asked, call.who)
    return reply(preview(await call.gateway.submission.preview(asked, call.who)))


def preview(found: Preview) -> dict[str, Any]:
    """Return a preview as JSON: the choice, then every configuration with its predictions."""
    unit = found.objective.cost_range.unit
    configurations = {each.action: _configuration(each, unit) for each in found.configurations}
    others = (each for action, each in configurations.items() if action != found.action)
    return {
        "object": "decision.preview",
        "model": found.action.partition("/")[0],
        **picked(found, "action", "group", "reason", "shortfall", "seq", "catalogue_version", "served"),
        "objective": answer_details.objective(found.objective),
        "policy": picked(found.policy, "name", "version"),
        "prior": found.prior,
        "candidates": len(configurations),
        "masked_models": list(found.masked_models),
        "short_models": list(found.short_models),
        "restricted": list(found.required),
        "unable_models": list(found.unable_models),
        "features": list(found.features),
        "choice": configurations[found.action],
        "grounds": [picked(each, "part", "mean", "variance") for each in found.contributions],
        "drifted": {model: picked(each, "cost", "accuracy_seq") for model, each in found.drifted.items()},
        "runner_up": next(others, None),
        "configurations": list(configurations.values()),
    }


def _configuration(each: Configuration, unit: CostUnit) -> dict[str, Any]:
    predicted = answer_details.terms(each.predicted, unit)
    return picked(each, "action", "mean", "width", "score", "propensity") | {"predicted": predicted}


# `/v1/dead-letters`: for operators only, because dead letters hold every client's data.

log = logging.getLogger("streams.gateway")


async def dead_letters(call: Call) -> Response:
    """GET /v1/dead-letters: records that could not be handled."""
    call.who.require("admin")
    shown = ("service", "error", "reason", "field", "query_id", "attempts")
    data = [
        {
            "object": "dead-letter",
            "created": at_ms // 1000,
            "origin": letter.key,
            "retried": retried,
            **picked(letter, *shown),
        }
        for at_ms, letter, retried in call.gateway.index.dead_letters(
            int_param(call.request, "limit", 100, 1000)
        )
    ]
    return reply({"object": "list", "data": data})


async def retry(call: Call) -> Response:
    """POST /v1/dead-letters/retry: send a record again, once; a repeated request gets `duplicate: true`."""
    call.who.require("admin")
    origin = (await object_of(call.request, "origin")).get("origin")
    if not isinstance(origin, str):
        raise invalid("origin", "origin is missing; give the origin of a dead letter", "invalid_type")
    index = call.gateway.index
    if (letter := index.dead_letter_of(origin)) is None:
        raise not_found("origin", origin[:200])
    if not index.retried(origin):
        return reply({"object": "dead-letter.retry", "origin": origin, "duplicate": True})
    found = False
    try:
        found = await call.gateway.runtime.log.append_again(letter.origin)
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
    log.info("dead letter %s sent again by %s", origin, call.who.name)
    return reply({"object": "dead-letter.retry", "origin": origin, "duplicate": False})


# `/v1/models`: the names that a request may use, including every offered configuration.


async def list_models(call: Call) -> Response:
    """GET /v1/models: the names that a request with this key may ask for, configurations included."""
    return reply({"object": "list", "data": _listing(call)})


async def one_model(call: Call) -> Response:
    """GET /v1/models/{id}: one of these names."""
    name = call.request.path_params["id"]
    for each in _listing(call):
        if each["id"] == name:
            return reply(each)
    raise no_model(name)


def _listing(call: Call) -> list[dict[str, Any]]:
    control, entry = call.gateway.runtime.control, call.who.entry
    configurations = call.gateway.submission.configurations()
    allowed = None if entry is None else entry.allowed_models
    found = listing(control.catalogue, control.objectives.named, configurations, call.gateway.started)
    return [each for each in found if allowed is None or each["id"] in allowed]


# `/v1/now` and `/v1/queries`: the state of the deployment, for the page's first view, and the latest queries.

_MOST_LISTED: Final = 1000

_FRESH_S: Final = 1.0
"""Seconds for which lists are cached."""

_COUNTED_S: Final = 3.0
"""Seconds for which statistics are cached; they read all known queries."""

_SERVICES_S: Final = 10.0
"""Seconds for which the state of the services' consumer groups is cached."""

_FILTERS: Final = ("tenant", "objective", "model", "within_s")
_LONGEST_S: Final = 10**8

T = TypeVar("T")


class Views:
    """Lists and statistics of queries, computed once for all requests within a second.

    Args:
        services: Services whose consumer groups are shown.
    """

    def __init__(self, services: Sequence[ServiceSpec]) -> None:
        self._services = services
        # Cached results by key, with their expiry times.
        self._made: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}
        self._looked_s = -math.inf
        self._services_seen: list[dict[str, Any]] = []

    async def queries(self, call: Call) -> Response:
        """GET /v1/queries: the newest queries of this tenant, at most a second old."""
        call.who.require("read")
        most, wanted = int_param(call.request, "limit", 50, _MOST_LISTED), _filter(call, "limit", "status")
        gateway, sees = call.gateway, call.who.sees

        async def made() -> list[Listed]:
            return gateway.index.latest(_MOST_LISTED, gateway.runtime.clock.now_ms(), wanted)

        async def to_filter_by() -> dict[str, list[str | None]]:
            return gateway.index.values(sees)

        latest = await self._shared(("latest", wanted), gateway, made, _FRESH_S)
        values = await self._shared(("values", sees), gateway, to_filter_by, _COUNTED_S)
        unit = gateway.runtime.control.catalogue.unit
        data = [_listed(each, unit) for each in latest[:most]]
        return reply({"object": "list", "data": data, "unit": unit, "values": values})

    async def now(self, call: Call) -> Response:
        """GET /v1/now: the state of the deployment and statistics of its queries, at most three seconds old."""
        call.who.require("read")
        gateway, wanted, sees = call.gateway, _filter(call), call.who.sees
        made = partial(self._now, gateway, wanted, sees)
        return reply(await self._shared(("now", wanted, sees), gateway, made, _COUNTED_S))

    async def _now(self, gateway: GatewayService, wanted: Filter, sees: Tenants) -> dict[str, Any]:
        index, now_ms = gateway.index, gateway.runtime.clock.now_ms()
        listed = await index.all(now_ms, wanted)
        minute, in_flight = index.activity(now_ms, wanted.tenants)
        counted = await asyncio.to_thread(
            statistics.now, listed, index.group_by, moves=index.moves, paired=wanted.model is not None
        )
        return {
            "per_second": round(minute / 60, 3),
            "in_flight": in_flight,
            "unit": gateway.runtime.control.catalogue.unit,
            **counted,
            "models": models(gateway.runtime.control),
            # Lag and dead letters cover all tenants, so only a caller who sees all tenants may see them.
            "services": await self._consumers(gateway.runtime) if sees is None else [],
            "dead_letters": index.open_dead_letters() if sees is None else None,
            "marks": list(gateway.marks.listed),
        }

    async def _shared(
        self,
        what: Hashable,
        gateway: GatewayService,
        make: Callable[[], Coroutine[Any, Any, T]],
        fresh_s: float,
    ) -> T:
        """Return a cached result, or compute it."""
        now_s = gateway.runtime.monotonic()
        if what not in self._made or self._made[what][0] <= now_s:
            self._made = {each: made for each, made in self._made.items() if made[0] > now_s}
            self._made[what] = now_s + fresh_s, asyncio.ensure_future(make())
        made: T = await asyncio.shield(self._made[what][1])
        return made

    async def _consumers(self, runtime: Runtime) -> list[dict[str, Any]]:
        """Return each service's workers and lag, as the broker reported them at most ten seconds ago."""
        now_s = runtime.monotonic()
        if now_s - self._looked_s >= _SERVICES_S:
            self._looked_s = now_s
            executors = tuple(dict.fromkeys(model.group for model in runtime.control.catalogue.models))
            names = {
                app: spec.name for spec in self._services for app in spec.apps(runtime.topics, executors)
            }
            try:
                found = await runtime.log.groups(list(names))
            except Unavailable as error:
                log.warning("the consumer groups could not be read: %s", error)
                found = {}
            self._services_seen = [
                {
                    "service": app.removeprefix(runtime.settings.kafka.prefix),
                    "workers": found[app].members if app in found else None,
                    "waiting": found[app].waiting if app in found else None,
                }
                for app in names
            ]
        return self._services_seen


def _filter(call: Call, *others: str) -> Filter:
    """Return the filter of a request's query parameters, which may also have others. Raises ApiError 400."""
    params, tenants = call.request.query_params, call.who.sees
    if unknown := sorted(set(params) - {*_FILTERS, *others}):
        why = f"{unknown[0][:200]} is unknown; give {', '.join((*_FILTERS, *others))}"
        raise invalid(unknown[0], why, "unknown_parameter")
    if "tenant" in params:
        tenant = params["tenant"] or None
        tenants = (tenant,) if tenants is None or tenant in tenants else ()
    statuses = tuple(filter(None, params.get("status", "").split(",")))
    if wrong := [each for each in statuses if each not in get_args(Status)]:
        raise invalid(
            "status", f"status {wrong[0][:200]!r} does not exist; give {', '.join(get_args(Status))}"
        )
    within_s = int_param(call.request, "within_s", 1, _LONGEST_S) if "within_s" in params else None
    return Filter(tenants, params.get("objective"), params.get("model"), within_s, statuses)


def models(control: Control) -> list[dict[str, Any]]:
    """Return each model of the catalogue, whether an executor serves it, and its reported health."""
    serving, told, found = control.serving(), control.health(), []
    for model in control.catalogue.models:
        serves = model.name in serving
        state, why = told.get(model.name, ("ready" if serves else "silent", ""))
        found.append({**picked(model, "name", "group"), "serving": serves, "state": state, "why": why})
    return found


# `/v1/objectives`: the objectives that queries may name.


async def list_objectives(call: Call) -> Response:
    """GET /v1/objectives: the objectives that queries may name."""
    objectives = call.gateway.runtime.control.objectives
    data = [_objective(objectives, name) for name in sorted(objectives.named)]
    return reply({"object": "list", "data": data, "default": objectives.default})


async def set_objective(call: Call) -> Response:
    """PUT /v1/objectives/{name}: set an objective, by weights, a mean cost or an accuracy."""
    call.who.require("admin")
    given = await object_of(call.request, "weights", "mean_cost", "accuracy")
    named = {"name": call.request.path_params["name"], "op": "set", **given}
    try:
        record = msgspec.convert(named, ObjectiveEntry)
    except msgspec.ValidationError as error:
        raise of_json(error) from None
    runtime = call.gateway.runtime
    await runtime.send(Outgoing(runtime.topics.control, record.key.encode(), encode(record)))
    return reply({"object": "objective", "name": record.name, "accepted": True}, status=202)


def _objective(objectives: Objectives, name: str) -> dict[str, Any]:
    return {"object": "objective", **answer_details.objective(objectives.in_force(name))}


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
_MOST_SESSIONS: Final = 100  # per key
_MOST_BODY: Final = 4096


class Page:
    """The page of one gateway and its sessions.

    A browser sends its key once. After that, a cookie that scripts cannot read replaces the key, because an EventSource
    sends no headers. Sessions are kept in memory (the latest hundred per key), so users log in again after a restart.

    Args:
        keys: The API keys.
        hosts: Host names that requests may be addressed to.
    """

    def __init__(self, keys: ApiKeys, hosts: frozenset[str]) -> None:
        self.keys = keys
        self.hosts = hosts
        # By token: the credential's key and the API key itself; each key's oldest first.
        self._sessions: dict[str, tuple[str, str]] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the page."""
        return [
            Route("/", self.index),
            Route("/session", self.session, methods=["GET", "POST", "DELETE"]),
            Mount("/static", _Secured(directory=FOLDER)),
        ]

    def key_of(self, request: Request) -> str | None:
        """Return the API key of a request's session; None if a foreign page may have sent the request."""
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        return session[1] if session is not None and is_own(request) else None

    async def index(self, request: Request) -> Response:
        """GET /."""
        return FileResponse(FOLDER / "index.html", headers=SECURE)

    async def session(self, request: Request) -> Response:
        """Return whether a session is needed (GET), open one with a key (POST), or end it (DELETE)."""
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
            return refusal(error, request)
        if request.method == "DELETE":
            self._sessions.pop(request.cookies.get(COOKIE, ""), None)
            ended = reply({"logged_in": False})
            ended.delete_cookie(COOKIE)
            return ended
        said = reply({"needed": self.keys.has_keys, "logged_in": self.key_of(request) is not None})
        said.headers["cache-control"] = "no-store"
        return said

    async def _begin(self, request: Request) -> Response:
        key = (await object_of(request, "key", most=_MOST_BODY)).get("key")
        if not isinstance(key, str):
            raise invalid("key", 'give an API key: {"key": …}', "invalid_type")
        who = self.keys.credential(key)  # raises for an invalid key
        # Drop sessions of keys that are no longer valid.
        self._sessions = {
            token: session for token, session in self._sessions.items() if self.keys.has_key(session[0])
        }
        # The limit is per key.
        same = [token for token, (whose, _) in self._sessions.items() if whose == who.key]
        if len(same) >= _MOST_SESSIONS:
            del self._sessions[same[0]]
        token = secrets.token_urlsafe(32)
        self._sessions[token] = (who.key, key)
        begun = reply({"logged_in": True})
        begun.set_cookie(
            COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
        )
        return begun


def is_own(request: Request) -> bool:
    """Return whether the gateway's own page sent a request, so that its session cookie may be used.

    Browsers also send the cookie with requests from pages on other ports of this host, and they send forms and
    `text/plain` without a preflight. So the origin must be the gateway's own, including the port, and requests that
    change anything must be JSON.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:  # scripts cannot set it, and it works behind a proxy that changes the host
        own = site in ("same-origin", "none")
    else:
        own = origin is None or origin.partition("://")[2] == request.headers.get("host")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return own and (request.method in ("GET", "HEAD", "DELETE") or kind == "application/json")


class _Secured(StaticFiles):
    """Static files with the page's headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(SECURE)
        return response


# `/v1/queries` and `/v1/feedback`: one query, its events, and feedback on its answer.

_BEAT_LOOKS: Final = 30
"""Number of polls without a record between two heartbeats of an event stream: fifteen seconds."""


async def feedback(call: Call) -> Response:
    """POST /v1/feedback: grade an answer, with true, false or a number from 0 to 1."""
    call.who.require("feedback")
    call.gateway.limits.feedback(call.who, call.gateway.runtime.clock.now_ms())
    given = await object_of(call.request, "id", "value", "comment", "graded_by")
    query_id, value, comment = given.get("id"), given.get("value"), given.get("comment", "")
    if not isinstance(query_id, str):
        raise invalid("id", "id is missing; give the id of a completion", "invalid_type")
    if not isinstance(value, int | float):
        raise invalid("value", "value must be true, false or a number from 0 to 1", "invalid_type")
    if not isinstance(comment, str) or len(comment) > 4000:
        raise invalid("comment", "comment must be a text of at most 4000 characters")
    graded_by = given.get("graded_by", "person")
    if graded_by not in get_args(GradeSource):
        raise invalid("graded_by", f"graded_by must be one of {', '.join(get_args(GradeSource))}")
    if graded_by != "person":
        call.who.require("teach")  # it grades answers at a rate at which no person does
    known, reward = call.gateway.index.find(query_id), call.gateway.index.reward_of(query_id)
    duplicate = await call.gateway.access.feedback(query_id, value, comment, graded_by, call.who)
    # For a query no longer in the index, only the aggregator knows.
    late = None if known is None else reward is not None and reward.closes
    return reply({"id": query_id, "object": "feedback", "duplicate": duplicate, "late": late})


async def one_query(call: Call) -> Response:
    """GET /v1/queries/{id}: decision, search, answer, cost and reward of one query."""
    call.who.require("read")
    return reply(_query(call, _visible(call).query_id))


async def events(call: Call) -> Response:
    """GET /v1/queries/{id}/events: server-sent events decision, step, answer and reward, up to the closing reward."""
    call.who.require("read")
    known, gateway = _visible(call), call.gateway
    left_s = (
        known.until_ms - gateway.runtime.clock.now_ms()
    ) / 1000 - MARGIN_S  # relative to the query's own timeout
    admitted = Admitted(known.query_id, known.created_ms // 1000, left_s)
    with contextlib.ExitStack() as stack:
        stack.enter_context(gateway.limits.stream(call.who))
        queue = stack.enter_context(gateway.searches.requests.on(known.query_id)).queue
        return EventStream(_events(call, admitted, queue), stack.pop_all())


async def _events(call: Call, admitted: Admitted, queue: Queue) -> AsyncIterator[bytes]:
    with contextlib.suppress(ClientGone, ApiError):
        answer, quiet = None, 0
        async for what in call.gateway.searches.events(admitted, queue, call.is_gone):
            match what:
                case Decision():
                    yield named_event("decision", _query(call, admitted.query_id)["decision"])
                case SearchStep(forest=forest):
                    yield named_event(
                        "step", {"step": forest.step, "search": answer_details.drafts(forest.drafts, ())}
                    )
                case Answer():
                    answer = what
                    yield named_event("answer", _query(call, admitted.query_id))
                case None:
                    quiet += 1
                    if quiet % _BEAT_LOOKS == 0:
                        yield sse.BEAT
        if answer is None:
            return
        async for reward in call.gateway.searches.rewards(answer, queue, call.is_gone):
            if reward is not None:
                yield named_event("reward", answer_details.reward(reward))
            elif (quiet := quiet + 1) % _BEAT_LOOKS == 0:
                yield sse.BEAT  # the feedback may come hours later


def _query(call: Call, query_id: str) -> dict[str, Any]:
    gateway = call.gateway
    return answer_details.query_object(gateway.index.timeline(query_id), gateway.runtime.control.cost_model)


def _visible(call: Call) -> IndexedQuery:
    return call.gateway.access.visible(call.request.path_params["id"], call.who)


def _listed(each: Listed, unit: CostUnit) -> dict[str, Any]:
    return {
        "id": each.query_id,
        "object": "query",
        "created": each.created_ms // 1000,
        "status": each.status or "pending",
        **picked(each, "tenant", "question", "action", "objective", "cohort", "correct", "error"),
        unit: each.cost,
        "timings": _timings(each),
    }


def _timings(each: Listed) -> dict[str, float] | None:
    if each.spent is None or each.answered_ms is None:
        return None
    total_s = (each.answered_ms - each.created_ms) / 1000
    return answer_details.timings(json.decode(each.spent, type=Spent), total_s)


def routes(services: Sequence[ServiceSpec]) -> Listing:
    """Return all routes of this file that need a key, for one gateway; see `Views`."""
    views = Views(services)
    return [
        ("POST", "/v1/decide", decide),
        ("GET", "/v1/models", list_models),
        ("GET", "/v1/models/{id:path}", one_model),
        ("POST", "/v1/feedback", feedback),
        ("GET", "/v1/queries", views.queries),
        ("GET", "/v1/queries/{id}", one_query),
        ("GET", "/v1/queries/{id}/events", events),
        ("GET", "/v1/now", views.now),
        ("GET", "/v1/dead-letters", dead_letters),
        ("POST", "/v1/dead-letters/retry", retry),
        ("GET", "/v1/objectives", list_objectives),
        ("PUT", "/v1/objectives/{name:path}", set_objective),
    ]
