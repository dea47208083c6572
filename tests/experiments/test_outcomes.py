"""Tables of outcomes, other people's by a mapping and mixed traffic: what is refused, and what policies see of them."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.bandit.prior import begin
from agents.bandit.registry import build_policy
from agents.catalogue.action_space import beam_size
from agents.catalogue.file import load_catalogue
from agents.embedding import encoder_id
from agents.encoders import HashedEncoder
from experiments.foreign import load_foreign
from experiments.loop import spaces
from experiments.outcomes import OutcomeError, build_world, load_recording
from experiments.prior import control_of, prior_of_outcomes
from experiments.record import table
from experiments.record.plan import MIXED_DERIVED, MIXED_PAIRS
from experiments.record.table import Question, mixed_traffic
from experiments.yardstick import split
from streams.services.decider import action_vectors

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
MAPPING = "question: q\narm: m\ncorrect: ok\ncost: usd\n"
GOOD = "q,m,ok,usd\na,x,1,2\na,y,0,4\nb,x,0,2\nb,y,1,8\n"


def load(tmp_path: Path, content: str = GOOD, mapping: str = MAPPING, name: str = "t.csv"):
    (tmp_path / name).write_text(content)
    (tmp_path / "map.yaml").write_text(mapping)
    return load_foreign(tmp_path / name, tmp_path / "map.yaml")


def test_a_table_loads(tmp_path: Path) -> None:
    outcomes = load(tmp_path)
    assert [arm.arm_id for arm in outcomes.arms] == ["x", "y"]
    assert outcomes.correct.tolist() == [[[1, 0], [0, 1]]]
    assert np.allclose(outcomes.cost, [[[2, 4], [2, 8]]])
    assert not outcomes.dense


def test_jsonl_and_parquet_hold_the_same(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = '{"q":"a","m":"x","ok":1,"usd":2}\n{"q":"a","m":"y","ok":0,"usd":4}\n'
    from_json = load(tmp_path, lines, name="t.jsonl")
    pq.write_table(
        pa.table({"q": ["a", "a"], "m": ["x", "y"], "ok": [1, 0], "usd": [2, 4]}), tmp_path / "t.parquet"
    )
    from_parquet = load_foreign(tmp_path / "t.parquet", tmp_path / "map.yaml")
    assert from_json.correct.tolist() == from_parquet.correct.tolist() == [[[1, 0]]]


def test_samples_stack(tmp_path: Path) -> None:
    content = "q,m,ok,usd,run\na,x,1,2,0\na,x,0,3,1\n"
    outcomes = load(tmp_path, content, MAPPING + "sample: run\n")
    assert outcomes.correct.tolist() == [[[1]], [[0]]]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (GOOD.replace("b,y,1,8\n", ""), r"row 4: question 'b' has no outcome for arm 'y'"),
        (GOOD + "a,x,1,2\n", r"row 6, column q: question 'a' and arm 'x' stand in row 2 already"),
        (GOOD.replace("a,y,0,4", "a,y,nan,4"), r"row 3, column ok: is missing"),
        (GOOD.replace("a,y,0,4", "a,y,0,"), r"row 3, column usd: is missing"),
        (GOOD.replace("a,y,0,4", "a,y,0,-4"), r"row 3, column usd: -4.0 is out of range"),
        (GOOD.replace("a,y,0,4", "a,y,0,inf"), r"row 3, column usd: inf is out of range"),
        (GOOD.replace("a,y,0,4", "a,y,0,0"), r"row 3, column usd: a cost of 0 has no logarithm"),
        (GOOD.replace("a,y,0,4", "a,y,2,4"), r"row 3, column ok: 2.0 is out of range"),
        (GOOD.replace("a,y,0,4", "a,y,yes,4"), r"row 3, column ok: 'yes' is not a number"),
        (GOOD.replace("a,y,0,4", ",y,0,4"), r"row 3, column q: is empty"),
        (GOOD.replace("usd\n", "usd,who\n").replace("2\n", "2,z\n"), r"row 2, column who: is unknown"),
    ],
)
def test_bad_tables_are_refused_by_row_and_column(tmp_path: Path, content: str, wanted: str) -> None:
    with pytest.raises(OutcomeError, match=wanted):
        load(tmp_path, content)


@pytest.mark.parametrize(
    ("mapping", "wanted"),
    [
        (MAPPING + "colour: red\n", "field colour: is unknown"),
        (MAPPING + "reward: r\n", "field correct: give either"),
        (MAPPING.replace("cost: usd\n", ""), "field cost: is absent"),
        (MAPPING + "missing: maybe\n", "field missing: is 'maybe'"),
    ],
)
def test_bad_mappings_are_refused_by_field(tmp_path: Path, mapping: str, wanted: str) -> None:
    with pytest.raises(OutcomeError, match=wanted):
        load(tmp_path, mapping=mapping)


@pytest.mark.parametrize(
    ("name", "file", "questions", "arms"),
    [
        pytest.param(name, file, questions, arms, marks=pytest.mark.data(file))
        for name, file, questions, arms in (
            ("zeroeval_gsm", "zeroeval_gsm/gsm_outcomes.csv.gz", 1319, None),
            ("paretobandit_val", "paretobandit_val/val_k4.jsonl.gz", 1766, 4),
            ("tts_prm", "tts_prm/outcomes.csv.gz", 100, 7),
        )
    ],
)
def test_the_public_sets_load(name: str, file: str, questions: int, arms: int | None) -> None:
    outcomes = load_foreign(DATA / file, ROOT / "experiments" / "mappings" / f"{name}.yaml")
    assert len(outcomes.questions) == questions
    assert len(outcomes.arms) == arms if arms else len(outcomes.arms) > 10
    assert 0 < outcomes.correct.mean() < 1


CATALOGUE = load_catalogue(Path(__file__).parents[2] / "infra" / "catalogue" / "mini-six.yaml")
MODELS = list(CATALOGUE.model_names)
ENCODER = HashedEncoder(16)
NUMBERS = [
    field.name
    for field in table.SCHEMA
    if str(field.type) in ("float", "int32", "int16") and field.name not in ("qp", "cp", "bs", "sample")
]


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
        rows.append(
            {
                **dict.fromkeys(NUMBERS, 1),
                "question": question.question_id,
                "model": model,
                "qp": qp,
                "cp": cp,
                "bs": beam_size(cp),
                "sample": sample,
                "verifier": "mini-prm-s",
                "early_exit": True,
                "complete": True,
                "derived": (qp, cp) in MIXED_DERIVED,
                "correct": right,
                "answer": "1",
                "eflops": 1e9 * qp * cp,
            }
        )
    settings = {"models": MODELS, "verifiers": ["mini-prm-s"]}
    table.write(path, rows, questions, settings)
    return path


def test_mixed_recording_has_families_levels_and_42_arms(recording: Path, questions: list[Question]) -> None:
    world = spaces(build_world(load_recording(recording), ENCODER, CATALOGUE))["uis"]
    asked = world.outcomes.questions
    assert [(a.level, a.family) for a in asked] == [(q.level, q.family) for q in questions]
    assert {a.family for a in asked} == {"quick", "stories", "procedures", "code"}
    assert len(world.outcomes.arms) == 42
    assert world.outcomes.samples == 2
    history, live = split([a.question_id for a in asked])
    assert {asked[i].level for i in history} == {asked[i].level for i in live}


def test_history_gives_the_prior_and_the_control_arm(recording: Path) -> None:
    outcomes = load_recording(recording)
    history, _ = split([q.question_id for q in outcomes.questions])
    prior, count = prior_of_outcomes(outcomes, ENCODER, CATALOGUE, {}, history_only=True)
    assert count == len(history)
    policy: Any = build_policy("contextual", query_dim=16, action_dim=16, encoder=encoder_id(ENCODER))
    begin(policy, prior, action_vectors(CATALOGUE, ENCODER))
    assert np.isclose(policy.estimates.right.outcomes, count * len(outcomes.arms))
    assert control_of(outcomes, CATALOGUE, history_only=True) == f"{MODELS[-1]}/16/1/1"
