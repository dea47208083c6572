r"""Finds the answer in a text: its last complete `\boxed{…}`."""

import re

# A box opens, an escaped character (whose brace is printed, not grouping), or a brace.
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def extract_boxed(text: str) -> str | None:
    r"""Return what the last complete `\boxed{…}` holds, braces inside balanced, or None.

    >>> extract_boxed(r"so \boxed{\frac{1}{2}} and \boxed{3")
    '\\frac{1}{2}'
    """
    opened: list[int | None] = []  # where the content of each open box starts; None for a plain brace
    last: tuple[int, int] | None = None
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            start = opened.pop() if opened else None
            if start is not None and (last is None or start > last[0]):
                last = (start, match.start())
        elif token.endswith("{") and not token.endswith("\\{"):
            opened.append(match.end() if len(token) > 1 else None)
    return None if last is None else text[last[0] : last[1]].strip()
