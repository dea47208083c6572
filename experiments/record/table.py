"""The contents of a recording: its questions, and its outcomes as one Parquet file."""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from experiments.outcomes import OutcomeError
from experiments.yardstick import is_history

# The recorded questions: stories in the paper's proportions, programs for the second task, or mixed traffic.
#
# All are from the family's `record` split, on which no model was trained and no anchor was measured. They are read from
# `experiments/data/questions.jsonl.zst`, which never changes. It also contains the questions on which the family was
# validated and tested.

FILE = Path(__file__).parents[1] / "data" / "questions.jsonl.zst"
FACTS = FILE.with_name("facts.jsonl")
EVERYDAY = FILE.with_name("everyday.jsonl")

PROPORTIONS: Mapping[str, Mapping[str, int]] = {
    # 30 of each of five levels, and 60 harder ones instead of the paper's AIME'24 and AIME'25.
    "math": {**{f"level_{n}": 30 for n in range(1, 6)}, "contest": 60},
    "code": {"code_2": 53, "code_3": 53, "code_4": 52, "code_6": 52},
}
HISTORY = {
    "quick": 150,
    **{f"level_{n}": 40 for n in range(1, 6)},
    "contest": 25,
    **{f"procedure_{n}": 25 for n in range(1, 4)},
    **{"code_2": 13, "code_3": 12, "code_4": 13, "code_6": 12},
}
"""Mixed traffic's history of 500 questions: 30 % quick, 40 % stories, 5 % contest, 15 % procedures and 10 % code."""

LIVE = {level: 25 if level.startswith("code") else 2 * each for level, each in HISTORY.items()}
"""Mixed traffic's 1,000 live questions, in the same proportions."""

FACTS_OF_HISTORY, LIVE_FACTS = 170, 330
"""Everyday facts in mixed traffic besides these: the first ones in their file's order."""


@dataclass(frozen=True)
class Question:
    """One question. For `reference` and `grader`, see `Query`; an empty grader stands for none."""

    question_id: str
    level: str
    text: str
    reference: Any
    family: str = ""
    grader: str = ""


def questions_of(task: str, share: float = 1.0) -> list[Question]:
    """Return the questions to record: 210 if `share` is 1, at least one per level if it is above 0, none if it is 0."""
    found = []
    for level, number in PROPORTIONS[task].items():
        found += _of_level(task, level)[: max(1, round(number * share)) if share else 0]
    return found


def mixed_traffic(share: float = 1.0) -> list[Question]:
    """Return mixed traffic, which has 500 questions of history and 1,000 live ones.

    The questions of each level are taken in order until both sides of the lab's split, which is by a hash of the
    question's id, have enough.

    Args:
        share: Share of both sides of each level to return, but at least one question per level and side.
    """
    found = []
    for level, number in HISTORY.items():
        found += _of_both_sides(_of_level("mixed", level), number, LIVE[level], share)
    return found


def facts(share: float = 1.0) -> list[Question]:
    """Return the everyday facts of mixed traffic, 170 of history and 330 live ones, or a share of both sides."""
    return _of_both_sides(_read(FACTS), FACTS_OF_HISTORY, LIVE_FACTS, share)


def everyday(share: float = 1.0) -> list[Question]:
    """Return facts, requests and calculations in everyday words, or the first share of them."""
    found = _read(EVERYDAY)
    return found[: max(1, round(len(found) * share))]


def _read(path: Path) -> list[Question]:
    found = []
    for line in path.read_bytes().splitlines():
        entry = orjson.loads(line)
        entry["question_id"] = entry.pop("id")
        found.append(Question(**entry))
    return found


def _of_both_sides(asked: Iterable[Question], history: int, live: int, share: float) -> list[Question]:
    """Return the first questions of each side of the lab's split, as many as wanted, in their order."""
    wanted = {True: max(1, round(history * share)), False: max(1, round(live * share))}
    found = []
    for question in asked:
        side = is_history(question.question_id)
        if wanted[side]:
            wanted[side] -= 1
            found.append(question)
    return found


def question_set(name: str) -> list[Question]:
    """Return the questions of a set in the order of the file.

    Args:
        name: `math`, `code` or `mixed` for the recorded sets; `validation`; `test-11`, `test-2029` or `test-23`, which
            are named after their seeds; `everyday-development` or `everyday-sealed`.

    Raises:
        KeyError: There is no such set.
    """
    return list(_sets()[name])


def fingerprint(questions: list[Question]) -> str:
    """Return a digest of the questions' ids and texts."""
    content = "\n".join(f"{q.question_id}\t{q.text}" for q in questions)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@cache
