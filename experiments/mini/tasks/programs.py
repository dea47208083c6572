"""Mini-code: list and text transformations told in plain English, answered by a program of two to seven operations.

The answer is a pipeline such as `reverse | add 3 | take 2`, in the small language that the grader runs
(`agents.answers`). Each step writes one operation; the last one boxes the whole program.
"""

from dataclasses import dataclass
from random import Random

from experiments.mini.tasks.problem import DELIMITER, Problem, boxed, seeded

LEVELS = ("code_2", "code_3", "code_4", "code_6")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh")
OPERATIONS = {"code_2": (2, 2), "code_3": (3, 3), "code_4": (4, 4), "code_6": (5, 7)}


@dataclass(frozen=True)
class Phrase:
    """One operation: its code and how it is told. {n} is a number, {x} a letter."""

    code: str
    wordings: tuple[str, ...]


def _phrases(table: str) -> tuple[Phrase, ...]:
    rows = (row.split(": ", 1) for row in table.strip().split("\n"))
    return tuple(Phrase(code, tuple(wordings.split(" | "))) for code, wordings in rows)


LISTS = _phrases("""
reverse: reverse the list | turn the list around | put the last item first | write it backwards
sort: sort the list | put the numbers in rising order | order the list from small to large | sort upwards
sort down: sort the list from large to small | put the numbers in falling order | largest first | sort downwards
add {n}: add {n} to each number | raise each number by {n} | make each number {n} larger | {n} more for every number
times {n}: multiply each number by {n} | make each number {n} times as large | take {n} times each number
take {n}: keep the first {n} items | take only the first {n} numbers | leave only the first {n}
drop {n}: remove the first {n} items | drop the first {n} numbers | skip the first {n} items | leave out the first {n}
keep even: keep the even numbers | remove all odd numbers | only even numbers stay
keep odd: keep the odd numbers | remove all even numbers | only odd numbers stay
keep above {n}: keep the numbers above {n} | remove what is not larger than {n} | only numbers over {n} stay
keep below {n}: keep the numbers below {n} | remove what is not smaller than {n} | only numbers under {n} stay
unique: remove repeated numbers | keep each number only once | no number twice
""")
STRINGS = _phrases("""
reverse: reverse the text | turn the text around | read the text from the end | write it backwards
upper: make all letters large | write the text in capitals | change it to upper case
take {n}: keep the first {n} letters | take only the first {n} letters | leave only the first {n}
drop {n}: remove the first {n} letters | drop the first {n} letters | skip the first {n} letters
repeat {n}: repeat the text {n} times | write the text {n} times | {n} copies of it in a row
append {x}: add the letter {x} at the end | put the letter {x} after the text | end it with {x}
prepend {x}: add the letter {x} at the front | put the letter {x} before the text | begin it with {x}
sort: sort the letters | put the letters in rising order | letters in the order of the alphabet
unique: keep each letter only once | remove repeated letters | no letter twice
remove {x}: remove every letter {x} | delete all letters {x} | leave out each {x}
""")
OPENINGS = {
    "list": ("Given a list of numbers.", "You get a list of numbers.", "The input is a list of numbers."),
    "text": ("Given a text.", "You get a text.", "The input is a text."),
}
CLOSING = ("What program does this?", "Write the program.", "Which program is it?")


def code_problem(level: str, rng: Random) -> Problem:
    """Draw one program; from three operations on they may be told out of order, at the top they always are."""
    kind = rng.choice(("list", "text"))
    phrases = rng.sample(LISTS if kind == "list" else STRINGS, rng.randint(*OPERATIONS[level]))
    codes, told = [], []
    for phrase in phrases:
        n, x = rng.randint(2, 9), rng.choice(LETTERS)
        codes.append(phrase.code.format(n=n, x=x))
        told.append(rng.choice(phrase.wordings).format(n=n, x=x))
    sentences = [f"{ORDINALS[i]}: {text}." for i, text in enumerate(told)]
    if len(codes) > 4 or (len(codes) > 2 and rng.random() < 0.5):
        rng.shuffle(sentences)
    program = " | ".join(codes)
    question = " ".join([rng.choice(OPENINGS[kind]), *sentences, rng.choice(CLOSING)])
    return Problem("code", level, question, (*(code + DELIMITER for code in codes), boxed(program)), program)


def inputs_for(problem: Problem, count: int = 6) -> list[list[int] | str]:
    """Return the inputs that a program is judged on: drawn from the question's text, so the same for everyone."""
    rng = seeded("inputs", problem.question)
    if "list of numbers" in problem.question:
        return [[rng.randint(0, 12) for _ in range(rng.randint(5, 9))] for _ in range(count)]
    letters = "abcdefgh" + "".join(c for c in problem.answer if c in LETTERS)[-3:]
    return ["".join(rng.choice(letters) for _ in range(rng.randint(5, 9))) for _ in range(count)]
