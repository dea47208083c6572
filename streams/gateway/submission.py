"""Submission: turns a request into a new query, the query of an earlier request, or a preview."""

import hashlib
import re
import uuid
from collections.abc import Mapping
from typing import Final

import httpx
import msgspec
import orjson

from agents.catalogue.models import Catalogue, Model
from agents.decider.preview import PREVIEW, Preview
from schemas.action import Action
from schemas.chat import FIELDS, WHOLE, nobody_has
from schemas.query import Query
from schemas.record import encode
from streams.gateway.auth import ApiKeys, Credential
from streams.gateway.errors import NO_RETRY, ApiError, invalid, own_name, unsupported
from streams.gateway.index import Index
from streams.gateway.quotas import KeyLimits, Used
from streams.gateway.request import BASELINE_OF, STRICT, ChatRequest, asked, to_query
from streams.gateway.searches import Admitted, Searches, other_body
from streams.runtime.runtime import Runtime
from streams.trace import TRACEPARENT, parsed

# Ids of queries sent by a gateway.

PREFIXES: Final = {"": "chatcmpl-", "responses": "resp_", "messages": "msg_"}
"""Prefix of the ids of each protocol (`Translated.protocol`)."""

_TIMED: Final = re.compile(f"(?:{'|'.join(PREFIXES.values())})([0-9a-f]{{12}})[0-9a-f]{{20}}")


def new_id(now_ms: int, protocol: str = "") -> str:
    """Return a new query id. It contains its time, so that a gateway can distinguish an old id from an unknown one."""
    return f"{PREFIXES[protocol]}{now_ms:012x}{uuid.uuid4().hex[:20]}"


def time_of(query_id: str) -> int | None:
    """Return when a gateway created an id, in ms since the epoch; None if the id does not contain it.

    >>> time_of(new_id(1_700_000_000_000)), time_of("q-1")
    (1700000000000, None)
    """
    found = _TIMED.fullmatch(query_id)
    return int(found[1], 16) if found else None


def keyed_id(account: str, key: str, protocol: str = "") -> str:
    """Return the id of a query with an Idempotency-Key: the same for the same account and key."""
    scope = f"{account}\0{key}"
    return f"{PREFIXES[protocol]}{hashlib.sha256(scope.encode()).hexdigest()[:40]}"


TOKEN_BYTES: Final = 8
"""Maximum average bytes per token of a long question. Prose has four to five in most tokenizers, Python code three."""

_PREVIEW_S: Final = 10.0


