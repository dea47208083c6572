"""The words of the stories: people, things by what can be done with them, verbs in three forms, times and places."""
# ruff: noqa: E501, SIM905 - tables of words

import re
from dataclasses import dataclass
from random import Random

SHE = """Ada Alice Amber Amy Ana Andrea Angela Anita Anna Ava Aisha Beatrice Bella Beth Brenda Carla Carmen Carol Cathy
Chloe Clara Claire Daisy Dana Diana Donna Dora Elena Eliza Ella Ellen Elsa Emily Emma Erin Esther Eva Eve Fatima Fiona
Flora Gina Gloria Grace Greta Hana Hannah Heidi Helen Holly Ida Ines Irene Iris Isabel Ivy Jada Jane Janet Jasmine
Jenny Jess Jill Joan Josie Joy Julia June Karen Kate Katie Kelly Kira Lara Laura Lea Lena Leila Lily Linda Lisa Lola
Lucy Luna Maja Mandy Maria Marie Martha Mary Maya Megan Mei Mia Mila Mina Molly Mona Nadia Nancy Naomi Nina Nora Olga
Olivia Paula Petra Pia Priya Rachel Rita Robin Rosa Rose Ruby Ruth Sally Sara Sarah Selma Sofia Sonia Stella Sue Suki
Susan Tara Tina Uma Vera Wendy Yara Yuki Zara Zoe""".split()
HE = """Aaron Adam Ahmed Alan Albert Alex Ali Andy Anton Arjun Arthur Ben Bill Bob Boris Brian Carl Carlos Charlie Chris
Daniel Dave David Dean Dennis Diego Dmitri Ed Eddie Edgar Eli Emil Eric Ethan Evan Felix Finn Frank Fred Gabriel Gary
George Gus Hans Harry Hassan Henry Hugo Ian Igor Isaac Ivan Jack Jacob Jake James Jamal Jan Jason Jeff Jim Joe John
Jonas Jose Josh Juan Karl Keith Ken Kevin Kofi Kurt Kyle Lars Leo Leon Liam Lou Louis Luca Luis Luke Malik Marco Mark
Martin Matt Max Mike Milo Mo Nate Ned Neil Nick Nils Noah Oliver Omar Oscar Otto Owen Pablo Pat Paul Pedro Pete Peter
Phil Raj Ralph Ravi Ray Rob Roger Ron Roy Ryan Sam Sami Scott Sean Simon Stan Steve Sven Ted Theo Tim Toby Tom Tony
Umar Victor Viktor Walt Will Yusuf Zack""".split()
SHE_ROLES = "my sister;my mother;Mrs. {};my aunt;Grandma;the nurse;the queen;my daughter;Ms. {};Mom".split(
    ";"
)
HE_ROLES = (
    "my brother;my father;Mr. {};my uncle;Grandpa;the farmer;the baker;the coach;Dad;my son;the waiter".split(
        ";"
    )
)
THEY_ROLES = (
    "the twins;my parents;the neighbors;two friends;the children;the students;the team;the family".split(";")
)
SURNAMES = "Smith Jones Lee Brown Garcia Khan Kim Novak Rossi Weber Silva Park Hall Young King Wood Clark Diaz".split()
_THINGS = {
    "food": """apple pear plum orange banana peach lemon mango cherry/cherries strawberry/strawberries grape tomato/tomatoes
potato/potatoes carrot onion egg cookie cupcake muffin donut candy/candies chocolate sandwich/sandwiches pancake roll
cake pie bagel pretzel nut walnut olive sweet lollipop waffle cracker melon pizza burger""",
    "toy": """marble toy ball balloon doll block puzzle kite robot card sticker bead shell stamp coin button ribbon yo-yo
car/cars comic badge poster dice/dice magnet pebble crystal figurine""",
    "tool": """pencil pen book notebook crayon marker eraser ruler folder envelope brush/brushes paper/papers magazine
cup plate bowl bottle box/boxes basket lamp chair table candle towel shirt hat sock scarf/scarves shoe glove jacket dress/dresses
key nail screw bolt tile brick board ticket flag bag photo painting postcard""",
    "plant": "flower rose tulip daisy/daisies tree bush/bushes lily/lilies seed plant sunflower leaf/leaves cactus/cacti",
    "animal": """dog cat rabbit chicken duck cow horse sheep/sheep goat pig fish/fish hen bird frog turtle bee butterfly/butterflies
hamster pigeon ant snail""",
    "people": "child/children student boy girl guest visitor passenger player adult customer worker dancer member runner",
}
THINGS = {category: words.split() for category, words in _THINGS.items()}
COLORS = "red blue green yellow white black big small old new round long gold pink".split()
PAST = dict(
    pair.split(":")
    for pair in """be:was have:had do:did buy:bought get:got find:found give:gave lose:lost eat:ate sell:sold win:won
make:made take:took break:broke see:saw read:read write:wrote run:ran drive:drove spend:spent pay:paid put:put
leave:left bring:brought catch:caught grow:grew send:sent throw:threw keep:kept hold:held come:came go:went begin:began
drink:drank cut:cut tell:told build:built ride:rode teach:taught lend:lent swim:swam hide:hid fly:flew cost:cost
sit:sat stand:stood draw:drew feed:fed know:knew sleep:slept set:set""".split()
)
GAIN = {
    "any": "buy get find receive collect pick+up order win",
    "food": "buy get find receive pick bake",
    "toy": "buy get find win collect receive trade+for",
    "tool": "buy get find receive order make borrow",
    "plant": "buy get plant grow receive add",
    "animal": "buy get adopt receive raise",
    "people": "",
}
LOSS = {
    "any": "lose give+away sell donate",
    "food": "eat give+away sell drop use share throw+away",
    "toy": "lose give+away sell break trade+away donate",
    "tool": "use lose give+away sell break donate throw+away lend",
    "plant": "cut sell give+away remove",
    "animal": "sell give+away lose",
    "people": "",
}
BOXES = "box/boxes bag basket jar crate pack bundle carton drawer shelf/shelves tray case sack bucket row stack".split()
WHEN = ["then", "later", "after that", "the next day", "in the afternoon", "yesterday", "on Monday", "on Friday",
        "this morning", "in the evening", "last week", "today", "after school", "at noon", "on the weekend"]  # fmt: skip
