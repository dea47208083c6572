"""Closed-loop load on a chat completions endpoint, from a separate process.

Each of N connections sends its next request when the previous one is answered. The same client measures the gateway and
its peers, and prints one line of JSON:

    python -m bench.load URL --model NAME --connections 4 --seconds 6
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import numpy as np
import uvloop

_TIMEOUT_S = 60.0


class ChatLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        url: The endpoint's base URL, for instance `http://127.0.0.1:8080/v1`.
        model: Model name to use in requests.
        connections: Number of requests in flight at any time.
        seconds: Duration of the measurement.
        warm_s: How long to apply the same load before the measurement.
    """

    url: str
    model: str
    connections: int
    seconds: float
    warm_s: float = 1.0


class LoadFigures(msgspec.Struct, frozen=True):
    """The results of one measurement.

    Attributes:
        requests: Number of requests answered during the measurement.
        requests_per_s: Number of requests answered per second during the measurement.
        p50_ms: Median latency, from the start of a request to the end of its answer; None if there was no answer.
        p99_ms: 99th percentile of the latency.
        sent: Total number of requests, including those outside the measurement.
        errors: Number of failed requests, by error.
    """

    requests: int
    requests_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    sent: int
    errors: dict[str, int]


async def measure(load: ChatLoad) -> LoadFigures:
    """Run one measurement."""
    numbers, errors = itertools.count(), Counter[str]()
    ended: list[tuple[float, float]] = []  # time of each answer, and its latency
    begin = time.perf_counter() + load.warm_s
    end = begin + load.seconds
    connector = aiohttp.TCPConnector(limit=load.connections)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)

    async def connection(session: aiohttp.ClientSession) -> None:
        while (started := time.perf_counter()) < end:
            number = next(numbers)
            question = f"Question {number}: how many are {number % 97} and {number % 89} together?"
            body = {"model": load.model, "messages": [{"role": "user", "content": question}]}
            fault = await _ask(session, f"{load.url}/chat/completions", body)
            if fault:
                errors[fault] += 1
            now = time.perf_counter()
            ended.append((now, now - started))

    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers={"authorization": "Bearer none"}
    ) as session:
        await asyncio.gather(*(connection(session) for _ in range(load.connections)))
    # Requests in flight at the end finish unmeasured, because dropping them would cancel searches.
    latencies = [latency for at, latency in ended if begin <= at < end]
    return LoadFigures(
        requests=len(latencies),
        requests_per_s=round(len(latencies) / load.seconds, 2),
        p50_ms=_percentile(latencies, 50),
        p99_ms=_percentile(latencies, 99),
        sent=len(ended),
        errors=dict(errors),
    )


def _percentile(latencies_s: Sequence[float], percent: float) -> float | None:
    return round(1000 * float(np.percentile(latencies_s, percent)), 2) if latencies_s else None


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    """Send one request. Return what is wrong with the answer; empty if nothing is."""
    try:
        async with session.post(
            url, data=json.dumps(body), headers={"content-type": "application/json"}
        ) as got:
            said = await got.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        return type(error).__name__
    if got.status != 200:
        return f"status {got.status}"
    return "" if b'"choices"' in said and b'"assistant"' in said else "no completion"


def main(argv: Sequence[str]) -> None:
    """Run the measurement given on the command line and print the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--warm-s", type=float, default=1.0)
    load = msgspec.convert(vars(parser.parse_args(argv)), ChatLoad)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(load))
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
