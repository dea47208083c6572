"""What networks chose, kept in a file: the same runs as live ones, and never those of other outcomes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_limits

from agents.catalogue.file import load_catalogue
from agents.minilm import MiniLM
from experiments import runs
from experiments.contenders import ALL
from experiments.loop import WARM_UP, Stage, spaces, steady
from experiments.outcomes import Arm, BanditWorld, build_world, load_recording
from experiments.paper import networks_wanted
from experiments.runs import RECIPE, NetworkRecord, run_policy, run_recorded
from tests.support.lab import made_world

ROOT = Path(__file__).parents[2]
MODE = "cost-sensitive"


@pytest.fixture(scope="module")
def world() -> BanditWorld:
    rng = np.random.default_rng(11)
    arms, shape = [Arm(name, name) for name in "abcd"], (1, 30, 4)
    correct, score, log_cost = (rng.random(shape) < 0.5).astype(float), rng.random(shape), rng.random(shape)
    queries = rng.normal(size=(30, 6))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return replace(made_world(arms, correct, log_cost, queries, score=score), texts="texts")


@pytest.fixture
def record(world: BanditWorld, tmp_path: Path) -> NetworkRecord:
    """A record of k-NN's choices under a network's name: the file does not know who chose."""
    found = NetworkRecord.load(tmp_path / "n.json", world)
    live = run_policy(ALL["knn"], world, steady(world, MODE), [3])
    found.chosen["all", MODE, "mlp", 3] = [step.arm for step in live[0].after]
    found.save()
    return found


def test_a_recorded_run_is_the_run_that_was_recorded(world: BanditWorld, record: NetworkRecord) -> None:
    stages: Mapping[int, Stage] = steady(world, MODE)
    loaded = NetworkRecord.load(record.path, world)
    assert loaded.refused == ""
    found = run_recorded(loaded, world, "all", MODE, "mlp", stages, [3])
    assert found == run_policy(ALL["knn"], world, stages, [3])


def test_a_missing_seed_is_no_run(world: BanditWorld, record: NetworkRecord) -> None:
    assert run_recorded(record, world, "all", MODE, "mlp", steady(world, MODE), [3, 23]) is None


@pytest.mark.parametrize("change", ["correct", "log_cost", "texts"])
def test_a_record_of_other_outcomes_is_refused(
    world: BanditWorld, record: NetworkRecord, change: str
) -> None:
    if change == "texts":
        other = replace(world, texts="other texts")
    else:
        array = getattr(world.outcomes, change).copy()
        array[0, 7, 2] += 0.25
        other = replace(world, outcomes=replace(world.outcomes, **{change: array}))
    found = NetworkRecord.load(record.path, other)
    assert "is of other outcomes" in found.refused
    assert not found.chosen


def test_a_record_of_another_recipe_is_refused(world: BanditWorld, record: NetworkRecord) -> None:
    assert record.path is not None
    record.path.write_text(record.path.read_text().replace(f'"recipe": {RECIPE}', '"recipe": 0'))
    found = NetworkRecord.load(record.path, world)
    assert "is of recipe 0, not " in found.refused
    assert not found.chosen


def test_the_joint_space_is_trained_first(world: BanditWorld) -> None:
    pairs = ((1, 1), (1, 4), (4, 1), (2, 1))
    arms = tuple(Arm(f"{m}/{qp}/{cp}/1", m, qp, cp) for m, (qp, cp) in zip("aabb", pairs, strict=True))
    worlds, names = networks_wanted(replace(world, outcomes=replace(world.outcomes, arms=arms)))
    assert set(worlds) == {"uis", "routing", "tts"}
    spaces_of = [name[0] for name in names]
    assert spaces_of == ["uis"] * 30 + ["routing"] * 20 + ["tts"] * 20 + ["uis"] * 20
    assert len(set(names)) == len(names)
    assert {name[1:3] for name in names[-20:]} == {
        (mode, policy) for mode in ("cost-leaning", "quality-leaning") for policy in ("mlp", "neural_ucb")
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["mlp", "neural_ucb"])
def test_training_still_chooses_what_the_shipped_record_holds(tmp_path: Path, policy: str) -> None:
    """Ten rounds: a difference in training shows at once. Where it is meant, raise RECIPE and train anew."""
    recording = ROOT / "experiments" / "data" / "code.parquet"
    catalogue = load_catalogue(ROOT / "infra" / "catalogue" / "mini-six.yaml")
    with threadpool_limits(1):
        built = build_world(load_recording(recording), MiniLM(), catalogue, tmp_path)
        record = NetworkRecord.load(recording.with_name("code.networks.json"), built)
        assert record.refused == ""
        joint = spaces(built)["uis"]
        begun = runs.train(joint, steady(joint, MODE), policy, 3, WARM_UP + 10)
    assert begun == record.chosen["uis", MODE, policy, 3][:10]


@pytest.mark.slow
def test_training_is_kept_and_gone_on_with(world: BanditWorld, tmp_path: Path) -> None:
    record = NetworkRecord.load(tmp_path / "n.json", world)
    names = [("all", MODE, "mlp", 3)]
    runs.rebuild(record, {"all": world}, names, jobs=1)
    kept = NetworkRecord.load(tmp_path / "n.json", world)
    stages = steady(world, MODE)
    live = run_policy(ALL["mlp"], world, stages, [3])
    assert run_recorded(kept, world, "all", MODE, "mlp", stages, [3]) == live
    again: list[object] = []
    runs.rebuild(kept, {"all": world}, names, jobs=1, done=again.append)
    assert again == []


def test_processes_end_with_the_one_that_began_them(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal\n"
        "from experiments.runs import one_thread_each\n"
        "if __name__ == '__main__':\n"
        "    pool = one_thread_each(1)\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, env={**os.environ, "PYTHONPATH": "."})
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(ran.stdout)).wait(30)
