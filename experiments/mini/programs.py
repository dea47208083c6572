"""Mini-code: short list and string transformations told in plain English, answered by a program.

The answer is a pipeline such as `reverse | add 3 | take 2`, in the small language that the grader runs
(`agents.aggregator.program`). A solution writes one operation a step; its last step boxes the whole program.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from experiments.mini.problems import DELIMITER, ORDINALS, SPLITS, Problem, draw_in_split, seeded

LEVELS = ("code_2", "code_3", "code_4")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Phrase:
    """One operation: its code and how it is told. {n} is a number, {x} a letter."""

    code: str
    wordings: tuple[str, ...]


LISTS = (
    Phrase("reverse", ("reverse the list", "turn the list around", "put the last item first")),
    Phrase(
        "sort", ("sort the list", "put the numbers in rising order", "order the list from small to large")
    ),
    Phrase("sort down", ("sort the list from large to small", "put the numbers in falling order")),
    Phrase("add {n}", ("add {n} to each number", "raise each number by {n}", "make each number {n} larger")),
    Phrase("times {n}", ("multiply each number by {n}", "make each number {n} times as large")),
    Phrase("take {n}", ("keep the first {n} items", "take only the first {n} numbers")),
    Phrase(
        "drop {n}", ("remove the first {n} items", "drop the first {n} numbers", "skip the first {n} items")
    ),
    Phrase("keep even", ("keep the even numbers", "remove all odd numbers")),
    Phrase("keep odd", ("keep the odd numbers", "remove all even numbers")),
    Phrase("keep above {n}", ("keep the numbers above {n}", "remove what is not larger than {n}")),
    Phrase("keep below {n}", ("keep the numbers below {n}", "remove what is not smaller than {n}")),
    Phrase("unique", ("remove repeated numbers", "keep each number only once")),
)
STRINGS = (
    Phrase("reverse", ("reverse the text", "turn the text around", "read the text from the end")),
    Phrase("upper", ("make all letters large", "write the text in capitals")),
    Phrase("take {n}", ("keep the first {n} letters", "take only the first {n} letters")),
    Phrase(
        "drop {n}",
        ("remove the first {n} letters", "drop the first {n} letters", "skip the first {n} letters"),
    ),
    Phrase("repeat {n}", ("repeat the text {n} times", "write the text {n} times")),
    Phrase("append {x}", ("add the letter {x} at the end", "put the letter {x} after the text")),
    Phrase("prepend {x}", ("add the letter {x} at the front", "put the letter {x} before the text")),
    Phrase("sort", ("sort the letters", "put the letters in rising order")),
    Phrase("unique", ("keep each letter only once", "remove repeated letters")),
    Phrase("remove {x}", ("remove every letter {x}", "delete all letters {x}")),
)
OPENINGS = {
    "list": ("Given a list of numbers.", "You get a list of numbers."),
    "text": ("Given a text.", "You get a text."),
}
CLOSING = ("What program does this?", "Write the program.")


def code_problems(level: str, split: str, seed: int) -> Iterator[Problem]:
    """Yield mini-code problems of one level and split, for ever.

    Raises:
        ValueError: when the level or split is unknown.
    """
    if level not in LEVELS or split not in SPLITS:
        raise ValueError(f"no mini-code level {level!r} in split {split!r}; levels {LEVELS}, splits {SPLITS}")
    index = 0
    while True:
        yield draw_in_split(lambda rng: draw_code(level, rng), split, "code", level, seed, index)
        index += 1


def draw_code(level: str, rng: Random) -> Problem:
    """Draw one program of as many operations as the level says; longer ones are told out of order."""
    kind = rng.choice(("list", "text"))
    phrases = rng.sample(LISTS if kind == "list" else STRINGS, int(level[-1]))
    codes, told = [], []
    for phrase in phrases:
        n, x = rng.randint(2, 9), rng.choice(LETTERS)
        codes.append(phrase.code.format(n=n, x=x))
        told.append(rng.choice(phrase.wordings).format(n=n, x=x))
    sentences = [f"{ORDINALS[i]}: {text}." for i, text in enumerate(told)]
    if len(codes) > 2 and rng.random() < 0.5:
        rng.shuffle(sentences)
    program = " | ".join(codes)
    steps = (*(code + DELIMITER for code in codes), f"\\boxed{{{program}}}")
    question = " ".join([rng.choice(OPENINGS[kind]), *sentences, rng.choice(CLOSING)])
    return Problem("code", level, question, steps, program)


def inputs_for(problem: Problem, count: int = 6) -> list[list[int] | str]:
    """Return the inputs that a program is judged on: drawn from the question's text, so the same for everyone."""
    rng = seeded("inputs", problem.question)
    if "list of numbers" in problem.question:
        return [[rng.randint(0, 12) for _ in range(rng.randint(5, 9))] for _ in range(count)]
    return [
        "".join(rng.choice("abcdefgh" + problem.question[-2:-1]) for _ in range(rng.randint(5, 9)))
        for _ in range(count)
    ]
