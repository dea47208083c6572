"""An agent of Pydantic AI with its Anthropic model: takes a task, streams it, and prints the result as JSON."""

import asyncio
import json
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import FunctionToolCallEvent, FunctionToolResultEvent
from pydantic_ai.run import AgentRunResultEvent

agent = Agent("anthropic:claude-sonnet-4-5", instructions="Use the tool.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(task: str) -> dict[str, Any]:
    made: dict[str, Any] = {"calls": [], "results": []}
    async with agent.run_stream_events(task) as events:
        async for event in events:
            if isinstance(event, FunctionToolCallEvent):
                made["calls"].append(event.part.args_as_dict())
            elif isinstance(event, FunctionToolResultEvent):
                made["results"].append(event.part.content)
            elif isinstance(event, AgentRunResultEvent):
                usage = event.result.usage
                made["usage"] = [usage.requests, usage.input_tokens, usage.output_tokens]
                made["text"] = event.result.output
    return made


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
