"""The records in flight of a worker in memory, kept beyond its death."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence


class InFlightList:
    """The records a worker is handling, as its successor finds them; see `streams.runtime.crashes.InFlight`."""

    def __init__(self, left: Sequence[str] = ()) -> None:
        self.left = list(left)
        self._held: list[str] = []

    @property
    def coordinates(self) -> list[str]:
        """What is in flight."""
        return list(self._held)

    @contextlib.contextmanager
    def holding(self, coordinates: Iterable[str]) -> Iterator[None]:
        """Keep records noted while they are handled."""
        names = list(coordinates)
        self._held += names
        try:
            yield
        finally:
            for name in names:
                self._held.remove(name)
