"""Word problems of five levels and a contest set, each told from the state of a world."""
# ruff: noqa: E501, SIM905 - tables of words

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from experiments.mini.tasks.places import Sizes
from experiments.mini.tasks.possessions import possession
from experiments.mini.tasks.problem import Problem
from experiments.mini.tasks.telling import SLOT, Ask, Line, Story, choose, finished, say, spoken
from experiments.mini.tasks.words import BOXES, COLORS, THINGS, forms, person
from experiments.mini.tasks.world import Impossible, World

LEVELS = ("level_1", "level_2", "level_3", "level_4", "level_5", "contest", "spoken")
MONEY = ("$",) * 6 + ("dollars", "dollars", "€", "£", "euros", "coins")
FOLK = "children friends kids people students cousins neighbors players classmates boys girls".split()
VEHICLES = "a car;a train;a bus;a truck;a bike;a boat;a plane;the van;a ship;a scooter".split(";")
HALLS = "a theater;a cinema;the hall;a classroom;the stadium;a church;the circus tent".split(";")
DISHES = "cake pie pizza omelet tart loaf salad".split()
MASSES = "pounds kilos grams kg ounces".split()
IDLE = """{A} ~be {n} years old|the shop opens at {n} o'clock|{he} ~live at number {n}|it takes {n} minutes to get there|a ticket
costs ${n}|the box weighs {n} pounds|{B} ^be {n} years old|there are {n} people in the shop|{his} street has {n} houses|{he} ~wait
for {n} minutes|the table is {n} feet long|{B} ^have {n} pens|the school has {n} teachers|it is {n} degrees outside|{his} bag weighs
{n} kg|the bus has {n} seats|{B} ^read {n} pages|{his} phone costs ${n}|{he} ~see {n} cars on the street""".replace(
    "\n", " "
).split("|")
# Stories with a number that their question does not need; long ones are rarely without, and are not waited for.
IDLE_SHARE, WAITS, WAITS_LONG = 0.45, 8, 1


@dataclass(frozen=True)
class Difficulty:
    """Calculations of a derivation (least, most), sizes of numbers by class, and how a possession is built."""

    calcs: tuple[int, int]
    small: tuple[int, int]
    middle: tuple[int, int]
    chains: tuple[int, ...]
    events: tuple[int, int]
    limit: int


DIFFICULTY = {
    "level_1": Difficulty((1, 1), (2, 9), (3, 30), (1, 1, 2), (1, 1), 100),
    "level_2": Difficulty((1, 2), (2, 10), (4, 100), (1, 1, 2, 2), (1, 2), 1_000),
    "level_3": Difficulty((2, 3), (2, 12), (5, 200), (1, 2, 2, 3), (2, 3), 2_000),
    "level_4": Difficulty((3, 4), (2, 12), (8, 200), (2, 2, 3), (3, 5), 4_000),
    "level_5": Difficulty((4, 6), (3, 20), (10, 400), (2, 3, 4), (4, 6), 9_999),
    "spoken": Difficulty((1, 2), (2, 12), (3, 99), (1, 1, 2), (1, 2), 2_000),
    "contest": Difficulty((6, 9), (4, 40), (15, 999), (2, 3, 4), (6, 9), 99_999),
}


@dataclass(frozen=True)
class Scene:
    """One block of scenes.txt: what is drawn, what follows, clauses (mark, texts, untold texts), and questions."""

    draws: tuple[tuple[str, str], ...]
    relations: tuple[str, ...]
    lines: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]], ...]
    asks: tuple[tuple[str, tuple[str, ...]], ...]


@cache
def scenes(file: str = "scenes.txt") -> tuple[Scene, ...]:
    """Return the scenes written in a file beside this one; `spoken` draws from more_scenes.txt too."""
    return tuple(_parsed((Path(__file__).parent / file).read_text()))


def _parsed(text: str) -> Iterator[Scene]:
    for block in re.split(r"^\[", text, flags=re.MULTILINE)[1:]:
        head, *rest = block.strip().split("\n")
        parts = [part.split("=", 1) for part in head.split()[1:]]
        relations = tuple(
            f"{key}={how}" for key, how in parts if re.search(r"[a-z]\w*[-+*/]|[-+*/][a-z]", how)
        )
        draws = tuple((key, how) for key, how in parts if f"{key}={how}" not in relations)
        lines: list[tuple[str, tuple[str, ...], list[tuple[str, tuple[str, ...]]]]] = []
        asks = []
        for row in rest:
            mark, _, body = row.partition(" ")
            if mark in "-*+":
                lines.append((mark, _alternatives(body), []))
                continue
            key, _, body = body.partition(":")
            if mark == "_":
                lines[-1][2].append((key, _alternatives(body)))
            else:
                asks.append((key, _alternatives(body)))
        yield Scene(draws, relations, tuple((m, t, tuple(u)) for m, t, u in lines), tuple(asks))


def _alternatives(body: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in body.split(" | "))


