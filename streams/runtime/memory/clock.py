"""An event loop whose time is its own: it jumps to the next timer when nothing else is to be done."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Standstill(RuntimeError):
    """Nothing runs, and no timer will ever wake anything: whatever is awaited never comes."""


class _Jumping(selectors.SelectSelector):
    """A selector that moves the loop's clock instead of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Standstill("every task waits and no timer is set")
        self.loop.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that never waits. Work in threads is not seen: it must run inline."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop began."""
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual clock and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
