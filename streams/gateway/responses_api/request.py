"""Translates a Responses request into a chat completion request. Fields are honoured, named as ignored, or refused."""

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from schemas.query import Message
from streams.gateway.errors import invalid, unsupported
from streams.gateway.request import ChatRequest, Translated, json_object, read
from streams.gateway.translation import Translation, own_fields

Earlier: TypeAlias = Callable[[str], Sequence[Message]]
"""Returns the conversation up to and including a response, by its id. Raises ApiError 400 or 404."""

# Fields with the same name and meaning in a chat completion request.
_SAME: Final = (
    "model", "models", "session_id", "metadata", "user", "stream", "temperature", "top_p", "parallel_tool_calls",
    "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "moderation", "uniscale",
)  # fmt: skip

# Other fields of a chat completion request, with their names in this API.
_NAMES: Final = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "logprobs": "include",
}

_LOGPROBS: Final = "message.output_text.logprobs"

Include: TypeAlias = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
"""Additional contents to request. Other values are refused, because the names of ignored ones go into a header."""

_SERVERS_TOOLS: Final = "it runs on OpenAI's servers; use tools of type function or custom"


# Items that call a tool: the kind of the tool, and the field with the model's input to it.
_CALLS: Final = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}


class Reasoning(Struct, frozen=True, forbid_unknown_fields=True):
    """How to reason."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """What kind of text to return."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream contains besides its events."""

    include_obfuscation: bool | None = None


class ResponsesRequest(Struct, frozen=True):
    """The fields of a request that differ from those of a chat completion."""

    input: str | list[dict[str, Any]] = []
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: int | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    include: list[Include] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[dict[str, Any]] | None = None
    image: dict[str, Any] | None = None
    access_programs: dict[str, Any] | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


def parse(
    body: bytes, earlier: Earlier, *, efforts: Collection[str] = (), strict: bool = False
) -> ChatRequest:
    """Return a request as a chat completion request.

    Args:
        body: JSON.
        earlier: Looks up the conversation that `previous_response_id` continues.
        efforts: Efforts that the catalogue's models have.
        strict: Whether to refuse unsupported fields rather than name them in the response.

    Raises:
        ApiError: 400 with the field at fault; 404 for an unknown `previous_response_id`.
    """
    plain = json_object(body)
    asked = own_fields(plain, ResponsesRequest, _SAME)
    _refuse(asked, plain)
    translation = _Translation(asked, earlier)
    same = {name: plain[name] for name in plain if name in _SAME}
    return read({**same, **translation.fields}, translation.rest(), efforts=efforts, strict=strict)


def _refuse(asked: ResponsesRequest, plain: dict[str, Any]) -> None:
    """Refuse fields that ask for a different kind of answer. Raises ApiError 400."""
    if asked.background:
        raise unsupported("background", "ask with `stream`, or wait for the answer")
    if asked.conversation is not None:
        raise unsupported("conversation", "continue a response with previous_response_id, or send its items")
    if asked.prompt is not None:
        raise unsupported("prompt", "there are no stored prompts; send instructions and input")
    if asked.stream_options is not None and not plain.get("stream"):
        raise invalid("stream_options", "stream_options needs stream: true")


