"""Servers of others' making for tests, beside vLLM's (`vllm_servers`): llama.cpp's and LiteLLM's proxy.

Each runs in an environment of its own under `out/bench`, made from `requirements/` when it is first needed. A test that
needs one where it cannot be had skips, and says why.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench import litellm, peers
from streams.local import llama
from streams.local.broker import free_port
from streams.local.deployment import READY
from tests.support.upstream import Body, Upstream

ROOT = Path(__file__).parents[2]
SMOL = "smollm2-135m"
"""The model of llama.cpp's server: SmolLM2-135M-Instruct, in four bits."""

# Writes a line for each request that the proxy serves: what it was asked, what it counted and what it charges.
_REQUESTS = """
import json, pathlib
from litellm.integrations.custom_logger import CustomLogger
class Requests(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        line = json.dumps(kwargs["standard_logging_object"], default=str)
        with pathlib.Path(__file__).with_suffix(".jsonl").open("a") as file: file.write(line + "\\n")
handler = Requests()
"""


def _installed(name: str, pins: Path) -> Path:
    try:
        return peers.install(ROOT / "out" / "bench" / name, pins)
    except peers.PeerMissing as error:
        pytest.skip(f"{pins.name} cannot be installed here: {error}")


@contextlib.contextmanager
def llama_server(folder: Path) -> Iterator[str]:
    """Run llama.cpp's server with SmolLM2, as `up` runs it, and yield its address."""
    if not llama.is_fetched() and (why := llama.fetch()):
        pytest.skip(f"{llama.PINS.name} cannot be fetched here: {why}")
    url = f"http://127.0.0.1:{(port := free_port())}"
    argv = llama.command(port, SMOL, READY)
    with peers.serving(argv, f"{url}/health", folder / "llama.log"):
        yield url


@dataclass
class Proxy:
    """LiteLLM's proxy.

    Attributes:
        url: Its address.
        log: A line for each request that it has served.
    """

    url: str
    log: Path

    def served(self, model: str) -> list[dict[str, Any]]:
        """Return what the proxy logged of a model's requests."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [each for line in lines if (each := json.loads(line))["model_group"] == model]


def hosted(upstream: Upstream, price: Mapping[str, float]) -> dict[str, Any]:
    """Return how LiteLLM's proxy reaches an upstream, with its prices in USD per million tokens of input and output."""
    costs = {f"{kind}_cost_per_token": price[kind] / 1e6 for kind in ("input", "output")}
    return {"model": "openai/hosted", "api_base": f"{upstream.url}/v1", "api_key": "none", **costs}


@contextlib.contextmanager
def litellm_proxy(folder: Path, models: Mapping[str, dict[str, Any]]) -> Iterator[Proxy]:
    """Run LiteLLM's proxy and yield it.

    Args:
        folder: For its files.
        models: How it reaches each model, in its own terms (`litellm_params`).
    """
    python = _installed("litellm", ROOT / litellm.PINS)
    listed = [{"model_name": name, "litellm_params": at} for name, at in models.items()]
    settings = {"telemetry": False, "callbacks": "requests_log.handler", "num_retries": 0}
    router = {"num_retries": 0, "disable_cooldowns": True}
    config = {"model_list": listed, "litellm_settings": settings, "router_settings": router}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requests_log.py").write_text(_REQUESTS)
    with litellm.running(python, folder, yaml.safe_dump(config)) as (url, _):
        yield Proxy(url, folder / "requests_log.jsonl")


def metric(url: str, name: str) -> float:
    """Return the sum of a Prometheus metric of a server over its labels."""
    said = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).raise_for_status().text
    found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", said, re.MULTILINE)
    assert found, f"{url} has no metric {name}"
    return sum(map(float, found))


class Front(Upstream):
    """Stands before a real server: passes its completions on, and fails as a scripted upstream does.

    Args:
        url: The server's address.
        model: The model of it.

    Attributes:
        withholds: Whether a request gets no choices, only the usage that it is billed.
        delay_s: Seconds for which a completion is held back once it is billed.
    """

    def __init__(self, url: str, model: str) -> None:
        self.behind = url.removesuffix("/v1")
        self.withholds: Callable[[Body], bool] = lambda body: False
        self.delay_s = 0.0
        super().__init__(models=(model,))

    def completion(self, body: Body) -> Body:
        """Return what the server replies."""
        at = f"{self.behind}/v1/chat/completions"
        reply: Body = httpx.post(at, json=body, timeout=120, trust_env=False).raise_for_status().json()
        with self.lock:
            self.log.append((body, reply["usage"]))
        time.sleep(self.delay_s)
        return reply | {"choices": []} if self.withholds(body) else reply
