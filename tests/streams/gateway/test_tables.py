"""The tables "your client sends, what happens" of the three protocols' pages: every name in them does what is said."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.query import Message
from streams.gateway.errors import ApiError
from streams.gateway.messages_api.request import parse as parse_messages
from streams.gateway.request import ChatRequest, ModelChoice, parse, to_query
from streams.gateway.responses_api.request import parse as parse_responses

DOCS = Path(__file__).parents[3] / "docs"
HEAD = "| your client sends | what happens |"
SAYS = {"400": "refused", "as in a": "noticed", "is accepted and not listed": "neutral"}
NO_EFFECT = re.compile(r"(are|is) accepted(,| and) ha(ve|s) no effect")
HEADERS = {"x-session-id": "test_sessions.py", "anthropic-beta": "test_messages.py"}
"""Names of headers, with the tests that send them."""

Body = dict[str, Any]
HI = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SCHEMA = {"name": "sum", "schema": {"type": "object"}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CALLED = [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:,x"}}
RECORDING = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}


def said(*parts: Any) -> list[Body]:
    return [{"role": "user", "content": [*parts]}]


CHAT: dict[str, dict[str, Body]] = {
    "honoured": {
        "model": {"model": "small"},
        "messages": {"messages": said({"type": "text", "text": "Hello"})},
        "stream": {"stream": True},
        "stream_options.include_usage": {"stream": True, "stream_options": {"include_usage": True}},
        "n": {"n": 2},
        "max_tokens": {"max_tokens": 5},
        "max_completion_tokens": {"max_completion_tokens": 5},
        "stop": {"stop": ["."]},
        "seed": {"seed": 3},
        "user": {"user": "ann"},
        "metadata": {"metadata": {"team": "a"}},
        "session_id": {"session_id": "s"},
        "tools": {"tools": [TOOL]},
        "tool_choice": {"tools": [TOOL], "tool_choice": "required"},
        "parallel_tool_calls": {"tools": [TOOL], "parallel_tool_calls": False},
        "tool_calls": {"messages": [*CALLED, {"role": "tool", "tool_call_id": "c", "content": "3"}]},
        "tool": {"messages": [*CALLED, {"role": "tool", "tool_call_id": "c", "content": "3"}]},
        "response_format": {"response_format": {"type": "json_object"}},
        "json_object": {"response_format": {"type": "json_object"}},
        "json_schema": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        "image_url": {"messages": said(PICTURE)},
        "input_audio": {"messages": said(RECORDING)},
        "logprobs": {"logprobs": True},
        "top_logprobs": {"logprobs": True, "top_logprobs": 2},
        "temperature": {"temperature": 0.5},
        "top_p": {"top_p": 0.5},
        "presence_penalty": {"presence_penalty": 1},
        "frequency_penalty": {"frequency_penalty": 1},
        "logit_bias": {"logit_bias": {"5": 1}},
        "reasoning_effort": {"reasoning_effort": "low"},
    },
    "ignored": {
        "verbosity": {"verbosity": "low"},
        "prediction": {"prediction": {"type": "content", "content": "x"}},
        "parallel_tool_calls": {"parallel_tool_calls": False},
        "service_tier": {"service_tier": "flex"},
        "store": {"store": True},
        "prompt_cache_key": {"prompt_cache_key": "a"},
        "prompt_cache_options": {"prompt_cache_options": {"mode": "a"}},
        "prompt_cache_retention": {"prompt_cache_retention": "24h"},
        "safety_identifier": {"safety_identifier": "a"},
        "stream_options.include_obfuscation": {
            "stream": True,
            "stream_options": {"include_obfuscation": True},
        },
        "name": {"messages": [{**HI, "name": "ann"}]},
    },
    "neutral": {
        "store: false": {"store": False},
        "tools: []": {"tools": []},
        '{"type": "text"}': {"response_format": {"type": "text"}},
    },
    "refused": {
        "temperature: 3": {"temperature": 3},
        "functions": {"functions": [{"name": "f"}]},
        "function_call": {"function_call": {"name": "f"}},
        "audio": {"audio": {"voice": "x"}},
        "modalities": {"modalities": ["text", "audio"]},
        "web_search_options": {"web_search_options": {}},
        "moderation": {"moderation": {"mode": "x"}},
    },
}

RESPONSES: dict[str, dict[str, Body]] = {
    "noticed": {
        **{name: CHAT["honoured"][name] for name in ("model", "metadata", "user", "stream", "session_id")},
        **{name: CHAT["honoured"][name] for name in ("temperature", "top_p", "parallel_tool_calls")},
        **{name: CHAT["ignored"][name] for name in ("service_tier", "safety_identifier")},
        **{name: body for name, body in CHAT["ignored"].items() if name.startswith("prompt_cache")},
        "parallel_tool_calls": {"parallel_tool_calls": False},
        "uniscale": {"uniscale": {"sticky": False}},
        "models": {"models": ["small"]},
        "text.verbosity": {"text": {"verbosity": "low"}},
        "moderation": {"moderation": {"model": "m"}},
    },
    "honoured": {
        "input": {"input": said({"type": "input_image", "image_url": "data:,x"}, RECORDING)},
        "instructions": {"instructions": "Be brief."},
        "max_output_tokens": {"max_output_tokens": 5},
        "previous_response_id": {"previous_response_id": "r"},
        "store: false": {"store": False},
        "reasoning.effort": {"reasoning": {"effort": "low"}},
        "tools": {"tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}]},
        "function": {"tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}]},
        "custom": {"tools": [{"type": "custom", "name": "add"}]},
        "tool_choice": {"tools": [{"type": "custom", "name": "add"}], "tool_choice": "required"},
        "text.format": {"text": {"format": {"type": "json_object"}}},
        'include: ["message.output_text.logprobs"]': {"include": ["message.output_text.logprobs"]},
        "top_logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    },
    "ignored": {
        "max_tool_calls": {"max_tool_calls": 3},
        "reasoning.summary": {"reasoning": {"summary": "auto"}},
        "reasoning.generate_summary": {"reasoning": {"generate_summary": "auto"}},
        "reasoning.context": {"reasoning": {"context": "all_turns"}},
        "reasoning.mode": {"reasoning": {"mode": "pro"}},
        'truncation: "auto"': {"truncation": "auto"},
        "context_management": {"context_management": [{"type": "compaction"}]},
        "image": {"image": {"a": 1}},
        "access_programs": {"access_programs": {"a": 1}},
        "include": {"include": ["reasoning.encrypted_content"]},
        "stream_options.include_obfuscation": CHAT["ignored"]["stream_options.include_obfuscation"],
        "prompt_cache_breakpoint": {
            "input": said(
                {"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
            )
        },
        "phase": {"input": [{**HI, "phase": "commentary"}]},
        "input": {"input": [HI, {"type": "reasoning", "id": "r", "summary": []}, HI]},
    },
    "refused": {
        "background: true": {"background": True},
        "conversation": {"conversation": "conv_1"},
        "prompt": {"prompt": {"id": "p"}},
    },
}

ADD = {"name": "add", "input_schema": {"type": "object"}}
USES = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "3"}
LOOP = [HI, {"role": "assistant", "content": [USES]}]
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
MESSAGES: dict[str, dict[str, Body]] = {
    "noticed": {
        **{
            name: RESPONSES["noticed"][name]
            for name in ("model", "stream", "uniscale", "models", "session_id")
        },
        **{name: CHAT["honoured"][name] for name in ("temperature", "top_p")},
    },
    "honoured": {
        "messages": {"messages": said({"type": "text", "text": "Hello"})},
        "system": {"system": "Be brief."},
        "max_tokens": {"max_tokens": 5},
        "stop_sequences": {"stop_sequences": ["."]},
        "metadata.user_id": {"metadata": {"user_id": "ann"}},
        "output_config.effort": {"output_config": {"effort": "low"}},
        "tools": {"tools": [ADD]},
        "input_schema": {"tools": [ADD]},
        "tool_choice": {"tools": [ADD], "tool_choice": {"type": "any"}},
        "output_config.format": {"output_config": {"format": FORMAT}},
        "image": {"messages": said({"type": "image", "source": {"type": "url", "url": "data:,x"}})},
        "tool_use": {"messages": [*LOOP, *said(RESULT)]},
        "tool_result": {"messages": [*LOOP, *said(RESULT)]},
    },
    "ignored": {
        "top_k": {"top_k": 5},
        "thinking": {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        "cache_control": {"cache_control": {"type": "ephemeral"}},
        'service_tier: "standard_only"': {"service_tier": "standard_only"},
        'speed: "fast"': {"speed": "fast"},
        "inference_geo": {"inference_geo": "eu"},
        "diagnostics": {"diagnostics": {"previous_message_id": "m"}},
        "context_management": {"context_management": {"edits": []}},
        "user_profile_id": {"user_profile_id": "u"},
        "workspace_id": {"workspace_id": "w"},
        "betas": {"betas": ["x-2026"]},
        "citations": {"messages": said({"type": "text", "text": "Hi", "citations": [{"type": "x"}]})},
        "is_error": {"messages": [*LOOP, *said({**RESULT, "is_error": True})]},
    },
    "refused": {"container": {"container": "c"}, "mcp_servers": {"mcp_servers": [{"type": "url"}]}},
}

EARLIER = (Message(role="user", content="Hi"), Message(role="assistant", content="Hello"))
EFFORTS = ("low", "high")
PAGES: dict[str, tuple[dict[str, dict[str, Body]], Body, Callable[[bytes], ChatRequest]]] = {
    "chat-completions.md": (CHAT, {"messages": [HI]}, lambda body: parse(body, efforts=EFFORTS)),
    "responses.md": (
        RESPONSES,
        {"input": "Hi"},
        lambda body: parse_responses(body, lambda response_id: EARLIER, efforts=EFFORTS),
    ),
    "messages.md": (
        MESSAGES,
        {"messages": [HI], "max_tokens": 50},
        lambda body: parse_messages(body, efforts=EFFORTS),
    ),
}


def named() -> Iterator[tuple[str, str, str]]:
    """Yield page, what its table says, and the name, for each name in the tables."""
    for page in PAGES:
        rows = (DOCS / page).read_text().partition(HEAD)[2].partition("\n\n")[0].splitlines()[2:]
        for row in rows:
            sends, happens = row.strip("| ").split(" | ", 1)
            effect = "ignored" if NO_EFFECT.match(happens) else "honoured"
            effect = next((each for start, each in SAYS.items() if happens.startswith(start)), effect)
            for name in re.findall(r"`([^`]+)`", sends):
                if name not in HEADERS:
                    yield page, effect, name


def read(page: str, more: Body) -> ChatRequest | ApiError:
    """Return the request, or why it is refused."""
    _, base, parsed = PAGES[page]
    try:
        request = parsed(orjson.dumps({"model": "auto", **base, **more}))
        to_query(request, ModelChoice(), query_id="q-1", tenant=None, kept={})
    except ApiError as error:
        return error
    return request


@pytest.mark.parametrize(("page", "effect", "name"), list(named()))
def test_each_name_in_the_tables_does_what_they_say(page: str, effect: str, name: str) -> None:
    plain, made = read(page, {}), read(page, PAGES[page][0][effect][name])
    field = name.partition(":")[0]
    assert isinstance(plain, ChatRequest)
    if isinstance(made, ApiError):
        assert effect in ("refused", "noticed"), made
        assert made.status == 400
        assert str(made.param).startswith(field)
    elif effect == "neutral":
        assert made == plain
    else:
        assert effect != "refused"
        assert made != plain
        ignored = [each for each in made.ignored if field in each]
        assert bool(ignored) == (effect == "ignored") or effect == "noticed", made.ignored


def test_each_example_is_in_the_tables() -> None:
    examples = {
        (page, effect, name)
        for page, (effects, *_) in PAGES.items()
        for effect, bodies in effects.items()
        for name in bodies
    }
    assert examples == set(named())
