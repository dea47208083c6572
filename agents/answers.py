r"""Is an answer right? Its last `\boxed{…}` against the reference: as text, as mathematics, or run as a program."""

import contextlib
import json
import os
import queue
import re
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, TypeAlias

from schemas.errors import UniscaleError
from schemas.query import MAX_TESTS

# Finds the answer in a text: its last complete `\boxed{…}`.

# A box opens, an escaped character (whose brace is printed, not grouping), or a brace.
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def extract_boxed(text: str) -> str | None:
    r"""Return what the last complete `\boxed{…}` holds, braces inside balanced, or None.

    >>> extract_boxed(r"so \boxed{\frac{1}{2}} and \boxed{3")
    '\\frac{1}{2}'
    """
    if "\\boxed" not in text:
        return None
    opened: list[int | None] = []  # where the content of each open box starts; None for a plain brace
    last: tuple[int, int] | None = None
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            start = opened.pop() if opened else None
            if start is not None and (last is None or start > last[0]):
                last = (start, match.start())
        elif token.endswith("{") and not token.endswith("\\{"):
            opened.append(match.end() if len(token) > 1 else None)
    return None if last is None else text[last[0] : last[1]].strip()


# List programs, the language of answers to code questions: a pipeline of list or text operations, run on given inputs.
#
# A program is operations joined by " | ", such as `keep even | add 3 | take 2`. It is safe by construction: no
# evaluation of text, no loops, every value bounded in length and size. The services run it in a process of its own
# all the same (`GradingPool`), because many tests on long inputs take seconds.

Value: TypeAlias = list[int] | str
Tests: TypeAlias = Sequence[tuple[Value, Value] | Sequence[Value]]

MAX_OPERATIONS = 32
MAX_ITEMS = 10_000
# Numbers stay below this magnitude, so that `times 9 | times 9 | …` cannot grow without bound.
MAX_NUMBER = 10**15
MAX_TEXT = 2_000  # characters of a program

_NUMBER = re.compile(r"-?[0-9]{1,9}")
_COUNT = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"[A-Za-z]|[a-z]{2,40}")


class ProgramError(UniscaleError, ValueError):
    """A program that is not in the language, does not fit its input, or outgrows the bounds."""


_LISTS: dict[str, Callable[[list[int]], list[int]]] = {
    "reverse": lambda items: items[::-1],
    "sort": sorted,
    "sort down": lambda items: sorted(items, reverse=True),
    "keep even": lambda items: [item for item in items if item % 2 == 0],
    "keep odd": lambda items: [item for item in items if item % 2 == 1],
    "unique": lambda items: list(dict.fromkeys(items)),
}
_LISTS_BY_NUMBER: dict[str, Callable[[list[int], int], list[int]]] = {
    "add": lambda items, n: [item + n for item in items],
    "times": lambda items, n: [item * n for item in items],
    "keep above": lambda items, n: [item for item in items if item > n],
    "keep below": lambda items, n: [item for item in items if item < n],
}
_TEXTS: dict[str, Callable[[str], str]] = {
    "reverse": lambda text: text[::-1],
    "upper": str.upper,
    "lower": str.lower,
    "swapcase": str.swapcase,
    "sort": lambda text: "".join(sorted(text)),
    "unique": lambda text: "".join(dict.fromkeys(text)),
}
_TEXTS_BY_WORD: dict[str, Callable[[str, str], str]] = {
    "append": lambda text, word: text + word,
    "prepend": lambda text, word: word + text,
    "remove": lambda text, word: text.replace(word, ""),
}


def run(program: str, value: Value) -> Value:
    """Apply a program to a list of whole numbers or to a text.

    Raises:
        ProgramError: naming the operation that is unknown, does not fit the value, or outgrows the bounds.

    >>> run("keep even | add 3 | take 2", [4, 7, 8, 2])
    [7, 11]
    >>> run("reverse | append s | upper", "tac")
    'CATS'
    """
    if len(program) > MAX_TEXT:
        raise ProgramError(f"a program of {len(program)} characters is longer than {MAX_TEXT}")
    operations = [" ".join(part.split()) for part in program.split("|")]
    if len(operations) > MAX_OPERATIONS:
        raise ProgramError(f"a program of {len(operations)} operations is longer than {MAX_OPERATIONS}")
    result: Value = value if isinstance(value, str) else list(value)
    for operation in operations:
        result = _apply(operation, result)
        _check(operation, result)
    return result


