"""`up` with a catalogue whose model is fetched: llama.cpp's own server is one of its services."""

import signal
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from streams.local import llama
from streams.local.broker import free_port
from streams.settings import Settings
from tests.support.command_line import Operator, read_until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def test_a_fetched_model_is_served_and_comes_back(tmp_path: Path) -> None:
    if not llama.is_fetched() and (why := llama.fetch()):
        pytest.skip(f"{llama.PINS.name} cannot be fetched here: {why}")
    seven = yaml.safe_load((ROOT / "infra" / "catalogue" / "mini.yaml").read_text())
    [entry] = seven["models"]
    entry["endpoint"]["url"] = f"http://127.0.0.1:{free_port()}/v1"
    kept = {name: seven[name] for name in ("hardware", "cost_range", "fetched", "models")}
    path = tmp_path / "alone.yaml"
    path.write_text(yaml.safe_dump({"name": "alone", "verifier": "none", **kept}))
    settings = Settings().replace(
        bootstrap=f"127.0.0.1:{(port := free_port())}", gateway_port=free_port(), encoder="hashed",
        catalogue=str(path), state_dir=str(tmp_path / "state"),
    )  # fmt: skip
    operator = Operator(ROOT, settings)
    words = (
        "--broker",
        "embedded",
        "--port",
        f"{port}",
        "--data",
        f"{tmp_path}",
        "--log",
        f"{tmp_path}/up.log",
    )
    up = operator.start("up", *words, "--gateway")

    def ask() -> int:
        body = {"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Nigeria?"}]}
        url = f"http://127.0.0.1:{settings.gateway.port}/v1/chat/completions"
        got = httpx.post(url, json=body, timeout=120, trust_env=False)
        if got.status_code == 200:
            said = got.json()
            assert said["choices"][0]["message"]["content"]
            assert said["uniscale"]["action"] == "smollm2-135m/1/1/1"
            assert said["uniscale"]["eflops"]["total"] > 0
        return got.status_code

    try:
        read_until(up, "services are ready")
        assert up.stdout is not None
        threading.Thread(target=up.stdout.read, daemon=True).start()
        assert ask() == 200
        [server] = [
            each
            for each in psutil.Process(up.pid).children()
            if "streams.local.llama_server" in each.cmdline()
        ]
        server.kill()
        deadline = time.monotonic() + 300
        while ask() != 200:
            assert time.monotonic() < deadline, "the server did not come back"
            time.sleep(1.0)
        assert "0 discrepancies" in operator.run("audit").stdout
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