def _sets() -> dict[str, list[Question]]:
    found: dict[str, list[Question]] = {}
    with FILE.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as plain:
        for line in io.BufferedReader(plain):
            entry = msgspec.json.decode(line)
            question = Question(
                entry["id"], entry["level"], entry["text"], entry["reference"], entry["family"]
            )
            found.setdefault(entry["set"], []).append(question)
    return found


def _of_level(name: str, level: str) -> list[Question]:
    return [question for question in _sets()[name] if question.level == level]


# The file: rows in a fixed order, small types, and the questions and settings in its metadata.

WORDS = pa.dictionary(pa.int16(), pa.string())
SCHEMA = pa.schema(
    [
        ("question", WORDS),
        ("model", WORDS),
        ("qp", pa.int16()),
        ("cp", pa.int16()),
        ("bs", pa.int16()),
        ("sample", pa.int16()),
        ("verifier", WORDS),
        ("early_exit", pa.bool_()),
        ("derived", pa.bool_()),
        ("correct", pa.bool_()),
        ("complete", pa.bool_()),
        ("score", pa.float32()),
        ("eflops", pa.float32()),
        ("prefill_eflops", pa.float32()),
        ("decoding_eflops", pa.float32()),
        ("verifier_eflops", pa.float32()),
        ("compute_flops", pa.float32()),
        ("memory_bytes", pa.float32()),
        ("depth", pa.int16()),
        ("steps", pa.int16()),
        ("completed", pa.int16()),
        ("drafts", pa.int32()),
        ("tokens", pa.int32()),
        ("verifier_tokens", pa.int32()),
        ("prompt_tokens", pa.int32()),
        ("seconds", pa.float32()),
        ("answer", pa.string()),
    ]
)
KEY = ("sample", "verifier", "early_exit", "model", "qp", "cp", "question")


def write(
    path: Path, rows: Iterable[dict[str, Any]], questions: Sequence[Question], settings: dict[str, Any]
) -> int:
    """Write the file atomically and return its size in bytes. The file does not depend on the order of the rows."""
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in KEY))
    metadata = {
        "uniscale.questions": orjson.dumps([asdict(question) for question in questions]),
        "uniscale.settings": orjson.dumps(settings, option=orjson.OPT_SORT_KEYS),
    }
    table = pa.Table.from_pylist(ordered, schema=SCHEMA.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pq.write_table(table, partial, compression="zstd", compression_level=19, use_dictionary=True)
    partial.replace(path)
    return path.stat().st_size


def joined(recordings: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Question], dict[str, Any]]:
    """Return rows, questions and settings of several recordings of different questions or models.

    A setting in which they differ is, if it has names or is a list, that of all of them together; otherwise it is the
    list of its values, in the order of the recordings.

    Raises:
        OutcomeError: A file is not one of our recordings, or two of them have the same run.
    """
    rows: list[dict[str, Any]] = []
    questions: dict[str, Question] = {}
    settings: dict[str, Any] = {}
    for recording in recordings:
        for name, value in settings_of(recording).items():
            settings[name] = _together(settings[name], value) if name in settings else value
        questions |= {question.question_id: question for question in questions_in(recording)}
        rows += rows_of(recording)
    twice = [
        key for key, count in Counter(tuple(row[name] for name in KEY) for row in rows).items() if count > 1
    ]
    if twice:
        raise OutcomeError(
            f"{twice[0]}: is in two of the recordings; join those of other questions or models"
        )
    settings["questions"] = fingerprint(list(questions.values()))
    return rows, list(questions.values()), settings


def _together(before: Any, after: Any) -> Any:
    if isinstance(before, dict):
        return {**before, **after}
    if isinstance(before, list):
        return [
            *before,
            *(each for each in (after if isinstance(after, list) else [after]) if each not in before),
        ]
    return before if before == after else [before, after]


def settings_of(recording: Path) -> dict[str, Any]:
    """Return a recording's settings.

    Raises:
        OutcomeError: The file is not one of our recordings.
    """
    metadata = (pq.read_schema(recording).metadata or {}) if recording.is_file() else {}
    if b"uniscale.settings" not in metadata:
        raise OutcomeError(
            f"{recording}: is not one of our recordings; `python -m experiments record` makes one"
        )
    settings: dict[str, Any] = orjson.loads(metadata[b"uniscale.settings"])
    return settings


def questions_in(recording: Path) -> list[Question]:
    """Return a recording's questions."""
    metadata = pq.read_schema(recording).metadata
    return [Question(**entry) for entry in orjson.loads(metadata[b"uniscale.questions"])]


def rows_of(recording: Path) -> list[dict[str, Any]]:
    """Return a recording's rows."""
    rows: list[dict[str, Any]] = pq.read_table(recording).to_pylist()
    return rows