def passes(program: str, tests: Tests) -> bool:
    """Tell whether a program turns every input into its output. A program that fails on one does not pass.

    >>> passes("sort | take 1", [([3, 1], [1]), ([5], [5])])
    True

    Raises:
        ValueError: when there are no tests: nothing would be graded.
    """
    if not tests:
        raise ValueError("a program cannot be graded without tests; give at least one [input, output] pair")
    try:
        return all(run(program, given) == expected for given, expected in tests)
    except ProgramError:
        return False


def _apply(operation: str, value: Value) -> Value:
    name, _, argument = operation.rpartition(" ")
    if isinstance(value, str):
        if text_op := _TEXTS.get(operation):
            return text_op(value)
        if word_op := _TEXTS_BY_WORD.get(name):
            if not _WORD.fullmatch(argument):
                raise ProgramError(f"{operation!r} needs one letter or one lower-case word")
            return word_op(value, argument)
    else:
        if list_op := _LISTS.get(operation):
            return list_op(value)
        if number_op := _LISTS_BY_NUMBER.get(name):
            return number_op(value, _number(operation, argument, _NUMBER))
    match name:
        case "take":
            return value[: _number(operation, argument, _COUNT)]
        case "drop":
            return value[_number(operation, argument, _COUNT) :]
        case "repeat":
            count = _number(operation, argument, _COUNT)
            if count * len(value) > MAX_ITEMS:
                raise ProgramError(f"{operation!r} makes more than {MAX_ITEMS} items")
            return value * count
    kind = "text" if isinstance(value, str) else "list"
    raise ProgramError(f"{operation!r} cannot be applied to a {kind}")


def _number(operation: str, argument: str, form: re.Pattern[str]) -> int:
    if not form.fullmatch(argument):
        raise ProgramError(f"{operation!r} needs a whole number of at most nine digits")
    return int(argument)


def _check(operation: str, value: Value) -> None:
    if len(value) > MAX_ITEMS:
        raise ProgramError(f"{operation!r} makes more than {MAX_ITEMS} items")
    if not isinstance(value, str) and any(abs(item) > MAX_NUMBER for item in value):
        raise ProgramError(f"{operation!r} makes a number larger than {MAX_NUMBER}")


# A pool of processes that grade answers: each answer within a time and a memory limit that hold.
#
# Answers come from models and references from clients, so neither is trusted. math-verify may hang inside
# compiled code, where neither a thread nor a signal handler reaches it, and a program with many tests takes its
# time. Here both run in processes of their own, without the environment of this one, which holds its secrets. A
# process that is out of time is killed and replaced.

_ROOT = Path(__file__).resolve().parents[1]
_WORKER = "agents.grading_worker"
_START_TIMEOUT_S = 120.0  # importing sympy on a busy machine; not part of an answer's time
# All that a grading process is given of the environment: where libraries are, and how text is encoded.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison."""

    correct: bool
    how: Literal["math-verify", "program"]


class GradingPoolError(UniscaleError):
    """No grading process starts. Install math-verify with an antlr4 runtime, or free memory."""


class GraderFailed(UniscaleError):
    """A grading process ran out of time, or died: nobody knows whether the answer is right."""


