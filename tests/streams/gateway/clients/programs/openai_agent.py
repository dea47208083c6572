"""An agent of OpenAI's Agents SDK: takes a task, streams it, and prints the result as JSON."""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, Runner, function_tool


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(task: str) -> dict[str, Any]:
    agent = Agent(name="adder", instructions="Use the tool.", tools=[add], model="gpt-5-mini")
    run = Runner.run_streamed(agent, task)
    made: dict[str, Any] = {"calls": [], "results": [], "events": [], "ignored": []}
    async for event in run.stream_events():
        if event.type == "raw_response_event":
            made["events"].append(event.data.type)
            if event.data.type == "response.completed":
                made["ignored"].append(event.data.response.uniscale["ignored"])
        elif event.type == "run_item_stream_event" and event.name == "tool_called":
            made["calls"].append(json.loads(event.item.raw_item.arguments))
        elif event.type == "run_item_stream_event" and event.name == "tool_output":
            made["results"].append(event.item.output)
    usage = run.context_wrapper.usage
    made["usage"] = [usage.requests, usage.input_tokens, usage.output_tokens]
    return {**made, "text": run.final_output}


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
