"""Questions of one step (a few of two) as people type them to try a model out."""
# ruff: noqa: E501 - wordings

from random import Random

from experiments.mini.tasks.problem import Problem
from experiments.mini.tasks.styles import Calc, written
from experiments.mini.tasks.telling import spoken
from experiments.mini.tasks.words import in_words

LEVELS = ("quick",)
FORMS = {
    "+": """{a} + {b}|{a}+{b}|{a} plus {b}|the sum of {a} and {b}|{a} and {b} together|{b} more than {a}|{a} increased by {b}
|{a} added to {b}|{a} and {b} added together|the total of {a} and {b}|{a} with {b} more""",
    "-": """{a} - {b}|{a}-{b}|{a} minus {b}|the difference between {a} and {b}|the difference of {a} and {b}|{b} less than {a}|
{a} take away {b}|{a} decreased by {b}|{a} reduced by {b}|{a} without {b}|{b} subtracted from {a}|{a} less {b}""",
    "*": """{a} * {b}|{a}*{b}|{a} x {b}|{a}x{b}|{a} × {b}|{a} times {b}|the product of {a} and {b}|{a} multiplied by {b}|{a} groups
of {b}|{a} by {b}""",
    "/": """{a} / {b}|{a}/{b}|{a} ÷ {b}|{a} divided by {b}|{a} : {b}|the quotient of {a} and {b}|{a} over {b}|{a} split into {b}
equal parts|{a} shared by {b}""",
}  # fmt: skip
ORDERS = {
    "+": "add {a} and {b}|add {b} to {a}|sum up {a} and {b}|add together {a} and {b}|sum {a} and {b}|put {a} and {b} together",
    "-": "subtract {b} from {a}|take {b} from {a}|take {b} away from {a}|take away {b} from {a}|subtract {b} off {a}",
    "*": "multiply {a} by {b}|multiply {a} and {b}|multiply {a} with {b}|take {a} times {b}",
    "/": "divide {a} by {b}|share {a} equally among {b}|split {a} into {b} equal parts|divide {a} into {b}",
}
FINDS = {
    "+": "if i add {b} to {a} what do i get|i have {a} and get {b} more, how many is that|{a} plus what is {c}?{b}|what do i add to {a} to get {c}?{b}|? + {a} = {c}?{b}|{a} + ? = {c}?{b}|x + {a} = {c}, what is x?{b}|{a} + x = {c}. find x?{b}",
    "-": "if i take {b} from {a} what is left|{a} minus what is {c}?{b}|what must be taken from {a} to get {c}?{b}|{a} - ? = {c}?{b}|x - {b} = {c}, what is x?{a}|how much more is {a} than {b}|how much bigger is {a} than {b}|how far is it from {b} to {a}|{a} - x = {c}. what is x?{b}|how much less is {b} than {a}|how many more is {a} than {b}",
    "*": "{a} times what is {c}?{b}|{a} * ? = {c}?{b}|what times {a} is {c}?{b}|x * {a} = {c}, what is x?{b}|how much are {a} {b}s",
    "/": "how many times does {b} go into {a}|how many {b}s are in {a}|how often does {b} fit into {a}|{a} / ? = {c}?{b}|x / {b} = {c}, what is x?{a}",
}
OPENINGS = (
    ["what is", "what's", "whats", "how much is", "calculate", "compute", "tell me", "can you tell me", "please calculate",
     "work out", "solve", "find", "give me", "what does", "what do you get for", "i need", "do you know", "evaluate",
     "what is the result of", "what's the answer to", "can you work out", "how many is", "figure out", "hey, what is"]
)  # fmt: skip
UNITS = """minutes/hours/60;seconds/minutes/60;days/weeks/7;months/years/12;hours/days/24;inches/feet/12;eggs/dozen/12;cents/dollars/100;
feet/yards/3;cm/meters/100;legs/dogs/4;wheels/cars/4;wheels/bikes/2;legs/spiders/8;sides/triangles/3;fingers/hands/5;legs/chairs/4;
wings/birds/2;grams/kilograms/1000;weeks/years/52;eyes/people/2;legs/ants/6;quarters/dollars/4;meters/kilometers/1000;days/years/365;
dimes/dollars/10;nickels/dollars/20;corners/squares/4;tires/trucks/6;mm/cm/10;arms/octopuses/8;strings/guitars/6;socks/pairs/2""".replace(
    "\n", ""
).split(";")
PARTS = {"half": 2, "a third": 3, "one third": 3, "a quarter": 4, "one fourth": 4, "a fifth": 5, "one half": 2, "a tenth": 10,
         "1/2": 2, "1/4": 4, "1/3": 3, "50%": 2, "25%": 4, "10%": 10, "20%": 5, "50 percent": 2, "10 percent": 10, "25 percent": 4}  # fmt: skip
