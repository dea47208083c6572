"""Procedures of naturally varying length: Euclid, long division, an expression, a walk on a tree of rooms.

Each has several valid routes: the order and the kind of the moves are drawn, the answer is one.
"""
# ruff: noqa: E501 - wordings

from random import Random

from experiments.mini.tasks.problem import DELIMITER, Problem, boxed

LEVELS = ("procedure_1", "procedure_2", "procedure_3")


def procedure_problem(level: str, rng: Random) -> Problem:
    """Draw one procedure of a level from 1 to 3: how large its numbers, expressions and houses are."""
    size = int(level[-1])
    make = rng.choice((_euclid, _division, _expression, _walk))
    question, steps, answer = make(size, rng)
    return Problem(
        "procedures", level, question, (*(step + DELIMITER for step in steps), boxed(answer)), answer
    )


def _euclid(size: int, rng: Random) -> tuple[str, list[str], str]:
    common = rng.randint(1, (9, 15, 30)[size - 1])
    a, b = (common * rng.randint(2, (9, 20, 33)[size - 1]) for _ in range(2))
    asked = rng.choice(("the greatest common divisor of {} and {}", "the gcd of {} and {}", "the largest number that divides both {} and {}",
                        "the greatest common factor of {} and {}"))  # fmt: skip
    question = f"{rng.choice(('What is', 'Find', 'Calculate', 'Tell me'))} {asked.format(a, b)}{rng.choice(('?', '.', ''))}"
    steps = []
    a, b = max(a, b), min(a, b)
    by_remainder = rng.random() < 0.6
    while b:
        if by_remainder and a // b > 1:
            steps += [f"{a // b}*{b}={a // b * b}", f"{a}-{a // b * b}={a % b}"]
            a, b = b, a % b
        else:
            steps.append(f"{a}-{b}={a - b}")
            a, b = max(b, a - b), min(b, a - b)
    return question, [*steps, f"0 is left, so {a}"], str(a)


def _division(size: int, rng: Random) -> tuple[str, list[str], str]:
    divisor = rng.randint(2, 9)
    whole = divisor * rng.randint(*((11, 99), (101, 999), (1001, 9999))[size - 1])
    remainder = rng.randint(0, divisor - 1) if rng.random() < 0.35 else 0
    number = whole + remainder
    digits, steps, carried, shown = str(number), [], 0, ""
    start = 0
    while start + 1 < len(digits) and int(digits[: start + 1]) < divisor:
        start += 1
    carried = int(digits[:start] or 0)
    for digit in digits[start:]:
        part = carried * 10 + int(digit)
        here, carried = part // divisor, part % divisor
        shown += str(here)
        steps.append(f"{part}: {here}*{divisor}={here * divisor}, left {carried}")
    if remainder:
        wanted = rng.random() < 0.5
        asked = (
            "What is the remainder of {} divided by {}?"
            if wanted
            else "How many whole times does {1} go into {0}?"
        )
        return (
            asked.format(number, divisor),
            [*steps, f"{shown} left {carried}"],
            str(carried) if wanted else shown,
        )
    question = rng.choice(
        ("Divide {} by {} step by step.", "Do the long division {} / {}.", "Long division: {} by {}?")
    )
    return question.format(number, divisor), [*steps, shown], shown


def _expression(size: int, rng: Random) -> tuple[str, list[str], str]:
    """Reduce one innermost pair of numbers a step, chosen at random among those that may go first."""
    text = _grown(rng, rng.randint(*((2, 3), (4, 5), (6, 9))[size - 1]))
    question = rng.choice(
        ("Simplify {}", "What is {}?", "Reduce {} step by step.", "Evaluate {}.", "Work out {}")
    ).format(_shown(text))
    steps = []
    while not isinstance(text, int):
        text = _reduced(text, rng)
        steps.append(_shown(text))
    return question, steps, str(text)


Tree = int | tuple["Tree", str, "Tree"]


def _grown(rng: Random, count: int) -> Tree:
    """Return a tree of `count` operations whose every value is from 0 to 999."""
    while True:
        tree = _branch(rng, count)
        value = _value(tree)
        if value is not None and value <= 999:
            return tree


def _branch(rng: Random, count: int) -> Tree:
    if count == 0:
        return rng.randint(1, 20)
    left = rng.randint(0, count - 1)
    return _branch(rng, left), rng.choice("++--*"), _branch(rng, count - 1 - left)


def _value(tree: Tree) -> int | None:
    if isinstance(tree, int):
        return tree
    a, b = _value(tree[0]), _value(tree[2])
    if a is None or b is None or (tree[1] == "-" and a < b):
        return None
    value = {"+": a + b, "-": a - b, "*": a * b}[tree[1]]
    return value if value <= 999 and (tree[1] != "*" or min(a, b) <= 12) else None


def _shown(tree: Tree) -> str:
    if isinstance(tree, int):
        return str(tree)
    parts = []
    for side, child in (("left", tree[0]), ("right", tree[2])):
        text = _shown(child)
        if not isinstance(child, int):
            loose = (
                tree[1] == "+" or (tree[1] == "-" and side == "left") or (tree[1] == "-" and child[1] == "*")
            )
            tight = tree[1] == "*" and side == "left" and child[1] == "*"
            text = text if loose or tight else f"({text})"
        parts.append(text)
    return tree[1].join(parts)


def _reduced(tree: Tree, rng: Random) -> Tree:
    places = list(_ready(tree, ()))
    return _replaced(tree, rng.choice(places))


def _ready(tree: Tree, path: tuple[int, ...]) -> list[tuple[int, ...]]:
    if isinstance(tree, int):
        return []
    if isinstance(tree[0], int) and isinstance(tree[2], int):
        return [path]
    return [*_ready(tree[0], (*path, 0)), *_ready(tree[2], (*path, 2))]


def _replaced(tree: Tree, path: tuple[int, ...]) -> Tree:
    assert not isinstance(tree, int)
    if not path:
        value = _value(tree)
        assert value is not None
        return value
    left = _replaced(tree[0], path[1:]) if path[0] == 0 else tree[0]
    right = _replaced(tree[2], path[1:]) if path[0] == 2 else tree[2]
    return left, tree[1], right


def _walk(size: int, rng: Random) -> tuple[str, list[str], str]:
    """Find the way between two rooms of a house without circles, going back from dead ends."""
    rooms = rng.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ", rng.randint(*((4, 5), (6, 8), (9, 12))[size - 1]))
    doors: dict[str, list[str]] = {room: [] for room in rooms}
    for i, room in enumerate(rooms[1:], start=1):
        other = rooms[rng.randint(max(0, i - 3), i - 1)]
        doors[room].append(other)
        doors[other].append(room)
    pairs = [(a, b) for a in rooms for b in doors[a] if a < b]
    rng.shuffle(pairs)
    start, goal = rooms[0], rooms[-1]
    listed = " ".join(f"{a}-{b}" if rng.random() < 0.5 else f"{b}-{a}" for a, b in pairs)
    question = rng.choice((f"Doors: {listed}. How do I get from {start} to {goal}?", f"Find the way from {start} to {goal}. Doors: {listed}.",
                           f"Rooms are joined like this: {listed}. What is the way from {start} to {goal}?"))  # fmt: skip
    steps, path, seen = [], [start], {start}
    while path[-1] != goal:
        open_ = [room for room in doors[path[-1]] if room not in seen]
        if open_:
            path.append(rng.choice(open_))
            seen.add(path[-1])
            steps.append(f"go {path[-2]}-{path[-1]}")
        else:
            steps.append(f"{path.pop()} is a dead end, back to {path[-1]}")
    return question, steps, "-".join(path)
