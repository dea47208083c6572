"""Runs LiteLLM's proxy with mock answers, for comparison with the gateway."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import peers
from streams.local.broker import free_port

MODEL: Final = "mock"
PINS: Final = Path("requirements/peers.txt")

_CONFIG: Final = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_key: none, mock_response: "{answer}"}}
litellm_settings: {{telemetry: false}}
"""
# The answer has the same length as the gateway's recorded answer.
_ANSWER: Final = "Step 1 of the answer: " + "so there are more of them. " * 3
MOCK: Final = _CONFIG.format(model=MODEL, answer=_ANSWER)


def version(python: Path) -> str:
    """Return the version of LiteLLM in this Python's environment."""
    words = "from importlib.metadata import version; print(version('litellm'))"
    return peers.run([str(python), "-c", words]).strip()


@contextlib.contextmanager
def running(python: Path, folder: Path, config: str = MOCK) -> Iterator[tuple[str, int]]:
    """Run the proxy; yield the base URL of its endpoint, and its process group.

    Args:
        python: The Python in LiteLLM's environment.
        folder: The folder for the proxy's configuration and log.
        config: The proxy's configuration; modules that it names may be in the folder.

    Raises:
        BenchFailed: the proxy did not start; the message ends with its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, port = folder / "litellm.yaml", free_port()
    path.write_text(config)
    argv = [f"{python.parent / 'litellm'}", "--config", f"{path}", "--host", "127.0.0.1", "--port", f"{port}"]
    environ = {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        # Neither side requires keys, and both listen only on this machine.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise the map is fetched from the internet
    }
    ready = f"http://127.0.0.1:{port}/health/liveliness"
    with peers.serving(argv, ready, folder / "litellm.log", environ) as process:
        yield f"http://127.0.0.1:{port}/v1", process.pid