TIMES = {
    "twice": 2,
    "double": 2,
    "three times": 3,
    "triple": 3,
    "two times": 2,
    "ten times": 10,
    "four times": 4,
}


def quick_problem(level: str, rng: Random) -> Problem:
    """Draw one quick question; `level` is always "quick"."""
    make = rng.choices(
        (_plain, _order, _find, _unit, _part, _chain, _compare, _misc), (42, 10, 10, 9, 10, 9, 3, 8)
    )[0]
    text, calcs, answer = make(rng)
    return written("quick", level, _typed(text, rng), calcs, (), answer, rng)


def _numbers(sign: str, rng: Random) -> tuple[int, int, int]:
    if sign in "*/":
        chance = rng.random()
        a, b = (
            (rng.randint(2, 12), rng.randint(2, 12))
            if chance < 0.65
            else (rng.randint(2, 99), rng.randint(2, 12))
        )
        if chance > 0.9:
            a, b = rng.randint(11, 99), rng.randint(11, 40)
        if chance < 0.05:
            a, b = rng.randint(1, 300), rng.choice((1, 2, 5, 10, 10, 100))
        if rng.random() < 0.5:
            a, b = b, a
        return (a, b, a * b) if sign == "*" else (a * b, b, a)
    top = rng.choice((10, 20, 20, 50, 100, 100, 500, 1000))
    a, b = rng.randint(1, top), rng.randint(1, top)
    if rng.random() < 0.15:
        a, b = (max(1, n // 10) * 10 for n in (a, b))
    if sign == "+":
        return a, b, a + b
    a, b = max(a, b), min(a, b)
    return a, b, a - b


def _plain(rng: Random) -> tuple[str, list[Calc], int]:
    sign = rng.choice("++--**/")
    a, b, c = _numbers(sign, rng)
    form = (
        rng.choice(FORMS[sign].replace("\n", " ").split("|")[: rng.choice((4, 4, 99))])
        .strip()
        .format(a=a, b=b)
    )
    return _asked(form, rng), [Calc("", a, sign, b, c)], c


def _asked(form: str, rng: Random) -> str:
    chance = rng.random()
    if chance < 0.25:
        return form + rng.choice((" =", " = ?", "=", "=?", "", "?", " equals", " is?", " is", " equals what"))
    opening = rng.choice(OPENINGS[:4] if chance < 0.7 else OPENINGS)
    if opening == "what does":
        return f"what does {form} {rng.choice(('make', 'equal', 'give'))}?"
    return f"{opening} {form}{rng.choice(('?', '?', '', '.'))}"


def _order(rng: Random) -> tuple[str, list[Calc], int]:
    sign = rng.choice("+-*/")
    a, b, c = _numbers(sign, rng)
    form = rng.choice(ORDERS[sign].split("|")).format(a=a, b=b)
    return (
        rng.choice(("", "", "please ", "can you ", "now ")) + form + rng.choice((".", "", "", "?")),
        [Calc("", a, sign, b, c)],
        c,
    )


def _find(rng: Random) -> tuple[str, list[Calc], int]:
    sign = rng.choice("+-*/")
    a, b, c = _numbers(sign, rng)
    form, _, wanted = rng.choice(FINDS[sign].split("|")).partition("?{")
    if wanted == "b}":
        calc = {
            "+": Calc("", c, "-", a, b),
            "-": Calc("", a, "-", c, b),
            "*": Calc("", c, "/", a, b),
            "/": Calc("", a, "/", c, b),
        }[sign]
    elif wanted == "a}":
        calc = Calc("", c, "+" if sign == "-" else "*", b, a)
    else:
        calc = Calc("", a, sign, b, c)
    return form.format(a=a, b=b, c=c) + rng.choice(("?", "?", "")), [calc], calc.result


def _unit(rng: Random) -> tuple[str, list[Calc], int]:
    small, large, factor = rng.choice(UNITS).split("/")
    n, k = rng.randint(1, 12), int(factor)
    has = rng.choice((f"how many {small} are in {n} {large}", f"how many {small} do {n} {large} have", f"how many {small} are there in {n} {large}",
                      f"{n} {large} in {small}", f"how many {small} is {n} {large}", f"{n} {large} is how many {small}", f"how many {small} make {n} {large}"))  # fmt: skip
    if rng.random() < 0.2:
        back = rng.choice(
            (
                f"how many {large} are {n * k} {small}",
                f"{n * k} {small} is how many {large}",
                f"how many {large} is {n * k} {small}",
            )
        )
        return back + "?", [Calc("", n * k, "/", k, n)], n
    return has + rng.choice(("?", "?", "")), [Calc("", n, "*", k, n * k)], n * k


def _part(rng: Random) -> tuple[str, list[Calc], int]:
    if rng.random() < 0.3:
        word, k = rng.choice(list(TIMES.items()))
        n = rng.randint(2, 150)
        return _asked(f"{word} {n}", rng), [Calc("", n, "*", k, n * k)], n * k
    word, k = rng.choice(list(PARTS.items()))
    n = rng.randint(1, 100 if k < 5 else 30)
    return _asked(f"{word} of {n * k}", rng), [Calc("", n * k, "/", k, n)], n


def _chain(rng: Random) -> tuple[str, list[Calc], int]:
    a, b, c = (rng.randint(1, rng.choice((10, 30, 100))) for _ in range(3))
    kind = rng.choice(("sum", "sum", "mixed", "times", "brackets", "less", "less"))
    space = rng.choice((" ", " ", ""))
    plus = rng.choice(("+", "+", "plus")) if space else "+"
    if kind == "sum":
        text = rng.choice(
            (
                f"{a}{space}{plus}{space}{b}{space}{plus}{space}{c}",
                f"the sum of {a}, {b} and {c}",
                f"{a} and {b} and {c} together",
            )
        )
        return _asked(text, rng), [Calc("", a, "+", b, a + b), Calc("", a + b, "+", c, a + b + c)], a + b + c
    if kind == "mixed" and a + b >= c:
        return (
            _asked(f"{a}{space}{plus}{space}{b}{space}-{space}{c}", rng),
            [Calc("", a, "+", b, a + b), Calc("", a + b, "-", c, a + b - c)],
            a + b - c,
        )
    if kind == "less" and a > b:
        sign = rng.choice("+-") if a - b >= c else "+"
        end = a - b + (c if sign == "+" else -c)
        return (
            _asked(f"{a}{space}-{space}{b}{space}{sign}{space}{c}", rng),
            [Calc("", a, "-", b, a - b), Calc("", a - b, sign, c, end)],
            end,
        )
    a, b, c = rng.randint(2, 12), rng.randint(2, 12), rng.randint(1, 50)
    if kind == "brackets":
        return (
            _asked(f"({b}{space}+{space}{c}){space}*{space}{a}", rng),
            [Calc("", b, "+", c, b + c), Calc("", b + c, "*", a, (b + c) * a)],
            (b + c) * a,
        )
    text = (
        f"{c}{space}+{space}{a}{space}*{space}{b}"
        if rng.random() < 0.5
        else f"{a}{space}*{space}{b}{space}+{space}{c}"
    )
    return _asked(text, rng), [Calc("", a, "*", b, a * b), Calc("", a * b, "+", c, a * b + c)], a * b + c


def _compare(rng: Random) -> tuple[str, list[Calc], int]:
    a, b = rng.sample(range(1, 1000 if rng.random() < 0.3 else 100), 2)
    larger = rng.random() < 0.6
    word = rng.choice(("larger", "bigger", "greater", "more") if larger else ("smaller", "less", "lower"))
    text = rng.choice(
        (
            f"which is {word}, {a} or {b}?",
            f"what is {word}: {a} or {b}?",
            f"which number is {word}, {a} or {b}",
        )
    )
    return text, [], max(a, b) if larger else min(a, b)


def _misc(rng: Random) -> tuple[str, list[Calc], int]:
    n, k = rng.randint(1, 200), rng.randint(2, 9)
    step = rng.randint(2, 10)
    return rng.choice((
        *_counting(rng),
        (f"what number comes after {n}?", [Calc("", n, "+", 1, n + 1)], n + 1),
        (f"what number comes before {n}?", [Calc("", n, "-", 1, n - 1)], n - 1),
        (f"what is the next number: {n}, {n + step}, {n + 2 * step}, ?", [Calc("", n + step, "-", n, step), Calc("", n + 2 * step, "+", step, n + 3 * step)], n + 3 * step),
        (f"what is {k} squared?", [Calc("", k, "*", k, k * k)], k * k),
        (f"{k} squared", [Calc("", k, "*", k, k * k)], k * k),
        (f"what is the square root of {k * k}?", [Calc("", k * k, "/", k, k)], k),
        (f"what is the average of {n} and {n + 2 * step}?", [Calc("", n, "+", n + 2 * step, 2 * n + 2 * step), Calc("", 2 * n + 2 * step, "/", 2, n + step)], n + step),
        (f"what is the remainder of {n} divided by {k}?", [Calc("", n // k, "*", k, n // k * k), Calc("", n, "-", n // k * k, n % k)], n % k),
        (f"i am {k + 10} years old. how old will i be in {step} years?", [Calc("", k + 10, "+", step, k + 10 + step)], k + 10 + step),
    ))  # fmt: skip


def _counting(rng: Random) -> list[tuple[str, list[Calc], int]]:
    """Return questions about the row of numbers and their digits."""
    n, step, times = rng.randint(1, 99) * 10, rng.choice((2, 3, 5, 10, 20, 50, 100)), rng.randint(2, 9)
    near, a, b, c = rng.randint(11, 989), rng.randint(1, 9), rng.randint(0, 9), rng.randint(0, 9)
    three = rng.sample(range(1, 100), 3)
    tens = near // 10 * 10 + (10 if near % 10 >= 5 else 0)
    rounds = [Calc("", near, "-" if tens <= near else "+", abs(tens - near), tens)]
    value = a * 100 + b * 10 + c
    digits = [Calc("", a * 100, "+", b * 10, a * 100 + b * 10), Calc("", a * 100 + b * 10, "+", c, value)]
    whole = rng.randint(0, 500)
    k, each, over = rng.randint(2, 9), rng.randint(1, 12), 0
    over = rng.randint(0, k - 1)
    left = [Calc("", each, "*", k, each * k), Calc("", each * k + over, "-", each * k, over)]
    return [
        (f"count by {step}s: what follows {n}?", [Calc("", n, "+", step, n + step)], n + step),
        (f"what is {step} steps of one after {n}?", [Calc("", n, "+", step, n + step)], n + step),
        (
            f"going up in {step}s from {n}, which number is next?",
            [Calc("", n, "+", step, n + step)],
            n + step,
        ),
        (f"going down in {step}s from {n + step}, which is next?", [Calc("", n + step, "-", step, n)], n),
        (
            f"start at 0 and add {step} {times} times. where are you?",
            [Calc("", times, "*", step, times * step)],
            times * step,
        ),
        (f"{near} to the nearest 10", rounds, tens),
        (f"round {near} to tens", rounds, tens),
        (f"which number has {a} hundreds, {b} tens and {c} ones?", digits, value),
        (f"{a} hundreds {b} tens {c} ones as a number", digits, value),
        (f"which is the largest of {three[0]}, {three[1]} and {three[2]}?", [], max(three)),
        (f"which is the smallest: {three[0]}, {three[1]}, {three[2]}?", [], min(three)),
        (f"what is {whole} plus 0?", [Calc("", whole, "+", 0, whole)], whole),
        (f"{whole} times 0", [Calc("", whole, "*", 0, 0)], 0),
        (f"{whole} times 1", [Calc("", whole, "*", 1, whole)], whole),
        (f"{whole} minus {whole}", [Calc("", whole, "-", whole, 0)], 0),
        (f"{in_words(value)} in digits", [], value),
        (f"how do i write {in_words(value)} with digits?", [], value),
        (f"half of which number is {value}?", [Calc("", value, "*", 2, value * 2)], value * 2),
        (f"{k} fits into {each * k + over} how often, and what remains?", left, over),
        (f"what remains when {each * k + over} is divided by {k}?", left, over),
        (
            f"{near // 10} {rng.choice(('boxes', 'bags', 'lots', 'sets'))} of {k}, how many?",
            [Calc("", near // 10, "*", k, near // 10 * k)],
            near // 10 * k,
        ),
        (f"{in_words(each)} {in_words(k)}s are how much?", [Calc("", each, "*", k, each * k)], each * k),
    ]


def _typed(text: str, rng: Random) -> str:
    words = text.split(" ")
    if rng.random() < 0.14:
        large = rng.random() < 0.6
        words = [in_words(int(w)) if w.isdigit() and int(w) <= (999 if large else 12) else w for w in words]
        text = " ".join(words)
    if rng.random() < 0.06:
        return spoken(text, rng)
    chance = rng.random()
    text = text.replace(" i ", " I ")
    if chance < 0.72:
        return text[:1].upper() + text[1:]
    return text if chance < 0.95 else text.rstrip("?.")