class GradingPool:
    r"""Grade answers in processes that can be killed. Safe to call from several threads.

    Args:
        workers: Processes, started when first needed; so many answers are graded at once, others wait.
        timeout_s: Longest time one answer may take.
        memory_mb: Most memory one process may map.
        environ: The environment of this process, of which almost nothing is passed on.

    >>> with GradingPool() as pool:
    ...     pool.judge(r"\frac{1}{2}", "0.5")
    Verdict(correct=True, how='math-verify')
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 5.0,
        memory_mb: int = 2048,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Start nothing yet."""
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self._idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        self.workers = workers
        for _ in range(workers):
            self._idle.put(None)
        self._mathematicians: set[int] = set()  # pids of those that have imported math-verify
        self.started = 0

    def judge(self, gold: str, answer: str) -> Verdict:
        """Return whether `answer` equals `gold`, both LaTeX without delimiters.

        Blocks at most `timeout_s`, and while a process starts.

        Raises:
            GraderFailed: it did not say.
            GradingPoolError: no grading process starts.
        """
        return self._verdict("math-verify", {"gold": gold, "answer": answer})

    def run(self, program: str, tests: Tests) -> Verdict:
        """Return whether `program` passes every test. Blocks at most `timeout_s`, and while a process starts.

        Raises:
            GraderFailed: it did not say.
            GradingPoolError: no grading process starts.
        """
        return self._verdict("program", {"program": program, "tests": tests})

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        for _ in range(self.workers):
            _kill(self._idle.get())
        for _ in range(self.workers):
            self._idle.put(None)

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the pool."""
        self.close()

    def _verdict(self, kind: Literal["math-verify", "program"], request: dict[str, object]) -> Verdict:
        process = self._idle.get()
        try:
            if process is None or process.poll() is not None:
                process = self._start()
            if kind == "math-verify" and process.pid not in self._mathematicians:
                self._teach(process)
            reply = self._exchange(process, json.dumps(request))
            if reply is None:
                hung = process.poll() is None
                _kill(process)
                # Another starts now: this answer waits for it, and not the next one, whose tenant would pay.
                with contextlib.suppress(GradingPoolError):
                    process = self._start()
                    if kind == "math-verify":
                        self._teach(process)
        except BaseException:
            _kill(process)
            self._idle.put(None)
            raise
        self._idle.put(process)
        if reply is None:
            raise GraderFailed(
                f"{kind}: no result in {self._timeout_s:g} s" if hung else f"{kind}: its process died"
            )
        if "error" in reply:
            raise GraderFailed(f"{kind}: {reply['error']}")
        return Verdict(correct=bool(reply["correct"]), how=kind)

    def _start(self) -> "subprocess.Popen[str]":
        self.started += 1
        process = subprocess.Popen(
            # -P: the working directory, wherever that is, holds no modules.
            [sys.executable, "-P", "-B", "-m", _WORKER, str(self._timeout_s), str(self._memory_mb)],
            env=self._environ | {"PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._mathematicians.discard(process.pid)  # the system may give a number again
        if _read(process, _START_TIMEOUT_S) is None:
            _kill(process)
            raise GradingPoolError(f"the grading process ({_WORKER}) did not start; free memory")
        return process

    def _teach(self, process: "subprocess.Popen[str]") -> None:
        if self._exchange(process, json.dumps({"math": True}), _START_TIMEOUT_S) is None:
            _kill(process)
            raise GradingPoolError(
                f"the grading process ({_WORKER}) cannot import math-verify: "
                "install math-verify[antlr4_13_2], or free memory"
            )
        self._mathematicians.add(process.pid)

    def _exchange(
        self, process: "subprocess.Popen[str]", line: str, timeout_s: float | None = None
    ) -> dict[str, object] | None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            process.wait()  # it may have closed its end and not be gone yet
            return None
        return _read(process, self._timeout_s if timeout_s is None else timeout_s)


def _read(process: "subprocess.Popen[str]", timeout_s: float) -> dict[str, object] | None:
    """Read one reply, or None when the time is up or the process ended. A reply is one atomic write."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if ready else ""
    if not line:
        if ready:
            process.wait()  # so that poll() knows: this is an error, not a time-out
        return None
    reply: dict[str, object] = json.loads(line)
    return reply


def _kill(process: "subprocess.Popen[str] | None") -> None:
    if process is None:
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # an unsent request to a process that is gone
                stream.close()


# What can be compared without mathematics: numbers, numbers with a unit, and words.
#
# math-verify reads every text as mathematics: `hello` is a product of letters there, equal to `olleh`, and `K-G-V` a
# difference, equal to `K-V-G`; `1 1/2` and `1e-5` are no numbers. So it gets only what is left.

