"""Mini-math: seeded multi-step word problems with step-by-step reference solutions.

A problem is drawn from (task, level, split, seed, index) alone, so the same call gives the same bytes. Which split a
question may appear in is decided by the hash of its text: training, validation, test and recording are disjoint by
construction, for every seed, and a draw that falls into another split is simply drawn again.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from experiments.mini.stories import NAMES, STORIES, Event, Story

DELIMITER = "\n\n"
LEVELS = ("level_1", "level_2", "level_3", "level_4", "level_5")
CONTEST = "contest"
SPLITS = ("train", "validation", "test", "record")
# Of 100 hash buckets: 0-84 train, 85-89 validation, 90-94 test, 95-99 record.
_SPLIT_ENDS = (85, 90, 95, 100)
ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh")


@dataclass(frozen=True)
class Problem:
    """One question with its reference: `steps` end in a blank line but for the last, which holds the boxed answer."""

    task: str
    level: str
    question: str
    steps: tuple[str, ...]
    answer: str

    @property
    def solution(self) -> str:
        """The steps as one text."""
        return "".join(self.steps)


@dataclass(frozen=True)
class Operation:
    """value `sign` operand = result, told by one sentence; `factor` is the k of a pack (k × operand first)."""

    sign: str
    operand: int
    result: int
    label: str
    sentence: str
    product: int | None = None
    factor: int | None = None


@dataclass(frozen=True)
class Difficulty:
    """What a level may contain. Numbers are inclusive; `limit` bounds every intermediate value."""

    operations: tuple[int, int]
    signs: str
    start: tuple[int, int]
    operand: tuple[int, int]
    limit: int
    factor: tuple[int, int] = (2, 5)
    wide_factor: tuple[int, int] = (11, 11)
    wide_share: float = 0.0
    distractors: tuple[int, int] = (0, 0)
    shuffled: float = 0.0


DIFFICULTY = {
    "level_1": Difficulty((1, 2), "+-", (3, 20), (2, 12), 40),
    "level_2": Difficulty((2, 3), "+-", (11, 60), (6, 40), 120),
    "level_3": Difficulty((3, 3), "+-*", (8, 60), (6, 60), 250, factor=(2, 4)),
    "level_4": Difficulty((3, 4), "+-*/p", (12, 90), (11, 90), 500, factor=(2, 6), distractors=(0, 1)),
    "level_5": Difficulty(
        (4, 5), "+-*/p", (20, 150), (15, 150), 999, (2, 9), (11, 25), 0.2, distractors=(1, 1), shuffled=0.5
    ),
    "contest": Difficulty(
        (5, 6), "+-*/p", (30, 300), (21, 300), 4000, (3, 9), (11, 39), 0.4, distractors=(1, 2), shuffled=1.0
    ),
}


def split_of(question: str) -> str:
    """Return the split a question text belongs to, from its SHA-256.

    >>> split_of("How many apples?") in SPLITS
    True
    """
    bucket = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 100
    return next(split for split, end in zip(SPLITS, _SPLIT_ENDS, strict=True) if bucket < end)


def seeded(*parts: object) -> Random:
    """Return a generator whose state depends on the parts alone."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return Random(int.from_bytes(digest[:8], "big"))


def draw_in_split(draw: Callable[[Random], Problem], split: str, *identity: object) -> Problem:
    """Draw with a generator seeded by the identity until the question falls into the split."""
    rng = seeded(split, *identity)
    while True:
        problem = draw(rng)
        if split_of(problem.question) == split:
            return problem


def math_problems(level: str, split: str, seed: int) -> Iterator[Problem]:
    """Yield distinct mini-math problems of one level and split, for ever (small levels repeat once exhausted).

    Raises:
        ValueError: when the level or split is unknown.
    """
    if level not in DIFFICULTY or split not in SPLITS:
        raise ValueError(
            f"no mini-math level {level!r} in split {split!r}; levels {list(DIFFICULTY)}, splits {SPLITS}"
        )
    index = 0
    while True:
        yield draw_in_split(lambda rng: draw_math(level, rng), split, "math", level, seed, index)
        index += 1


