"""Surface counts of a question: what a sentence embedding loses, though it tells how hard a question is.

How many numbers stand in a word problem, and how long it is, says more about its level than MiniLM's 384 dimensions
together. The counts follow the embedding in the vector of policies that read them (`Policy.surface`).
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from agents.decider.policies.base import Vector

COUNTS: Final = (
    "numbers",
    "digits",
    "words",
    "letters",
    "sentences",
    "lines",
    "symbols",
    "capitals",
    "longest number",
)

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE = re.compile(r"[.!?]+(?:\s|$)")
_SYMBOL = re.compile(r"[-+*/=^<>%$\\{}()\[\]]")


def counts(text: str) -> Vector:
    """Return ln(1 + n) of each of `COUNTS`, shape (9,): long questions differ by factors, not by differences.

    >>> np.expm1(counts("Tom has 5 pens. He buys 16 more.")).round().astype(int).tolist()
    [2, 3, 8, 20, 2, 1, 0, 2, 2]
    """
    numbers = _NUMBER.findall(text)
    found = (
        len(numbers),
        sum(c.isdigit() for c in text),
        len(text.split()),
        sum(c.isalpha() for c in text),
        len(_SENTENCE.findall(text)),
        text.count("\n") + 1,
        len(_SYMBOL.findall(text)),
        sum(c.isupper() for c in text),
        max(map(len, numbers), default=0),
    )
    # As in the log, whose rows hold float32: a replay then sees the same numbers.
    return np.log1p(found).astype(np.float32).astype(np.float64)
