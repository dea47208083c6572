"""SIGINT and SIGTERM for the commands that start processes: both unwind the stack, so that everything is stopped."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block through its context managers and `finally` clauses.

    A shell starts the background jobs of a script with SIGINT ignored, and Python then leaves it ignored: `up &`
    could not be interrupted. So the handler is set here whatever was inherited. SIGINT raises KeyboardInterrupt.
    The first SIGTERM raises SystemExit(0); later ones are ignored, because what was started is being stopped.
    """
    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)