class _Translation(Translation):
    """One request, expressed as a chat completion request."""

    def __init__(self, asked: ResponsesRequest, earlier: Earlier) -> None:
        super().__init__(_NAMES)
        self._asked = asked
        self._earlier: list[Message] = []
        if asked.instructions is not None:
            self._earlier.append(Message(role="system", content=asked.instructions))
        if asked.previous_response_id is not None:
            self._earlier += earlier(asked.previous_response_id)
        self.fields["messages"] = self._messages()
        if asked.max_output_tokens is not None:
            self.fields["max_completion_tokens"] = asked.max_output_tokens
        self._add_reasoning()
        self._add_text()
        self._add_tools()
        self._add_logprobs()
        self._add_ignored()

    def rest(self) -> Translated:
        """Return the parts for which a chat completion request has no field."""
        asked = self._asked
        kept = {
            "store": "false" if asked.store is False else None,
            "instructions": "true" if asked.instructions is not None else None,
            "previous": asked.previous_response_id,
        }
        return Translated(
            protocol="responses",
            earlier=tuple(self._earlier),
            kept={name: value for name, value in kept.items() if value is not None},
            names=self.names,
            ignored=tuple(dict.fromkeys(self.ignored)),
        )

    def _messages(self) -> list[dict[str, Any]]:
        """Return the input as messages. All tool calls of one turn go into one assistant message."""
        asked = self._asked.input
        if not asked:
            raise invalid("input", "input is missing or empty; give a text, or at least one item")
        items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        found: list[dict[str, Any]] = []
        for at, item in enumerate(items):
            place = "input" if isinstance(asked, str) else f"input[{at}]"
            message = self._message(place, item)
            if message is None:
                continue
            if item.get("type") in _CALLS and found and found[-1]["role"] == "assistant":
                found[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
                continue
            self.names[f"messages[{len(self._earlier) + len(found)}]"] = place
            found.append(message)
        return found

    def _message(self, place: str, item: dict[str, Any]) -> dict[str, Any] | None:
        match item.get("type"):
            case None | "message":
                if "role" not in item:
                    why = f"{place}.role is missing; give a role, or another type"
                    raise invalid(f"{place}.role", why, "invalid_type")
                self.check(place, item, ("type", "role", "content", "id", "status"), ignored=("phase",))
                return {
                    "role": item["role"],
                    "content": self._content(f"{place}.content", item.get("content")),
                }
            case "function_call" | "custom_tool_call" as kind:
                tool, says = _CALLS[kind]
                known = ("type", says, "call_id", "name", "id", "status")
                self.check(place, item, known, ignored=("caller", "async"))
                call = {"name": item.get("name"), says: item.get(says)}
                calls = [{"id": item.get("call_id"), "type": tool, tool: call}]
                return {"role": "assistant", "content": None, "tool_calls": calls}
            case "function_call_output" | "custom_tool_call_output":
                known = ("type", "output", "call_id", "id", "status", "name")
                self.check(place, item, known, ignored=("caller",))
                output = self._content(f"{place}.output", item.get("output"))
                return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            case "reasoning":
                self.ignored.append("input[].reasoning")
                return None
            case "item_reference":
                raise unsupported(f"{place}.type", "send the item itself, or previous_response_id")
            case kind:
                raise unsupported(f"{place}.type", f"{str(kind)[:100]!r}; send messages and function calls")

    def _content(self, place: str, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return [self._part(f"{place}[{at}]", part) for at, part in enumerate(content)]

    def _part(self, place: str, part: Any) -> dict[str, Any]:
        if not isinstance(part, dict):
            raise invalid(place, f"{place} must be an object with a type", "invalid_type")
        known = ("type", "text", "refusal", "image_url", "detail", "file_id", "input_audio")
        self.check(place, part, known, ignored=("annotations", "logprobs", "prompt_cache_breakpoint"))
        match part:
            case {"type": "input_text" | "output_text", "text": str(text)} | {
                "type": "refusal",
                "refusal": str(text),
            }:
                return {"type": "text", "text": text}
            case {"type": "input_image", "image_url": str(url)}:
                detail = {"detail": part["detail"]} if part.get("detail") is not None else {}
                return {"type": "image_url", "image_url": {"url": url, **detail}}
            case {"type": "input_image"}:
                raise unsupported(f"{place}.file_id", "there are no stored files; send image_url")
            case {"type": "input_audio", "input_audio": audio}:
                return {"type": "input_audio", "input_audio": audio}
            case {"type": "input_text" | "output_text" | "refusal" | "input_audio"}:
                why = f"{place} of type {part['type']!r} lacks what the type names"
                raise invalid(place, why, "invalid_type")
        raise unsupported(f"{place}.type", f"{str(part.get('type'))[:100]!r}; send input_text")

    def _add_reasoning(self) -> None:
        asked = self._asked.reasoning or Reasoning()
        if asked.effort is not None:
            self.fields["reasoning_effort"] = asked.effort
        self.ignore(
            ("reasoning.summary", asked.summary),
            ("reasoning.generate_summary", asked.generate_summary),
            ("reasoning.context", asked.context, "auto"),
            ("reasoning.mode", asked.mode, "standard"),
        )

    def _add_text(self) -> None:
        asked = self._asked.text or Text()
        if asked.verbosity is not None:
            self.fields["verbosity"] = asked.verbosity
        if asked.format is not None:
            kind = asked.format.get("type")
            schema = {name: value for name, value in asked.format.items() if name != "type"}
            chat = {"type": kind, "json_schema": schema} if kind == "json_schema" else asked.format
            self.fields["response_format"] = chat

    def _add_tools(self) -> None:
        asked = self._asked
        tools = [self._tool(f"tools[{at}]", tool) for at, tool in enumerate(asked.tools or ())]
        choice = asked.tool_choice
        match choice:
            case {"type": "function" | "custom" as kind, "name": name}:
                choice = {"type": kind, kind: {"name": name}}
            case {"type": "allowed_tools", "mode": mode, "tools": list(named)}:
                allowed = [tool.get("name") for tool in named if isinstance(tool, dict)]
                tools = [tool for tool in tools if tool[tool["type"]].get("name") in allowed]
                choice = mode
            case dict():
                raise unsupported("tool_choice", _SERVERS_TOOLS)
        if asked.tools is not None:
            self.fields["tools"] = tools
            self.names |= {f"tools[{at}].{tool['type']}": f"tools[{at}]" for at, tool in enumerate(tools)}
        if choice is not None:
            self.fields["tool_choice"] = choice
            self.names |= {"tool_choice.function": "tool_choice", "tool_choice.custom": "tool_choice"}
        self.ignore(("max_tool_calls", asked.max_tool_calls))

    def _tool(self, place: str, tool: dict[str, Any]) -> dict[str, Any]:
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            raise unsupported(f"{place}.type", f"{str(kind)[:100]!r}: {_SERVERS_TOOLS}")
        if not isinstance(tool.get("name"), str):
            raise invalid(f"{place}.name", f"{place}.name must be a text", "invalid_type")
        ignored = ("allowed_callers", "defer_loading", "output_schema", "async")
        self.ignore(*((f"tools[].{name}", tool.get(name), False) for name in ignored))
        told = {name: value for name, value in tool.items() if name not in (*ignored, "type")}
        form = told.get("format")
        if isinstance(form, dict) and form.get("type") == "grammar":
            grammar = {name: value for name, value in form.items() if name != "type"}
            told["format"] = {"type": "grammar", "grammar": grammar}
        return {"type": kind, kind: told}

    def _add_logprobs(self) -> None:
        include, top = self._asked.include or [], self._asked.top_logprobs
        if _LOGPROBS in include or top:
            self.fields["logprobs"] = True
            self.names["logprobs"] = "include" if _LOGPROBS in include else "top_logprobs"
        if top:
            self.fields["top_logprobs"] = top
        # The other values concern tools on OpenAI's servers, the client's own images, and hidden reasoning.
        self.ignored += [f"include.{name}" for name in include if name != _LOGPROBS]

    def _add_ignored(self) -> None:
        asked = self._asked
        options = asked.stream_options or StreamOptions()
        self.ignore(
            ("truncation", asked.truncation, "disabled"),
            ("context_management", asked.context_management, []),
            ("image", asked.image, {}),
            ("access_programs", asked.access_programs, {}),
            ("stream_options.include_obfuscation", options.include_obfuscation, False),
        )