def story_problem(level: str, rng: Random) -> Problem:
    """Draw one problem of a level.

    Raises:
        ValueError: when there is no such level.
    """
    if level not in DIFFICULTY:
        raise ValueError(f"no level {level!r} of stories; there are {LEVELS}")
    difficulty = DIFFICULTY[level]
    lo, hi = difficulty.calcs
    idle, waited = rng.random() < IDLE_SHARE, 0
    while True:
        try:
            if rng.random() < (
                0.25 if level == "spoken" else 0.5 if hi <= 3 else 0.7 if hi <= 4 else 0.85 if hi <= 6 else 1
            ):
                sizes = Sizes(difficulty.middle, difficulty.middle, difficulty.small, difficulty.limit)
                story = possession(rng, sizes, rng.choice(difficulty.chains), rng.randint(*difficulty.events))
            else:
                more = level == "spoken" and rng.random() < 0.7
                story = scene_story(rng, difficulty, "more_scenes.txt" if more else "scenes.txt")
        except Impossible:
            continue
        if idle and rng.random() < 0.5:
            _add_idle(story, rng)
        story.money = rng.choice(MONEY)
        told = choose(story, lo, hi, rng)
        if told is None:
            continue
        waited += 1
        if told.idle == idle or waited > (WAITS if hi <= 3 else WAITS_LONG):
            problem = finished("stories", level, story, told, rng)
            return problem if level != "spoken" else replace(problem, question=spoken(problem.question, rng))


def scene_story(rng: Random, difficulty: Difficulty, file: str = "scenes.txt") -> Story:
    """Return a story of a drawn scene.

    Raises:
        Impossible: when the numbers do not work out; draw again.
    """
    scene = rng.choice(scenes(file))
    taken: set[str] = set()
    people = {"A": person(rng, taken), "B": person(rng, taken, plain=True)}
    words = _scene_words(rng, taken)
    past = rng.random() < 0.3
    story = Story(World(difficulty.limit))
    for key, size in scene.draws:
        if size in "SM":
            lo, hi = difficulty.small if size == "S" else difficulty.middle
        else:
            lo, hi = (int(end) for end in size.split("-"))
        story.world.given(key, rng.randint(lo, hi), key if len(key) > 2 else " ")
    waiting = list(scene.relations)
    while waiting:
        ready = [each for each in waiting if all(k in story.world.values for k in _needs(each))]
        if not ready:
            raise ValueError(f"{file}: nothing gives what {waiting} need")
        for each in ready:
            story.world.follows(each, words_of(each))
        waiting = [each for each in waiting if each not in ready]
    fill = {**words, **story.world.values}

    def line(text: str) -> Line:
        # A pronoun stands for somebody who was named before.
        if not any(people["A"].name in each.text or people["A"].his == "my" for each in story.lines):
            text = text.replace("{he}", "{A}").replace("{his}", "{As}").replace("{him}", "{A}")
        keys = tuple(key for key in SLOT.findall(text) if key in story.world.values)
        return Line(say(text, people, fill, past), keys)

    extra = rng.choice((0.0, 0.4, 1.0))
    for mark, texts, untold in scene.lines:
        told = line(rng.choice(texts))
        hidden = {key: line(rng.choice(others)) for key, others in untold}
        if mark == "+":
            story.endings.append(told)
        elif mark == "-" or rng.random() < extra:
            story.lines.append(Line(told.text, told.keys, hidden))
    for key, asks in scene.asks:
        for text in asks:
            asked = line(text)
            story.asks.setdefault(key, []).append(Ask(asked.text, asked.keys))
    return story


def words_of(relation: str) -> str:
    """Return the label of what a relation gives: the words of its key.

    >>> words_of("cost=n*p"), words_of("ab=a+b")
    ('cost', 'together')
    """
    key = relation.partition("=")[0]
    if len(key) > 2:
        return key
    sign = re.search(r"[-+*/]", relation.partition("=")[2])
    return {"+": "together", "-": "difference", "*": "product", "/": "share"}[sign[0]] if sign else key


def _needs(relation: str) -> list[str]:
    return [part for part in re.split(r"[-+*/]", relation.partition("=")[2]) if not part.isdigit()]


def _scene_words(rng: Random, taken: set[str]) -> dict[str, object]:
    category = rng.choice(("food", "food", "toy", "tool", "tool", "plant"))
    x, y = rng.sample(THINGS[category], 2)
    one, several = rng.sample(COLORS[:6], 2)
    animal, animal2 = rng.sample(THINGS["animal"], 2)
    boxes = forms(rng.choice(BOXES))
    return {
        "x": forms(x)[1], "x1": forms(x)[0], "y": forms(y)[1], "box": boxes[0], "boxes": boxes[1],
        "color": one, "color2": several, "folk": rng.choice(FOLK), "veh": rng.choice(VEHICLES),
        "hall": rng.choice(HALLS), "dish": rng.choice(DISHES), "mass": rng.choice(MASSES),
        "animals": forms(animal)[1], "animals2": forms(animal2)[1], "C": person(rng, taken, plain=True).name,
    }  # fmt: skip


def _add_idle(story: Story, rng: Random) -> None:
    """Add a sentence whose number nothing depends on, anywhere after the first."""
    taken: set[str] = set()
    people = {"A": person(rng, taken, plain=True), "B": person(rng, taken, plain=True)}
    frame = rng.choice(IDLE)
    text = say(frame, people, {"n": rng.randint(2, 60)}, rng.random() < 0.4)
    # Another person in between would take the next pronoun.
    first = len(story.lines) if "{" in frame.replace("{n}", "") else min(1, len(story.lines))
    story.lines.insert(rng.randint(first, len(story.lines)), Line(text))
