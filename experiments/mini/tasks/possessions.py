"""Who has how many of what: owners, kinds of things, and what happens to them."""
# ruff: noqa: E501, SIM905 - tables of words

from random import Random

from experiments.mini.tasks.frames import ASK_END, ASK_GAINED, ASK_START, ENDS, MORE, STARTS, TOGETHER
from experiments.mini.tasks.places import Sizes, place
from experiments.mini.tasks.telling import Ask, Line, Story, say
from experiments.mini.tasks.words import (
    BOXES,
    COLORS,
    GAIN,
    LOSS,
    THINGS,
    WHEN,
    WHERE,
    Person,
    forms,
    person,
    verb,
)  # fmt: skip
from experiments.mini.tasks.world import Impossible, World


def possession(rng: Random, sizes: Sizes, chains: int, events: int) -> Story:
    """Return a story of `chains` (owner, kind) pairs with about `events` events in all.

    Raises:
        Impossible: when the numbers do not work out; draw again.
    """
    if chains == 1 and rng.random() < 0.2:
        return place(rng, sizes, events)
    taken: set[str] = set()
    people = {"A": person(rng, taken), "B": person(rng, taken, plain=True)}
    category = rng.choice(("food", "food", "toy", "toy", "tool", "tool", "plant", "animal"))
    kinds = _kinds(rng, category)
    past = rng.random() < 0.55
    two_owners = chains > 1 and rng.random() < 0.6
    pairs = [("A", 0)] if chains == 1 else [("A", 0), ("B", 0)] if two_owners else [("A", 0), ("A", 1)]
    if chains > 2:
        pairs = [("A", 0), ("A", 1), ("B", 0), ("B", 1)][:chains]
    story = Story(World(sizes.limit))
    now: dict[tuple[str, int], str] = {}
    only_gains = dict.fromkeys(pairs, True)
    for i, (owner, kind) in enumerate(pairs):
        key = f"{owner}{kind}_0"
        words = {"x": kinds[kind], "box": forms(rng.choice(BOXES))[0]}
        whose = {"A": people[owner], "B": people["A" if owner == "B" else "B"]}
        label = _label(people, kinds, owner, kind, pairs)
        if i and rng.random() < 0.35:
            _compared(story, rng, sizes, whose, words, key, now[pairs[0]], pairs, (owner, kind), kinds, past)
            story.world.labels[key] = label
        else:
            story.world.given(key, rng.randint(*sizes.start), label)
            text = rng.choice(STARTS)
            fill = {**words, "n": story.world.values[key]}
            story.lines.append(
                Line(
                    say(text, whose, fill, past),
                    (key,),
                    {key: Line(say("{A} ~have some {x}", whose, words, past))},
                )
            )
        now[owner, kind] = key
    last = pairs[-1]
    for number in range(events):
        pair = rng.choice(pairs)
        whose = {"A": people[pair[0]], "B": people["B" if pair[0] == "A" else "A"]}
        label = _label(people, kinds, *pair, pairs)
        gained = _event(
            story, rng, sizes, whose, kinds[pair[1]], category, pair, now, pairs, number, label, past, last
        )
        last = pair
        only_gains[pair] &= gained
    _asked(story, rng, people, kinds, pairs, now, only_gains, past)
    return story


def _kinds(rng: Random, category: str) -> tuple[str, str]:
    one, two = rng.sample(THINGS[category], 2)
    if rng.random() < 0.35:
        a, b = rng.sample(COLORS, 2)
        return f"{a} {forms(one)[1]}", f"{b} {forms(one)[1]}"
    return forms(one)[1], forms(two)[1]


def _label(
    people: dict[str, Person], kinds: tuple[str, str], owner: str, kind: int, pairs: list[tuple[str, int]]
) -> str:
    several_owners, several_kinds = len({o for o, _ in pairs}) > 1, len({k for _, k in pairs}) > 1
    parts = ([people[owner].name] if several_owners else []) + ([kinds[kind]] if several_kinds else [])
    return " ".join(parts) or kinds[kind]


def _compared(story: Story, rng: Random, sizes: Sizes, whose: dict[str, Person], words: dict[str, str],
              key: str, other: str, pairs: list[tuple[str, int]], pair: tuple[str, int],
              kinds: tuple[str, str], past: bool) -> None:  # fmt: skip
    """Tell a start by comparing it with the first one."""
    same_kind = pair[1] == pairs[0][1]
    than = "than {B}" if same_kind else f"than {kinds[pairs[0][1]]}"
    as_ = "as {B}" if same_kind else f"as {kinds[pairs[0][1]]}"
    who = "{A} ~have"
    mode = rng.choice(("more", "fewer", "times", "less than"))
    delta = f"{key}d"
    if mode == "times":
        story.world.given(delta, rng.randint(2, sizes.factor[1]))
        story.world.follows(f"{key}={other}*{delta}")
        n = story.world.values[delta]
        word = "twice" if n == 2 and rng.random() < 0.7 else f"{n} times"
        text = f"{who} {word} as many {{x}} {as_}"
    elif mode == "more":
        story.world.given(delta, rng.randint(*sizes.event))
        story.world.follows(f"{key}={other}+{delta}")
        text = f"{who} {{n}} more {{x}} {than}"
    elif mode == "fewer":
        story.world.given(delta, rng.randint(*sizes.event))
        story.world.follows(f"{key}={other}-{delta}")
        text = f"{who} {{n}} {rng.choice(('fewer', 'fewer', 'less'))} {{x}} {than}"
    else:
        story.world.given(delta, rng.randint(*sizes.event))
        story.world.follows(f"{key}={other}+{delta}")
        text = "{B} ^have {n} fewer {x} than {A}" if same_kind else f"{who} {{n}} more {{x}} {than}"
    fill = {**words, "n": story.world.values[delta]}
    story.lines.append(Line(say(text, whose, fill, past), (delta,)))