def draw_math(level: str, rng: Random) -> Problem:
    """Draw one problem of a level."""
    difficulty = DIFFICULTY[level]
    story = rng.choice(STORIES)
    who, thing = rng.choice(NAMES), rng.choice(story.things)
    operations: list[Operation] = []
    while not operations:
        start = rng.randint(*difficulty.start)
        operations = _chain(start, story, who, thing, difficulty, rng)
    opening = rng.choice(story.opening).format(who=who, thing=thing, n=start)
    question = rng.choice(story.question).format(who=who, thing=thing)
    return _tell(level, opening, operations, question, story, who, thing, rng)


def _chain(
    start: int, story: Story, who: str, thing: str, difficulty: Difficulty, rng: Random
) -> list[Operation]:
    """Draw operations one after another; an empty list when the start leads nowhere."""
    count = rng.randint(*difficulty.operations)
    operations: list[Operation] = []
    value, steps, used = start, 0, set[str]()
    for _ in range(60):
        if steps == count:
            return operations
        sign = rng.choice(difficulty.signs)
        if sign == "p" and steps + 2 > count:
            continue
        drawn = _operation(sign, value, story, who, thing, difficulty, rng)
        if drawn is None or drawn.label in used:
            continue
        used.add(drawn.label)
        operations.append(drawn)
        value = drawn.result
        steps += 1 if drawn.product is None else 2
    return []


def _operation(
    sign: str, value: int, story: Story, who: str, thing: str, difficulty: Difficulty, rng: Random
) -> Operation | None:
    def told(events: tuple[Event, ...], n: int, k: int = 0) -> tuple[str, str]:
        event = rng.choice(events)
        box = rng.choice(story.boxes)
        return event.label, rng.choice(event.wordings).format(who=who, thing=thing, n=n, k=k, box=box)

    operand = rng.randint(*difficulty.operand)
    wide = rng.random() < difficulty.wide_share
    factor = rng.randint(*(difficulty.wide_factor if wide else difficulty.factor))
    match sign:
        case "+" if value + operand <= difficulty.limit:
            return Operation("+", operand, value + operand, *told(story.plus, operand))
        case "-" if value - operand >= 1:
            return Operation("-", operand, value - operand, *told(story.minus, operand))
        case "*" if value * factor <= difficulty.limit:
            return Operation("*", factor, value * factor, *told(story.times, factor))
        case "/" if value % factor == 0 and value // factor >= 2 and factor < 10:
            return Operation("/", factor, value // factor, *told(story.share, factor))
        case "p":
            each = rng.randint(3, max(4, difficulty.operand[1] // 4))
            product = factor * each
            if value + product <= difficulty.limit:
                label, sentence = told(story.packs, each, factor)
                return Operation("+", product, value + product, label, sentence, product, factor)
    return None


def _tell(
    level: str,
    opening: str,
    operations: list[Operation],
    question: str,
    story: Story,
    who: str,
    thing: str,
    rng: Random,
) -> Problem:
    difficulty = DIFFICULTY[level]
    shuffled = len(operations) > 2 and rng.random() < difficulty.shuffled
    sentences = [op.sentence for op in operations]
    if shuffled:
        sentences = [f"{ORDINALS[i]}: {text}" for i, text in enumerate(sentences)]
        rng.shuffle(sentences)
    sentences.insert(0, opening)
    for text in rng.sample(story.distractors, rng.randint(*difficulty.distractors)):
        sentences.insert(
            rng.randint(1, len(sentences)), text.format(who=who, thing=thing, n=rng.randint(5, 90))
        )
    value = _start_of(operations)
    steps = []
    for op in operations:
        if op.product is not None and op.factor is not None:
            steps.append(f"{op.label}: {op.factor}*{op.product // op.factor}={op.product}{DELIMITER}")
        steps.append(f"{op.label}: {value}{op.sign}{op.operand}={op.result}{DELIMITER}")
        value = op.result
    steps.append(f"\\boxed{{{value}}}")
    return Problem("math", level, " ".join([*sentences, question]), tuple(steps), str(value))


def _start_of(operations: list[Operation]) -> int:
    first = operations[0]
    match first.sign:
        case "+":
            return first.result - first.operand
        case "-":
            return first.result + first.operand
        case "*":
            return first.result // first.operand
        case _:
            return first.result * first.operand
