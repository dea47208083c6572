"""The log of several processes: one file, rotated by size, that never stops whoever writes to it."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOG_BYTES = 50 * 1024 * 1024
"""Size at which a log file is rotated."""

LOG_FILES = 3
"""Rotated files that are kept besides the current one: LOG.1 is the newest."""


class LogFile(RotatingFileHandler):
    """Lines of several writers in one file, and on request on the terminal too.

    A line that cannot be written (a full disk, a closed terminal) is counted and dropped: the processes go on,
    and the first line that can be written again says how many were lost.

    Args:
        path: The file; its folder is created.
        most_bytes: Size at which it is rotated.
        echo: Also called with each line.
    """

    def __init__(
        self, path: Path, *, most_bytes: int = LOG_BYTES, echo: Callable[[str], None] | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, maxBytes=most_bytes, backupCount=LOG_FILES, encoding="utf-8")
        self.echo = echo
        self.lost = 0
        self._failed = False
        self._writing = threading.Lock()

    def line(self, name: str, text: str) -> None:
        """Write one line of a process."""
        told = f"{time.strftime('%H:%M:%S')} {name:<18} | {text}"
        with self._writing:
            if self.lost and self._write(
                f"{time.strftime('%H:%M:%S')} {'supervisor':<18} | {self.lost} lines could not be written"
            ):
                self.lost = 0
            if not self._write(told):
                self.lost += 1
        if self.echo is not None:
            try:
                self.echo(told)
            except OSError:
                self.echo = None  # the terminal is gone; the file remains

    def handleError(self, record: logging.LogRecord) -> None:
        """Note the failure instead of printing a traceback for each line."""
        self._failed = True

    def close(self) -> None:
        """Close the file; what a full disk did not take is lost."""
        with contextlib.suppress(OSError):
            super().close()

    def _write(self, text: str) -> bool:
        self._failed = False
        self.emit(logging.LogRecord("rooms", logging.INFO, "", 0, text, None, None))
        return not self._failed
