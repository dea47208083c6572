"""A chat request's options apart from its text (tools, format and sampling parameters), and an upstream's reply."""

from collections.abc import Collection
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct, structs

from schemas.errors import InvalidField
from schemas.record import check_json

Capability = Literal["tools", "json", "images", "audio", "logprobs"]
"""Capabilities that a chat endpoint may declare: tool calls, a `response_format`, image and audio parts, log
probabilities."""

Requirement = Literal["tools", "json", "images", "audio", "logprobs", "sampling", "penalties", "greedy"]
"""Requirements that a request places on a configuration. The first five are capabilities. sampling: the client sets
temperature or top_p. penalties: the client sets penalties or logit_bias, which are applied only to whole answers.
greedy: the temperature is 0, so all samples would be the same and only one is drawn."""

CAPABILITIES: Final[tuple[Capability, ...]] = get_args(Capability)

WHOLE: Final[frozenset[Requirement]] = frozenset(CAPABILITIES)
"""Requirements met by a single sample from a chat endpoint: the request and the reply are passed through whole, and
nothing is scored."""

ONE_SAMPLE: Final[frozenset[Requirement]] = WHOLE | {"greedy"}
"""Requirements for which a single sample is drawn."""

MAX_OPTIONS: Final = 256 * 1024
"""Maximum size of the options as JSON, in bytes. The Context and the Decision also carry them."""

DEEPEST: Final = 64
"""Maximum nesting of fields that are passed through. A schema takes two levels for each level it describes."""

MAX_PASSED_VALUES: Final = 32 * 1024
"""Maximum number of JSON values in the options, or in a message's parts. A record may have far more."""

MAX_TOOLS: Final = 128
"""Maximum number of tools in a request, as in OpenAI's API."""

MAX_BIASES: Final = 1024
"""Maximum number of tokens in `logit_bias`; OpenAI's API allows no more than this."""

TAUGHT_TEMPERATURE: Final = 1.2
"""Highest client temperature at which an answer's correctness and score are still learned."""

MAX_MESSAGE: Final = 1024 * 1024
"""Maximum size of an upstream's message as JSON, in bytes."""

MAX_LOGPROBS: Final = 2 * 1024 * 1024
"""Maximum size of a completion's log probabilities as JSON, in bytes: a thousand tokens with 20 alternatives each."""

FIELDS: Final[dict[Requirement, tuple[str, ...]]] = {
    "tools": ("tools",),
    "json": ("response_format",),
    "images": ("messages",),
    "audio": ("messages",),
    "logprobs": ("logprobs",),
    "sampling": ("temperature", "top_p"),
    "penalties": ("presence_penalty", "frequency_penalty", "logit_bias"),
    "greedy": ("temperature",),
}
"""The fields of a chat completion request that imply each requirement."""

Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ChatOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a chat completion request that are passed to the model as the client sent them; null if not set.

    Attributes:
        tools: The tools that the model may call.
        tool_choice: Whether the model must call a tool, and which one.
        parallel_tool_calls: Whether the model may call several tools at once.
        response_format: The format of the answer: JSON, or JSON that matches a schema.
        logprobs: Whether to return the log probabilities of the answer's tokens.
        top_logprobs: Number of alternatives to return for each token.
        temperature: Sampling temperature. This field and those below override the catalogue's settings.
        top_p: Nucleus size for sampling.
        presence_penalty: Penalty for tokens that have already occurred.
        frequency_penalty: Penalty for tokens, in proportion to how often they have already occurred.
        logit_bias: Numbers to add to the logits of tokens, by token id.
    """

    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] = {}

    def __post_init__(self) -> None:
        """Reject options that no server accepts, naming the field."""
        if len(self.tools) > MAX_TOOLS:
            raise InvalidField("ChatOptions", "tools", f"holds {len(self.tools)}; give at most {MAX_TOOLS}")
        if self.tool_choice is not None and not self.tools:
            raise InvalidField("ChatOptions", "tool_choice", "needs tools; give them, or leave it out")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidField("ChatOptions", "top_logprobs", "needs logprobs: true; give both, or neither")
        if len(self.logit_bias) > MAX_BIASES:
            why = f"holds {len(self.logit_bias)} tokens; give at most {MAX_BIASES}"
            raise InvalidField("ChatOptions", "logit_bias", why)
        check_passed("ChatOptions", "", msgspec.to_builtins(self), MAX_OPTIONS)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields that are set, as they appear in a request to a chat endpoint."""
        return dict(msgspec.to_builtins(self))

    def without(self, names: Collection[str]) -> tuple["ChatOptions", tuple[str, ...]]:
        """Return the options without the named fields, and the removed fields whose values were not API defaults."""
        usual = {"temperature": 1.0, "top_p": 1.0}
        dropped = tuple(
            name for name, each in self.fields.items() if name in names and each != usual.get(name)
        )
        kept = {name: each for name, each in structs.asdict(self).items() if name not in names}
        return ChatOptions(**kept), dropped

    @property
    def penalised(self) -> bool:
        """Return whether penalties or biases shape the text."""
        return bool(self.presence_penalty or self.frequency_penalty or self.logit_bias)

    @property
    def distorts(self) -> bool:
        """Return whether the sampling parameters change the text so much that it does not reflect the configuration."""
        return self.penalised or (self.temperature or 0.0) > TAUGHT_TEMPERATURE

    @property
    def required(self) -> tuple[Requirement, ...]:
        """Return the options' requirements. The API's defaults, temperature 1 and top_p 1, require nothing."""
        needs: dict[Requirement, bool] = {
            "tools": bool(self.tools),
            "json": self.response_format is not None,
            "logprobs": bool(self.logprobs),
            "sampling": any(each not in (None, 1.0) for each in (self.temperature, self.top_p)),
            "penalties": self.penalised,
            "greedy": self.temperature == 0.0,
        }
        return tuple(name for name, needed in needs.items() if needed)