def _event(story: Story, rng: Random, sizes: Sizes, whose: dict[str, Person], things: str, category: str,
           pair: tuple[str, int], now: dict[tuple[str, int], str], pairs: list[tuple[str, int]], number: int,
           label: str, past: bool, last: tuple[str, int]) -> bool:  # fmt: skip
    """Let one thing happen to a pair, tell it, and return whether it was a gain.

    A pronoun stands for who was told of last, and a number alone for what was told of last.
    """
    world, key, amount = story.world, now[pair], f"e{number}"
    following = f"{pair[0]}{pair[1]}_{number + 1}"
    when = rng.choice(WHEN) + " " if rng.random() < 0.3 else ""
    where = " " + rng.choice(WHERE) if rng.random() < 0.15 else ""
    he = "{he}" if pair[0] == last[0] and rng.random() < 0.7 else "{A}"
    other = ("B" if pair[0] == "A" else "A", pair[1])
    chance = rng.random()
    if chance < 0.12:  # packs
        world.given(f"{amount}k", rng.randint(*sizes.factor))
        world.given(f"{amount}n", rng.randint(2, max(3, sizes.factor[1])))
        world.follows(f"{amount}={amount}k*{amount}n", "new " + things)
        world.follows(f"{following}={key}+{amount}", label)
        box = forms(rng.choice(BOXES))[1]
        frame = rng.choice((f"{when}{he} ~get {{k}} {box} of {{n}} {{x}} each", f"{when}{he} ~buy {{k}} {box} with {{n}} {{x}} in each",
                            f"{when}{{k}} {box} with {{n}} {{x}} each are given to {{A}}"))  # fmt: skip
        fill = {"x": things, "k": world.values[f"{amount}k"], "n": world.values[f"{amount}n"]}
        story.lines.append(Line(say(frame, whose, fill, past), (f"{amount}k", f"{amount}n")))
        now[pair] = following
        return True
    if chance < 0.20 and sizes.factor[1] > 2:  # half goes, or doubles
        half = rng.random() < 0.7
        world.follows(f"{following}={key}{'/' if half else '*'}2", label)
        frames = (
            f"{when}{he} ~give+away half of {{his}} {{x}}",
            f"{when}{he} ~sell half of the {{x}}",
            f"{when}{he} ~lose half of {{his}} {{x}}",
        )
        frame = rng.choice(frames if half else (f"{when}{he} ~double the number of {{x}}", f"{when}the number of {{x}} doubles"))  # fmt: skip
        story.lines.append(Line(say(frame, whose, {"x": things}, past)))
        now[pair] = following
        return not half
    moves = other in pairs and chance < 0.5
    gain = not moves and rng.random() < 0.5
    most = sizes.event[1] if gain else min(sizes.event[1], world.values[key])
    if most < sizes.event[0]:
        raise Impossible(f"{key} is too small to lose from")
    world.given(amount, rng.randint(sizes.event[0], most))
    n = world.values[amount]
    if moves:  # from the one to the other
        world.follows(f"{following}={key}-{amount}", label)
        there = f"{other[0]}{other[1]}_{number + 1}"
        world.follows(f"{there}={now[other]}+{amount}", world.labels[now[other]])
        frame = rng.choice((f"{when}{{A}} ~give {{n}} {{x}} to {{B}}", f"{when}{{B}} ^get {{n}} {{x}} from {{A}}",
                            f"{when}{{A}} ~give {{B}} {{n}} of {{his}} {{x}}", f"{when}{{n}} {{x}} go from {{A}} to {{B}}"))  # fmt: skip
        _told(story, rng, frame, whose, things, amount, n, past, "give away")
        now[pair], now[other] = following, there
        return False
    world.follows(f"{following}={key}{'+' if gain else '-'}{amount}", label)
    verbs = (GAIN if gain else LOSS)[category].split()
    base = rng.choice(verbs)
    base = "trade" if base == "trade+for" else base
    if base == "trade":
        base = "get"
    many = rng.choice(("{n} more {x}", "{n} more", "another {n} {x}", "{n} {x}", "{n} more {x}") if gain
                      else ("{n} {x}", "{n} of them", "{n} of the {x}", "{n} of {his} {x}", "{n}", "{n} {x}"))  # fmt: skip
    if pair != last and "{x}" not in many:
        many = "{n} more {x}" if gain else "{n} {x}"
    frame = f"{when}{he} ~{base} {many}{where if gain else ''}"
    chance = rng.random()
    if gain and chance < 0.15:
        giver = rng.choice("mother father aunt uncle friend teacher sister brother neighbor".split())
        his = "{his}" if pair[0] == last[0] else "{As}"
        many = many.replace("{n} of them", "{n} {x}")
        frame = f"{when}{his} {giver} gives {{him}} {many}".replace("gives", "gave" if past else "gives")
    elif not gain and chance < 0.10:
        frame = f"{when}{{n}} of {{As}} {{x}} {'were' if past else 'are'} {rng.choice(('lost', 'broken', 'gone', 'sold', 'stolen'))}"
    elif not gain and chance < 0.25:
        friend = rng.choice("friend sister brother mother cousin neighbor teacher classmate".split())
        frame = f"{when}{he} ~give {many} to {{his}} {friend}"
    _told(story, rng, frame, whose, things, amount, n, past, base)
    now[pair] = following
    return gain


