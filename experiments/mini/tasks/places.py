"""Places where people or animals come and go, and how large the numbers of a story are."""
# ruff: noqa: E501 - wordings

from dataclasses import dataclass
from random import Random

from experiments.mini.tasks.telling import Ask, Line, Story
from experiments.mini.tasks.words import THINGS, WHEN, forms
from experiments.mini.tasks.world import World

PLACES = """bus/on the bus/get on/get off;train/on the train/get on/get off;room/in the room/come in/leave;library/in the library/walk in/walk out;park/in the park/arrive/go home;pool/in the pool/jump in/get out;museum/in the museum/enter/leave;
bank line/in the line/join/leave;pond/in the pond/swim over/leave;parking lot/in the parking lot/drive in/drive away;tree/in the tree/fly in/fly away;field/in the field/come/run away;boat/on the boat/come aboard/go ashore;
shop/in the shop/come in/go out;stage/on the stage/join/step down""".replace("\n", "").split(";")
CROWDS = {"pond": "animal", "tree": "animal", "field": "animal"}


@dataclass(frozen=True)
class Sizes:
    """How large numbers are: of a start, of an event, and of a factor."""

    start: tuple[int, int]
    event: tuple[int, int]
    factor: tuple[int, int]
    limit: int


def place(rng: Random, sizes: Sizes, events: int) -> Story:
    """Return a story of a place where people or animals come and go."""
    name, at, come, leave = rng.choice(PLACES).split("/")
    things = forms(rng.choice(THINGS[CROWDS.get(name, "people")]))[1]
    if name == "parking lot":
        things = rng.choice(("cars", "trucks", "vans"))
    story = Story(World(sizes.limit))
    world, key = story.world, "p0"
    world.given(key, rng.randint(*sizes.start), things)
    n = world.values[key]
    frames = (f"there are {{}} {things} {at}", f"{{}} {things} are {at}", f"the {name} has {{}} {things}")
    frame = rng.choice(frames)
    story.lines.append(Line(frame.format(n), (key,), {key: Line(frames[0].format("some"))}))
    for number in range(events):
        gain, amount = rng.random() < 0.5, f"e{number}"
        world.given(amount, rng.randint(*sizes.event), come if gain else leave)
        following = f"p{number + 1}"
        world.follows(f"{following}={key}{'+' if gain else '-'}{amount}", things)
        key, n = following, world.values[amount]
        when = rng.choice(WHEN) + " " if rng.random() < 0.25 else ""
        many = rng.choice((f"{{}} more {things}", "{} more", f"another {{}} {things}", f"{{}} {things}") if gain
                          else (f"{{}} {things}", "{} of them", f"{{}} of the {things}"))  # fmt: skip
        frame = f"{when}{many} {come if gain else leave}"
        some = frame.replace("another {}", "{}").format("some")
        story.lines.append(Line(frame.format(n), (amount,), {amount: Line(some)}))
        story.asks[amount] = [Ask(f"how many {things} {come if gain else leave}")]
    story.asks[key] = [Ask(text) for text in (
        f"how many {things} are {at} now", f"how many {things} are {at}", f"how many {things} are there now",
        f"how many {things} are still {at}" if world.values[key] < world.values["p0"] else f"how many {things} is that",
    )]  # fmt: skip
    story.asks["p0"] = [Ask(f"how many {things} were {at} at {when}") for when in ("first", "the beginning")]
    story.endings.append(Line(f"now there are {world.values[key]} {things} {at}", (key,)))
    return story