WHERE = ["at the store", "at the market", "at school", "at home", "in the park", "from a friend", "at a yard sale",
         "online", "on the way home", "at the fair", "for a party"]  # fmt: skip
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
TEENS = "thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()


def in_words(n: int) -> str:
    """Return a number below a thousand in words.

    >>> in_words(7), in_words(45), in_words(260), in_words(301)
    ('seven', 'forty-five', 'two hundred sixty', 'three hundred one')
    """
    if n <= 12:
        return NUMBER_WORDS[n]
    if n < 20:
        return TEENS[n - 13]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{NUMBER_WORDS[n % 10]}" if n % 10 else "")
    rest = f" {in_words(n % 100)}" if n % 100 else ""
    return f"{NUMBER_WORDS[n // 100]} hundred{rest}"


_SMALL = [in_words(n) for n in range(20)]
_IN_WORDS = re.compile(
    rf"\b(?:(?P<h>{'|'.join(_SMALL[1:10])}) hundred(?: and)?\s?)?(?:(?P<t>{'|'.join(TENS)})[- ]?)?(?P<u>{'|'.join(sorted(_SMALL, key=len, reverse=True))})?\b"
)


def digits(text: str) -> str:
    """Return a text of small letters with its numbers in words as digits.

    >>> digits("one hundred and six pens, forty five cups and three")
    '106 pens, 45 cups and 3'
    """

    def number(found: re.Match[str]) -> str:
        if not found[0].strip():
            return found[0]
        value = 100 * _SMALL.index(found["h"]) if found["h"] else 0
        value += 10 * (TENS.index(found["t"]) + 2) if found["t"] else 0
        value += _SMALL.index(found["u"]) if found["u"] else 0
        return str(value) + (" " if found[0].endswith(" ") else "")

    return _IN_WORDS.sub(number, text)


@dataclass(frozen=True)
class Person:
    """Someone a story is about: the name, four pronouns, and whether verbs take the plural."""

    name: str
    he: str
    him: str
    his: str
    plural: bool = False


def person(rng: Random, taken: set[str], plain: bool = False) -> Person:
    """Draw somebody who is not taken yet; `plain` leaves out I, we and they."""
    while True:
        drawn = _drawn(rng, plain)
        if drawn.name not in taken and not (drawn.he == "I" and taken):
            taken.add(drawn.name)
            return drawn


def _drawn(rng: Random, plain: bool) -> Person:
    chance = rng.random()
    if chance < 0.07 and not plain:
        return Person("I", "I", "me", "my", True) if chance < 0.055 else Person("we", "we", "us", "our", True)
    if chance < 0.10 and not plain:
        return Person(rng.choice(THEY_ROLES), "they", "them", "their", True)
    she = rng.random() < 0.5
    roles, names = (SHE_ROLES, SHE) if she else (HE_ROLES, HE)
    name = rng.choice(roles).format(rng.choice(SURNAMES)) if rng.random() < 0.12 else rng.choice(names)
    return Person(name, *(("she", "her", "her") if she else ("he", "him", "his")))


def forms(word: str) -> tuple[str, str]:
    """Return singular and plural of an entry such as `cherry/cherries`.

    >>> forms("pen"), forms("box/boxes")
    (('pen', 'pens'), ('box', 'boxes'))
    """
    single, _, many = word.partition("/")
    return single, many or single + "s"


def verb(base: str, who: Person, past: bool) -> str:
    """Return a verb as it stands after somebody; a `+` joins a particle.

    >>> verb("pick+up", Person("Ada", "she", "her", "her"), False)
    'picks up'
    """
    stem, _, particle = base.partition("+")
    if past:
        done = "were" if stem == "be" and who.plural and who.he != "I" else PAST.get(stem) or _regular(stem)
    elif who.plural:
        done = {"be": "am" if who.he == "I" else "are"}.get(stem, stem)
    else:
        done = {"be": "is", "have": "has", "do": "does"}.get(stem) or _third(stem)
    return f"{done} {particle.replace('+', ' ')}" if particle else done


def _regular(stem: str) -> str:
    if stem.endswith("e"):
        return stem + "d"
    if stem.endswith("y") and stem[-2] not in "aeiou":
        return stem[:-1] + "ied"
    return stem + (stem[-1] if stem in ("drop", "plan", "stop", "shop", "jog") else "") + "ed"


def _third(stem: str) -> str:
    if stem.endswith(("s", "sh", "ch", "x", "o")):
        return stem + "es"
    return stem[:-1] + "ies" if stem.endswith("y") and stem[-2] not in "aeiou" else stem + "s"
