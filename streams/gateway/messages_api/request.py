"""Translates a Messages request into a chat completion request. Fields are honoured, named as ignored, or refused."""

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

import msgspec
import orjson
from msgspec import Struct

from streams.gateway.errors import invalid, unsupported
from streams.gateway.request import ChatRequest, Translated, json_object, read, unknown
from streams.gateway.translation import Translation, own_fields

# Fields with the same name and meaning in a chat completion request.
_SAME: Final = ("model", "models", "session_id", "stream", "temperature", "top_p", "uniscale")

# Other fields of a chat completion request, with their names in this API.
_NAMES: Final = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}

# Fields that are ignored, each with the value, besides null, that has no effect.
_IGNORED: Final[dict[str, Any]] = {
    "top_k": None,
    "cache_control": None,
    "service_tier": "auto",
    "speed": "standard",
    "inference_geo": None,
    "diagnostics": None,
    "context_management": None,
    "user_profile_id": None,
    "workspace_id": None,
    "betas": [],
}

_SERVERS_TOOLS: Final = "it runs on Anthropic's servers; use tools with an input_schema"


class Metadata(Struct, frozen=True, forbid_unknown_fields=True):
    """Metadata of a request."""

    user_id: str | None = None


class Thinking(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to think before the answer."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How much effort to make, and the format of the answer."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class ToolChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to call a tool, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesRequest(Struct, frozen=True):
    """The fields of a request that differ from those of a chat completion."""

    messages: list[dict[str, Any]]
    max_tokens: int
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    container: str | dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None


_OWN: Final = {field.name for field in msgspec.structs.fields(MessagesRequest)}


def parse(
    body: bytes,
    *,
    beta: str | None = None,
    counts: bool = False,
    efforts: Collection[str] = (),
    strict: bool = False,
) -> ChatRequest:
    """Return a request as a chat completion request.

    Args:
        body: JSON.
        beta: The header `anthropic-beta`, which has no effect.
        counts: Whether only its tokens are to be counted; such a request has no `max_tokens` and no `stream`.
        efforts: Efforts that the catalogue's models have.
        strict: Whether to refuse unsupported fields rather than name them in the response.

    Raises:
        ApiError: 400 with the field at fault.
    """
    plain = json_object(body)
    others = [*_SAME, *_IGNORED]
    if counts:
        for name in ("max_tokens", "stream"):
            if name in plain:
                raise unknown(name, [*_OWN, *others])
        plain = {"max_tokens": 1, **plain}
    asked = own_fields(plain, MessagesRequest, others)
    _refuse(asked)
    ignored = [name for name, neutral in _IGNORED.items() if plain.get(name) not in (None, neutral)]
    ignored += ["anthropic-beta"] if beta else []
    translation = _Translation(asked, ignored)
    same = {name: plain[name] for name in plain if name in _SAME}
    return read({**same, **translation.fields}, translation.rest(), efforts=efforts, strict=strict)


def _refuse(asked: MessagesRequest) -> None:
    """Refuse fields that ask for a different kind of answer. Raises ApiError 400."""
    if asked.container is not None:
        raise unsupported("container", "nothing is executed here; leave it out")
    if asked.mcp_servers:
        raise unsupported("mcp_servers", "call them from your client, as tools")


class _Translation(Translation):
    """One request, expressed as a chat completion request."""

    def __init__(self, asked: MessagesRequest, ignored: Sequence[str]) -> None:
        super().__init__(_NAMES)
        self._asked = asked
        self.ignored += ignored
        self.fields["max_completion_tokens"] = asked.max_tokens
        self._add_messages()
        self._add_output()
        self._add_tools()
        if asked.stop_sequences is not None:
            self.fields["stop"] = asked.stop_sequences
        if asked.metadata is not None:
            self.fields["user"] = asked.metadata.user_id
        if asked.thinking is not None and asked.thinking.type != "disabled":
            self.ignored.append("thinking")

    def rest(self) -> Translated:
        """Return the parts for which a chat completion request has no field."""
        return Translated(protocol="messages", names=self.names, ignored=tuple(dict.fromkeys(self.ignored)))

    def _add_messages(self) -> None:
        system = self._asked.system
        if system is not None:
            self._add("system", {"role": "system", "content": self._content("system", system)})
        turns = self._asked.messages
        for at, turn in enumerate(turns):
            self.check(f"messages[{at}]", turn, ("role", "content"))
            self._add_turn(f"messages[{at}]", turn.get("role"), turn.get("content"))
        if not turns:
            raise invalid("messages", "messages is empty; give at least one message")
        if turns[-1]["role"] == "assistant":
            why = "the last message is an assistant's, and no model continues one; end with a user's"
            raise unsupported(f"messages[{len(turns) - 1}].role", why)

    def _add(self, place: str, message: dict[str, Any]) -> None:
        self.names[f"messages[{len(self.fields['messages'])}]"] = place
        self.fields["messages"].append(message)

    def _add_turn(self, place: str, role: Any, content: Any) -> None:
        """Add a turn as messages. A user's tool results become separate messages, before the rest of the turn."""
        if role not in ("user", "assistant", "system"):
            raise invalid(f"{place}.role", f"{place}.role must be user, assistant or system")
        if not isinstance(content, list):
            self._add(place, {"role": role, "content": content})
            return
        parts, calls = [], []
        for at, block in enumerate(content):
            where = f"{place}.content[{at}]"
            match self._type(where, block), role:
                case "tool_result", "user":
                    self._add(where, self._result(where, block))
                case "tool_use", "assistant":
                    calls.append(self._call(where, block))
                case "thinking" | "redacted_thinking", "assistant":
                    self.ignored.append(f"messages[].content[].{block['type']}")
                case _:
                    parts.append(self._part(where, block))
        if calls:
            self._add(place, {"role": role, "content": parts or None, "tool_calls": calls})
        elif parts:
            self._add(place, {"role": role, "content": parts})

    def _type(self, place: str, block: Any) -> str:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise invalid(f"{place}.type", f"{place} must be a content block, with a type", "invalid_type")
        return str(block["type"])

    def _content(self, place: str, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return [self._part(f"{place}[{at}]", block) for at, block in enumerate(content)]

    def _part(self, place: str, block: Any) -> dict[str, Any]:
        kind = self._type(place, block)
        known = ("type", "text", "source")
        self.check(place, block, known, ignored=("cache_control", "citations", "transformations"))
        match block:
            case {"type": "text", "text": str(text)}:
                return {"type": "text", "text": text}
            case {"type": "image", "source": {"type": "base64", "media_type": str(media), "data": str(data)}}:
                return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}}
            case {"type": "image", "source": {"type": "url", "url": str(url)}}:
                return {"type": "image_url", "image_url": {"url": url}}
            case {"type": "image"}:
                raise unsupported(f"{place}.source", "give an image as base64, or as a url")
            case {"type": "text"}:
                raise invalid(f"{place}.text", f"{place}.text must be a text", "invalid_type")
        raise unsupported(f"{place}.type", f"{kind[:100]!r}; send text")

    def _call(self, place: str, block: dict[str, Any]) -> dict[str, Any]:
        self.check(place, block, ("type", "id", "name", "input"), ignored=("cache_control", "caller"))
        if not isinstance(block.get("input"), dict):
            raise invalid(f"{place}.input", f"{place}.input must be an object", "invalid_type")
        arguments = orjson.dumps(block["input"]).decode()
        function = {"name": block.get("name"), "arguments": arguments}
        return {"id": block.get("id"), "type": "function", "function": function}

    def _result(self, place: str, block: dict[str, Any]) -> dict[str, Any]:
        known = ("type", "tool_use_id", "content")
        self.check(place, block, known, ignored=("cache_control", "is_error"))
        content = self._content(f"{place}.content", block.get("content", ""))
        self.names[f"messages[{len(self.fields['messages'])}].tool_call_id"] = f"{place}.tool_use_id"
        return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}

    def _add_output(self) -> None:
        asked = self._asked.output_config or OutputConfig()
        if asked.effort is not None:
            self.fields["reasoning_effort"] = asked.effort
        if asked.format is not None:
            if asked.format.get("type") != "json_schema":
                raise unsupported("output_config.format", "its type must be json_schema")
            self.check("output_config.format", asked.format, ("type", "schema"))
            schema = {"name": "answer", "schema": asked.format.get("schema"), "strict": True}
            self.fields["response_format"] = {"type": "json_schema", "json_schema": schema}

    def _add_tools(self) -> None:
        asked, choice = self._asked.tools, self._asked.tool_choice
        if asked is not None:
            self.fields["tools"] = [self._tool(f"tools[{at}]", tool) for at, tool in enumerate(asked)]
        if choice is None:
            return
        if choice.type == "tool":
            if choice.name is None:
                raise invalid("tool_choice.name", "tool_choice.name is missing; name a tool", "invalid_type")
            self.fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            self.fields["tool_choice"] = "required" if choice.type == "any" else choice.type
        if choice.disable_parallel_tool_use:
            self.fields["parallel_tool_calls"] = False

    def _tool(self, place: str, tool: dict[str, Any]) -> dict[str, Any]:
        if tool.get("type") not in (None, "custom"):
            raise unsupported(f"{place}.type", f"{str(tool['type'])[:100]!r}: {_SERVERS_TOOLS}")
        for name, kind in (("name", str), ("input_schema", dict)):
            if not isinstance(tool.get(name), kind):
                why = f"{place}.{name} is missing, or of another type"
                raise invalid(f"{place}.{name}", why, "invalid_type")
        ignored = (
            "cache_control",
            "allowed_callers",
            "defer_loading",
            "eager_input_streaming",
            "input_examples",
        )
        self.check(place, tool, ("type", "name", "description", "input_schema", "strict"), ignored=ignored)
        self.names |= {
            f"{place}.function": place,
            f"{place}.function.parameters": f"{place}.input_schema",
        }
        names = {
            "name": "name",
            "description": "description",
            "input_schema": "parameters",
            "strict": "strict",
        }
        function = {chat: tool[name] for name, chat in names.items() if name in tool}
        return {"type": "function", "function": function}