def _told(story: Story, rng: Random, frame: str, whose: dict[str, Person], things: str, amount: str, n: int,
          past: bool, base: str) -> None:  # fmt: skip
    """Add an event's clause with its number and without, and the question after its number."""
    some = say(frame.replace("{n} of", "some of").replace("another {n}", "some").replace("{n} more", "some more"),
               whose, {"x": things, "n": "some"}, past)  # fmt: skip
    story.lines.append(Line(say(frame, whose, {"x": things, "n": n}, past), (amount,), {amount: Line(some)}))
    plain = verb(base, Person("they", "they", "them", "their", True), False)
    story.world.labels[amount] = plain.split()[0]
    stem = plain.split()[0]
    rest = "".join(f" {part}" for part in plain.split()[1:])
    asks = [f"how many {{x}} ~do {{A}} {stem}{rest}", f"how many {{x}} ~do {{he}} {stem}{rest}"]
    story.asks[amount] = [Ask(say(ask, whose, {"x": things}, past)) for ask in asks]


def _asked(story: Story, rng: Random, people: dict[str, Person], kinds: tuple[str, str],
           pairs: list[tuple[str, int]], now: dict[tuple[str, int], str], only_gains: dict[tuple[str, int], bool],
           past: bool) -> None:  # fmt: skip
    """Add what can be asked about starts and ends, alone, together and compared."""
    world = story.world
    for owner, kind in pairs:
        end, start = now[owner, kind], f"{owner}{kind}_0"
        whose = {"A": people[owner], "B": people["B" if owner == "A" else "A"]}
        words: dict[str, object] = {"x": kinds[kind], "n": world.values[end]}
        if end != start:
            frames = _clear(ASK_GAINED if only_gains[owner, kind] else ASK_END, pairs)
            story.asks[end] = [Ask(say(rng.choice(frames), whose, words, False))]
            story.endings.append(Line(say(rng.choice(_clear(ENDS, pairs)), whose, words, past), (end,)))
            if any(start in line.keys for line in story.lines):
                story.asks[start] = [Ask(say(rng.choice(_clear(ASK_START, pairs)), whose, words, True))]
        else:
            story.asks[end] = [Ask(say("how many {x} ~do {A} have", whose, words, False))]
    if len(pairs) < 2:
        return
    (o1, k1), (o2, k2) = rng.sample(pairs, 2)
    first, second = now[o1, k1], now[o2, k2]
    if world.values[first] < world.values[second]:
        (o1, k1), (o2, k2), first, second = (o2, k2), (o1, k1), second, first
    whose = {"A": people[o1], "B": people[o2]}
    if o1 == o2:
        words = {"x": kinds[k1], "y": kinds[k2]}
        story.asks["total"] = [
            Ask(say(ask, whose, words, False))
            for ask in ("how many {x} and {y} ~do {A} have in all", "how many {x} and {y} are there together",
                        "how many things ~do {A} have altogether", "what is the total number of {x} and {y}")]  # fmt: skip
        frame = "how many more {x} than {y} ~do {A} have|how many fewer {y} than {x} are there|how many more {x} are there than {y}"
        story.asks["difference"] = [Ask(say(ask, whose, words, False)) for ask in frame.split("|")]
    elif k1 == k2:
        words = {"x": kinds[k1]}
        story.asks["total"] = [Ask(say(rng.choice(TOGETHER), whose, words, False))]
        story.asks["difference"] = [Ask(say(rng.choice(MORE), whose, words, False))]
    else:
        return
    world.follows(f"total={first}+{second}", "total")
    world.follows(f"difference={first}-{second}", "difference")
    if world.values["difference"] == 0:
        raise Impossible("no difference")


def _clear(frames: list[str], pairs: list[tuple[str, int]]) -> list[str]:
    """Return the frames that say whose things are meant, when there are two owners."""
    if len({owner for owner, _ in pairs}) == 1:
        return frames
    return [each.replace("{he}", "{A}") for each in frames if "{A}" in each or "{he}" in each]
