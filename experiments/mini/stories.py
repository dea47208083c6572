"""Story families of mini-math: who has what, what can happen to it, and how it is told.

A story follows one quantity. Each event changes it and carries a label, the word its solution step begins with.
Placeholders: {who} a name, {thing} what is counted, {box} a container, {n} a number, {k} a second number.
"""

from dataclasses import dataclass

NAMES = (
    "Ada", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas",
    "Kira", "Leo", "Mona", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Victor",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """One thing that can happen: the step's label and two wordings of the sentence."""

    label: str
    wordings: tuple[str, ...]


@dataclass(frozen=True)
class Story:
    """One family: its things, containers, opening sentences, events by operation, and closing questions.

    `packs` are events of two operations: k containers of n things each are made (k × n), then added.
    """

    name: str
    things: tuple[str, ...]
    boxes: tuple[str, ...]
    opening: tuple[str, ...]
    plus: tuple[Event, ...]
    minus: tuple[Event, ...]
    times: tuple[Event, ...]
    share: tuple[Event, ...]
    packs: tuple[Event, ...]
    question: tuple[str, ...]
    distractors: tuple[str, ...]


def _story(
    name: str,
    things: str,
    boxes: str,
    opening: tuple[str, ...],
    plus: dict[str, tuple[str, ...]],
    minus: dict[str, tuple[str, ...]],
    times: dict[str, tuple[str, ...]],
    share: dict[str, tuple[str, ...]],
    packs: dict[str, tuple[str, ...]],
    question: tuple[str, ...],
    distractors: tuple[str, ...],
) -> Story:
    def events(table: dict[str, tuple[str, ...]]) -> tuple[Event, ...]:
        return tuple(Event(label, wordings) for label, wordings in table.items())

    return Story(
        name, tuple(things.split()), tuple(boxes.split()), opening, events(plus), events(minus), events(times),
        events(share), events(packs), question, distractors,
    )  # fmt: skip


STORIES = (
    _story(
        "market", "apples pears plums", "bags baskets",
        ("{who} has {n} {thing}.", "In the morning {who} has {n} {thing} to sell."),
        {"bought": ("{who} buys {n} more {thing}.", "{n} {thing} are bought by {who}."),
         "found": ("{who} finds {n} {thing} under a tree.", "Under a tree {who} finds {n} {thing}.")},
        {"sold": ("{who} sells {n} {thing}.", "A customer buys {n} {thing} from {who}."),
         "ate": ("{who} eats {n} {thing}.", "{n} {thing} are eaten.")},
        {"grew": ("The number of {thing} becomes {n} times as large.", "Now there are {n} times as many {thing}.")},
        {"split": ("{who} splits the {thing} equally into {n} {box} and keeps one.",
                   "The {thing} go equally into {n} {box} and only one is kept.")},
        {"packed": ("{who} gets {k} {box} with {n} {thing} each.", "{k} {box} of {n} {thing} each arrive.")},
        ("How many {thing} does {who} have now?", "How many {thing} are left for {who}?"),
        ("A bag costs {n} cents.", "The market opens at {n}."),
    ),
    _story(
        "library", "books maps", "shelves boxes",
        ("A library has {n} {thing}.", "There are {n} {thing} in the library of {who}."),
        {"returned": ("Readers return {n} {thing}.", "{n} {thing} are returned."),
         "donated": ("{who} donates {n} {thing}.", "{n} {thing} are donated by {who}.")},
        {"lent": ("The library lends {n} {thing}.", "{n} {thing} are lent to readers."),
         "lost": ("{n} {thing} are lost.", "Readers lose {n} {thing}.")},
        {"copied": ("The stock of {thing} grows to {n} times its size.", "Now it holds {n} times as many {thing}.")},
        {"divided": ("The {thing} are divided equally among {n} rooms and one room stays open.",
                     "{n} rooms share the {thing} equally and only one room stays open.")},
        {"shelved": ("{k} {box} with {n} {thing} each are added.", "{who} adds {k} {box} of {n} {thing}.")},
        ("How many {thing} can be read there?", "How many {thing} does the library have at the end?"),
        ("The library is {n} years old.", "{who} reads {n} pages a day."),
    ),
    _story(
        "bus", "passengers people", "groups families",
        ("A bus leaves with {n} {thing}.", "{n} {thing} sit in a bus."),
        {"boarded": ("At a stop {n} {thing} get on.", "{n} more {thing} get on.")},
        {"left": ("{n} {thing} get off.", "At the station {n} {thing} leave the bus.")},
        {"joined": ("Soon the bus carries {n} times as many {thing}.", "The number of {thing} is multiplied by {n}.")},
        {"parted": ("The {thing} change equally into {n} smaller cars and we follow one car.",
                    "{n} cars take the {thing} equally and we follow one of them.")},
        {"came": ("{k} {box} of {n} {thing} get on.", "{k} {box} with {n} {thing} each come aboard.")},
        ("How many {thing} are there now?", "How many {thing} ride at the end?"),
        ("The trip takes {n} minutes.", "The driver {who} is {n} years old."),
    ),
    _story(
        "savings", "coins dollars", "weeks months",
        ("{who} has saved {n} {thing}.", "There are {n} {thing} in the jar of {who}."),
        {"earned": ("{who} earns {n} {thing}.", "For helping, {who} gets {n} {thing}."),
         "won": ("{who} wins {n} {thing}.", "A prize of {n} {thing} goes to {who}.")},
        {"spent": ("{who} spends {n} {thing}.", "A toy costs {who} {n} {thing}."),
         "gave": ("{who} gives away {n} {thing}.", "{n} {thing} go to a friend.")},
        {"raised": ("An aunt makes the savings {n} times as large.", "The savings become {n} times as large.")},
        {"shared": ("{who} shares the {thing} equally among {n} children and is one of them.",
                    "{n} children share the {thing} equally and {who} is one of them.")},
        {"saved": ("{who} saves {n} {thing} in each of {k} {box}.", "For {k} {box} {who} saves {n} {thing} each.")},
        ("How many {thing} does {who} have?", "What does {who} own in {thing} at the end?"),
        ("A ticket to the zoo costs {n} {thing}.", "The jar weighs {n} grams."),
    ),
    _story(
        "farm", "eggs carrots potatoes", "crates sacks",
        ("A farm stores {n} {thing}.", "Farmer {who} stores {n} {thing}."),
        {"picked": ("{who} picks {n} {thing}.", "{n} fresh {thing} are picked."),
         "brought": ("A cart brings {n} {thing}.", "{n} {thing} are brought by cart.")},
        {"cooked": ("The cook uses {n} {thing}.", "{n} {thing} are cooked."),
         "spoiled": ("{n} {thing} spoil.", "Mice spoil {n} {thing}.")},
        {"multiplied": ("A good harvest makes it {n} times as many {thing}.",
                        "The store grows to {n} times its size.")},
        {"halved": ("The {thing} are loaded equally on {n} carts and one cart stays.",
                    "{n} carts carry the {thing} equally and one cart stays.")},
        {"filled": ("{who} fills {k} {box} with {n} {thing} each.", "{k} {box} of {n} {thing} are filled.")},
        ("How many {thing} remain on the farm?", "How many {thing} does {who} store now?"),
        ("The farm has {n} cows.", "A sack weighs {n} kilos."),
    ),
    _story(
        "school", "pencils notebooks stickers", "packs drawers",
        ("A class has {n} {thing}.", "Teacher {who} has {n} {thing} in class."),
        {"ordered": ("{who} orders {n} {thing}.", "{n} {thing} are ordered."),
         "got": ("Parents send {n} {thing}.", "The class gets {n} {thing}.")},
        {"used": ("Students use {n} {thing}.", "{n} {thing} are used in lessons."),
         "broke": ("{n} {thing} break.", "{who} throws away {n} {thing}.")},
        {"became": ("A gift makes it {n} times as many {thing}.", "The class now owns {n} times as many {thing}.")},
        {"handed": ("The {thing} are handed out equally to {n} tables and {who} sits at one.",
                    "{n} tables get the {thing} equally and {who} sits at one.")},
        {"opened": ("{who} opens {k} {box} of {n} {thing}.", "{k} {box} with {n} {thing} each are opened.")},
        ("How many {thing} are there at the end?", "How many {thing} can {who} count now?"),
        ("The class has {n} students.", "The lesson lasts {n} minutes."),
    ),
    _story(
        "aquarium", "fish snails", "tanks nets",
        ("A tank holds {n} {thing}.", "{who} keeps {n} {thing} in a tank."),
        {"hatched": ("{n} {thing} hatch.", "{n} young {thing} hatch at night."),
         "added": ("{who} adds {n} {thing}.", "{n} {thing} are added.")},
        {"died": ("{n} {thing} die.", "Sadly {n} {thing} die."),
         "moved": ("{who} moves {n} {thing} to the pond.", "{n} {thing} are moved to the pond.")},
        {"bred": ("The {thing} breed to {n} times their number.", "After spring there are {n} times as many {thing}.")},
        {"spread": ("The {thing} are spread equally over {n} ponds and we watch one pond.",
                    "{n} ponds take the {thing} equally and we watch one pond.")},
        {"caught": ("{who} brings {k} {box} with {n} {thing} each.", "{k} {box} of {n} {thing} are caught.")},
        ("How many {thing} swim there now?", "How many {thing} are there at the end?"),
        ("The water is {n} degrees warm.", "The tank is {n} inches long."),
    ),
    _story(
        "factory", "bolts lamps toys", "pallets cartons",
        ("A factory starts with {n} {thing}.", "In the hall stand {n} {thing}."),
        {"made": ("The first machine makes {n} {thing}.", "{n} {thing} are made."),
         "delivered": ("A truck delivers {n} {thing}.", "{n} {thing} are delivered.")},
        {"shipped": ("{n} {thing} are shipped.", "A truck takes {n} {thing} away."),
         "scrapped": ("{who} scraps {n} bad {thing}.", "{n} bad {thing} are scrapped.")},
        {"scaled": ("A second hall makes it {n} times as many {thing}.", "The stock is scaled up to {n} times.")},
        {"sorted": ("The {thing} are sorted equally to {n} shops and one shop reports.",
                    "{n} shops take the {thing} equally and one shop reports.")},
        {"loaded": ("{k} {box} with {n} {thing} each come in.", "{who} unloads {k} {box} of {n} {thing}.")},
        ("How many {thing} are reported?", "How many {thing} are in stock?"),
        ("A shift lasts {n} hours.", "{n} workers wear blue hats."),
    ),
    _story(
        "bakery", "rolls cakes cookies", "trays plates",
        ("A bakery opens with {n} {thing}.", "Baker {who} has {n} {thing}."),
        {"baked": ("{who} bakes {n} {thing}.", "{n} warm {thing} are baked."),
         "prepared": ("The helper prepares {n} {thing}.", "{n} {thing} are prepared.")},
        {"served": ("{n} {thing} are served.", "Guests are served {n} {thing}."),
         "burned": ("{n} {thing} burn.", "{who} burns {n} {thing}.")},
        {"repeated": ("For a party {who} makes it {n} times as many {thing}.",
                      "A party needs {n} times as many {thing}.")},
        {"placed": ("The {thing} are placed equally on {n} tables and one table is ours.",
                    "{n} tables get the {thing} equally and one table is ours.")},
        {"finished": ("{k} {box} with {n} {thing} each are finished.", "{who} finishes {k} {box} of {n} {thing}.")},
        ("How many {thing} are ours to eat?", "How many {thing} are there when the day ends?"),
        ("The oven is {n} years old.", "A cake needs {n} minutes."),
    ),
    _story(
        "garden", "flowers roses trees", "rows beds",
        ("{n} {thing} stand in the garden of {who}.", "A garden has {n} {thing}."),
        {"planted": ("{who} plants {n} {thing}.", "{n} {thing} are planted."),
         "bloomed": ("{n} new {thing} bloom.", "Overnight {n} {thing} bloom.")},
        {"cut": ("{who} cuts {n} {thing}.", "{n} {thing} are cut."),
         "dried": ("{n} {thing} dry out.", "In the heat {n} {thing} dry out.")},
        {"seeded": ("After rain there are {n} times as many {thing}.", "The {thing} seed to {n} times their number.")},
        {"fenced": ("A fence divides the {thing} equally into {n} parts and {who} keeps one part.",
                    "{n} parts of the garden share the {thing} equally and {who} keeps one.")},
        {"set": ("{who} sets {k} {box} of {n} {thing}.", "{k} {box} with {n} {thing} each are set.")},
        ("How many {thing} does {who} see now?", "How many {thing} are in the garden of {who}?"),
        ("The garden is {n} steps long.", "{who} waters it for {n} minutes."),
    ),
    _story(
        "game", "points stars", "rounds levels",
        ("{who} starts a game with {n} {thing}.", "The score of {who} is {n} {thing}."),
        {"scored": ("{who} scores {n} {thing}.", "A good move brings {n} {thing}."),
         "gained": ("{who} gains {n} {thing}.", "{n} {thing} are gained.")},
        {"paid": ("{who} pays {n} {thing}.", "A mistake costs {n} {thing}."),
         "dropped": ("{who} drops {n} {thing}.", "{n} {thing} are dropped.")},
        {"boosted": ("A bonus makes the score {n} times as high.", "The {thing} are boosted to {n} times.")},
        {"teamed": ("The {thing} are split equally between {n} players and {who} is one.",
                    "{n} players split the {thing} equally and {who} is one.")},
        {"played": ("{who} plays {k} {box} for {n} {thing} each.", "{k} {box} bring {n} {thing} each.")},
        ("What is the score of {who}?", "How many {thing} does {who} have in the end?"),
        ("The game is for {n} players.", "A round lasts {n} minutes."),
    ),
    _story(
        "port", "barrels parcels", "ships wagons",
        ("A port stores {n} {thing}.", "{n} {thing} wait in the port."),
        {"landed": ("A boat lands {n} {thing}.", "{n} {thing} are landed."),
         "stored": ("{who} stores {n} {thing}.", "{n} {thing} are stored by {who}.")},
        {"sent": ("{who} sends {n} {thing} inland.", "{n} {thing} are sent inland."),
         "sank": ("{n} {thing} sink in a storm.", "A storm sinks {n} {thing}.")},
        {"traded": ("Trade makes it {n} times as many {thing}.", "By trade there are {n} times as many {thing}.")},
        {"docked": ("The {thing} go equally to {n} docks and {who} guards one dock.",
                    "{n} docks hold the {thing} equally and {who} guards one dock.")},
        {"hauled": ("{k} {box} with {n} {thing} each arrive.", "{who} hauls {k} {box} of {n} {thing}.")},
        ("How many {thing} does {who} guard?", "How many {thing} are in the port now?"),
        ("The harbour is {n} feet deep.", "The lamp turns every {n} seconds."),
    ),
)  # fmt: skip
