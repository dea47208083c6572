"""What networks chose, kept in a file: the same runs as live ones, and never those of other outcomes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from agents.decider.policies.base import ActionVector
from experiments.outcomes.table import Arm, Asked, Outcomes
from experiments.outcomes.world import World
from experiments.trials import networks
from experiments.trials.contenders import ALL
from experiments.trials.loop import Stage
from experiments.trials.networks import Record, recipe_digest, run_recorded, wanted
from experiments.trials.runs import run_policy
from experiments.trials.scenarios import steady

MODE = "cost-sensitive"


@pytest.fixture(scope="module")
def world() -> World:
    rng = np.random.default_rng(11)
    arms = tuple(Arm(name, name) for name in "abcd")
    shape = (1, 30, 4)
    outcomes = Outcomes(
        "made",
        tuple(Asked(str(i), "") for i in range(30)),
        arms,
        (rng.random(shape) < 0.5).astype(float),
        rng.random(shape),
        rng.random(shape),
    )
    queries = rng.normal(size=(30, 6))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    vectors = tuple(
        ActionVector(arm.arm_id, arm.model, row) for arm, row in zip(arms, np.eye(6), strict=False)
    )
    return World(outcomes, queries, vectors, outcomes.bounds(), "texts")


@pytest.fixture
def record(world: World, tmp_path: Path) -> Record:
    """A record of k-NN's choices under a network's name: the file does not know who chose."""
    found = Record.load(tmp_path / "n.json", world)
    live = run_policy(ALL["knn"], world, steady(world, MODE), [3])
    found.chosen["all", MODE, "mlp", 3] = [step.arm for step in live[0].after]
    found.save()
    return found


def test_a_recorded_run_is_the_run_that_was_recorded(world: World, record: Record) -> None:
    stages: Mapping[int, Stage] = steady(world, MODE)
    loaded = Record.load(record.path, world)  # type: ignore[arg-type]
    assert loaded.refused == ""
    found = run_recorded(loaded, world, "all", MODE, "mlp", stages, [3])
    assert found == run_policy(ALL["knn"], world, stages, [3])


def test_a_missing_seed_is_no_run(world: World, record: Record) -> None:
    assert run_recorded(record, world, "all", MODE, "mlp", steady(world, MODE), [3, 23]) is None


@pytest.mark.parametrize("change", ["correct", "log_cost", "texts"])
def test_a_record_of_other_outcomes_is_refused(world: World, record: Record, change: str) -> None:
    if change == "texts":
        other = replace(world, texts="other texts")
    else:
        array = getattr(world.outcomes, change).copy()
        array[0, 7, 2] += 0.25
        other = replace(world, outcomes=replace(world.outcomes, **{change: array}))
    found = Record.load(record.path, other)  # type: ignore[arg-type]
    assert "is of other outcomes" in found.refused
    assert not found.chosen


def test_a_record_of_other_training_code_is_refused(
    world: World, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "RECIPE", networks.RECIPE[:-1])
    found = Record.load(record.path, world)  # type: ignore[arg-type]
    assert "is of other training code" in found.refused
    assert not found.chosen


def test_the_recipe_does_not_hang_on_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        __file__ = str(tmp_path / "m.py")

    monkeypatch.setattr(networks, "RECIPE", (Module,))
    digests = []
    for text in ('"""A."""\nx = 1\n', '"""B."""\n# why\nimport math\nx = 1\n', '"""A."""\nx = 2\n'):
        Path(Module.__file__).write_text(text)
        digests.append(recipe_digest())
    assert digests[0] == digests[1] != digests[2]


def test_the_joint_space_is_trained_first() -> None:
    names = list(wanted(["tts", "uis", "routing"], [MODE], [3, 23]))
    assert [name[0] for name in names] == ["uis"] * 6 + ["routing"] * 4 + ["tts"] * 4
    assert len(set(names)) == len(names)
    more = list(wanted(["tts", "uis"], [MODE], [3], ["quality-leaning"]))
    assert more[-2:] == [("uis", "quality-leaning", policy, 3) for policy in ("mlp", "neural_ucb")]


@pytest.mark.parametrize("same", [True, False])
def test_what_other_training_code_chose_is_kept_only_where_this_code_chooses_the_same(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Training itself is another test's affair: here it says what it would choose, in this process."""
    names = [("all", MODE, policy, seed) for policy in ("mlp", "neural_ucb") for seed in (3, 23)]
    old = Record.load(tmp_path / "n.json", world)
    old.recipe, old.chosen = "another", {name: [1, 2] for name in names}
    old.save()
    record = Record.load(tmp_path / "n.json", world)
    assert (record.chosen, record.refused) == ({}, f"{tmp_path / 'n.json'} is of other training code")
    trained: list[int] = []

    def train(world: World, stages: object, policy: str, seed: int, rounds: int = 210) -> list[int]:
        trained.append(rounds)
        return [1, 2] if same or policy == "mlp" else [2, 1]

    monkeypatch.setattr(networks, "_train", train)
    monkeypatch.setattr(networks, "one_thread_each", lambda jobs: ThreadPoolExecutor(1))
    networks.rebuild(record, {"all": world}, steady, names)
    assert trained == ([90, 90] if same else [90, 90, 210, 210, 210, 210])
    kept = Record.load(tmp_path / "n.json", world)
    assert kept.refused == ""
    assert set(kept.chosen) == set(names)


@pytest.mark.slow
def test_training_is_kept_and_gone_on_with(world: World, tmp_path: Path) -> None:
    record = Record.load(tmp_path / "n.json", world)
    names = [("all", MODE, "mlp", 3)]
    networks.rebuild(record, {"all": world}, steady, names, jobs=1)
    kept = Record.load(tmp_path / "n.json", world)
    stages = steady(world, MODE)
    assert run_recorded(kept, world, "all", MODE, "mlp", stages, [3]) == run_policy(
        ALL["mlp"], world, stages, [3]
    )
    again: list[object] = []
    networks.rebuild(kept, {"all": world}, steady, names, jobs=1, done=again.append)
    assert again == []


def test_processes_end_with_the_one_that_began_them(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal\n"
        "from experiments.trials.networks import one_thread_each\n"
        "if __name__ == '__main__':\n"
        "    pool = one_thread_each(1)\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, env={**os.environ, "PYTHONPATH": "."})
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(ran.stdout)).wait(30)
