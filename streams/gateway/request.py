"""Converts a chat completion request (model name, OpenAI's fields, the object `uniscale`) to a Query.

The other protocols translate their requests into this one (`responses_api`, `messages_api`).
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal

import msgspec
import orjson
from msgspec import Struct

from schemas.action import Action
from schemas.chat import ChatOptions
from schemas.errors import InvalidField, RecordError
from schemas.grader import NamedGrader
from schemas.objective import Weights
from schemas.query import GATEWAY, MAX_BUDGET_TOKENS, Budget, Message, Query, Reference, ToolCall
from schemas.record import MAX_NAME
from streams.gateway.errors import (
    ApiError,
    code_of,
    invalid,
    no_model,
    of_json,
    of_record,
    own_name,
    unsupported,
)

# Model names of the gateway, including virtual ones, and what they mean for the decider.
#
# auto                 the deployment's default objective
# auto:<objective>     an objective of `control`, by name
# <model>              that model, at whatever width the policy chooses
# <model>/qp/cp/bs     exactly that configuration

AUTO: Final = "auto"


class ModelChoice(Struct, frozen=True):
    """The choice that a model name stands for.

    Attributes:
        objective: Name of an objective; None for the default.
        model: The only model allowed; None for all.
        pin: The configuration that must run, `model/qp/cp/bs`.
    """

    objective: str | None = None
    model: str | None = None
    pin: str | None = None


def asked(name: str, models: Iterable[str], objectives: Iterable[str], actions: Iterable[str]) -> ModelChoice:
    """Return the choice that a model name stands for.

    Args:
        name: The `model` of the request.
        models: Model names of the current catalogue.
        objectives: Names of the current objectives.
        actions: Ids of the offered configurations.

    Raises:
        ApiError: 404 for an unknown name.
    """
    known = set(models)
    if name == AUTO:
        return ModelChoice()
    if name in known:
        return ModelChoice(model=name)
    if name.startswith(f"{AUTO}:"):
        objective = name.removeprefix(f"{AUTO}:")
        if objective in set(objectives):
            return ModelChoice(objective=objective)
        raise no_model(name)
    try:
        action = Action.parse(name)
    except InvalidField:
        raise no_model(name) from None
    if action.model not in known or action.id not in set(actions):
        raise no_model(name)
    return ModelChoice(pin=action.id)


# If a request asks the model for more than a text (`ChatRequest.options`), the choice is restricted to configurations
# that can honour this. A field that none can honour is ignored and named in the response (`ChatRequest.ignored`), so
# that ordinary clients work unchanged. It is refused by name if it requests a different kind of answer (`audio`), or if
# the deployment is strict. Neutral values (`logprobs: false`), which many clients send by default, have no effect and
# are not named.

MAX_BODY: Final = 2 * 1024 * 1024
"""Maximum bytes of a request's body."""

BASELINE_OF: Final = "baseline_of"
"""Metadata key that makes a Query the paired baseline of another; the value is that query's id."""

# Fields of the API that request a different kind of answer unless they have one of these values.
_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "functions": ([], None),
    "function_call": ("none", "auto", None),
    "modalities": (["text"], None),
    "audio": (None,),
    "web_search_options": (None,),
    "moderation": (None,),
}
_WHY: Final = {"functions": "give tools", "function_call": "give tool_choice"}
STRICT: Final = (
    "no model that may answer honours it, and this gateway is strict (UNISCALE_GATEWAY_STRICT); leave it out"
)


class _Ignored(Struct, frozen=True):
    """Unsupported fields of the API that do not change the kind of answer, with their allowed types.

    Each default is a value without effect, like null.
    """

    reasoning_effort: str | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None
    service_tier: str | None = "auto"
    store: bool | None = False
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


_IGNORED: Final = {field.name: field for field in msgspec.structs.fields(_Ignored)}