_SAID: Final[dict[Requirement, tuple[str, str]]] = {
    "tools": ("is asked for", "calls tools"),
    "json": ("is asked for", "keeps to a format"),
    "images": ("has an image", "takes images"),
    "audio": ("has audio", "takes audio"),
    "logprobs": ("is asked for", "returns log probabilities"),
    "sampling": ("is asked for", "takes it"),
    "penalties": ("is asked for", "takes it"),
    "greedy": ("is 0", "draws a single sample"),
}
"""What a field asks for, and what a model does that meets the requirement."""


def nobody_has(requirement: Requirement) -> str:
    """Return the error message, after the field's name, for a query whose requirement no allowed model meets."""
    asks, meets = _SAID[requirement]
    fix = f"give the entry of a chat endpoint `capabilities: [{requirement}]`, if its server supports that"
    if requirement not in WHOLE:
        fix = "leave it out"
    return f"{asks}, and no model that may answer {meets}; allow another model, or {fix}"


def check_passed(kind: str, field: str, value: object, most_bytes: int) -> None:
    """Reject a pass-through value that does not fit in a record (see `check_json`)."""
    check_json(kind, field, value, most_bytes, deepest=DEEPEST, most_values=MAX_PASSED_VALUES)


class UpstreamChoice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The choice of a chat completion as the upstream returned it, if the request was passed through whole.

    Attributes:
        message: The assistant's message, with its content, `tool_calls`, `refusal` and any other fields.
        finish_reason: Why the message ended: `stop`, `length` or `tool_calls`, for example.
        logprobs: The log probabilities of the message's tokens, kept as JSON text because they would exceed a record's
            limit on the number of values. Empty if there are none.
    """

    message: dict[str, Any]
    finish_reason: str = "stop"
    logprobs: str = ""

    def __post_init__(self) -> None:
        """Reject a message or log probabilities that are too large for a record."""
        check_passed("UpstreamChoice", "message", self.message, MAX_MESSAGE)
        if len(self.logprobs) > MAX_LOGPROBS:
            why = f"take {len(self.logprobs)} characters of {MAX_LOGPROBS}; ask for fewer top_logprobs or max_tokens"
            raise InvalidField("UpstreamChoice", "logprobs", why)

    @property
    def says(self) -> bool:
        """Return whether the message contains a tool call or a refusal."""
        return any(self.message.get(name) for name in ("tool_calls", "refusal"))
