"""A pool of processes that compare mathematical answers, with a time-out that works.

math-verify may hang inside compiled code, where neither a thread nor a signal handler reaches it. Here each
comparison runs in a process of its own that is killed when its time is up, counted, and started anew.
"""

import contextlib
import json
import queue
import select
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

_WORKER = Path(__file__).with_name("math_worker.py")
_START_TIMEOUT_S = 120.0  # importing sympy on a busy machine; not part of a comparison's time


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison; False with `timeout` or `error`, where there was none."""

    correct: bool
    how: Literal["math-verify", "timeout", "error"]


class MathPoolError(RuntimeError):
    """The comparing process cannot be started. Install math-verify with an antlr4 runtime, or free memory."""


class MathPool:
    r"""Compare answers with math-verify in processes that can be killed. Safe to call from several threads.

    Args:
        workers: Processes, started when first needed.
        timeout_s: Longest time one comparison may take.
        memory_mb: Most memory one process may map.

    >>> with MathPool() as pool:
    ...     pool.judge(r"\frac{1}{2}", "0.5")
    Verdict(correct=True, how='math-verify')
    """

    def __init__(self, workers: int = 1, timeout_s: float = 5.0, memory_mb: int = 2048) -> None:
        """Start nothing yet."""
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        self._workers = workers
        for _ in range(workers):
            self._idle.put(None)
        self.counts: Counter[str] = Counter()

    def judge(self, gold: str, answer: str) -> Verdict:
        """Return whether `answer` equals `gold`, both LaTeX without delimiters. Blocks at most `timeout_s`.

        Raises:
            MathPoolError: when no comparing process starts.
        """
        process = self._idle.get()
        try:
            if process is None or process.poll() is not None:
                process = self._start()
            reply = self._exchange(process, json.dumps({"gold": gold, "answer": answer}))
        except BaseException:
            _kill(process)
            self._idle.put(None)
            raise
        if reply is None or "error" in reply:
            how: Literal["timeout", "error"] = (
                "timeout" if reply is None and process.poll() is None else "error"
            )
            self.counts[how] += 1
            if reply is None:
                _kill(process)
            self._idle.put(process if reply is not None else None)
            return Verdict(correct=False, how=how)
        self.counts["math-verify"] += 1
        self._idle.put(process)
        return Verdict(correct=bool(reply["correct"]), how="math-verify")

    def close(self) -> None:
        """End the processes; a later `judge` starts new ones."""
        for _ in range(self._workers):
            _kill(self._idle.get())
        for _ in range(self._workers):
            self._idle.put(None)

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pool."""
        self.close()

    def _start(self) -> "subprocess.Popen[str]":
        self.counts["started"] += 1
        process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(self._timeout_s), str(self._memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        if _read(process, _START_TIMEOUT_S) is None:
            _kill(process)
            raise MathPoolError(
                f"the comparing process ({_WORKER.name}) did not start: "
                "install math-verify[antlr4_13_2], or free memory"
            )
        return process

    def _exchange(self, process: "subprocess.Popen[str]", line: str) -> dict[str, object] | None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        return _read(process, self._timeout_s)


def _read(process: "subprocess.Popen[str]", timeout_s: float) -> dict[str, object] | None:
    """Read one reply, or None when the time is up or the process ended. A reply is one atomic write."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if ready else ""
    if not line:
        if ready:
            process.wait()  # so that poll() knows: this is an error, no time-out
        return None
    reply: dict[str, object] = json.loads(line)
    return reply


def _kill(process: "subprocess.Popen[str] | None") -> None:
    if process is None:
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # an unsent request to a process that is gone
                stream.close()
