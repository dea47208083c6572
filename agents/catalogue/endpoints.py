"""Where a model answers: in this product's own process, or at a server of its own, step by step or as a whole."""

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from schemas.errors import InvalidField

Positive = Annotated[int, Meta(ge=1)]

MAX_ANSWERS = 64

_OF_EACH_REQUEST = {
    "model": "give endpoint.model",
    "messages": "they are the query's",
    "n": "give endpoint.n",
    "max_tokens": "give endpoint.max_output_tokens",
    "max_completion_tokens": "give endpoint.max_output_tokens, and endpoint.max_tokens_field",
    "stop": "it is the query's",
    "seed": "give endpoint.seed",
    "stream": "a client's request decides",
}
"""Fields of a request that `extra_body` cannot hold, and what to do instead."""


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model answers.

    Attributes:
        kind: `in-process`: vLLM in the executor. `http`: vLLM's server, which continues a path step by step from token
            ids. `chat`: any OpenAI-compatible `/v1/chat/completions`, which gives whole answers; the attributes from
            `model` on are for it alone.
        url: Base of the server, up to and without /v1.
        served_name: The model's name at an http server, if it is not the checkpoint's.
        model: Its name at a chat server.
        key_env: Environment variable of the executor with the API key of a chat server.
        headers: Sent with each request.
        timeout_s: Longest wait for an answer.
        context_tokens: Its longest prompt plus answer.
        max_output_tokens: Its longest answer, reasoning included.
        n: How many answers a query may have it give: the configurations on offer are (model, n, 1, 1).
        native_n: Whether the server gives n answers to one request; if not, it is sent n requests.
        seed: Whether requests have a seed. Not every server takes one.
        stream: Whether an answer is streamed to a client that asks for it; false for servers that refuse
            `stream_options`, or do not count the tokens of a stream.
        sampling: Whether a client's temperature, top_p, penalties and logit_bias are sent. Reasoning models of some
            providers refuse them.
        max_tokens_field: What the server calls the bound on an answer's tokens.
        extra_body: Further fields of each request, such as `temperature`, `reasoning_effort`, `chat_template_kwargs`.
    """

    kind: Literal["in-process", "http", "chat"] = "in-process"
    url: str | None = None
    served_name: str | None = None
    model: str = ""
    key_env: str = ""
    headers: dict[str, str] = {}
    timeout_s: float = 300.0
    context_tokens: Positive = 32_768
    max_output_tokens: Positive = 4_096
    n: tuple[Annotated[int, Meta(ge=1, le=MAX_ANSWERS)], ...] = (1,)
    native_n: bool = False
    seed: bool = False
    stream: bool = True
    sampling: bool = True
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra_body: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """Refuse a server without an address, an address that would be ignored, and fields that do not fit the kind."""
        if self.kind != "in-process" and not (self.url or "").startswith(("http://", "https://")):
            article = "an http" if self.kind == "http" else "a chat"
            raise ValueError(f"url is {self.url!r}: {article} endpoint needs one such as http://host:8000")
        if self.kind == "in-process" and self.url is not None:
            raise ValueError(
                f"url is {self.url!r} on an in-process endpoint: set kind to http or drop the url"
            )
        if self.kind == "chat":
            self._check_chat()
        elif own := self.of_chat:
            raise InvalidField(
                "Endpoint",
                next(iter(own)),
                f"is for kind chat, not {self.kind}: drop it, or set kind to chat",
            )

    def _check_chat(self) -> None:
        if (self.url or "").rstrip("/").endswith("/chat/completions"):
            raise InvalidField("Endpoint", "url", "ends in /chat/completions: give it up to and without /v1")
        if not self.model:
            raise InvalidField("Endpoint", "model", "is missing: give the model's name at the server")
        if self.served_name is not None:
            raise InvalidField("Endpoint", "served_name", "is for kind http: give model")
        if not 0 < self.timeout_s < math.inf:
            raise InvalidField("Endpoint", "timeout_s", f"is {self.timeout_s}: give seconds above 0")
        if self.max_output_tokens >= self.context_tokens:
            why = f"is {self.max_output_tokens} of context_tokens {self.context_tokens}: leave room for a question"
            raise InvalidField("Endpoint", "max_output_tokens", why)
        if not self.n or list(self.n) != sorted(set(self.n)) or any(each & (each - 1) for each in self.n):
            why = (
                f"is {list(self.n)}: give powers of two up to {MAX_ANSWERS} in growing order, such as [1, 4]"
            )
            raise InvalidField("Endpoint", "n", why)
        for field, fix in _OF_EACH_REQUEST.items():
            if field in self.extra_body:
                raise InvalidField(
                    "Endpoint", f"extra_body.{field}", f"is set by each request: leave it out; {fix}"
                )

    @property
    def of_chat(self) -> dict[str, Any]:
        """Return the fields for kind chat alone that are not at their defaults, by name."""
        return {name: mine for name, usual in _OF_CHAT.items() if (mine := getattr(self, name)) != usual}


_OF_CHAT: dict[str, Any] = {
    each.name: each.default_factory() if each.default is msgspec.NODEFAULT else each.default
    for each in msgspec.structs.fields(Endpoint)
    if each.name not in ("kind", "url", "served_name")
}

# What a chat endpoint has in place of the settings of a model that is searched step by step.

STEPLESS = (
    "parallelism", "qp", "cp", "bs", "beam_size", "beams", "early_exit", "eta", "delimiter", "depth_limit",
    "step_tokens", "thinking",
)  # fmt: skip
"""What an entry may ask in vain of a model that answers as a whole."""


def by_effort(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries that an entry describes: one named NAME.EFFORT for each of its `efforts`, or itself.

    An effort has the fields that it adds to `endpoint.extra_body`, and `max_tokens` for its `max_output_tokens`.

    Raises:
        InvalidField: `efforts` is not a mapping of names to fields, or the entry is not a chat endpoint.
    """
    if "efforts" not in entry:
        return [entry]
    base = {name: value for name, value in entry.items() if name != "efforts"}
    efforts, endpoint = entry["efforts"], base.get("endpoint")
    if not isinstance(endpoint, dict) or endpoint.get("kind") != "chat":
        raise InvalidField("Model", "efforts", "is for endpoint.kind chat: leave it out")
    if not isinstance(efforts, dict) or not efforts:
        raise InvalidField("Model", "efforts", "is no mapping: write {low: {reasoning_effort: low}, high: …}")
    made = []
    for effort, fields in efforts.items():
        if not isinstance(fields, dict):
            raise InvalidField("Model", f"efforts.{effort}", "is no mapping: write {reasoning_effort: low}")
        sent = {name: value for name, value in fields.items() if name != "max_tokens"}
        own = {**endpoint, "extra_body": {**endpoint.get("extra_body", {}), **sent}}
        if "max_tokens" in fields:
            own["max_output_tokens"] = fields["max_tokens"]
        made.append({**base, "name": f"{base.get('name')}.{effort}", "effort": f"{effort}", "endpoint": own})
    return made