class Extension(Struct, frozen=True, forbid_unknown_fields=True):
    """The object `uniscale` of a request. Its fields are those of a Query, plus `sticky` and `progress`.

    Attributes:
        sticky: Whether a conversation keeps its configuration.
        progress: Whether a stream also reports the progress of the search, in `uniscale.progress` of its chunks;
            chat completions alone have this.
    """

    objective: str | None = None
    weights: Weights | None = None
    mean_cost: float | None = None
    accuracy: float | None = None
    reference: Reference | None = None
    grader: NamedGrader | None = None
    budget: Budget | None = None
    timeout_s: float | None = None
    feedback_wait_s: float | None = None
    allowed_models: tuple[str, ...] | None = None
    learn: bool = True
    metadata: dict[str, Any] = {}
    sticky: bool = True
    progress: bool = False


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream contains besides the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Translated(Struct, frozen=True):
    """The parts of another protocol's request for which a chat completion request has no field.

    Attributes:
        protocol: Name of the protocol; empty for chat completions.
        earlier: Messages that precede those of the request and have already been checked.
        kept: Data that the gateway keeps with the query, to read it back in the same protocol (`kept_of`).
        names: The protocol's names for the fields of chat completions, used in errors; see `own_name`.
        ignored: Names of unsupported fields that chat completions do not have.
    """

    protocol: Literal["", "responses", "messages"] = ""
    earlier: tuple[Message, ...] = ()
    kept: dict[str, str] = {}
    names: dict[str, str] = {}
    ignored: tuple[str, ...] = ()


class ChatRequest(Struct, frozen=True):
    """A request to `/v1/chat/completions`, or another protocol's request expressed as one.

    Attributes:
        models: The models that may answer, like `uniscale.allowed_models`; other APIs have this field, OpenAI's does
            not.
        session_id: The client's name for the conversation; other APIs have this field, OpenAI's does not.
        reasoning_effort: Only models with this effort may answer; None if no model of the catalogue has an effort.
        options: What it asks of the model besides a text; in the API, these are fields of the request itself.
        ignored: Names of its unsupported fields, in the order of the request. This and the next attribute are not
            fields of the API.
        translated: The parts of another protocol's request for which there is no field above.
    """

    model: str
    messages: list[dict[str, Any]]
    models: tuple[str, ...] | None = None
    session_id: str | None = None
    reasoning_effort: str | None = None
    options: ChatOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    uniscale: Extension | None = None
    ignored: tuple[str, ...] = ()
    translated: Translated = Translated()

    @property
    def is_plain(self) -> bool:
        """Return whether its messages are texts that any model can read."""
        own = all(isinstance(m.get("content"), str) and m.get("role") != "tool" for m in self.messages)
        return own and not any(m.of_tools or m.images or m.audio for m in self.translated.earlier)

    @property
    def extension(self) -> Extension:
        """Return the object `uniscale`, or an empty one if the request has none."""
        return self.uniscale or Extension()


_OPTIONS: Final = frozenset(field.name for field in msgspec.structs.fields(ChatOptions))
_OWN: Final = {field.name for field in msgspec.structs.fields(ChatRequest)} - {
    "ignored",
    "options",
    "translated",
}
_KNOWN: Final = _OWN | _OPTIONS
_MESSAGE: Final = "messages[].name"


