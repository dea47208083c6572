"""The recorded questions: mini-math in the paper's proportions, or mini-code for the second task.

All are of the family's `record` split: no model was trained, and no anchor measured, on any of them.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from agents.aggregator.program import run
from experiments.mini.corpus import problems_of
from experiments.mini.problems import Problem
from experiments.mini.programs import inputs_for

Task = Literal["math", "code"]
PROPORTIONS: Mapping[str, Mapping[str, int]] = {
    # 30 of each of five levels, and 60 harder ones where the paper has AIME'24 and '25.
    "math": {**{f"level_{n}": 30 for n in range(1, 6)}, "contest": 60},
    "code": {"code_2": 70, "code_3": 70, "code_4": 70},
}


@dataclass(frozen=True)
class Question:
    """One question: `reference` as `Query.reference` has it."""

    question_id: str
    level: str
    text: str
    reference: Any


def questions_of(task: Task, seed: int = 0, share: float = 1.0) -> list[Question]:
    """Return the questions to record, each text once, 210 where `share` is 1; at least one a level."""
    found = []
    for level, count in PROPORTIONS[task].items():
        unseen = _distinct(level, seed)
        found += [
            Question(f"{level}-{index}", level, problem.question, _reference(problem))
            for index, problem in enumerate(islice(unseen, max(1, round(count * share))))
        ]
    return found


def fingerprint(questions: list[Question]) -> str:
    """Return a digest of ids and texts."""
    content = "\n".join(f"{q.question_id}\t{q.text}" for q in questions)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _distinct(level: str, seed: int) -> Iterator[Problem]:
    texts: set[str] = set()
    for problem in problems_of(level, "record", seed):
        if problem.question not in texts:
            texts.add(problem.question)
            yield problem


def _reference(problem: Problem) -> Any:
    if problem.task == "code":
        return {"tests": [[value, run(problem.answer, value)] for value in inputs_for(problem)]}
    return problem.answer
