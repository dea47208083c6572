"""The recorded questions: stories in the paper's proportions, programs for the second task, or mixed traffic.

All are of the family's `record` split: no model was trained, and no anchor measured, on any of them.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Literal

from agents.aggregator.program import run
from experiments.mini.corpus import draw
from experiments.mini.tasks.problem import Problem
from experiments.mini.tasks.programs import inputs_for
from experiments.yardstick import is_history

Task = Literal["math", "code"]
PROPORTIONS: Mapping[Task, Mapping[str, int]] = {
    # 30 of each of five levels, and 60 harder ones where the paper has AIME'24 and '25.
    "math": {**{f"level_{n}": 30 for n in range(1, 6)}, "contest": 60},
    "code": {"code_2": 53, "code_3": 53, "code_4": 52, "code_6": 52},
}
SEED = 31
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


def questions_of(task: Task, seed: int = 0, share: float = 1.0) -> list[Question]:
    """Return the questions to record, each text once, 210 where `share` is 1; at least one a level."""
    found = []
    for level, number in PROPORTIONS[task].items():
        unseen = _distinct(level, seed)
        found += [
            _question(index, problem)
            for index, problem in enumerate(islice(unseen, max(1, round(number * share))))
        ]
    return found


def mixed_traffic(seed: int = SEED, share: float = 1.0, *, short: bool = False) -> list[Question]:
    """Return mixed traffic: 500 questions of history and 1,000 live ones, each text once.

    Ids are drawn in order until a level has its number on each side of the lab's own split, which is a hash of the
    id and knows nothing of the question.

    Args:
        seed: Of the questions.
        share: Of both sides of each level; at least one a level and side.
        short: Only as many live questions as history has.
    """
    found = []
    for level, number in HISTORY.items():
        wanted = Counter(
            {
                True: max(1, round(number * share)),
                False: max(1, round((HISTORY if short else LIVE)[level] * share)),
            }
        )
        for index, problem in enumerate(_distinct(level, seed)):
            question = _question(index, problem)
            side = is_history(question.question_id)
            if wanted[side]:
                wanted[side] -= 1
                found.append(question)
            if not wanted.total():
                break
    return found


def fingerprint(questions: list[Question]) -> str:
    """Return a digest of ids and texts."""
    content = "\n".join(f"{q.question_id}\t{q.text}" for q in questions)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _distinct(level: str, seed: int) -> Iterator[Problem]:
    texts: set[str] = set()
    for index in count():
        problem = draw(level, "record", seed, index)
        if problem.question not in texts:
            texts.add(problem.question)
            yield problem


def _question(index: int, problem: Problem) -> Question:
    code = problem.family == "code"
    tests = [[value, run(problem.answer, value)] for value in inputs_for(problem)] if code else []
    return Question(
        f"{problem.level}-{index}",
        problem.level,
        problem.question,
        {"tests": tests} if code else problem.answer,
        problem.family,
    )