_ALIKE = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
    | {chr(0xFF10 + digit): str(digit) for digit in range(10)}
    | {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
)
"""Characters by what they stand for."""

_SPACES = re.compile(r"\\[,!;: ]|\s+|\\left(?![a-z])|\\right(?![a-z])")
_BETWEEN_WORDS = re.compile(r"(?<=[^\W_]) (?=[^\W_])")
_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s*\{([^{}]*)\}")

_AMOUNT = (
    r"(?P<sign>[+-]?) ?(?:\\?\$)? ?"
    r"(?:(?P<grouped>[0-9]{1,3}(?P<by>,|\{,\}|\\[,!;: ]| )[0-9]{3}(?:(?P=by)[0-9]{3})*(?:\.[0-9]*)?)"
    r"|(?P<decimal>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
    r"|(?:(?P<whole>[0-9]+)(?: (?=[0-9])| ?(?=\\)))?"
    r"(?:(?P<above>[0-9]+)/(?P<below>[0-9]+)|\\[dt]?frac\{(?P<top>[0-9]+)\}\{(?P<bottom>[0-9]+)\}))"
)
_QUANTITY = re.compile(rf"{_AMOUNT}(?: (?P<unit>[^\W\d_]{{3,}}(?: [^\W\d_]+)*))?")
# Words with one of three letters, a path such as K-G-V, or a date. What is shorter may be a product of variables.
_WORDS = re.compile(
    r"(?=.*[^\W\d_]{3})[^\W\d_]+(?:[ ,'’&-]+[^\W\d_]+)*|(?i:no)|[A-Z](?:-[A-Z])+|[0-9]{4}-[0-9]{2}-[0-9]{2}"
)
_NO_MATHEMATICS = re.compile(r"[\w ,'’&-]+")
_FUNCTION = re.compile(r"\b(?:pi|tau|sqrt|sin|cos|tan|log|ln|exp|inf|infinity|mod)\b", re.IGNORECASE)
# What makes another number of the one before it.
_NO_UNIT = re.compile(
    r"\b(?:and|or|to|plus|minus|times|over|choose|more|less|fewer|than|point|per ?cent|percent(?:age)?s?|basis"
    r"|half|halves|squared|cubed|twice|double|factorials?|gross"
    r"|(?:pair|score|dozen|hundred|thousand|million|billion|trillion|lakh|crore)s?"
    r"|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|sigma|phi|omega)\b",
    re.IGNORECASE,
)
_MAX_DIGITS = 1_000  # Python refuses to read more than 4,300


def as_number(text: str) -> Fraction | None:
    r"""Return the number that a text is, exactly, else None.

    Signs, leading zeros, thousands, $, a full stop, decimals, powers of ten, fractions and mixed numbers are read.

    >>> [
    ...     str(as_number(text))
    ...     for text in ("033", "-1,234", r"\$18", "70000.", "1e-5", "2 1/3", r"\frac{1}{2}")
    ... ]
    ['33', '-1234', '18', '70000', '1/100000', '7/3', '1/2']
    >>> [as_number(text) for text in ("12,34", "3 4", "1/0", "3 cm")]
    [None, None, None, None]
    """
    found = _quantity(text)
    return None if found is None or found[1] else found[0]


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """Return the number that a text is, and the words of its unit, if it has one."""
    found = _QUANTITY.fullmatch(_unwrapped(text)) if len(text) <= _MAX_DIGITS else None
    if found is None:
        return None
    unit = found["unit"] or ""
    if _FUNCTION.search(unit) or _NO_UNIT.search(unit):
        return None
    if found["grouped"]:
        value = Fraction(found["grouped"].replace(found["by"], ""))
    elif found["decimal"]:
        value = Fraction(found["decimal"])
    else:
        above, below = int(found["above"] or found["top"]), int(found["below"] or found["bottom"])
        if not below:
            return None
        value = int(found["whole"] or 0) + Fraction(above, below)
    return (-value if found["sign"] == "-" else value), unit.casefold()


