"""One question with its reference solution, and which split it belongs to."""

import hashlib
from dataclasses import dataclass
from random import Random

DELIMITER = "\n\n"
SPLITS = ("train", "validation", "test", "record")
# Of 100 hash buckets: 0-84 train, 85-89 validation, 90-94 test, 95-99 record.
_SPLIT_ENDS = (85, 90, 95, 100)


@dataclass(frozen=True)
class Problem:
    """A question and its steps; every step but the last ends in a blank line, the last one boxes the answer.

    `skipped` are the spans (start, end) of the solution's characters that hold a slip: the loss leaves them out.
    """

    family: str
    level: str
    question: str
    steps: tuple[str, ...]
    answer: str
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def solution(self) -> str:
        """The steps as one text."""
        return "".join(self.steps)


def split_of(question: str) -> str:
    """Return the split a question belongs to, from the SHA-256 of its text.

    >>> split_of("What is 2+2?") in SPLITS
    True
    """
    bucket = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 100
    return next(split for split, end in zip(SPLITS, _SPLIT_ENDS, strict=True) if bucket < end)


def seeded(*parts: object) -> Random:
    """Return a generator whose state depends on the parts alone."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return Random(int.from_bytes(digest[:8], "big"))


def boxed(answer: object) -> str:
    """Return the last step."""
    return f"\\boxed{{{answer}}}"