def json_object(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object. Raises ApiError 400."""
    try:
        plain = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(None, f"the body is not JSON in UTF-8 ({error})", "invalid_json") from None
    if not isinstance(plain, dict):
        raise invalid(None, "the body must be a JSON object", "invalid_json")
    return plain


def parse(body: bytes, *, efforts: Collection[str] = (), strict: bool = False) -> ChatRequest:
    """Parse the body of a chat completion request.

    Args:
        body: JSON.
        efforts: Efforts that the catalogue's models have; if there are none, `reasoning_effort` is an unsupported
            field.
        strict: Whether to refuse unsupported fields rather than name them in the response.

    Raises:
        ApiError: 400 with the field at fault.
    """
    return read(json_object(body), efforts=efforts, strict=strict)


def read(
    plain: Mapping[str, Any],
    translated: Translated = Translated(),  # noqa: B008 - it is frozen
    *,
    efforts: Collection[str] = (),
    strict: bool = False,
) -> ChatRequest:
    """Return a request, given its fields.

    Args:
        plain: The fields of a chat completion request.
        translated: The parts of another protocol's request for which there is no such field.
        efforts: See `parse`.
        strict: See `parse`.

    Raises:
        ApiError: 400 with the field at fault, under the protocol's name.
    """
    try:
        return _read(plain, translated, efforts, strict)
    except ApiError as error:
        raise error.renamed(translated.names) from None


def _read(
    plain: Mapping[str, Any], translated: Translated, efforts: Collection[str], strict: bool
) -> ChatRequest:
    ignored: list[str] = []
    for name, value in plain.items():
        if name in _REFUSED:
            if not any(_same(value, neutral) for neutral in _REFUSED[name]):
                raise unsupported(name, _WHY.get(name, "leave it out"))
        elif name == "reasoning_effort" and efforts:
            if value is not None and value not in efforts:
                why = f"reasoning_effort: no model has {value!r}; choose from {', '.join(efforts)}"
                raise invalid(name, why)
        elif name in _IGNORED:
            ignored += [name] if _asks(name, value) else []
        elif name not in _KNOWN:
            raise unknown(name, [*_KNOWN, *_IGNORED, *_REFUSED])
    try:
        known = {name: plain[name] for name in plain if name in _OWN and name not in ignored}
        request = msgspec.convert(known, ChatRequest)
        options = msgspec.convert(_options(plain), ChatOptions)
    except msgspec.ValidationError as error:
        raise of_json(error) from None
    if options != ChatOptions():
        request = msgspec.structs.replace(request, options=options)
    if plain.get("parallel_tool_calls") is False and not options.tools:
        ignored.append("parallel_tool_calls")
    if any(message.get("name") not in (None, "") for message in request.messages):
        ignored.append(_MESSAGE)
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        ignored.append("stream_options.include_obfuscation")
    ignored = [*translated.ignored, *(own_name(name, translated.names) for name in ignored)]
    if strict and ignored:
        raise unsupported(ignored[0], STRICT)
    return msgspec.structs.replace(request, ignored=tuple(ignored), translated=translated)


def to_query(
    request: ChatRequest, asked: ModelChoice, *, query_id: str, tenant: str | None, kept: dict[str, str]
) -> Query:
    """Return the Query for a request.

    Args:
        request: The request.
        asked: The choice that its model name stands for.
        query_id: The query's id.
        tenant: The authenticated tenant.
        kept: The gateway's own data, stored in `metadata.gateway`.

    Raises:
        ApiError: 400 with the field at fault.
    """
    extension = request.extension
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "stream_options needs stream: true")
    if request.stream and (request.n or 1) > 1:
        raise unsupported("n", "a stream has one choice; ask without stream, or leave n out")
    if asked.pin is not None and request.n is not None and request.n > _paths(asked.pin):
        why = f"n is {request.n}, and {asked.pin} drafts {_paths(asked.pin)} paths; ask for fewer choices"
        raise invalid("n", why)
    if asked.objective is not None and _has_objective(extension):
        why = f"the model name already asks for objective {asked.objective!r}; give one of the two"
        raise invalid("uniscale", why)
    if request.models is not None and extension.allowed_models not in (None, request.models):
        raise invalid("models", "uniscale.allowed_models names other models; give one of the two")
    allowed = request.models if extension.allowed_models is None else extension.allowed_models
    if asked.model is not None and allowed not in (None, (asked.model,)):
        why = f"the model name already asks for {asked.model!r}; give one of the two"
        raise invalid("models" if request.models is not None else "uniscale.allowed_models", why)
    own = msgspec.structs.asdict(extension)
    del own["progress"], own["sticky"]
    own["metadata"] = {**_metadata(request), GATEWAY: kept}
    own["objective"] = asked.objective or extension.objective
    own["allowed_models"] = (asked.model,) if asked.model else allowed
    messages = _messages(request)
    try:
        return Query(
            **own,
            query_id=query_id,
            messages=messages,
            session=_session(request.session_id, messages) if extension.sticky else None,
            pin_action=asked.pin,
            max_tokens=_max_tokens(request),
            stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
            seed=request.seed,
            n=1 if request.n is None else request.n,
            stream=bool(request.stream),
            options=request.options,
            tenant=tenant,
        )
    except RecordError as error:
        raise of_record(error) from None


def _session(session_id: str | None, messages: Sequence[Message]) -> str | None:
    """Return the session of a conversation: as its client calls it, or else by how it began.

    What comes before an assistant's first message does not tell conversations apart: all of an application's may begin
    with one system message.
    """
    if session_id is not None:
        if not 1 <= len(session_id) <= MAX_NAME:
            why = f"session_id has {len(session_id)} characters; give 1 to {MAX_NAME}"
            raise invalid("session_id", why)
        return session_id
    began = next((at for at, message in enumerate(messages, 1) if message.role == "assistant"), 0)
    if not began:
        return None
    return f"began {hashlib.sha256(msgspec.json.encode(messages[:began])).hexdigest()}"


def kept_of(query: Query) -> dict[str, str]:
    """Return the gateway's own data in a query, such as the digests of API key and body; empty for other producers."""
    return {name: str(each) for name, each in query.kept.items()}


def digest(body: bytes, protocol: str = "") -> str:
    """Return a digest that identifies a request: the SHA-256 of its body, in hex.

    Args:
        body: The body.
        protocol: The request's protocol; empty for chat completions.
    """
    return hashlib.sha256(protocol.encode() + body).hexdigest()


def _messages(request: ChatRequest) -> tuple[Message, ...]:
    earlier = request.translated.earlier
    own = (_message(at, message) for at, message in enumerate(request.messages, len(earlier)))
    return (*earlier, *own)


def _message(at: int, message: dict[str, Any]) -> Message:
    param = f"messages[{at}]"
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise invalid(f"{param}.role", f"must be a text: {', '.join(_ROLES)}", "invalid_type")
    if role not in _ROLES:
        raise unsupported(f"{param}.role", f"{role!r}; use {', '.join(_ROLES)}")
    # Clients send back the whole message of an earlier completion, including its null fields.
    for name in sorted(set(message) - {"role", "content", "name", *_OF_ROLE.get(role, ())}):
        if message[name] not in (None, [], {}):
            raise unsupported(f"{param}.{name}", f"a message of role {role} has none here; leave it out")
    calls = tuple(_call(f"{param}.tool_calls[{i}]", c) for i, c in enumerate(message.get("tool_calls") or ()))
    if content is None:
        content = message.get("refusal")
    parts: tuple[dict[str, Any], ...] = ()
    if isinstance(content, list):
        texts = [_part(f"{param}.content[{i}]", part) for i, part in enumerate(content)]
        parts = () if all(set(part) == {"type", "text"} for part in content) else tuple(content)
        content = "".join(texts)
    if not isinstance(content, str) and not (content is None and calls):
        raise invalid(f"{param}.content", "must be a text, or a list of parts", "invalid_type")
    return Message(
        role="system" if role == "developer" else role,
        content=content,
        tool_calls=calls,
        tool_call_id=_text(param, message, "tool_call_id") if role == "tool" else None,
        parts=parts,
    )


_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_OF_ROLE: Final = {"assistant": ("tool_calls", "refusal"), "tool": ("tool_call_id",)}


def _part(param: str, part: Any) -> str:
    """Return the text of a part; empty for an image or a recording."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind == "image_url" and isinstance(part.get("image_url"), dict):
        _text(f"{param}.image_url", part["image_url"], "url")
        return ""
    if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
        _text(f"{param}.input_audio", part["input_audio"], "data")
        _text(f"{param}.input_audio", part["input_audio"], "format")
        return ""
    if isinstance(kind, str) and kind not in ("text", "refusal", "image_url", "input_audio"):
        raise unsupported(param, f"type {kind!r}; use text, image_url or input_audio")
    raise invalid(
        param,
        'must be {"type": "text", "text": …}, {"type": "image_url", "image_url": {"url": …}} or '
        '{"type": "input_audio", "input_audio": {"data": …, "format": …}}',
        "invalid_type",
    )


def _call(param: str, call: Any) -> ToolCall:
    """Return a tool call of an assistant's message."""
    kind = call.get("type", "function") if isinstance(call, dict) else None
    if kind not in ("function", "custom") or not isinstance(called := call.get(kind), dict):
        why = 'must be {"id": …, "type": "function", "function": {"name": …, "arguments": …}}'
        raise invalid(param, why, "invalid_type")
    what = "input" if kind == "custom" else "arguments"
    name, arguments = _text(f"{param}.{kind}", called, "name"), _text(f"{param}.{kind}", called, what)
    return ToolCall(id=_text(param, call, "id"), name=name, arguments=arguments, type=kind)


def _text(param: str, of: dict[str, Any], name: str) -> str:
    if not isinstance(value := of.get(name), str):
        raise invalid(f"{param}.{name}", "must be a text", "invalid_type")
    return value


# Values of the options that have no effect.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
}
_FORMATS: Final = ("text", "json_object", "json_schema")


