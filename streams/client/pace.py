"""How fast queries are sent."""

import msgspec


class Pace(msgspec.Struct, frozen=True):
    """When each query is due: at a steady rate, or at recorded times.

    Attributes:
        per_s: Queries per second; 0 sends as fast as the broker accepts them.
        at_s: The second at which each query is due, counted from the first; overrides `per_s`.

    >>> Pace(20.0).due_s(10)
    0.5
    """

    per_s: float = 0.0
    at_s: tuple[float, ...] = ()

    def due_s(self, index: int) -> float:
        """Return when query `index` is due, in seconds after the first."""
        if self.at_s:
            return self.at_s[index]
        return index / self.per_s if self.per_s > 0 else 0.0
