"""256 streaming clients before one gateway, a quarter of them hanging up, while the services behind it are killed."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from schemas.answer import Answer
from schemas.query import Query

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1500)]

CLIENTS = 256
WAVES = 3
KILLED = ("executor.mini", "decider", "embedder", "verifier", "aggregator")
ENDED_BY_THE_CLIENT = "hung up"


class Wave:
    """All clients once; every fourth closes its connection somewhere between the request and the end."""

    def __init__(self, url: str, number: int) -> None:
        self.url = url
        self.rng = random.Random(number)
        self.number = number
        self.ends: Counter[str] = Counter()
        self.completed: list[str] = []

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=280)
        ) as session:
            await asyncio.gather(*(self._client(session, at) for at in range(CLIENTS)))

    async def _client(self, session: aiohttp.ClientSession, at: int) -> None:
        hangs_up_s = self.rng.uniform(0.1, 6.0) if at % 4 == 0 else None
        asked = asyncio.ensure_future(self._ask(session, at))
        try:
            self.ends[await asyncio.wait_for(asked, hangs_up_s)] += 1
        except TimeoutError:
            self.ends[ENDED_BY_THE_CLIENT] += 1

    async def _ask(self, session: aiohttp.ClientSession, at: int) -> str:
        body = {
            "model": self.rng.choice(["large/1/1/1", "small/1/1/1", "small/2/2/1"]),
            "messages": [{"role": "user", "content": f"What is 2 + {at % 9}, number {at % 40}?"}],
            "stream": True,
            "user": f"wave {self.number}",
        }
        async with session.post(f"{self.url}/v1/chat/completions", json=body) as got:
            if got.status != 200:
                return f"status {got.status}"
            last = ""
            async for line in got.content:
                if line.startswith(b"data: "):
                    last = line.decode().removeprefix("data: ").strip()
            if last != "[DONE]":
                return "error: " + json.loads(last).get("error", {}).get("code", "cut off")
            self.completed.append(got.headers["x-uniscale-query-id"])
            return "[DONE]"


async def stormed(url: str, number: int, deployment: Any) -> Wave:
    wave = Wave(url, number)
    running = asyncio.create_task(wave.run())
    for service in KILLED:
        await asyncio.sleep(1.5)
        if deployment.supervisor.services[service].ready.is_set():
            deployment.supervisor.kill(service)
    await running
    return wave


def held(pid: int) -> tuple[int, float]:
    """Return how many descriptors a process has open, and its resident memory in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), kb / 1024


def test_every_query_ends_and_the_gateway_keeps_nothing(
    deploy_gateway: Callable[..., tuple[Any, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    # A short memory, so that what the gateway may keep is full after the first wave.
    deployment, url = deploy_gateway(gateway_recent=200, timeout_s=240.0)
    gateway = deployment.supervisor.services["gateway"].pid

    def quiet() -> bool:
        # The probes themselves have one connection.
        return httpx.get(f"{url}/health/ready").json()["waiting"] == 0

    waves, after = [], []
    for number in range(WAVES):
        waves.append(asyncio.run(stormed(url, number, deployment)))
        deployment.until(quiet, what="no request waits")
        report = deployment.settled()
        after.append(held(gateway))
    assert deployment.supervisor.services["gateway"].pid == gateway, "the gateway itself was never killed"

    sent = {query.query_id for query in deployment.read(deployment.topics.query, Query)}
    ended: dict[str, str] = {}
    for answer in deployment.read(deployment.topics.answer, Answer):
        ended.setdefault(answer.query_id, answer.status)
    statuses = Counter(ended[query_id] for query_id in sent)
    restarts = sum(deployment.supervisor.services[service].restarts for service in KILLED)
    with capsys.disabled():
        print(
            f"\n{len(sent)} queries of {WAVES} waves of {CLIENTS} clients; {restarts} services killed; "
            f"clients: {[dict(wave.ends) for wave in waves]}; answers: {dict(statuses)}; audit: {report.states}; "
            f"descriptors and MB after each wave: {[(n, round(mb, 1)) for n, mb in after]}"
        )
    assert restarts >= WAVES * len(KILLED) - 2
    for wave in waves:
        # Who stayed has an answer, whole.
        assert wave.ends["[DONE]"] >= CLIENTS * 3 // 4
        assert set(wave.ends) <= {"[DONE]", ENDED_BY_THE_CLIENT}
        assert {ended[query_id] for query_id in wave.completed} == {"ok"}
    assert set(statuses) <= {"ok", "cancelled"}
    assert statuses["cancelled"] > 0
    assert report.queries == len(sent)
    assert report.pending == []
    assert after[-1][0] <= after[0][0] + 3, "descriptors leak"
    assert after[-1][1] <= after[0][1] + 12, "memory grows"
