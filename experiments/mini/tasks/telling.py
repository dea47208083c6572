"""From a world to a question: which sentences are told, what is asked, and how the words are put together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from experiments.mini.tasks.problem import Problem
from experiments.mini.tasks.styles import Calc, written
from experiments.mini.tasks.words import NUMBER_WORDS, Person, in_words, verb
from experiments.mini.tasks.world import World

SLOT = re.compile(r"\{(\w+)\}")
VERB = re.compile(r"([~^])([a-z]+(?:\+[a-z]+)*)")
OBJECT = re.compile(r"\b(to|from|gave|gives?|among|between|for|of|by|with|leaves) (I|we)\b")
QUESTION_WORDS = ("how", "what", "when", "which", "who")


@dataclass(frozen=True)
class Line:
    """One clause, the keys it tells, and how it reads when one of its numbers is not told ("" leaves it out)."""

    text: str
    keys: tuple[str, ...] = ()
    untold: Mapping[str, "Line"] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """One question about a quantity; its own words may tell others."""

    text: str
    keys: tuple[str, ...] = ()


@dataclass
class Story:
    """A world with the clauses that tell it, those told only when they are needed, and questions by what they ask."""

    world: World
    lines: list[Line] = field(default_factory=list)
    endings: list[Line] = field(default_factory=list)
    asks: dict[str, list[Ask]] = field(default_factory=dict)
    money: str = "$"


@dataclass(frozen=True)
class Told:
    """A story with one question chosen: clauses, question, what is told, and the derivation."""

    clauses: tuple[str, ...]
    ask: str
    target: str
    calcs: tuple[Calc, ...]
    facts: tuple[str, ...]
    idle: bool


def choose(story: Story, lo: int, hi: int, rng: Random) -> Told | None:
    """Choose a question whose derivation takes `lo` to `hi` calculations; None when this world has none."""
    targets = list(story.asks)
    rng.shuffle(targets)
    for target in targets:
        ask = rng.choice(story.asks[target])
        for telling in _tellings(story, target, rng):
            told = {key for line in telling for key in line.keys} | {*ask.keys}
            calcs = story.world.derive(told, target)
            if calcs and lo <= len(calcs) <= hi:
                clauses = [line.text for line in telling]
                used = {number for calc in calcs for number in (calc.a, calc.b)}
                facts = [
                    line.text.strip() for line in telling
                    if any(story.world.values[key] in used for key in line.keys)
                ]  # fmt: skip
                return Told(
                    tuple(clauses), ask.text, target, tuple(calcs), tuple(facts), _idle(clauses, calcs)
                )
    return None


def _idle(clauses: Sequence[str], calcs: Sequence[Calc]) -> bool:
    """Say whether a told number takes no part in the calculations."""
    used = {number for calc in calcs for number in (calc.a, calc.b)}
    return any(int(number) not in used for clause in clauses for number in re.findall(r"\d+", clause))


def _tellings(story: Story, target: str, rng: Random) -> list[list[Line]]:
    """Return the clauses without the target's number: plain, and with endings told until they lead to it."""
    lines = [line.untold.get(target) if target in line.keys else line for line in story.lines]
    if any(line is None for line in lines):
        return []
    kept = [line for line in lines if line is not None and line.text]
    tellings = [kept]
    endings = [line for line in story.endings if target not in line.keys]
    rng.shuffle(endings)
    for count in range(1, len(endings) + 1):
        tellings.append(kept + endings[:count])
    return tellings


def say(text: str, people: Mapping[str, Person], words: Mapping[str, object], past: bool) -> str:
    """Fill a template: {A} {he} {him} {his} of the first person, {B} … of the second, ~verb of A and ^verb of B.

    After `do` (asked with ~do … ) the verb stands plain and is written without a mark.
    """
    first, second = people["A"], people.get("B", people["A"])
    filled = {
        "A": first.name, "he": first.he, "him": first.him, "his": first.his, "As": possessive(first),
        "B": second.name, "he2": second.he, "him2": second.him, "his2": second.his, "Bs": possessive(second),
        **words,
    }  # fmt: skip
    text = VERB.sub(lambda m: verb(m[2], first if m[1] == "~" else second, past), text)
    text = SLOT.sub(lambda m: str(filled[m[1]]), text)
    return OBJECT.sub(lambda m: f"{m[1]} {'me' if m[2] == 'I' else 'us'}", text)


def possessive(who: Person) -> str:
    """Return "Tom's", "my" or "the twins'"."""
    if who.name in ("I", "we"):
        return who.his
    return who.name + ("'" if who.name.endswith("s") and who.plural else "'s")


