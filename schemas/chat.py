"""What a chat request asks for besides a text: tools, a format, sampling; and what an upstream returned."""

from collections.abc import Collection
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct, structs

from schemas.errors import InvalidField
from schemas.record import check_json

Capability = Literal["tools", "json", "images", "logprobs"]
"""What a chat endpoint may declare besides text: tool calls, a `response_format`, image parts, log probabilities."""

Requirement = Literal["tools", "json", "images", "logprobs", "sampling", "penalties", "greedy"]
"""What a request needs of a configuration. The first four are capabilities. sampling: a temperature or top_p of the
client's. penalties: its penalties or logit_bias, which only whole answers honour. greedy: temperature 0, at which all
samples are the same, so that one is drawn."""

CAPABILITIES: Final[tuple[Capability, ...]] = get_args(Capability)

WHOLE: Final[frozenset[Requirement]] = frozenset(CAPABILITIES)
"""What one sample of a chat endpoint gives: request and reply are passed through whole, and nothing is scored."""

ONE_SAMPLE: Final[frozenset[Requirement]] = WHOLE | {"greedy"}
"""What a single sample is drawn for."""

MAX_OPTIONS: Final = 256 * 1024
"""Bytes of the options as JSON: the Decision repeats them."""

DEEPEST: Final = 64
"""Levels of lists and objects in what is passed through: a schema takes two for each level of what it describes."""

MAX_PASSED_VALUES: Final = 32 * 1024
"""JSON values in the options, and in the parts of a message: a record has far more."""

MAX_TOOLS: Final = 128
"""Tools of a request, as in OpenAI's API."""

MAX_BIASES: Final = 1024
"""Tokens in `logit_bias`, as in OpenAI's API at least."""

TAUGHT_TEMPERATURE: Final = 1.2
"""At a higher temperature of the client's, an answer says nothing about its configuration."""

MAX_MESSAGE: Final = 1024 * 1024
"""Bytes of an upstream's message as JSON."""

MAX_LOGPROBS: Final = 2 * 1024 * 1024
"""Bytes of the log probabilities of a completion as JSON: a thousand tokens with 20 alternatives each."""

FIELDS: Final[dict[Requirement, tuple[str, ...]]] = {
    "tools": ("tools",),
    "json": ("response_format",),
    "images": ("messages",),
    "logprobs": ("logprobs",),
    "sampling": ("temperature", "top_p"),
    "penalties": ("presence_penalty", "frequency_penalty", "logit_bias"),
    "greedy": ("temperature",),
}
"""The fields of a chat completion that have a requirement."""

Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ChatOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a chat completion that go to the model as the client sent them. Null: not asked for.

    Attributes:
        tools: The tools that the model may call.
        tool_choice: Whether and which tool it must call.
        parallel_tool_calls: Whether it may call several at once.
        response_format: The JSON, or the schema of it, that the answer must be.
        logprobs: Whether the log probabilities of the answer's tokens are returned.
        top_logprobs: How many alternatives of each token are.
        temperature: Sampling temperature, in place of the catalogue's; likewise the others.
        top_p: Nucleus size of the sampling.
        presence_penalty: Penalty of tokens that have occurred.
        frequency_penalty: Penalty of tokens by how often they have occurred.
        logit_bias: Added to the logits of tokens, by their ids.
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
        """Refuse what no server takes, naming the field."""
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
        """Return the fields that were asked for, as a request to a chat endpoint has them."""
        return dict(msgspec.to_builtins(self))

    def without(self, names: Collection[str]) -> tuple["ChatOptions", tuple[str, ...]]:
        """Return the options without some fields, and the names of those that ask for more than the API's default."""
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
        """Return whether the sampling shapes the text so much that it says nothing about the configuration."""
        return self.penalised or (self.temperature or 0.0) > TAUGHT_TEMPERATURE

    @property
    def required(self) -> tuple[Requirement, ...]:
        """Return what they need of a configuration. The API's defaults, temperature 1 and top_p 1, need nothing."""
        needs: dict[Requirement, bool] = {
            "tools": bool(self.tools),
            "json": self.response_format is not None,
            "logprobs": bool(self.logprobs),
            "sampling": any(each not in (None, 1.0) for each in (self.temperature, self.top_p)),
            "penalties": self.penalised,
            "greedy": self.temperature == 0.0,
        }
        return tuple(name for name, needed in needs.items() if needed)


def nobody_has(requirement: Requirement) -> str:
    """Return what to do where no model that may answer has what a query requires."""
    fix = f"give the entry of a chat endpoint `capabilities: [{requirement}]`, if its server supports that"
    if requirement not in WHOLE:
        fix = "leave it out"
    return f"is asked for, and no model that may answer supports it ({requirement}); allow another model, or {fix}"


def check_passed(kind: str, field: str, value: object, most_bytes: int) -> None:
    """Refuse what is passed through if a record cannot carry it; see `check_json`."""
    check_json(kind, field, value, most_bytes, deepest=DEEPEST, most_values=MAX_PASSED_VALUES)


class UpstreamChoice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The choice of a chat completion as its upstream returned it, where a request is passed through whole.

    Attributes:
        message: The assistant's message: content, `tool_calls`, `refusal` and whatever else it has.
        finish_reason: Why it ended: `stop`, `length`, `tool_calls`.
        logprobs: The log probabilities of its tokens as JSON text, because a record may not hold so many values;
            empty: none.
    """

    message: dict[str, Any]
    finish_reason: str = "stop"
    logprobs: str = ""

    def __post_init__(self) -> None:
        """Refuse what is too large for a record."""
        check_passed("UpstreamChoice", "message", self.message, MAX_MESSAGE)
        if len(self.logprobs) > MAX_LOGPROBS:
            why = f"take {len(self.logprobs)} characters of {MAX_LOGPROBS}; ask for fewer top_logprobs or max_tokens"
            raise InvalidField("UpstreamChoice", "logprobs", why)

    @property
    def says(self) -> bool:
        """Return whether it says anything besides a text: a tool call, or a refusal."""
        return any(self.message.get(name) for name in ("tool_calls", "refusal"))
