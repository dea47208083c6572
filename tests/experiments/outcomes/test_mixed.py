"""Mixed traffic in the lab: families, levels and both sides of the split come out of a recording as they went in."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.decider.policies.build import build_policy
from agents.embedder.encoder import encoder_id
from agents.space.action_space import beam_size
from agents.space.catalogue_file import load_catalogue
from experiments.measures.frontier import split
from experiments.outcomes.history import control_of, prior_of_outcomes
from experiments.outcomes.table import load_recording
from experiments.outcomes.world import build_world
from experiments.record import table
from experiments.record.plan import MIXED_DERIVED, MIXED_PAIRS
from experiments.record.questions import Question, mixed_traffic
from experiments.trials.scenarios import spaces
from streams.rooms.decider.policies import action_vectors
from streams.rooms.embedder.encoders import HashedEncoder

CATALOGUE = load_catalogue(Path(__file__).parents[3] / "infra" / "catalogue" / "mini.yaml")
MODELS = list(CATALOGUE.model_names)
ENCODER = HashedEncoder(16)
NUMBERS = [
    field.name for field in table.SCHEMA if str(field.type) in ("float", "int32", "int16") and field.name not in
    ("qp", "cp", "bs", "sample")
]  # fmt: skip


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return mixed_traffic(share=0.01)


@pytest.fixture(scope="module")
def recording(questions: list[Question], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording in which the largest model's best of 16 and 64 are right always, and the others half the time."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("mixed") / "mixed.parquet"
    rows: list[dict[str, Any]] = []
    for question, model, (qp, cp), sample in product(questions, MODELS, MIXED_PAIRS + MIXED_DERIVED, (0, 1)):
        right = (model, qp, cp) in {(MODELS[-1], 16, 1), (MODELS[-1], 64, 1)} or bool(rng.random() < 0.5)
        rows.append({
            **dict.fromkeys(NUMBERS, 1), "question": question.question_id, "model": model, "qp": qp, "cp": cp,
            "bs": beam_size(cp), "sample": sample, "verifier": "mini-prm-s", "early_exit": True, "complete": True,
            "derived": (qp, cp) in MIXED_DERIVED, "correct": right, "answer": "1", "eflops": 1e9 * qp * cp,
        })  # fmt: skip
    settings = {"models": MODELS, "verifiers": ["mini-prm-s"]}
    table.write(path, rows, questions, settings)
    return path


def test_the_lab_sees_families_levels_and_forty_two_arms_of_six_models(
    recording: Path, questions: list[Question]
) -> None:
    world = spaces(build_world(load_recording(recording), ENCODER, CATALOGUE))["uis"]
    asked = world.outcomes.questions
    assert [(a.level, a.family) for a in asked] == [(q.level, q.family) for q in questions]
    assert {a.family for a in asked} == {"quick", "stories", "procedures", "code"}
    assert len(world.outcomes.arms) == 42
    assert world.outcomes.samples == 2
    history, live = split([a.question_id for a in asked])
    assert {asked[i].level for i in history} == {asked[i].level for i in live}


def test_history_makes_the_prior_and_names_what_traffic_is_compared_with(recording: Path) -> None:
    outcomes = load_recording(recording)
    history, _ = split([q.question_id for q in outcomes.questions])
    prior, count = prior_of_outcomes(outcomes, ENCODER, CATALOGUE, {}, history_only=True)
    assert count == len(history)
    policy = build_policy("contextual", query_dim=16, action_dim=16, encoder=encoder_id(ENCODER))
    policy.begin(prior, action_vectors(CATALOGUE, ENCODER))
    assert np.isclose(policy.estimates.totals[3], count * len(outcomes.arms))
    assert control_of(outcomes, CATALOGUE, history_only=True) == f"{MODELS[-1]}/16/1/1"
