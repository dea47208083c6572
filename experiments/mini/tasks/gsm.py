"""GSM8K's training questions as training text: people's wording, its own calculations, and numbers drawn anew.

The questions are read from outside the repository and never written into it. A question is used when every
annotated calculation (`<<48/2=24>>`) is exact on whole numbers and the last one gives the answer. For new numbers, each
number of the question that is used must be told apart from all results and constants; then the whole chain is computed
again, and kept when every result is a whole number again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from experiments.mini.tasks.problem import Problem
from experiments.mini.tasks.styles import Calc, written
from experiments.mini.tasks.world import Impossible, apply

LEVELS = ("gsm",)
QUESTIONS = Path("../shared/data/questions/gsm8k_train.jsonl")
MISSING = (
    f"{QUESTIONS} is missing: the family trains without people's wording from GSM8K and reads real questions worse; "
    "put the file there (openai/grade-school-math, MIT) and build the corpus again"
)
NOTE = re.compile(r"<<([^<>=]+)=([^<>]+)>>")
NUMBER = re.compile(r"(?<![\d.,/])\d+(?:,\d{3})*(?![\d/]|[.,]\d)")
LARGEST = 9_999


def sources(path: Path = QUESTIONS) -> list[tuple[str, tuple[Calc, ...]]]:
    """Return (question, calculations) of every usable question; an empty list when the file is missing."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        question = " ".join(row["question"].split())
        calcs = _calcs(row["answer"])
        if (
            calcs
            and len(question) < 500
            and str(calcs[-1].result) == row["answer"].rpartition("####")[2].strip().replace(",", "")
        ):
            found.append((question, tuple(calcs)))
    return found


def _calcs(answer: str) -> list[Calc] | None:
    calcs = []
    for note in NOTE.finditer(answer):
        parts = re.fullmatch(r"\s*(\d+)((?:\s*[-+*/]\s*\d+)+)\s*", note[1].replace("$", ""))
        if parts is None or not note[2].strip().isdigit():
            return None
        moves = re.findall(r"([-+*/])\s*(\d+)", parts[2])
        signs = {sign for sign, _ in moves}
        if len(moves) > 1 and not (signs <= {"+", "-"} or signs == {"*"}):
            return None
        value = int(parts[1])
        for sign, number in moves:
            try:
                result = apply(value, sign, int(number))
            except Impossible:
                return None
            calcs.append(Calc("", value, sign, int(number), result))
            value = result
        if value != int(note[2]) or value > LARGEST:
            return None
    return calcs


def gsm_problem(source: tuple[str, tuple[Calc, ...]], rng: Random, anew: bool) -> Problem | None:
    """Return the question with its own numbers or with new ones; None when new ones do not work out."""
    question, calcs = source
    if anew:
        changed = _renumbered(question, calcs, rng)
        if changed is None:
            return None
        question, calcs = changed
    return written("gsm", "gsm", question, calcs, (), calcs[-1].result, rng)


def gsm_problems(seed: int, copies: int, path: Path = QUESTIONS) -> Iterator[Problem]:
    """Yield every usable question once as it is and up to `copies` times with new numbers."""
    for index, source in enumerate(sources(path)):
        rng = Random(f"{seed}/{index}")
        for copy in range(copies + 1):
            problem = gsm_problem(source, rng, anew=copy > 0)
            if problem is not None:
                yield problem


def _renumbered(question: str, calcs: tuple[Calc, ...], rng: Random) -> tuple[str, tuple[Calc, ...]] | None:
    told = [int(found.replace(",", "")) for found in NUMBER.findall(question)]
    results = [calc.result for calc in calcs]
    operands = {n for calc in calcs for n in (calc.a, calc.b)}
    free = {n for n in operands if told.count(n) == 1 and n not in results and n > 1}
    if not free:
        return None
    for _ in range(8):
        new = {n: _near(n, rng) for n in free}
        if len({*new.values()}) < len(new):
            continue
        values: dict[int, int] = dict(new)
        fresh = []
        try:
            for calc in calcs:
                a, b = values.get(calc.a, calc.a), values.get(calc.b, calc.b)
                result = apply(a, calc.sign, b)
                if calc.result in values and values[calc.result] != result and calc.result in operands:
                    return None
                values[calc.result] = result
                fresh.append(Calc("", a, calc.sign, b, result))
        except Impossible:
            continue
        if 0 < fresh[-1].result <= LARGEST:
            return _with(question, new), tuple(fresh)
    return None


def _with(question: str, new: Mapping[int, int]) -> str:
    return NUMBER.sub(lambda m: str(new.get(int(m[0].replace(",", "")), m[0])), question)


def _near(n: int, rng: Random) -> int:
    """Return a number of about the size of `n`, round where `n` is round."""
    step = 100 if n % 100 == 0 else 10 if n % 10 == 0 else 5 if n % 5 == 0 and n > 20 else 1
    return (
        max(2, step)
        if n < 3 and step > 1
        else max(2, step * rng.randint(max(1, n // step // 2), n // step * 2))
    )
