"""A whole deployment's memory: broker, services and engines on this machine, while questions are answered.

The measure is the proportional set size (Linux), where a page shared by several processes is counted once in total. It
is read twice a second, from before the services are ready until the last Answer. The figure for each process is its own
peak, and the total is the peak of the sum over all processes at one moment.

    python -m bench memory --queries 60
    python -m bench memory --large 10000                    # then 10,000 requests of a megabyte each, over HTTP
    python -m bench memory --large 200 --bytes 100000       # requests that fit into the mini family's contexts
    python -m bench memory --large 200 --bytes 100000 --ceiling 50    # limit each service to 50 MB more than when ready
    python -m bench memory --open 100000                    # open rows, in the decider alone (`open_rows`)
"""

import random
import resource
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

from streams.client.client import Client
from streams.client.questions import read_questions
from streams.demo.run import QUESTIONS, THREADS
from streams.local.broker import free_port
from streams.local.deployment import Deployment
from streams.settings import Settings

_EVERY_S = 0.5


class Heights:
    """The peak memory of named processes with their children, and of all of them combined at one moment, in MB."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        self._pids = pids
        self.each: dict[str, float] = {}
        self.together = 0.0

    def look(self) -> None:
        """Take one reading."""
        now = {name: pss_mb(_family(pid)) for name, pid in self._pids().items()}
        for name, mb in now.items():
            self.each[name] = max(self.each.get(name, 0.0), mb)
        self.together = max(self.together, sum(now.values()))

    def watch(self, ended: threading.Event) -> None:
        """Take readings until the event is set."""
        while not ended.wait(_EVERY_S):
            self.look()


def pss_mb(pids: Iterable[int]) -> float:
    """Return the total proportional set size of some processes, in MB. Processes that have ended add nothing."""
    kib = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib * 1024 / 1e6


def _family(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def limit(pids: Iterable[int], mb: int) -> None:
    """Limit each process's address space to its current size plus `mb`."""
    for pid in pids:
        taken = psutil.Process(pid).memory_info().vms
        resource.prlimit(pid, resource.RLIMIT_AS, (taken + mb * 10**6, resource.RLIM_INFINITY))


def flood(url: str, requests: int, size: int, in_flight: int) -> dict[str, int]:
    """Send questions of `size` bytes over HTTP, and return the number of responses by status."""
    counted: Counter[str] = Counter()
    left = iter(range(requests))
    with httpx.Client(base_url=url, timeout=600.0, trust_env=False) as client:

        def some() -> None:
            for at in left:
                text = f"{at} {random.Random(at).randbytes(size // 2).hex()}"[:size]
                body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
                counted[str(client.post("/v1/chat/completions", json=body).status_code)] += 1

        with ThreadPoolExecutor(in_flight) as threads:
            for each in [threads.submit(some) for _ in range(in_flight)]:
                each.result()
    return dict(counted)


def measure(
    settings: Settings,
    queries: int,
    in_flight: int,
    broker: Any = "embedded",
    *,
    large: int = 0,
    size: int = 1_000_000,
    ceiling: int | None = None,
) -> dict[str, Any]:
    """Return the peak memory, in MB, of each process and of all combined, in a deployment like the demo's.

    Args:
        settings: The deployment's settings.
        queries: How many of the demo's questions to send.
        in_flight: Number of queries or requests in flight.
        broker: `embedded`, `kafka` or `auto`.
        large: Number of large requests to send over HTTP after that.
        size: The size of the question in each large request, in bytes.
        ceiling: How many MB each service may use beyond its size when it became ready, until it is restarted.

    Raises:
        BrokerError: the broker does not start.
        ServiceFailed: a service does not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder:
        settings = settings.replace(
            max_in_flight=in_flight,
            query_partitions=1,
            state_dir=folder,
            engine_threads=1,
            gateway_port=free_port(),
        )
        with Deployment(
            settings,
            broker=broker,
            log_path=Path(folder) / "log",
            environ=THREADS,
            optional=("gateway",) if large else (),
        ) as services:

            def pids() -> dict[str, int]:
                running = {service.name: service.process for service in services.supervisor.services.values()}
                found = {name: process.pid for name, process in running.items() if process is not None}
                return {
                    **found,
                    **({"broker": services.broker.process.pid} if services.broker.process else {}),
                }

            heights, ended = Heights(pids), threading.Event()
            watcher = threading.Thread(target=heights.watch, args=(ended,), daemon=True)
            watcher.start()
            try:
                services.supervisor.wait_ready(600)
                heights.look()
                idle = heights.together
                if ceiling is not None:
                    limit((pid for name, pid in pids().items() if name != "broker"), ceiling)
                with Client(services.settings) as client:
                    asked = client.ask_all(list(read_questions(QUESTIONS))[:queries], timeout_s=900.0)
                url = f"http://127.0.0.1:{settings.gateway.port}"
                statuses = flood(url, large, size, in_flight) if large else {}
                restarts = {name: each.restarts for name, each in services.supervisor.services.items()}
            finally:
                ended.set()
                watcher.join()
    return {
        "mb": {name: round(mb) for name, mb in sorted(heights.each.items())},
        "mb_together": round(heights.together),
        "mb_together_when_ready": round(idle),
        "queries": queries,
        "large": statuses,
        "restarts": restarts,
        "without_answer": len(asked.missing),
    }
