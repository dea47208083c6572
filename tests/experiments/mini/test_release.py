"""What ships of the family: written from checkpoints, read by the product as any other family of models."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from experiments.mini.checkpoints import MODELS, REPORTS, weights_digest
from experiments.mini.ladder import GENERATORS
from experiments.mini.measures.evaluate import carry_sealed
from experiments.mini.measures.selection import default_verifier
from experiments.mini.release.criteria import Measured, deviations, table
from experiments.mini.release.models import (
    QUESTIONS,
    TEMPLATE,
    Reports,
    cost_range,
    release,
    write_catalogue,
)
from experiments.mini.tasks.problem import split_of
from experiments.mini.training.loop import Outcome
from experiments.mini.training.solutions import Labelled, sampled_solutions
from experiments.mini.training.verifier import VERIFIERS, ProcessRewardModel, save_verifier, verifier_config

ROOT = Path(__file__).parents[3]
TRAINED = "mini-250k"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of one trained generator and the small verifier, as it is before training; nothing ships."""
    monkeypatch.setattr("experiments.mini.checkpoints.MODELS", tmp_path / "shipped")
    shutil.copytree(MODELS / TRAINED, tmp_path / "work" / TRAINED)
    torch.manual_seed(0)
    shape = VERIFIERS[0]
    module = ProcessRewardModel(verifier_config(shape))
    save_verifier(module, tmp_path / "work" / shape.name, Outcome(shape.name, 0, 1, 1, 1.0, 1.0, 1.0))
    return tmp_path / "work"


def reports() -> Reports:
    evaluation = json.loads((REPORTS / "evaluation.json").read_text())
    return Reports(Measured(evaluation), {TRAINED: {"Math_Quick": 61.5}})


def test_nothing_is_written_while_a_model_is_missing(work: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"not trained yet: mini-100k, mini-500k.*mini-prm-l"):
        release(work, tmp_path / "models", reports())
    assert not (tmp_path / "models").exists()


def test_the_product_reads_what_is_written(work: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "former").mkdir(parents=True)
    (models / "family.json").write_text(json.dumps({"generators": [{"name": "former"}], "verifiers": []}))
    (models / "kept").mkdir()
    missing = release(work, models, reports(), partial=True)
    assert TRAINED not in missing
    assert len(missing) == len(GENERATORS) + len(VERIFIERS) - 2
    assert sorted(p.name for p in models.iterdir() if p.is_dir()) == ["kept", TRAINED, VERIFIERS[0].name]
    catalogue = write_catalogue(ROOT / TEMPLATE, tmp_path / "mini.yaml", VERIFIERS[0].name)
    (model,) = catalogue.models
    assert (model.checkpoint, model.sampling.step_tokens, model.sampling.depth_limit) == (
        f"models/{TRAINED}",
        50,
        40,
    )
    assert [(anchor.label, anchor.score) for anchor in model.anchors] == [("Math_Quick", 61.5)]
    assert (model.architecture.kv_heads, model.architecture.query_heads) == (1, 3)
    low, high = cost_range(catalogue)
    assert (catalogue.cost_range.low_eflops, catalogue.cost_range.high_eflops) == (low, high)
    assert low < high
    assert f"# {TRAINED}" in (models / TRAINED / "README.md").read_text()
    assert (models / TRAINED / "tokenizer.json").exists()
    assert "| weights, MB | at most 60 |" in (models / "README.md").read_text()
    rows = [json.loads(line) for line in (models / QUESTIONS).read_text().splitlines()]
    families = [row["metadata"]["family"] for row in rows]
    assert [families.count(f) for f in ("quick", "stories", "procedures", "code")] == [90, 135, 45, 30]
    assert {split_of(row["text"]) for row in rows} == {"test"}


