"""A world's state: named quantities, the relations between them, and what follows from what is told.

Values are simulated forward when a world is made. A solution is derived only from what the text tells, by working
through the relations; that both agree is what makes a reference answer trustworthy.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from experiments.mini.tasks.styles import Calc

RELATION = re.compile(r"^(\w+)=(\w+)([-+*/])(\w+)$")
# How c = a ∘ b gives each of its three members from the other two.
_GIVES = {
    "+": (("a", "+", "b"), ("c", "-", "b"), ("c", "-", "a")),
    "-": (("a", "-", "b"), ("c", "+", "b"), ("a", "-", "c")),
    "*": (("a", "*", "b"), ("c", "/", "b"), ("c", "/", "a")),
    "/": (("a", "/", "b"), ("c", "*", "b"), ("a", "/", "c")),
}


class Impossible(ValueError):
    """A world that cannot be: a negative number, a remainder, or a number beyond the limit."""


@dataclass
class World:
    """Quantities by key, relations (result, left, sign, right), and the label a key has in a solution's steps."""

    limit: int = 9_999
    values: dict[str, int] = field(default_factory=dict)
    relations: list[tuple[str, str, str, str]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    _made: tuple[int, list[tuple[str, Calc, tuple[str, ...]]]] | None = None

    def given(self, key: str, value: int, label: str = "") -> None:
        """Add a quantity that is simply there."""
        self.values[key] = value
        self.labels[key] = label or key

    def follows(self, relation: str, label: str = "") -> int:
        """Add a quantity by a relation such as `cost=count*price`; a side may be a plain number.

        Raises:
            Impossible: when it is negative, no whole number, or beyond the limit.
            ValueError: when the text is no relation.
        """
        found = RELATION.match(relation)
        if found is None:
            raise ValueError(f"{relation!r} is no relation such as cost=count*price")
        key, left, sign, right = found.groups()
        value = apply(self._value(left), sign, self._value(right))
        if value > self.limit:
            raise Impossible(f"{relation} is {value}")
        self.given(key, value, label)
        self.relations.append((key, left, sign, right))
        return value

    def derive(self, told: Iterable[str], target: str) -> list[Calc] | None:
        """Return the calculations that lead from the told quantities to the target; None when they do not.

        What is told is the shortest in steps that forward chaining finds; unneeded quantities take no part.
        """
        known: dict[str, tuple[Calc, tuple[str, ...]] | None] = dict.fromkeys(told)
        if target in known:
            return []
        waiting = self._steps()
        while target not in known:
            fresh: dict[str, tuple[Calc, tuple[str, ...]]] = {}
            still = []
            for step in waiting:
                if step[0] in known:
                    continue
                if all(need in known for need in step[2]):
                    fresh.setdefault(step[0], (step[1], step[2]))
                else:
                    still.append(step)
            if not fresh:
                break
            known.update(fresh)
            waiting = still
        if target not in known:
            return None
        return self._unwound(known, target)

    def _unwound(self, known: Mapping[str, tuple[Calc, tuple[str, ...]] | None], target: str) -> list[Calc]:
        calcs: dict[str, Calc] = {}

        def visit(key: str) -> None:
            how = known.get(key)
            if how is None or key in calcs:
                return
            for need in how[1]:
                visit(need)
            calcs[key] = how[0]

        visit(target)
        return list(calcs.values())

    def _steps(self) -> list[tuple[str, Calc, tuple[str, ...]]]:
        """Return every way to get one quantity from others: its key, the calculation, and the keys it needs."""
        if self._made is not None and self._made[0] == len(self.relations):
            return self._made[1]
        steps = []
        for key, left, sign, right in self.relations:
            names = {"c": key, "a": left, "b": right}
            for target, (x, op, y) in zip((key, left, right), _GIVES[sign], strict=True):
                a, b = self._value(names[x]), self._value(names[y])
                if target.isdigit() or (op == "/" and (b == 0 or a % b)):
                    continue
                calc = Calc(self.labels[target], a, op, b, self.values[target])
                steps.append((target, calc, tuple(n for n in (names[x], names[y]) if not n.isdigit())))
        self._made = len(self.relations), steps
        return steps

    def _value(self, key: str) -> int:
        return int(key) if key.isdigit() else self.values[key]


def apply(a: int, sign: str, b: int) -> int:
    """Return a `sign` b.

    Raises:
        Impossible: when it is negative or no whole number.
    """
    if (sign == "-" and a < b) or (sign == "/" and (b == 0 or a % b)):
        raise Impossible(f"{a}{sign}{b}")
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]
