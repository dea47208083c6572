"""Time to the first token of a stream, from a chat completions server directly and through the gateway.

The whole product runs as `up` starts it. By default the server is one of our own (`python -m bench.ttft PORT`), which
sends a token every 20 ms after the first 0.2 s, so that only the path between server and client is measured. The two
sides alternate, and each stream is read to its end.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import httpx
import msgspec
import numpy as np
import orjson
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.gateway import wait_served
from bench.peers import serving
from bench.streams import BenchFailed
from streams.gateway.sse import DONE, event
from streams.local.broker import free_port
from streams.local.deployment import Deployment
from streams.settings import Settings

MODEL: Final = "paced"
FIRST_S: Final = 0.2
TOKEN_S: Final = 0.02
TOKENS: Final = 50

AIM_MS: Final = 150.0
"""How much later the gateway's median first token may arrive than the server's, in ms."""


class FirstTokenPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of the measurement.

    Attributes:
        rounds: Number of turns for each side.
        streams: The numbers of concurrent streams to measure, one after another.
        each: Number of consecutive streams for each concurrent one.
        server: The server's base address, without /v1; empty for our own.
        model: The server's model.
    """

    rounds: int = 3
    streams: tuple[int, ...] = (1, 32)
    each: int = 5
    server: str = ""
    model: str = MODEL


def measure(
    settings: Settings, kind: Literal["auto", "kafka", "embedded"], plan: FirstTokenPlan, folder: Path
) -> dict[str, Any]:
    """Return the p50 and p95 of both sides' time to first token and their difference, in ms, by number of streams.

    Args:
        settings: The product's settings. Their catalogue is replaced by one containing only the server.
        kind: The broker to start.
        plan: The extent of the measurement.
        folder: Folder for the product's state and log.

    Raises:
        ServiceFailed: the product did not start.
        BenchFailed: a stream failed, or contained no text.
    """
    with contextlib.ExitStack() as stack:
        server = plan.server.rstrip("/") or stack.enter_context(_paced(folder / "server.log"))
        entry = {
            "name": "measured",
            "endpoint": {"kind": "chat", "url": server, "model": plan.model, "max_output_tokens": 512},
            "price": {"input": 1.0, "output": 1.0},
        }
        catalogue = {"name": "ttft", "verifier": "none", "verifiers": [], "models": [entry]}
        (folder / "catalogue.yaml").write_text(yaml.safe_dump(catalogue))
        own = {"catalogue": str(folder / "catalogue.yaml"), "state_dir": str(folder / "state")}
        settings = settings.replace(**own, prior="none", gateway_port=free_port())
        gateway = f"http://127.0.0.1:{settings.gateway.port}"
        system = stack.enter_context(
            Deployment(settings, broker=kind, log_path=folder / "services.log", optional=("gateway",))
        )
        system.supervisor.wait_ready(600)
        with httpx.Client(base_url=gateway) as client:
            wait_served(client)
        sides = {"server": (server, plan.model), "gateway": (gateway, "measured/1/1/1")}
        found: dict[str, Any] = {}
        for count in plan.streams:
            taken: dict[str, list[float]] = {side: [] for side in sides}
            for at in range(plan.rounds):
                for side in sorted(sides, reverse=at % 2 == 0):
                    taken[side] += asyncio.run(_first_tokens(*sides[side], count, plan.each))
            found[str(count)] = {side: _spread(each) for side, each in taken.items()}
            later_ms = 1000 * (median(taken["gateway"]) - median(taken["server"]))
            found[str(count)]["later_ms"] = round(later_ms, 1)
            found[str(count)]["reached"] = later_ms <= AIM_MS
    return found


def _spread(taken_s: list[float]) -> dict[str, float]:
    return {f"p{each}_ms": round(1000 * float(np.percentile(taken_s, each)), 1) for each in (50, 95)}


async def _first_tokens(url: str, model: str, streams: int, each: int) -> list[float]:
    """Return the seconds to the first token of each stream, from `streams` concurrent series of `each` streams."""
    limits = httpx.Limits(max_connections=streams, max_keepalive_connections=streams)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60.0, trust_env=False) as client:

        async def row(number: int) -> list[float]:
            return [await _first_token(client, model, f"{number} and {at}") for at in range(each)]

        return [seconds for row_ in await asyncio.gather(*map(row, range(streams))) for seconds in row_]


async def _first_token(client: httpx.AsyncClient, model: str, what: str) -> float:
    messages = [{"role": "user", "content": f"How much is {what}?"}]
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": 256}
    began_s, first_s = time.perf_counter(), None
    async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        async for line in stream.aiter_lines():
            if first_s is None and line.startswith("data: {"):
                choices = orjson.loads(line[6:]).get("choices")
                if choices and choices[0]["delta"].get("content"):
                    first_s = time.perf_counter() - began_s
    if first_s is None:
        raise BenchFailed(f"{client.base_url}: a stream of status {stream.status_code} had no text")
    return first_s


# The server measured by default. It runs in its own process.


@contextlib.contextmanager
def _paced(log: Path) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving([sys.executable, "-m", "bench.ttft", str(port)], f"{url}/v1/models", log):
        yield url


async def _models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


async def _complete(request: Request) -> Response:
    body = await request.json()
    tokens = min(TOKENS, body.get("max_tokens", TOKENS))
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    if body.get("stream"):
        return StreamingResponse(_chunks(tokens, usage), media_type="text/event-stream")
    await asyncio.sleep(FIRST_S + tokens * TOKEN_S)
    message = {"role": "assistant", "content": "word " * tokens}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": usage})


async def _chunks(tokens: int, usage: dict[str, int]) -> AsyncIterator[bytes]:
    await asyncio.sleep(FIRST_S)
    for _ in range(tokens):
        yield event({"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]})
        await asyncio.sleep(TOKEN_S)
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield event({"choices": [], "usage": usage})
    yield DONE


if __name__ == "__main__":
    routes = [
        Route("/v1/models", _models),
        Route("/v1/chat/completions", _complete, methods=["POST"]),
    ]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[1]), log_level="error", access_log=False)