def test_the_default_verifier_is_the_cheaper_one_that_helps() -> None:
    def selection(small: list[float], large: list[float]) -> dict[str, dict[str, float]]:
        return {
            g.name: {"one_sample": 0.4, "best_of_16_mini-prm-s": 0.4 + a, "best_of_16_mini-prm-l": 0.4 + b}
            for g, a, b in zip(GENERATORS, small, large, strict=True)
        }

    helping, harming, weak = [0.1, 0.1, 0.08, 0.0, 0.0, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2, -0.01], [0.05] * 6
    assert default_verifier({}) == "mini-prm-s"
    assert default_verifier(selection(helping, helping)) == "mini-prm-s"
    assert default_verifier(selection(harming, helping)) == "mini-prm-l"
    assert default_verifier(selection(weak, harming)) == "mini-prm-l"


def test_a_miss_is_called_a_miss(tmp_path: Path) -> None:
    evaluation = {
        "mini-4m": {
            "everyday": {"sealed": {"all": 0.749}},
            "families": {"stories": {"all": 0.5, "level_5": 0.85}},
        },
    }
    lines = table(tmp_path, Measured(evaluation), Measured())
    assert "| everyday, sealed, the largest | at least 75 % | 74.9 | **missed** |" in lines
    assert "| level 5, the largest | at least 85 % | 85.0 | met |" in lines
    assert "| *quick*, the smallest | at least 60 % | – | not measured |" in lines


def test_a_second_seed_stands_beside_the_first_with_a_verdict_of_its_own(tmp_path: Path) -> None:
    def measured(seed: int, level_5: float) -> Measured:
        return Measured(
            {"mini-4m": {"seed": seed, "families": {"stories": {"all": 0.5, "level_5": level_5}}}}
        )

    lines = table(tmp_path, measured(11, 0.9), measured(2029, 0.8))
    assert lines[0] == "| what | criterion | seed 11 | | seed 2029 | |"
    assert "| level 5, the largest | at least 85 % | 90.0 | met | 80.0 | **missed** |" in lines
    assert "| weights, MB | at most 60 | 0.0 | met |  |  |" in lines


def test_a_later_evaluation_keeps_the_sealed_result_of_the_same_weights_only() -> None:
    earlier = {"weights": "a", "everyday": {"development": {"all": 0.3}, "sealed": {"all": 0.4}}}
    same = {"weights": "a", "everyday": {"development": {"all": 0.5}}}
    assert carry_sealed(same, earlier)
    assert same["everyday"] == {"development": {"all": 0.5}, "sealed": {"all": 0.4}}
    for weights in ("a", None):
        others: dict[str, Any] = {"weights": "b", "everyday": {"development": {"all": 0.5}}}
        assert not carry_sealed(others, {**earlier, "weights": weights})
        assert "sealed" not in others["everyday"]
    opened: dict[str, Any] = {"weights": "a", "everyday": {"sealed": {"all": 0.6}}}
    assert carry_sealed(opened, earlier)
    assert opened["everyday"]["sealed"] == {"all": 0.6}
    assert carry_sealed({"weights": "a", "everyday": {}}, {})


def test_fewer_questions_or_samples_than_the_criteria_ask_are_called_a_deviation() -> None:
    report = {"questions": 100, "depth_questions": 100, "depth_samples": 16}
    evaluation = {g.name: report for g in GENERATORS}
    selection = {g.name: {"questions": 100, "samples": 16} for g in GENERATORS}
    assert deviations(Measured(evaluation, selection)) == []
    evaluation[TRAINED] = {**report, "questions": 40}
    assert "on 100 or 40 a level (greedy)" in " ".join(deviations(Measured(evaluation, selection)))
    assert "an unknown number of" in " ".join(deviations(Measured({TRAINED: {}}, selection)))


def test_solutions_of_other_weights_are_not_taken_for_a_models_own(tmp_path: Path) -> None:
    checkpoint = tmp_path / "one"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"first")
    kept = tmp_path / "solutions" / f"one-{weights_digest(checkpoint)}-5-0.jsonl"
    kept.parent.mkdir()
    kept.write_text('{"question": "q", "solution": "s", "labels": [true]}')
    assert sampled_solutions(checkpoint, tmp_path, 5, 0) == [Labelled("q", "s", (True,))]
    (checkpoint / "model.safetensors").write_bytes(b"second")
    # It has to load these weights to sample from them, and they are none.
    with pytest.raises(SafetensorError):
        sampled_solutions(checkpoint, tmp_path, 5, 0)
