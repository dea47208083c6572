"""A learner restored from its snapshot goes on to the byte as the live one does, whichever kernels OpenBLAS runs."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agents.bandit.registry import kinds
from tests.support.twins import CASES, parted

ROOT = Path(__file__).parents[3]
KERNELS = {"Haswell": "avx2", "Zen": "avx2", "Sandybridge": "avx"}
"""Kernels, and what a processor must have to run them. With "", OpenBLAS chooses by the processor."""

SAME = {"Zen": "Haswell"}
"""Names that OpenBLAS may have no kernels of their own for, as in NumPy's wheels, and what it runs then."""


def in_a_process(kernel: str, *words: str) -> dict[str, Any]:
    """Run Python with these kernels; return what it prints as JSON."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    environ.pop("OPENBLAS_CORETYPE", None)
    if kernel:
        environ["OPENBLAS_CORETYPE"] = kernel
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@cache
def chosen(kernel: str) -> str:
    """Return the kernels that NumPy and SciPy run when these are asked for."""
    words = "import json; from tests.support.twins import kernels; print(json.dumps({'kernels': kernels()}))"
    found = in_a_process(kernel, "-c", words)["kernels"]
    if not found:
        pytest.skip("NumPy and SciPy do not compute with OpenBLAS here")
    assert len(set(found)) == 1, "NumPy and SciPy run different kernels"
    return str(found[0])


def test_every_policy_has_a_case_of_enough_decisions() -> None:
    assert set(kinds()) <= CASES.keys()
    for name in kinds():
        assert CASES[name].policy == name
        assert CASES[name].rounds >= (200 if name in ("mlp", "neural-ucb") else 2_000)


@pytest.mark.parametrize("name", CASES)
def test_a_restored_learner_goes_on_as_the_live_one_for_a_while(name: str) -> None:
    assert parted(CASES[name]._replace(rounds=40), before=60) == ""


@pytest.mark.seconds
@pytest.mark.parametrize("kernel", [*KERNELS, ""])
def test_restored_learner_matches_the_live_one_on_each_kernel(kernel: str) -> None:
    if kernel and KERNELS[kernel] not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this processor cannot run the kernels for {kernel}")
    runs = chosen(kernel)
    assert runs.lower() in (kernel.lower(), SAME.get(kernel, "").lower()) or not kernel
    if runs in KERNELS and runs != kernel:
        return  # compared under that name
    found = in_a_process(kernel, "-m", "tests.support.twins")
    assert set(found["kernels"]) == {runs}
    assert found["parted"] == dict.fromkeys(CASES, "")