def _options(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a request asks for.

    Raises:
        ApiError: 400 for a kind of tool or format that the API does not have.
    """
    options = {name: plain[name] for name in plain if name in _OPTIONS and plain[name] is not None}
    tools = options.get("tools")
    neutral = (
        _NEUTRAL if not tools else {name: each for name, each in _NEUTRAL.items() if name != "tool_choice"}
    )
    options = {
        name: each
        for name, each in options.items()
        if not any(_same(each, usual) for usual in neutral.get(name, ()))
    }
    if not tools:
        options.pop("parallel_tool_calls", None)
    if options.get("logprobs") and "top_logprobs" in plain:
        options["top_logprobs"] = plain["top_logprobs"]
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom"):
            raise unsupported(f"tools[{at}]", f"type {kind!r}; use function or custom")
    form = options.get("response_format")
    if isinstance(form, dict) and form.get("type") not in _FORMATS:
        why = f"response_format.type is {form.get('type')!r}; use {', '.join(_FORMATS)}"
        raise invalid("response_format.type", why)
    return options


def _metadata(request: ChatRequest) -> dict[str, Any]:
    """Merge the three sources of metadata. A name in two of them is an error, because one value would be lost."""
    found: dict[str, Any] = {}
    places = {
        "metadata": request.metadata or {},
        "uniscale.metadata": request.extension.metadata,
        "user": {} if request.user is None else {"user": request.user},
    }
    for place, given in places.items():
        for name, value in given.items():
            if name == GATEWAY:
                raise invalid(f"{place}.{name}", f"the name {name!r} is the gateway's own; use another")
            if name in found:
                raise invalid(f"{place}" if place == name else f"{place}.{name}", f"{name!r} is given twice")
            found[name] = value
    return found


def _max_tokens(request: ChatRequest) -> int | None:
    """Return the client's token limit per answer, from either of its two names."""
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise invalid("max_tokens", "cannot be combined with max_completion_tokens; give one of the two")
    param = "max_tokens" if request.max_tokens is not None else "max_completion_tokens"
    most = request.max_tokens if request.max_tokens is not None else request.max_completion_tokens
    if most is not None and not 1 <= most <= MAX_BUDGET_TOKENS:
        raise invalid(param, f"{param} is {most}; give a whole number from 1 to {MAX_BUDGET_TOKENS:g}")
    return most


def _asks(name: str, value: Any) -> bool:
    """Return whether an unsupported field has a value with an effect.

    Raises:
        ApiError: 400 for a value that the API does not allow.
    """
    field = _IGNORED[name]
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        raise invalid(name, f"{name}: {error}", code_of(error)) from None
    neutral = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if name == "service_tier" and value == "default":
        return False
    return value is not None and not _same(value, neutral)


def unknown(name: str, known: Iterable[str]) -> ApiError:
    """Return the error for an unknown field, with a suggestion."""
    own = {field.name for field in msgspec.structs.fields(Extension)}
    name = name[:200]
    if name in own:
        hint = f'put it into the object `uniscale`: {{"uniscale": {{"{name}": …}}}}'
    else:
        near = get_close_matches(name, list(known), n=1)
        hint = f"did you mean {near[0]}? Otherwise leave it out" if near else "leave it out"
    return invalid(name, f"{name} is not a field of this API; {hint}", "unknown_parameter")


def _paths(pin: str) -> int:
    action = Action.parse(pin)
    return action.qp * action.cp


def _has_objective(extension: Extension) -> bool:
    given = (extension.objective, extension.weights, extension.mean_cost, extension.accuracy)
    return any(each is not None for each in given)


def _same(value: Any, neutral: Any) -> bool:
    return (type(value) is type(neutral) and value == neutral) or (
        isinstance(value, float)
        and isinstance(neutral, int)
        and not isinstance(neutral, bool)
        and value == neutral
    )
