"""The endpoint of a model: in this process or on a server, which returns answers step by step or as a whole."""

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
"""Fields of a request that `extra_body` must not contain, and what to do instead."""


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how a model is reached.

    Attributes:
        kind: `in-process` for vLLM in the executor, `http` for vLLM's server, which continues a path step by step from
            token ids, or `chat` for any OpenAI-compatible `/v1/chat/completions`, which returns whole answers. The
            attributes from `model` on are only for `chat`.
        url: Base URL of the server, without /v1.
        urls: Base URLs of several servers of the same model, instead of `url`.
        served_name: The model's name on an http server, if it is not the checkpoint's.
        model: The model's name on a chat server.
        key_env: Environment variable of the executor that contains the API key of a chat server.
        headers: Headers sent with each request.
        timeout_s: Maximum seconds to wait for an answer.
        context_tokens: Maximum tokens of prompt and answer together.
        max_output_tokens: Maximum tokens of an answer, including reasoning.
        n: Numbers of answers that a query may get; the available configurations are (model, n, 1, 1).
        native_n: Whether the server returns n answers to one request. If not, n requests are sent.
        seed: Whether requests have a seed. Not every server accepts one.
        stream: Whether an answer is streamed to a client that asks for it. Set it to false for servers that refuse
            `stream_options` or do not count the tokens of a stream.
        sampling: Whether a client's temperature, top_p, penalties and logit_bias are sent. Reasoning models of some
            providers refuse them.
        max_tokens_field: The server's name for the bound on an answer's tokens.
        extra_body: Further fields of each request, such as `temperature`, `reasoning_effort` or `chat_template_kwargs`.
        instruction: A system message for conversations without one.
    """

    kind: Literal["in-process", "http", "chat"] = "in-process"
    url: str | None = None
    urls: tuple[str, ...] = ()
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
    instruction: str = ""

    def __post_init__(self) -> None:
        """Reject a server without an address, an address that would be ignored, and fields that do not fit the kind."""
        if self.kind == "in-process":
            for field in ("url", "urls"):
                if given := getattr(self, field):
                    raise ValueError(
                        f"{field} is {given!r} on an in-process endpoint: set kind to http or drop the {field}"
                    )
        else:
            self._check_urls()
        if self.kind == "chat":
            self._check_chat()
        elif own := self.of_chat:
            raise InvalidField(
                "Endpoint",
                next(iter(own)),
                f"is for kind chat, not {self.kind}: drop it, or set kind to chat",
            )

    def _check_urls(self) -> None:
        if self.url is not None and self.urls:
            raise InvalidField(
                "Endpoint", "urls", "is given beside url: give one server as url, or all as urls"
            )
        given = {f"urls[{at}]": url for at, url in enumerate(self.urls)} or {"url": self.url or ""}
        for field, url in given.items():
            if not url.startswith(("http://", "https://")):
                article = "an http" if self.kind == "http" else "a chat"
                why = f"is {url or None!r}: {article} endpoint needs one such as http://host:8000"
                raise ValueError(f"{field} {why}")
            if url.rstrip("/").endswith("/chat/completions"):
                raise InvalidField(
                    "Endpoint", field, "ends in /chat/completions: give it up to and without /v1"
                )
        servers = [url.rstrip("/").removesuffix("/v1") for url in self.urls]
        if twice := [url for at, url in enumerate(servers) if url in servers[:at]]:
            raise InvalidField("Endpoint", "urls", f"holds {twice[0]} twice: keep one")

    def _check_chat(self) -> None:
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
            why = f"is {list(self.n)}: give powers of two up to {MAX_ANSWERS} in increasing order, such as [1, 4]"
            raise InvalidField("Endpoint", "n", why)
        for field, fix in _OF_EACH_REQUEST.items():
            if field in self.extra_body:
                raise InvalidField(
                    "Endpoint", f"extra_body.{field}", f"is set by each request: leave it out; {fix}"
                )

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the base URLs of the model's servers; empty for an in-process endpoint."""
        return self.urls or (() if self.url is None else (self.url,))

    @property
    def of_chat(self) -> dict[str, Any]:
        """Return the chat-only fields (`kind: chat`) that differ from their defaults, keyed by name."""
        return {name: mine for name, usual in _OF_CHAT.items() if (mine := getattr(self, name)) != usual}


_OF_CHAT: dict[str, Any] = {
    each.name: each.default_factory() if each.default is msgspec.NODEFAULT else each.default
    for each in msgspec.structs.fields(Endpoint)
    if each.name not in ("kind", "url", "urls", "served_name")
}

# A chat endpoint's settings, which replace those of a model that is searched step by step.

STEPLESS = (
    "parallelism", "qp", "cp", "bs", "beam_size", "beams", "early_exit", "eta", "delimiter", "depth_limit",
    "step_tokens", "thinking",
)  # fmt: skip
"""Settings that do not apply to a model that answers as a whole, and are rejected in its entry."""


def by_effort(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Expand an entry with `efforts` into one entry per effort, named NAME.EFFORT; leave any other unchanged.

    The fields of an effort are added to `endpoint.extra_body`, except `max_tokens`, which sets `max_output_tokens`.

    Raises:
        InvalidField: `efforts` is not a mapping of names to fields, or the entry is not for a chat endpoint.
    """
    if "efforts" not in entry:
        return [entry]
    base = {name: value for name, value in entry.items() if name != "efforts"}
    efforts, endpoint = entry["efforts"], base.get("endpoint")
    if not isinstance(endpoint, dict) or endpoint.get("kind") != "chat":
        raise InvalidField("Model", "efforts", "is for endpoint.kind chat: leave it out")
    if not isinstance(efforts, dict) or not efforts:
        raise InvalidField(
            "Model", "efforts", "is not a mapping: write {low: {reasoning_effort: low}, high: …}"
        )
    made = []
    for effort, fields in efforts.items():
        if not isinstance(fields, dict):
            raise InvalidField(
                "Model", f"efforts.{effort}", "is not a mapping: write {reasoning_effort: low}"
            )
        sent = {name: value for name, value in fields.items() if name != "max_tokens"}
        own = {**endpoint, "extra_body": {**endpoint.get("extra_body", {}), **sent}}
        if "max_tokens" in fields:
            own["max_output_tokens"] = fields["max_tokens"]
        made.append({**base, "name": f"{base.get('name')}.{effort}", "effort": f"{effort}", "endpoint": own})
    return made


def chat_entry(entry: dict[str, Any], endpoint: dict[str, Any]) -> dict[str, Any]:
    """Complete a chat endpoint's entry with the sampling and engine settings of a search with one step.

    Raises:
        InvalidField: The entry has settings for steps, or neither a price nor an architecture.
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
            "is missing: give USD per million tokens, such as {input: 0.15, output: 0.6}; or, if costs are in "
            "eFLOPs, give price_factor and the architecture of this model or of one the same size",
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
    """Return a count in an endpoint's entry; the default if it is missing or not a positive integer."""
    given = endpoint.get(name)
    return given if isinstance(given, int) and given >= 1 else int(_OF_CHAT[name])
