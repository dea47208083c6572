"""A whole deployment in memory, behind real HTTP: services, topics and gateway in one event loop of a thread."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from schemas.control import KeyEntry
from schemas.record import Record, decode, encode
from schemas.reward import Reward
from streams.cli.keys import make_key
from streams.local.broker import free_port
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings
from streams.topics import Topics
from tests.support.recorded import recorded_in_memory, recorded_paths

R = TypeVar("R", bound=Record)

ASK = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is 2 + 3, number 0?"}]
PLAIN = {"model": "auto", "messages": QUESTION}
"""A question whose answer is recorded: 5."""
DEPLOYED = tuple(service for service in SERVICES if service != "tracer")
"""Services of a whole deployment; the tracer needs a collector."""
WITHOUT_EXECUTOR = tuple(service for service in DEPLOYED if service != "executor")
"""Services of a deployment in which nothing is answered before its executor starts."""


class GatewayDeployment:
    """A deployment in memory with its gateway.

    Attributes:
        url: Where the gateway listens.
        cluster: The deployment. Touch it only through `call`.
    """

    def __init__(self, settings: Settings, services: tuple[str, ...]) -> None:
        self.settings = settings
        self.url = f"http://127.0.0.1:{settings.gateway.port}"
        self.cluster: Cluster
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(services,), daemon=True)
        self._thread.start()
        assert self._ready.wait(60), "the deployment did not start"

    def _run(self, services: tuple[str, ...]) -> None:
        asyncio.set_event_loop(self._loop)

        async def up() -> None:
            self.cluster = Cluster(self.settings, SERVICES)
            for service in reversed(services):
                for group in self.cluster.groups if SERVICES[service].grouped else ("",):
                    await self.cluster.start(service, group)
            for _ in range(200):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.settings.gateway.port)
                    writer.close()
                    break
                await asyncio.sleep(0.02)

        self._loop.run_until_complete(up())
        self._loop.call_soon(self._ready.set)
        self._loop.run_forever()

    @property
    def topics(self) -> Topics:
        """The names of its topics."""
        return self.cluster.topics

    def call(self, work: Callable[[Cluster], Any], timeout_s: float = 60.0) -> Any:
        """Run something on the deployment, in its thread."""

        async def run() -> Any:
            return work(self.cluster)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout_s)

    def start(self, service: str, group: str = "") -> None:
        """Start one more service."""
        asyncio.run_coroutine_threadsafe(self.cluster.start(service, group), self._loop).result(30)

    def read(self, topic: str, kind: type[R]) -> list[R]:
        """Return every record of a topic, decoded."""
        return [decode(record.value, kind) for record in self.records(topic)]

    def records(self, topic: str) -> list[Any]:
        """Return every record of a topic."""
        return list(self.call(lambda cluster: cluster.broker.records(topic)))

    def until(self, condition: Callable[[], bool], what: str = "it", timeout_s: float = 120.0) -> None:
        """Wait until a condition on the log holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true in {timeout_s:.0f} s"
            time.sleep(0.02)

    def closing(self, *query_ids: str) -> list[Reward]:
        """Wait for the rewards that close queries and return them, one a query."""
        found: dict[str, Reward] = {}

        def closed() -> bool:
            found.update({r.query_id: r for r in self.read(self.topics.reward, Reward) if r.closes})
            return found.keys() >= set(query_ids)

        self.until(closed, "the closing rewards")
        return [found[each] for each in query_ids]

    def produce(self, topic: str, key: bytes, value: bytes) -> None:
        """Append a record as a client does."""
        self.call(lambda cluster: cluster.produce(topic, key, value))

    def key(self, name: str, **more: Any) -> str:
        """Add an API key and return it."""
        key, digest = make_key()
        entry = KeyEntry(name=name, op="add", sha256=digest, **{"tenant": name, **more})
        self.produce(self.cluster.topics.control, entry.key.encode(), encode(entry))
        return key

    def revoke(self, name: str) -> None:
        """Revoke an API key."""
        entry = KeyEntry(name=name, op="revoke")
        self.produce(self.cluster.topics.control, entry.key.encode(), encode(entry))

    def http(self, key: str | None = None) -> httpx.Client:
        """Return a client, with an API key."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def close(self) -> None:
        """Stop everything."""
        asyncio.run_coroutine_threadsafe(self.cluster.close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


Deploy = Callable[..., GatewayDeployment]
"""The fixture `deploy`: it starts a deployment of the given services and settings."""


def refused(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """Demand an error in OpenAI's shape."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"] or status != 400, error
    assert "Traceback" not in answer.text
    assert error["param"] == param or (param is not None and str(error["param"]).startswith(param)), error
    return error


def before_chat_server(
    folder: Path, url: str, names: Sequence[str], capabilities: Sequence[str], **fields: Any
) -> GatewayDeployment:
    """Return a deployment whose models are all served by one chat completions server, at prices in USD.

    Args:
        folder: Where its catalogue lies.
        url: The server's address, without /v1.
        names: Names of the models, each `hosted` to the server.
        capabilities: What each of them can do.
        fields: Settings.
    """
    entries = [
        {
            "name": name, "verifier": "none", "group": "mini", "price": {"input": 2.0, "output": 8.0},
            "endpoint": {"kind": "chat", "url": f"{url}/v1", "model": "hosted", "max_output_tokens": 64},
            "capabilities": list(capabilities),
        }
        for name in names
    ]  # fmt: skip
    settings = recorded_in_memory(
        folder, recorded_paths(1), recorded="", policy="contextual", prior="none", heartbeat_s=0.1,
        gateway_port=free_port(), decider_port=free_port(), **fields,
    )  # fmt: skip
    content = {"name": "hosted", "verifier": "none", "models": entries}
    (folder / "catalogue.yaml").write_text(yaml.safe_dump(content))
    return GatewayDeployment(settings, DEPLOYED)
