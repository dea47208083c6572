"""Comparison without mathematics: numbers, numbers with a unit, and words.

math-verify reads all text as mathematics: to it, `hello` is a product of letters, equal to `olleh`, and `K-G-V` is a
difference, equal to `K-V-G`. It does not read `1 1/2` and `1e-5` as numbers. It is therefore used only for comparisons
that this module cannot decide.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Literal

_ALIKE = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
    | {chr(0xFF10 + digit): str(digit) for digit in range(10)}
    | {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
)
"""Replacements for characters with the same meaning."""

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
# Words, at least one of them with three or more letters; `no`; a path such as K-G-V; or a date. Any other short word
# may be a product of variables.
_WORDS = re.compile(
    r"(?=.*[^\W\d_]{3})[^\W\d_]+(?:[ ,'’&-]+[^\W\d_]+)*|(?i:no)|[A-Z](?:-[A-Z])+|[0-9]{4}-[0-9]{2}-[0-9]{2}"
)
_NO_MATHEMATICS = re.compile(r"[\w ,'’&-]+")
_FUNCTION = re.compile(r"\b(?:pi|tau|sqrt|sin|cos|tan|log|ln|exp|inf|infinity|mod)\b", re.IGNORECASE)
# Words after a number that change its value.
_NO_UNIT = re.compile(
    r"\b(?:and|or|to|plus|minus|times|over|choose|more|less|fewer|than|point|per ?cent|percent(?:age)?s?|basis"
    r"|half|halves|squared|cubed|twice|double|factorials?|gross"
    r"|(?:pair|score|dozen|hundred|thousand|million|billion|trillion|lakh|crore)s?"
    r"|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|sigma|phi|omega)\b",
    re.IGNORECASE,
)
_MAX_DIGITS = 1_000  # Python refuses to parse more than 4,300


def as_number(text: str) -> Fraction | None:
    r"""Return the exact number denoted by a text, or None if it does not denote one.

    Signs, leading zeros, thousands separators, $, a full stop, decimals, powers of ten, fractions and mixed numbers are
    understood.

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
    """Return the number denoted by a text and the words of its unit, if any; None if it does not denote a number."""
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
    """Return whether two numbers are equal, both to six decimal places and to six significant digits."""
    return a == b or (round(a, 6) == round(b, 6) and _six(a) == _six(b))


def _six(number: Fraction) -> str:
    return format(Decimal(number.numerator) / Decimal(number.denominator), ".5e")


def compare_exactly(gold: str, answer: str) -> tuple[bool, Literal["number", "text"]] | None:
    """Return whether an answer is right and the rule that decided; None if the comparison needs mathematics.

    Units match if one is a prefix of the other. Words are compared case-insensitively.
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
    """Return text without insignificant white space."""
    spaced = _SPACES.sub(" ", text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    return _BETWEEN_WORDS.sub("\0", _alike(spaced)).replace(" ", "").strip("$").removesuffix(".")


def _unwrapped(text: str) -> str:
    r"""Return text without commands such as `\text{…}`."""
    return _alike(_TEXT_COMMAND.sub(r" \1 ", text))


def _alike(text: str) -> str:
    """Return text with look-alike characters unified, without a final full stop or double spaces."""
    return " ".join(text.translate(_ALIKE).split()).removesuffix("$").removesuffix(".").rstrip()
