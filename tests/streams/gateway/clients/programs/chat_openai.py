"""LangChain's `ChatOpenAI`: takes a scenario and a question, and prints the result as JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Sum(BaseModel):
    """A sum."""

    total: int


def said(message: AIMessage) -> dict[str, Any]:
    return {"text": message.text, "usage": message.usage_metadata, "about": message.response_metadata}


def solved(ask: Callable[[list[BaseMessage]], AIMessage], task: str) -> dict[str, Any]:
    """Ask, and do what the model calls for, until it answers."""
    messages: list[BaseMessage] = [HumanMessage(task)]
    calls = []
    while True:
        message = ask(messages)
        messages.append(message)
        if not message.tool_calls:
            return {**said(message), "calls": calls}
        for call in message.tool_calls:
            calls.append(call["args"])
            messages.append(add.invoke(call))


def joined(chunks: Any) -> AIMessage:
    whole = next(chunks)
    for chunk in chunks:
        whole += chunk
    return whole


def main(scenario: str, question: str) -> dict[str, Any]:
    model = ChatOpenAI(model="gpt-5-mini")
    with_tools = model.bind_tools([add])
    if scenario == "plain":
        return said(model.invoke(question))
    if scenario == "tools":
        return solved(with_tools.invoke, question)
    if scenario == "stream":
        return solved(lambda messages: joined(with_tools.stream(messages)), question)
    method = {} if scenario == "default" else {"method": scenario}
    made = model.with_structured_output(Sum, **method).invoke(question)
    return {"class": type(made).__name__, "total": made.total}


print(json.dumps(main(*sys.argv[1:])))