def compose(clauses: Sequence[str], ask: str, money: str, rng: Random) -> str:
    """Join clauses and the question into one text, in one of the many ways people type."""
    clauses = [clause.strip() for clause in clauses]
    if not clauses:
        return _ended(ask)
    if len(clauses) <= 2 and rng.random() < 0.15:
        text = f"if {' and '.join(clauses)}, {_lowered(ask)}"
        text = text if rng.random() < 0.7 else f"{_lowered(ask)} if {' and '.join(clauses)}"
        return polished(_ended(text), money, rng)
    if len(clauses) == 1 and rng.random() < 0.08:
        return polished(f"{_ended(ask)} {_capital(clauses[0])}.", money, rng)
    sentences = [clauses[0]]
    for clause in clauses[1:]:
        chance = rng.random()
        short = len(sentences[-1]) + len(clause) < 90
        if short and chance < 0.14:
            sentences[-1] += f" and {clause}"
        elif short and chance < 0.20:
            sentences[-1] += f", then {clause}" if not clause.startswith(("then", "later")) else f", {clause}"
        elif short and chance < 0.24:
            sentences[-1] += f", {rng.choice(('and', 'but', 'so'))} {clause}"
        else:
            sentences.append(clause)
    text = " ".join(_capital(sentence) + "." for sentence in sentences)
    return polished(f"{text} {_ended(_capital(ask))}", money, rng)


def polished(text: str, money: str, rng: Random) -> str:
    """Write the money sign, some small numbers as words, and now and then all in small letters."""
    text = re.sub(r"\bi\b", "I", text)
    text = re.sub(r"\b1 (one|more)\b", r"1 \1", text)
    if money != "$":
        word = {"€": None, "£": None}.get(money, money)
        text = re.sub(r"\$(\d+)", rf"{money}\1" if word is None else rf"\1 {word}", text)
    if rng.random() < 0.10:
        text = re.sub(
            r"(?<![\d$€£.])\b(\d|1[0-2])\b(?![\d%.,:]\d|%)", lambda m: NUMBER_WORDS[int(m[1])], text
        )
    text = re.sub(r"(^|[.?!] )([a-z])", lambda m: m[1] + m[2].upper(), text)
    if rng.random() < 0.05:
        text = text.lower()
    if text.endswith("?") and rng.random() < 0.03:
        text = text[:-1]
    return text


GREETINGS = (
    "hi, ",
    "hello! ",
    "hey, ",
    "ok ",
    "please help: ",
    "next one: ",
    "question: ",
    "a riddle: ",
    "so, ",
    "quick, ",
)
THANKS = (
    " thanks",
    " please",
    " thank you",
    "?",
    "??",
    " quickly please",
    " just the number",
    " can you tell me?",
)


def spoken(text: str, rng: Random) -> str:
    """Write a question as somebody talks: numbers in words more often, a greeting, thanks, or no capitals.

    >>> spoken("Ann has 45 pens. How many?", Random(0))
    'Ann has forty-five pens. How many?'
    """
    share = rng.choice((0.0, 0.0, 0.6, 1.0))
    text = re.sub(
        r"(?<![\d$€£.,])\b\d{1,3}\b(?![\d%]|[.,]\d)",
        lambda m: _loose(in_words(int(m[0])), rng) if rng.random() < share else m[0],
        text,
    )
    if rng.random() < 0.1:
        text = rng.choice(GREETINGS) + text[:1].lower() + text[1:]
    if rng.random() < 0.1:
        text = text.rstrip("?") + rng.choice(THANKS)
    return re.sub(r"(^|[.?!] )([a-z])", lambda m: m[1] + m[2].upper(), text) if rng.random() < 0.7 else text


def _loose(words: str, rng: Random) -> str:
    chance = rng.random()
    words = words.replace("-", " ") if chance < 0.25 else words
    return words.replace("hundred ", "hundred and ") if chance > 0.5 else words


def finished(family: str, level: str, story: Story, told: Told, rng: Random) -> Problem:
    """Return the whole problem of a story with its question chosen."""
    question = compose(told.clauses, told.ask, story.money, rng)
    answer = story.world.values[told.target]
    facts = [re.sub(r"\$(\d+)", r"\1", fact) for fact in told.facts]
    return written(family, level, question, told.calcs, facts, answer, rng)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:] if text.lower().startswith(QUESTION_WORDS) else text


def _ended(text: str) -> str:
    return text if text.endswith(("?", ".")) else text + "?"