def _agree(a: Fraction, b: Fraction) -> bool:
    """Return whether two numbers are equal, to six decimal places and to six significant digits."""
    return a == b or (round(a, 6) == round(b, 6) and _six(a) == _six(b))


def _six(number: Fraction) -> str:
    return format(Decimal(number.numerator) / Decimal(number.denominator), ".5e")


def _without_mathematics(gold: str, answer: str) -> tuple[bool, Literal["number", "text"]] | None:
    """Return whether an answer is right and how that is known, None where it takes mathematics.

    Units are compared where one begins like the other; case does not matter in words.
    """
    wanted, given = _quantity(gold), _quantity(answer)
    if wanted is not None and given is not None:
        if not _agree(wanted[0], given[0]):
            return False, "number"
        if wanted[1].startswith(given[1]) or given[1].startswith(wanted[1]):
            return True, "number"
        return None
    if wanted is given is None and _plain(answer) == _plain(gold):
        return True, "text"
    words, said = _unwrapped(gold), _unwrapped(answer)
    if _WORDS.fullmatch(words) and _NO_MATHEMATICS.fullmatch(said) and not _FUNCTION.search(words):
        return said.casefold() == words.casefold(), "text"
    return None


def _plain(text: str) -> str:
    """Return a text without the space that means nothing."""
    spaced = _SPACES.sub(" ", text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    return _BETWEEN_WORDS.sub("\0", _alike(spaced)).replace(" ", "").strip("$").removesuffix(".")


def _unwrapped(text: str) -> str:
    r"""Return a text without commands such as `\text{…}`."""
    return _alike(_TEXT_COMMAND.sub(r" \1 ", text))


def _alike(text: str) -> str:
    """Return a text with one character for those that look alike, without a full stop and double space."""
    return " ".join(text.translate(_ALIKE).split()).removesuffix("$").removesuffix(".").rstrip()


# Is an answer right? The last `\boxed{…}` of its text against the query's reference.
#
# Three kinds of reference: a number, a mathematical answer as text (plain, LaTeX, GSM8K's "… #### N", or a
# solution that boxes it), and `{"tests": [[input, output], …]}` for a program. Numbers and words are decided
# here; other mathematics and programs go to `GradingPool`. The grader alone shifts accuracy, so its name and
# version go with every result.

GRADER = "boxed"
# Raise when a change could grade an answer differently.
GRADER_REVISION = 2
MAX_ANSWER = 4_000  # characters inside the box; longer is no answer

Judge = Callable[[str, str], Verdict]
"""Compares (gold, answer), both mathematics."""

Runner = Callable[[str, Tests], Verdict]
"""Runs a program on its tests."""

How = Literal["number", "text", "math-verify", "program", "no-box", "too-long"]


class BadReference(UniscaleError, ValueError):
    """A reference cannot be graded against. Give a number, a text, or {"tests": [[input, output], …]}."""


class Undecided(UniscaleError):
    """No exact rule grades this answer: ask a grading process, which takes time."""


@dataclass(frozen=True)
class Grade:
    """One graded answer: what was read from it, how it was decided, and by which grader."""

    correct: bool
    answer: str | None
    how: How
    grader: str = GRADER
    version: str = ""


@cache
def grader_version() -> str:
    """Return the version recorded with every result: ours and math-verify's."""
    return f"{GRADER_REVISION}+math-verify-{metadata.version('math-verify')}"


def run_here(program: str, tests: Tests) -> Verdict:
    """Run a program in this process: for tests of one's own; those of clients go to a `GradingPool`."""
    return Verdict(correct=passes(program, tests), how="program")


def ask_later(first: object, second: object) -> NoReturn:
    """Stand in for judge and runner where grading must not take time.

    Raises:
        Undecided: always.
    """
    raise Undecided("no exact rule decides; ask a grading process")


def grade(text: str, reference: object, *, judge: Judge, run: Runner = run_here) -> Grade:
    r"""Grade the text of an answer.

    Args:
        text: The whole path. Without a complete box there is no answer, and it is wrong.
        reference: What `Query.reference` holds.
        judge: Compares (gold, answer) where no exact rule decides; called at most once.
        run: Runs a program on its tests.

    Raises:
        BadReference: the reference is not one of the three kinds.
        UniscaleError: what `judge` or `run` raise.

    >>> from agents.answers import Verdict
    >>> no_need = lambda gold, answer: Verdict(False, "math-verify")
    >>> grade(r"12 + 5 = 17, so \boxed{017}", 17, judge=no_need).how
    'number'
    """
    reference = read_reference(reference)
    check_reference(reference)
    answer = extract_boxed(text)
    version = grader_version()
    if answer is None:
        return Grade(correct=False, answer=None, how="no-box", version=version)
    if len(answer) > MAX_ANSWER:
        return Grade(correct=False, answer=answer[:MAX_ANSWER], how="too-long", version=version)
    if isinstance(reference, Mapping):
        ran = run(answer, reference["tests"])
        return Grade(correct=ran.correct, answer=answer, how=ran.how, version=version)
    gold = gold_of(reference)
    if (known := _without_mathematics(gold, answer)) is not None:
        return Grade(correct=known[0], answer=answer, how=known[1], version=version)
    verdict = judge(gold, answer)
    return Grade(correct=verdict.correct, answer=answer, how=verdict.how, version=version)


def read_reference(reference: object) -> object:
    """Return the object in a reference that is JSON text with `tests`; any other as it is.

    Raises:
        BadReference: JSON that is nested too deeply to be read.

    >>> read_reference('{"tests": [["a", "b"]]}'), read_reference("{1, 2}")
    ({'tests': [['a', 'b']]}, '{1, 2}')
    """
    if not isinstance(reference, str) or not reference.lstrip().startswith("{"):
        return reference
    try:
        found = json.loads(reference)
    except RecursionError:
        raise BadReference("reference is JSON that is nested too deeply: send it flatter") from None
    except ValueError:
        return reference
    return found if isinstance(found, dict) and "tests" in found else reference


def gold_of(reference: object) -> str:
    r"""Return the answer in a reference: a number's digits, what follows GSM8K's ####, a box, or the text.

    >>> gold_of("He makes <<9*2=18>>18 dollars.\n#### 1,018"), gold_of(0.5), gold_of("$x+1$")
    ('1,018', '0.5', 'x+1')
    """
    # math-verify reads no powers of ten such as 1e-05.
    text = reference if isinstance(reference, str) else format(Decimal(repr(reference)), "f")
    if "####" in text:
        text = text.rpartition("####")[2]
    elif (boxed := extract_boxed(text)) is not None:
        text = boxed
    return text.strip().strip("$").strip()


def check_reference(reference: object) -> None:
    """Refuse a reference that could never be graded against.

    Raises:
        BadReference: naming what is wrong and what to give.
    """
    if isinstance(reference, Mapping):
        _check_tests(reference.get("tests"))
    elif isinstance(reference, bool) or not isinstance(reference, str | int | float):
        kind = type(reference).__name__
        raise BadReference(
            f'reference is a {kind}: give a number, a text, or {{"tests": [[input, output], …]}}'
        )
    elif not (gold := gold_of(reference)):
        raise BadReference("reference is an empty text: give the answer, or leave reference out")
    elif len(gold) > MAX_ANSWER:
        raise BadReference(f"reference is an answer of {len(gold)} characters: give at most {MAX_ANSWER}")
    elif reference != reference or reference in (float("inf"), float("-inf")):
        raise BadReference(f"reference is {reference}: give a finite number")


def _check_tests(tests: Any) -> None:
    if not isinstance(tests, list | tuple) or not tests:
        raise BadReference("reference.tests must be a list of at least one [input, output] pair")
    if len(tests) > MAX_TESTS:
        raise BadReference(f"reference.tests holds {len(tests)} tests: give at most {MAX_TESTS}")
    for index, pair in enumerate(tests):
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_value, pair))):
            raise BadReference(
                f"reference.tests[{index}] must be an [input, output] pair of texts or lists of whole numbers"
            )


def _is_value(value: Value | object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return isinstance(value, str)