def chat_entry(entry: dict[str, Any], endpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a chat endpoint with sampling and engine as a search needs them: one step, the whole answer.

    Raises:
        InvalidField: it asks for what a model without steps cannot do, or has nothing to follow costs from.
    """
    for where, given in (("", entry), ("endpoint.", endpoint)):
        if wrong := [name for name in STEPLESS if name in given]:
            raise InvalidField(
                "Model",
                f"{where}{wrong[0]}",
                "is set, but a chat endpoint answers as a whole: it has no steps, so no beams and no early exit; "
                "leave it out, and give endpoint.n for several answers",
            )
    if "architecture" not in entry and "price" not in entry:
        raise InvalidField(
            "Model",
            "price",
            "is missing: give USD per million tokens, such as {input: 0.15, output: 0.6}; or, where costs are counted "
            "in eFLOPs, an architecture, that of the model or of one of its size, and price_factor",
        )
    tokens = _count(endpoint, "max_output_tokens")
    engine = entry.get("engine", {})
    return {
        **entry,
        "sampling": entry.get("sampling", {"temperature": 1.0, "step_tokens": tokens, "depth_limit": 1}),
        "engine": {**engine, "context_tokens": _count(endpoint, "context_tokens")}
        if isinstance(engine, dict)
        else engine,
    }


def _count(endpoint: dict[str, Any], name: str) -> int:
    """Return a count of an endpoint; its default where it has none, or what is none."""
    given = endpoint.get(name)
    return given if isinstance(given, int) and given >= 1 else int(_OF_CHAT[name])
