"""The recorded questions: stories in the paper's proportions, programs for the second task, or mixed traffic.

All are of the family's `record` split: no model was trained, and no anchor measured, on any of them. They are read from
`experiments/data/questions.jsonl.zst`, which also holds the questions that the family was validated and tested on; it
is never written again.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from experiments.yardstick import is_history

FILE = Path(__file__).parents[1] / "data" / "questions.jsonl.zst"

PROPORTIONS: Mapping[str, Mapping[str, int]] = {
    # 30 of each of five levels, and 60 harder ones where the paper has AIME'24 and '25.
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
"""Mixed traffic's history, 500 questions: 30 % quick, 40 % stories, 5 % contest, 15 % procedures, 10 % code."""

LIVE = {level: 25 if level.startswith("code") else 2 * each for level, each in HISTORY.items()}
"""Its live questions, 1,000 in the same proportions."""


@dataclass(frozen=True)
class Question:
    """One question: `reference` as `Query.reference` has it."""

    question_id: str
    level: str
    text: str
    reference: Any
    family: str = ""


def questions_of(task: str, share: float = 1.0) -> list[Question]:
    """Return the questions to record, each text once, 210 where `share` is 1; at least one a level if it is not 0."""
    found = []
    for level, number in PROPORTIONS[task].items():
        found += _of_level(task, level)[: max(1, round(number * share)) if share else 0]
    return found


def mixed_traffic(share: float = 1.0) -> list[Question]:
    """Return mixed traffic: 500 questions of history and 1,000 live ones, each text once.

    Each level's questions are taken in order until it has its number on each side of the lab's own split, which is a
    hash of the id and knows nothing of the question.

    Args:
        share: Of both sides of each level; at least one a level and side.
    """
    found = []
    for level, number in HISTORY.items():
        wanted = {True: max(1, round(number * share)), False: max(1, round(LIVE[level] * share))}
        for question in _of_level("mixed", level):
            side = is_history(question.question_id)
            if wanted[side]:
                wanted[side] -= 1
                found.append(question)
    return found


def question_set(name: str) -> list[Question]:
    """Return the questions of a set in the order of the file.

    Args:
        name: `math`, `code` or `mixed`, which are recorded; `validation`; `test-11`, `test-2029` or `test-23`, by the
            seed they were drawn with; `everyday-development` or `everyday-sealed`.

    Raises:
        KeyError: There is no such set.
    """
    return list(_sets()[name])


def fingerprint(questions: list[Question]) -> str:
    """Return a digest of ids and texts."""
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
