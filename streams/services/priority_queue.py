"""A priority queue whose items can be removed before their turn."""

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

_SLACK = 64


class PriorityQueue(Generic[T]):
    """Items ordered by a number, lowest first; ties are broken by the items' own order.

    Removed entries stay in the heap until they make up about half of it. Removal therefore takes amortised constant
    time, and the heap has at most about twice as many entries as there are items.

    >>> queue = PriorityQueue[str]()
    >>> for number, item in (3, "c"), (1, "a"), (2, "b"):
    ...     queue.push(number, item)
    >>> queue.remove("a")
    >>> queue.first(), queue.pop(), len(queue)
    ((2, 'b'), (2, 'b'), 1)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, T]] = []
        self._numbers: dict[T, int] = {}

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._numbers)

    def __contains__(self, item: T) -> bool:
        """Return whether an item is in the queue."""
        return item in self._numbers

    def push(self, number: int, item: T) -> None:
        """Add an item, or change its number."""
        self._numbers[item] = number
        heapq.heappush(self._heap, (number, item))
        self._sweep()

    def remove(self, item: T) -> None:
        """Remove an item, if present."""
        if self._numbers.pop(item, None) is not None:
            self._sweep()

    def first(self) -> tuple[int, T] | None:
        """Return the first item with its number; None if empty."""
        while self._heap and self._numbers.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> tuple[int, T]:
        """Remove and return the first item with its number.

        Raises:
            IndexError: the queue is empty.
        """
        if (found := self.first()) is None:
            raise IndexError("the queue is empty")
        del self._numbers[found[1]]
        heapq.heappop(self._heap)
        return found

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._numbers) + _SLACK:
            self._heap = [(number, item) for item, number in self._numbers.items()]
            heapq.heapify(self._heap)
