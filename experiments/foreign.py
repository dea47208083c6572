"""Reads outcomes from other sources: any CSV, JSONL or Parquet file with questions, arms, correctness and costs.

The columns are named in a mapping, which is a YAML file in any folder:

    name: my traffic            # for titles
    question: prompt_id         # column of the question's id
    arm: model                  # column of the arm
    correct: is_right           # column in [0, 1]; or `reward: …`, a synonym
    cost: usd                   # column, above zero; any unit, but the same for all rows
    score: judge                # optional column in [0, 1]: a verifier's score; the default is `correct`
    text: prompt                # optional column: the question's text, for policies that read it
    level: difficulty           # optional column
    family: source              # optional column: the kind of task, to measure the value of knowing it
    sample: run                 # optional column: repetitions, counted from 0 within a cell
    unit: USD                   # optional, for titles
    questions: {file: q.jsonl, id: problem_id, text: question, level: level}  # optional: texts from another file
    arms: {file: arms.csv, id: model, keep: {column: usable, value: "yes"}, drop: [x]}  # optional: which arms to use
    explode: arms               # optional, JSONL: this field maps each arm to {correct, cost, …}
    ignore: [near_best]         # columns to ignore; any other unknown column is refused
    missing: refuse             # or `drop`: drop questions that some arm has not answered
    cost_floor: 0.001           # optional: lower costs are raised to this value (a cached call may cost nothing)

The table must be complete, with one row for each (question, arm, sample). Paths are relative to the mapping's folder.
"""

import csv
import gzip
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.bandit.logged import NOTHING
from experiments.outcomes import Arm, OutcomeError, Outcomes, QuestionInfo

Row = dict[str, Any]
COLUMNS = ("question", "arm", "correct", "reward", "cost", "score", "text", "level", "family", "sample")
OTHERS = ("name", "unit", "questions", "arms", "explode", "ignore", "missing", "cost_floor")


@dataclass(frozen=True)
class Cell:
    """One row, parsed."""

    row: int
    question: str
    arm: str
    sample: int
    correct: float
    score: float
    cost: float
    text: str
    level: str
    family: str


def load_foreign(path: Path, mapping: Path) -> Outcomes:
    """Read a table with its mapping.

    Raises:
        OutcomeError: A cell is missing or has two rows, a value is not a number, a cost is not above zero, or a column
            is unknown. The message names file, row, column and fix.
    """
    told = read_mapping(mapping)
    wanted = _wanted_arms(told, mapping)
    cells = list(_cells(path, told, wanted))
    if not cells:
        raise OutcomeError(f"{path}: holds no row of the arms wanted; check the mapping's `arms`")
    texts = _texts(told, mapping)
    questions = _whole(path, cells, told.get("missing", "refuse"))
    arms = list(dict.fromkeys(cell.arm for cell in cells))
    samples = max(cell.sample for cell in cells) + 1
    at_question, at_arm = {q: i for i, q in enumerate(questions)}, {a: i for i, a in enumerate(arms)}
    arrays = np.full((3, samples, len(questions), len(arms)), np.nan)
    first: dict[str, Cell] = {}
    for cell in cells:
        if cell.question in at_question:
            first.setdefault(cell.question, cell)
            place = (cell.sample, at_question[cell.question], at_arm[cell.arm])
            arrays[(slice(None), *place)] = (cell.correct, cell.score, math.log(cell.cost))
    asked = tuple(
        QuestionInfo(q, *texts.get(q, (first[q].text or q, first[q].level)), first[q].family)
        for q in questions
    )
    return Outcomes(
        name=str(told.get("name", path.stem)),
        questions=asked,
        arms=tuple(Arm(arm, arm, description=f"Model: {arm}") for arm in arms),
        correct=arrays[0],
        score=arrays[1],
        log_cost=arrays[2],
        unit=str(told.get("unit", "cost")),
        dense="score" in told,
    )


def read_mapping(path: Path) -> Row:
    """Read a mapping file.

    Raises:
        OutcomeError: A field is unknown, or a required one is missing.
    """
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise OutcomeError(f"{path}: cannot be read ({error}); give a mapping file") from error
    if not isinstance(told, dict):
        raise OutcomeError(f"{path}: expected names and values, got {type(told).__name__}; write a mapping")
    for name in told:
        if name not in (*COLUMNS, *OTHERS):
            raise OutcomeError(f"{path}, field {name}: is unknown; use {', '.join((*COLUMNS, *OTHERS))}")
    if ("correct" in told) == ("reward" in told):
        raise OutcomeError(f"{path}, field correct: give either `correct` or `reward`, the column of one")
    for name in ("question", "cost", *(() if "explode" in told else ("arm",))):
        if name not in told:
            raise OutcomeError(f"{path}, field {name}: is absent; name its column")
    if told.get("missing", "refuse") not in ("refuse", "drop"):
        raise OutcomeError(f"{path}, field missing: is {told['missing']!r}; write refuse or drop")
    return told


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (number, row) for each row of a CSV, JSONL or Parquet file, gzipped or not; lines are counted from 1."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        yield from enumerate(pq.read_table(path).to_pylist(), 1)
        return
    if not path.is_file():
        raise OutcomeError(f"{path}: no such file; give a CSV, JSONL or Parquet file")
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.name.endswith(".gz") else raw).decode("utf-8")
    if name.endswith(".csv"):
        # The header is line 1.
        yield from enumerate(csv.DictReader(io.StringIO(text)), 2)
    elif name.endswith((".jsonl", ".json")):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise OutcomeError(f"{path}, row {number}: is no JSON ({error}); correct it") from error
    else:
        raise OutcomeError(f"{path}: is no .csv, .jsonl or .parquet (.gz allowed); convert it")


