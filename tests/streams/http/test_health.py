"""What probes and Prometheus see of a process, and the alerts with promtool."""

import asyncio
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from streams.http.health import STUCK_S, Health, serve
from streams.local.broker import free_port
from streams.metrics import Metrics
from streams.settings import Settings

ROOT = Path(__file__).parents[3]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_process_is_ready_between_its_start_and_its_stop() -> None:
    port, metrics, health = free_port(), Metrics("decider"), Health()
    metrics.pending.set(3)
    server = serve(Settings().metrics_host, port, metrics.registry, health)
    try:
        assert server.server_address[0] == Settings().metrics_host == "127.0.0.1"
        assert get(port, "/health/live") == (200, "live\n")
        assert get(port, "/health/ready") == (503, "starting\n")
        health.ready()
        assert get(port, "/health/ready") == (200, "ready\n")
        assert "uniscale_pending 3.0" in get(port, "/metrics")[1]
        health.stopping()
        assert get(port, "/health/ready") == (503, "stopping\n")
        assert get(port, "/health/live")[0] == 200
    finally:
        server.shutdown()
        server.server_close()


def test_an_event_loop_that_hangs_is_neither_live_nor_ready() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    health.ready()

    async def turn() -> None:
        task = asyncio.create_task(health.beat(0.0))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(turn())
    now[0] = STUCK_S + 1
    assert health.live()[0].startswith("503")
    assert health.readiness()[0].startswith("503")
    asyncio.run(turn())
    assert health.readiness() == ("200 OK", "ready")


def test_the_lag_of_an_event_loop_is_counted() -> None:
    now, lags = [0.0], list[float]()
    health = Health(lambda: now[0], lags.append)

    async def held() -> None:
        task = asyncio.create_task(health.beat(0.0))
        await asyncio.sleep(0)
        now[0] += 0.25  # what holds the loop now
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(held())
    assert lags == [0.25]


def test_every_runbook_of_an_alert_exists_and_is_tested() -> None:
    rules = yaml.safe_load((ROOT / "infra" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    named = {r["alert"] for r in rules if "Runbook: docs/operating.md" in r["annotations"]["action"]}
    assert len(named) == 18
    written = re.findall(r"^\*\*(\w+)\.\*\*", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE)
    assert named <= set(written)
    tests = yaml.safe_load((ROOT / "infra" / "prometheus" / "alerts.test.yml").read_text())["tests"]
    asked = [each for test in tests for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in asked if each["exp_alerts"]} == named
    assert {each["alertname"] for each in asked if not each["exp_alerts"]} == named


def test_alerts_fire_and_stay_quiet() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package `prometheus` has it)")
    folder = ROOT / "infra" / "prometheus"
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