class QuerySubmitter:
    """Turns the requests of one gateway into queries, within the limits of their keys.

    Args:
        runtime: Access to the topics.
        index: Recent queries.
        keys: The API keys.
        limits: Their limits.
        searches: Sends the queries.
    """

    def __init__(
        self, runtime: Runtime, index: Index, keys: ApiKeys, limits: KeyLimits, searches: Searches
    ) -> None:
        self._runtime = runtime
        self._index = index
        self._keys = keys
        self._limits = limits
        self._searches = searches
        self._space: tuple[Catalogue, Mapping[str, Action]] | None = None  # the configurations of a catalogue
        previews = runtime.settings.previews
        urls = previews.urls or ([f"http://127.0.0.1:{previews.port}"] if previews.port else [])
        self._deciders = [url.rstrip("/") for url in urls]
        self._client = httpx.AsyncClient(timeout=_PREVIEW_S, trust_env=False)
        runtime.closers.append(self._client.aclose)

    def configurations(self) -> Mapping[str, Action]:
        """Return the offered configurations by id, in the order of the action space."""
        control = self._runtime.control
        if self._space is None or self._space[0] is not control.catalogue:
            space = control.space(control.catalogue)
            self._space = (control.catalogue, {action.id: action for action in space})
        return self._space[1]

    async def submit(
        self,
        request: ChatRequest,
        who: Credential,
        *,
        digest: str,
        idempotency_key: str | None,
        is_retry: bool,
        traceparent: str | None = None,
    ) -> Admitted:
        """Send the request's Query, or join an earlier query that it retries.

        Args:
            request: The request.
            who: The caller.
            digest: Digest of its body.
            idempotency_key: The client's idempotency key, scoped to its account.
            is_retry: Whether the client says that this is a retry.
            traceparent: The W3C trace context that the client wants the query to be part of.

        Raises:
            ApiError: 422 if the idempotency key was used with a different body; 400, 403, 404 or 429 if the request is
                invalid or not allowed.
            RecordError: the query does not fit into a record.
            Unavailable: the broker does not accept the query, or the query still being sent that it joins.
        """
        now_ms = self._runtime.clock.now_ms()
        protocol = request.translated.protocol
        query_id, body = new_id(now_ms, protocol), (who.key, digest)
        timeout_s = request.extension.timeout_s or self._runtime.settings.queries.timeout_s
        if idempotency_key is not None:
            if not 1 <= len(idempotency_key) <= 255:
                raise invalid("Idempotency-Key", "Idempotency-Key must have 1 to 255 characters")
            query_id = keyed_id(who.account, idempotency_key, protocol)
            if (known := self._index.find(query_id)) is not None:
                if known.digest != digest:
                    raise other_body()
                await self._searches.sends.joined(query_id)
                return Admitted(query_id, known.created_ms // 1000, timeout_s, digest)
        elif is_retry and (lost := await self._searches.rejoined(body, digest, now_ms)) is not None:
            return Admitted(lost, (time_of(lost) or now_ms) // 1000, timeout_s, digest, body)
        kept = {"key": who.key, "digest": digest, **request.translated.kept}
        if traceparent is not None and parsed(traceparent):
            kept[TRACEPARENT] = traceparent
        query = self._query(request, who, query_id, kept)
        if not self._keys.teaches(who, query):
            # The query is answered and graded, but must not influence other clients' answers.
            query = msgspec.structs.replace(query, learn=False)
        if BASELINE_OF in query.metadata:
            who.require("admin")  # it joins the control group that the policy is compared with
        self._limits.admit(who, query, self._used(who, now_ms), self._runtime.control.catalogue.unit)
        self._limits.aim(who, query, now_ms)
        by_body = body if idempotency_key is None else None
        admitted = Admitted(query_id, now_ms // 1000, timeout_s, digest, by_body)
        await self._searches.send(query, admitted, now_ms)
        return admitted

    def question(self, request: ChatRequest, who: Credential) -> Query:
        """Return the Query for a request, without sending it. It counts against the key's limits as a preview does.

        Raises:
            ApiError: 400, 403, 404 or 429 as for the request itself.
            RecordError: the query does not fit into a record.
        """
        query, now_ms = self._query(request, who, PREVIEW, {"key": who.key}), self._runtime.clock.now_ms()
        self._limits.preview(who, len(encode(query)), self._used(who, now_ms), now_ms)
        return query

    def _query(self, request: ChatRequest, who: Credential, query_id: str, kept: dict[str, str]) -> Query:
        """Return the Query for a request, restricted to the models that its API key may use.

        Raises:
            ApiError: 400, 403 or 404 for an invalid or forbidden request.
        """
        control = self._runtime.control
        models = control.catalogue.model_names
        wanted = asked(request.model, models, control.objectives.named, self.configurations())
        query = to_query(request, wanted, query_id=query_id, tenant=who.tenant, kept=kept)
        query = self._keys.permitted(who, request.model, query, models)
        if unknown := set(query.allowed_models or ()) - set(models):
            why = f"uniscale.allowed_models holds {min(unknown)!r}; choose from {', '.join(models)}"
            raise invalid("uniscale.allowed_models", why)
        if request.reasoning_effort is not None:
            query = self._of_effort(query, request.reasoning_effort)
        self._check_length(query)
        self._check_paths(query)
        return query

    def honoured(self, request: ChatRequest, who: Credential) -> ChatRequest:
        """Return a request without the options that no model that may answer honours; `ignored` names them.

        Raises:
            ApiError: 400 if no such model honours an option that cannot be left out, or any option if the deployment is
                strict; 403 or 404 as for `submit`.
        """
        if request.options is None and request.is_plain:
            return request
        query = self._query(request, who, PREVIEW, {})
        named, ignored = (query.pinned.model,) if query.pinned else query.allowed_models, request.ignored
        whole = [each for each in query.required if each in WHOLE]
        if whole and (query.n > 1 or (query.pinned is not None and query.pinned.samples > 1)):
            field = "n" if query.n > 1 else "model"
            raise unsupported(field, f"{FIELDS[whole[0]][0]} is answered by one sample; ask for one")
        catalogue = self._runtime.control.catalogue
        while (lacking := catalogue.lacking(query.required, named)) is not None:
            if lacking in WHOLE or query.options is None:
                field = FIELDS[lacking][0]
                raise invalid(field, f"{field} {nobody_has(lacking)}", "unsupported_parameter")
            options, dropped = query.options.without(FIELDS[lacking])
            query = msgspec.structs.replace(query, options=options)
            ignored += tuple(own_name(name, request.translated.names) for name in dropped)
        if self._runtime.settings.gateway.strict and ignored:
            raise unsupported(ignored[0], STRICT)
        return msgspec.structs.replace(request, options=query.options, ignored=ignored)

    def _of_effort(self, query: Query, effort: str) -> Query:
        """Return a query restricted to the models with this effort. Raises ApiError 400 if none of them may answer."""
        asked = (query.pinned.model,) if query.pinned else query.allowed_models
        models = [m.name for m in self._runtime.control.catalogue.models if m.effort == effort]
        allowed = tuple(name for name in models if asked is None or name in asked)
        if not allowed:
            why = (
                f"reasoning_effort: the models asked for have no {effort!r}; choose from {', '.join(models)}"
            )
            raise invalid("reasoning_effort", why)
        return query if query.pinned else msgspec.structs.replace(query, allowed_models=allowed)

    def _check_length(self, query: Query) -> None:
        """Refuse a question too long for every model that may answer it. Raises ApiError 400."""
        names = (query.pinned.model,) if query.pinned else query.allowed_models
        models = [m for m in self._runtime.control.catalogue.models if names is None or m.name in names]
        if not models:
            return
        size = len(query.question.encode())
        tokens, said = max(map(self._holds, models))
        if size > (most := tokens * TOKEN_BYTES):
            raise ApiError(
                400,
                f"messages: the question takes {size} bytes; the largest context of the models that may answer it "
                f"{said}: {most} bytes at most; shorten the question",
                param="messages",
                code="context_length_exceeded",
            )

    def _check_paths(self, query: Query) -> None:
        """Refuse more answers than any configuration that may answer drafts paths. Raises ApiError 400."""
        if query.n == 1 or query.pinned is not None:  # `to_query` has checked a pinned configuration
            return
        named, models = query.allowed_models, self._runtime.control.catalogue.models
        able = {m.name for m in models if (named is None or m.name in named) and m.honours(query.required)}
        drafted = [action.samples for action in self.configurations().values() if action.model in able]
        if drafted and query.n > (most := max(drafted)):
            paths = "one path" if most == 1 else f"{most} paths"
            why = f"no configuration that may answer drafts more than {paths}; ask for at most {most}"
            raise invalid("n", f"n is {query.n}, and {why}")

    def _holds(self, model: Model) -> tuple[int, str]:
        """Return the maximum tokens of a question for a model, and the reason.

        The verifier's context limits it too, because every scored step is preceded by the question.
        """
        tokens, verifier = model.engine.context_tokens, self._runtime.control.verifier_of(model)
        if verifier is None:
            return tokens, f"has {tokens} tokens"
        scored = verifier.engine.context_tokens
        return min(tokens, scored), f"has {tokens} tokens, the verifier's {scored}"

    def _used(self, who: Credential, now_ms: int) -> Used:
        return self._index.usage.used(who.key, now_ms) if who.entry is not None else Used()

    def limits(self, who: Credential) -> dict[str, str]:
        """Return a key's remaining requests per minute, as headers."""
        if who.entry is None or who.entry.per_minute is None:
            return {}
        return self._limits.headers(who, self._used(who, self._runtime.clock.now_ms()))

    # Previews of decisions, from the read-only endpoints of deciders. Of several deciders, only the one that owns the
    # learner can answer.

    async def preview(self, request: ChatRequest, who: Credential) -> Preview:
        """Return what would be chosen for a request. Nothing runs, and nothing is learned.

        Raises:
            ApiError: 400, 403, 404 or 429 as for the request itself; 503, saying what to do, if no decider answers.
            RecordError: the query does not fit into a record.
        """
        query = self.question(request, who)
        self._limits.aim(who, query, self._runtime.clock.now_ms())
        body = encode(query)
        if not self._deciders:
            raise _no_decider(
                "this gateway knows no decider. To fix this: set UNISCALE_DECIDER_PORT for the decider and "
                "UNISCALE_DECIDER_URL=http://HOST:PORT for the gateway (`up --gateway` does both)"
            )
        why = []
        for url in self._deciders:
            try:
                answered = await self._client.post(f"{url}/decide", content=body)
            except httpx.HTTPError as error:
                why.append(f"{url} does not answer ({type(error).__name__})")
                continue
            if answered.status_code == 200:
                return msgspec.json.decode(answered.content, type=Preview)
            field, message = _said(answered)
            if answered.status_code == 400:
                text = f"{field}: {message}" if field else message
                raise ApiError(400, text, param=field or None, code="invalid_value")
            why.append(f"{url}: {message}")
        fix = "To fix this: check that the service `decider` runs, with UNISCALE_DECIDER_PORT"
        raise _no_decider(f"no decider can say what would run: {'; '.join(why)}. {fix}")


def _said(answered: httpx.Response) -> tuple[str, str]:
    try:
        said = orjson.loads(answered.content)
        return str(said.get("field", "")), str(said["message"])
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        return "", f"HTTP {answered.status_code}"


def _no_decider(why: str) -> ApiError:
    # The page retries at the next move of its slider; the official clients must not hammer a decider that is down.
    return ApiError(503, why, type="api_error", code="no_decider", headers={**NO_RETRY, "retry-after": "5"})