def _cells(path: Path, told: Row, wanted: set[str] | None) -> Iterator[Cell]:
    quality = "correct" if "correct" in told else "reward"
    counted: dict[tuple[str, str], int] = {}
    seen: dict[tuple[str, str, int], int] = {}
    for number, row in _exploded(path, told):
        _known(path, number, row, told)

        def text(name: str, number: int = number, row: Row = row) -> str:
            value = row.get(told[name]) if name in told else ""
            if name in ("question", "arm") and (value is None or str(value) in NOTHING):
                raise OutcomeError(f"{path}, row {number}, column {told[name]}: is empty; give the {name}")
            return "" if value is None else str(value)

        question, arm = text("question"), text("arm")
        if wanted is not None and arm not in wanted:
            continue
        right = _number(path, number, row, told[quality], 0.0, 1.0)
        score = _number(path, number, row, told["score"], 0.0, 1.0) if "score" in told else right
        cost = _number(path, number, row, told["cost"], 0.0, math.inf)
        cost = max(cost, float(told.get("cost_floor", 0.0)))
        if cost <= 0:
            raise OutcomeError(
                f"{path}, row {number}, column {told['cost']}: a cost of 0 has no logarithm; "
                "give what it cost, or a cost_floor in the mapping"
            )
        if "sample" in told:
            sample = counted.setdefault((question, arm), 0)
            counted[question, arm] += 1
        else:
            sample = 0
        if (before := seen.setdefault((question, arm, sample), number)) != number:
            raise OutcomeError(
                f"{path}, row {number}, column {told['question']}: question {question!r} and arm {arm!r} stand in "
                f"row {before} already; keep one, or name the column of repetitions as `sample`"
            )
        yield Cell(
            number, question, arm, sample, right, score, cost, text("text"), text("level"), text("family")
        )


def _exploded(path: Path, told: Row) -> Iterator[tuple[int, Row]]:
    """Yield rows; with `explode`, yield one for each arm in the field that maps arms to outcomes."""
    name = told.get("explode")
    for number, row in rows_of(path):
        if name is None:
            yield number, row
            continue
        arms = row.get(name)
        if not isinstance(arms, Mapping) or not arms:
            raise OutcomeError(f"{path}, row {number}, column {name}: maps no arm to its outcome; correct it")
        told["arm"] = told.get("arm", "arm")
        for arm, outcome in arms.items():
            yield number, {**{k: v for k, v in row.items() if k != name}, told["arm"]: arm, **outcome}


def _known(path: Path, number: int, row: Row, told: Row) -> None:
    used = {told[name] for name in COLUMNS if name in told} | set(told.get("ignore", ()))
    for column in row:
        if column not in used:
            raise OutcomeError(
                f"{path}, row {number}, column {column}: is unknown; name it in the mapping or under `ignore`"
            )


def _number(path: Path, number: int, row: Row, column: str, low: float, high: float) -> float:
    value = row.get(column)
    if value is None or str(value) in NOTHING:
        raise OutcomeError(f"{path}, row {number}, column {column}: is missing; give a number")
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise OutcomeError(
            f"{path}, row {number}, column {column}: {value!r} is not a number; correct it"
        ) from None
    if not low <= found <= high or math.isinf(found):
        bounds = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
        raise OutcomeError(
            f"{path}, row {number}, column {column}: {found} is out of range; give one {bounds}"
        )
    return found


def _whole(path: Path, cells: list[Cell], missing: str) -> list[str]:
    """Return the questions that every arm answered, each with the same number of samples."""
    arms = dict.fromkeys(cell.arm for cell in cells)
    samples = max(cell.sample for cell in cells) + 1
    held = {(cell.question, cell.arm, cell.sample) for cell in cells}
    whole = []
    for question in dict.fromkeys(cell.question for cell in cells):
        gap = next((a for a in arms for s in range(samples) if (question, a, s) not in held), None)
        if gap is None:
            whole.append(question)
        elif missing == "refuse":
            row = next(cell.row for cell in cells if cell.question == question)
            raise OutcomeError(
                f"{path}, row {row}: question {question!r} has no outcome for arm {gap!r}; "
                "complete it, or set `missing: drop` in the mapping"
            )
    if not whole:
        raise OutcomeError(f"{path}: no question was answered by every arm; choose arms in the mapping")
    return whole


def _texts(told: Row, mapping: Path) -> dict[str, tuple[str, str]]:
    if (source := told.get("questions")) is None:
        return {}
    found = {}
    for _, row in rows_of(mapping.parent / source["file"]):
        found[str(row[source["id"]])] = (str(row[source["text"]]), str(row.get(source.get("level", ""), "")))
    return found


def _wanted_arms(told: Row, mapping: Path) -> set[str] | None:
    if (source := told.get("arms")) is None:
        return None
    keep, drop = source.get("keep"), set(map(str, source.get("drop", ())))
    return {
        str(row[source["id"]])
        for _, row in rows_of(mapping.parent / source["file"])
        if str(row[source["id"]]) not in drop
        and (keep is None or str(row[keep["column"]]) == str(keep["value"]))
    }
