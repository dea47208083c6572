"""Surface counts of a question, which a sentence embedding loses although they show how hard a question is.

The number of figures in a word problem, and its length, say more about its level than all 384 dimensions of MiniLM. For
policies that read them (`Policy.surface`), the counts follow the embedding in one vector.
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
    """Return ln(1 + n) of each of `COUNTS`, shape (9,); logarithms, because long questions differ by factors.

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
    # Rounded as in the log, whose rows hold float32, so that a replay sees the same numbers.
    return np.log1p(found).astype(np.float32).astype(np.float64)
