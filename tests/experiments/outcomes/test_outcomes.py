"""Tables from elsewhere: what loads, and what is refused with row and column named."""

from pathlib import Path

import numpy as np
import pytest

from experiments.outcomes.foreign import load_foreign
from experiments.outcomes.table import OutcomeError

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"
MAPPING = "question: q\narm: m\ncorrect: ok\ncost: usd\n"
GOOD = "q,m,ok,usd\na,x,1,2\na,y,0,4\nb,x,0,2\nb,y,1,8\n"


def load(tmp_path: Path, content: str = GOOD, mapping: str = MAPPING, name: str = "t.csv"):  # type: ignore[no-untyped-def]
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
        (GOOD.replace("a,y,0,4", "a,y,yes,4"), r"row 3, column ok: 'yes' is no number"),
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
