"""A task of three tool calls: an upstream that asks for them, and what an upstream's log must then hold."""

import json
from typing import Any

from tests.support.upstream import Body

TASK = "Add 1 and 2, then 3 and 4, then the two sums."
CALLS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 3, "b": 7}]
RESULTS = [3, 7, 10]
ANSWER = "It is 10."


def says(body: Body) -> str | Body:
    """Return the next call of the task, and its answer after the last; without tools, 5, as text or as JSON.

    The third call adds what the client says that the first two returned.
    """
    if "tools" not in body:
        return '{"total": 5}' if "response_format" in body else "It is 5."
    name = body["tools"][0]["function"]["name"]
    if name != "add":
        return _call(name, {"total": 5}, 0)
    got = [int(_text(each["content"])) for each in body["messages"] if each["role"] == "tool"]
    if len(got) == len(CALLS):
        return f"It is {got[-1]}."
    asked = CALLS[len(got)] if len(got) < 2 else dict(zip("ab", got, strict=True))
    return _call(name, asked, len(got))


def _call(name: str, arguments: dict[str, int], number: int) -> Body:
    function = {"name": name, "arguments": json.dumps(arguments)}
    called = [{"id": f"call-{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": called}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def assert_done(requests: list[Body], *, streamed: bool, system: str = "") -> None:
    """Demand that an upstream was asked for the task: four requests, each with the calls and results before it."""
    assert len(requests) == 4
    for number, body in enumerate(requests):
        assert bool(body.get("stream")) == streamed
        [tool] = body["tools"]
        parameters = tool["function"]["parameters"]
        assert (tool["function"]["name"], tool["function"]["description"]) == ("add", "Add two numbers.")
        assert {name: each["type"] for name, each in parameters["properties"].items()} == {
            "a": "integer",
            "b": "integer",
        }
        assert parameters["required"] == ["a", "b"]
        first, *turns = body["messages"] if not system else body["messages"][1:]
        assert not system or (body["messages"][0]["role"], _text(body["messages"][0]["content"])) == (
            "system",
            system,
        )
        assert (first["role"], _text(first["content"])) == ("user", TASK)
        assert len(turns) == 2 * number
        for at, (called, result) in enumerate(zip(turns[::2], turns[1::2], strict=True)):
            [call] = called["tool_calls"]
            assert (called["role"], call["id"], call["function"]["name"]) == (
                "assistant",
                f"call-{at}",
                "add",
            )
            assert json.loads(call["function"]["arguments"]) == CALLS[at]
            assert (result["role"], result["tool_call_id"]) == ("tool", f"call-{at}")
            assert int(_text(result["content"])) == RESULTS[at]
