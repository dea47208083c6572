"""A whole deployment in memory, behind real HTTP: services, topics and gateway in one event loop of a thread."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from schemas.control import KeyEntry
from schemas.record import Record, decode, encode
from streams.cli.control import make_key
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings

R = TypeVar("R", bound=Record)


class House:
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
