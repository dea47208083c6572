"""Every command and probe of infra/kubernetes, as a process with the rights of a pod: it writes to its volumes only."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from streams.local.broker import LocalBroker
from tests.support.kubernetes import FOLDER, Resource, container_of, environment_of, of_kind, rendered

ROOT = FOLDER.parents[1]
# A root file system of its own, read-only but for the folder that stands in for the pod's volumes; then no capability.
POD = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift &&
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all "$@"
"""
SCOPES = [word for scope in ("ask", "feedback", "read", "teach") for word in ("--scope", scope)]
pytestmark = [pytest.mark.broker, pytest.mark.thorough, pytest.mark.torch]


class Pod:
    """A pod's container as a process of this machine, at an address of its own of the loopback network."""

    def __init__(
        self, workload: Resource, resources: tuple[Resource, ...], folder: Path, ip: str, **changes: str
    ) -> None:
        self.container, self.ip = container_of(workload), ip
        given = environment_of(workload, resources, folder, ip=ip)
        # What the image sets, and the broker of this test in place of the cluster's.
        given |= {"UNISCALE_STATE_DIR": str(folder / "var/lib/uniscale/state"), "TMPDIR": str(folder / "tmp")}
        cache = folder / "var/cache/uniscale"
        given |= {"HF_HOME": str(cache / "huggingface"), "VLLM_CACHE_ROOT": str(cache / "vllm")}
        given = {k: v for k, v in given.items() if not k.startswith(("UNISCALE_SASL", "UNISCALE_SSL"))}
        around = {
            name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ
        }
        command = ["unshare", "--mount", "sh", "-c", POD, "pod", str(folder)]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-m", "streams", *self.container["args"]],
                cwd=ROOT,
                env={**around, **given, **changes},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.log = folder / "log"
        probe = self.container.get("startupProbe", {"failureThreshold": 0, "periodSeconds": 0})
        self.startup_s = probe["failureThreshold"] * probe["periodSeconds"]

    def passes(self, probe: str) -> bool:
        """Return whether a probe of the container passes now."""
        asked = self.container[probe]["httpGet"]
        [port] = [p["containerPort"] for p in self.container["ports"] if p["name"] == asked["port"]]
        try:
            return httpx.get(f"http://{self.ip}:{port}{asked['path']}", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


class Pods(NamedTuple):
    """Running pods by the names of their Deployments, and the first API key."""

    by_name: dict[str, Pod]
    key: str


@pytest.fixture(scope="module")
def pods(broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """All pods of the overlay `mini`, ready."""
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if allowed.returncode != 0:
        pytest.skip("this user may not make a mount namespace (root may)")
    resources = rendered(FOLDER / "overlays" / "mini")
    deployments = of_kind(resources, "Deployment")
    addresses = {name: f"127.0.0.{10 + at}" for at, name in enumerate(deployments)}
    changes = {
        "UNISCALE_BOOTSTRAP": broker.bootstrap,
        "UNISCALE_SECURITY_PROTOCOL": "PLAINTEXT",
        "UNISCALE_REPLICATION": "1",
        "UNISCALE_PREFIX": f"k{uuid.uuid4().hex[:8]}.",
    }
    previews = [f"http://{addresses[name]}:9101" for name in ("decider", "decider-standby")]
    changes |= {"UNISCALE_DECIDER_URL": ",".join(previews)}  # no one resolves the Services' names here
    folder = tmp_path_factory.mktemp("pods")
    job = Pod(of_kind(resources, "Job")["topics"], resources, make(folder / "topics"), "127.0.0.9", **changes)
    assert job.process.wait(120) == 0, job.log.read_text()
    command = [sys.executable, "-m", "streams", "keys", "add", "first", "--tenant", "default", *SCOPES]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **changes}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    running: dict[str, Pod] = {}
    try:
        for name, deployment in deployments.items():
            running[name] = Pod(deployment, resources, make(folder / name), addresses[name], **changes)
        began = time.monotonic()
        for name, pod in running.items():
            while not pod.passes("startupProbe"):
                assert pod.process.poll() is None, f"{name}: {pod.log.read_text()[-3000:]}"
                assert time.monotonic() - began < pod.startup_s, f"{name}: {pod.log.read_text()[-3000:]}"
                time.sleep(0.5)
        yield Pods(running, done.stdout.strip())
    finally:
        for pod in running.values():
            pod.process.kill()
            pod.process.wait()


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_every_probe_passes(pods: Pods) -> None:
    assert len(pods.by_name) == 7
    for name, pod in pods.by_name.items():
        assert pod.passes("livenessProbe"), name
        assert pod.passes("readinessProbe"), name


def test_nothing_is_written_outside_volumes(pods: Pods) -> None:
    """The mount is read-only for a process of ours, and none has complained."""
    pid = pods.by_name["decider"].process.pid
    [root] = [
        line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines() if line.split()[4] == "/"
    ]
    assert root.split()[5].split(",")[0] == "ro"
    status = Path(f"/proc/{pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    for name, pod in pods.by_name.items():
        assert "Read-only file system" not in pod.log.read_text(), name


def test_a_question_is_answered_and_previewed(pods: Pods) -> None:
    url = f"http://{pods.by_name['gateway'].ip}:8080/v1"
    asked = {"model": "auto", "messages": [{"role": "user", "content": "How much is 9 times 7?"}]}
    headers = {"host": "gateway", "authorization": f"Bearer {pods.key}"}
    decided = httpx.post(f"{url}/decide", json=asked, headers=headers, timeout=60)
    assert decided.status_code == 200, decided.text
    answered = httpx.post(f"{url}/chat/completions", json=asked, headers=headers, timeout=120)
    assert answered.status_code == 200, answered.text
    assert answered.json()["choices"][0]["message"]["content"]


def test_sigterm_ends_every_pod_in_its_grace_period(pods: Pods) -> None:
    for pod in pods.by_name.values():
        pod.process.send_signal(signal.SIGTERM)
    for name, pod in pods.by_name.items():
        assert pod.process.wait(30) == 0, f"{name}: {pod.log.read_text()[-2000:]}"
