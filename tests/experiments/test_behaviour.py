"""What results were made with: another policy is another behaviour, the last bits of another processor are not."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from experiments.behaviour import TIE, _alike, behaviour, changed

pytestmark = pytest.mark.seconds

PRINT = "import json; from experiments.behaviour import behaviour; print(json.dumps(behaviour()))"


def test_changed_and_unknown_policies_are_named() -> None:
    now = dict(behaviour())
    assert changed(now) == []
    assert changed({**now, "uniscale": now["uniscale_alpha_0"]}) == ["uniscale"]
    assert changed({**now, "default": now["default"][:-1]}) == ["default"]
    del now["knn"]
    assert changed(now) == ["knn"]
    assert "knn" in changed({})


def test_policies_that_differ_choose_differently_on_the_stream() -> None:
    now = behaviour()
    alike = {frozenset(names) for names in ({"greedy", "uniscale_alpha_0"}, {"terms", "decided"})}
    for name, letters in now.items():
        same = frozenset(other for other, others in now.items() if others == letters)
        assert same == {name} or same in alike, name
        assert len(set(letters)) > 1, name


def test_ties_count_as_one() -> None:
    scores = np.array([[0.5, 0.5 - TIE / 2, 0.4], [0.1, 0.2, 0.3]])
    assert _alike("ac", scores)
    assert _alike("bc", scores)
    assert not _alike("cc", scores)
    assert not _alike("a", scores)


@pytest.mark.parametrize("kernel", ["Haswell", "Sandybridge"])
def test_other_blas_kernels_show_the_same_behaviour(kernel: str) -> None:
    environ = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, env=environ
    )
    assert changed(json.loads(ran.stdout)) == []
