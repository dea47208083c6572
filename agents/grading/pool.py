"""Processes that grade answers, with enforced limits on time and memory.

Answers come from models and references from clients, so neither is trusted. math-verify may hang inside compiled code,
where neither a thread nor a signal handler can interrupt it, and a program with many tests takes a long time. Both
therefore run in separate processes, without this process's environment, which contains secrets. A process that exceeds
its time limit is killed and replaced.
"""

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from agents.grading.grade import Rule, Verdict
from schemas.errors import UniscaleError

_ROOT = Path(__file__).resolve().parents[2]
_WORKER = "agents.grading.worker"
_START_TIMEOUT_S = 120.0  # to import sympy on a busy machine; not part of an answer's time
# The only environment variables passed to a grading process: library paths and text encoding.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


class GradingPoolError(UniscaleError):
    """A grading process could not be started. Install math-verify with an antlr4 runtime, or free up memory."""


class GraderFailed(UniscaleError):
    """A grading process ran out of time or died, leaving it unknown whether the answer is right."""


class GradingPool:
    r"""Pool of killable processes that grade answers. Safe to call from several threads.

    Args:
        workers: Number of processes, started on demand. This many answers are graded concurrently; others wait.
        timeout_s: Maximum time for one answer.
        memory_mb: Maximum memory that one process may map, in MB.
        environ: The environment of this process; only a few variables are passed on.

    >>> with GradingPool() as pool:
    ...     pool.ask("math-verify", {"gold": [r"\frac{1}{2}"], "answer": "0.5"})
    Verdict(correct=True, how='math-verify')
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 5.0,
        memory_mb: int = 2048,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Set up the pool without starting any processes."""
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self._idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        self.workers = workers
        for _ in range(workers):
            self._idle.put(None)
        self._mathematicians: set[int] = set()  # pids of the processes that have imported math-verify
        self.started = 0

    def ask(self, rule: Rule, request: Mapping[str, object]) -> Verdict:
        """Return the result of a request. Blocks for at most `timeout_s`, plus any time for a process to start.

        Args:
            rule: The deciding rule.
            request: The request, in the format read by `agents.grading.worker`.

        Raises:
            GraderFailed: There is no result within the limits.
            GradingPoolError: A grading process could not be started.
        """
        return Verdict(correct=bool(self._reply(rule, request)["correct"]), how=rule)

    def refusal(self, request: Mapping[str, object]) -> str:
        """Return the reason that patterns or a schema cannot be used; empty if they can. Blocks like `ask`.

        Raises:
            GraderFailed: There is no result within the limits, for instance because compiling takes too long.
            GradingPoolError: A grading process could not be started.
        """
        return str(self._reply("check", {"check": request})["why"])

    def close(self) -> None:
        """End the idle processes; a later call starts new ones. A process that is grading ends with this process."""
        for _ in range(self.workers):
            with contextlib.suppress(queue.Empty):
                _kill(self._idle.get_nowait())
                self._idle.put(None)

    async def aclose(self) -> None:
        """Close the pool. A service calls this when it stops."""
        self.close()

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the pool."""
        self.close()

    def _reply(self, kind: str, request: Mapping[str, object]) -> dict[str, object]:
        process = self._idle.get()
        try:
            if process is None or process.poll() is not None:
                process = self._start()
            if kind == "math-verify" and process.pid not in self._mathematicians:
                self._teach(process)
            reply = self._exchange(process, json.dumps(request))
            if reply is None:
                hung = process.poll() is None
                _kill(process)
                # Start the replacement now, so that this answer waits for it rather than another tenant's next answer.
                with contextlib.suppress(GradingPoolError):
                    process = self._start()
                    if kind == "math-verify":
                        self._teach(process)
        except BaseException:
            _kill(process)
            self._idle.put(None)
            raise
        self._idle.put(process)
        if reply is None:
            raise GraderFailed(
                f"{kind}: no result in {self._timeout_s:g} s" if hung else f"{kind}: its process died"
            )
        if "error" in reply:
            raise GraderFailed(f"{kind}: {reply['error']}")
        return reply

    def _start(self) -> "subprocess.Popen[str]":
        self.started += 1
        process = subprocess.Popen(
            # -P: never import modules from the working directory.
            [sys.executable, "-P", "-B", "-m", _WORKER, str(self._timeout_s), str(self._memory_mb)],
            env=self._environ | {"PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._mathematicians.discard(process.pid)  # the operating system may reuse a pid
        if _read(process, _START_TIMEOUT_S) is None:
            _kill(process)
            raise GradingPoolError(f"the grading process ({_WORKER}) did not start; free memory")
        return process

    def _teach(self, process: "subprocess.Popen[str]") -> None:
        if self._exchange(process, json.dumps({"math": True}), _START_TIMEOUT_S) is None:
            _kill(process)
            raise GradingPoolError(
                f"the grading process ({_WORKER}) cannot import math-verify: "
                "install math-verify[antlr4_13_2], or free memory"
            )
        self._mathematicians.add(process.pid)

    def _exchange(
        self, process: "subprocess.Popen[str]", line: str, timeout_s: float | None = None
    ) -> dict[str, object] | None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            process.wait()  # it may have closed its end without having exited yet
            return None
        return _read(process, self._timeout_s if timeout_s is None else timeout_s)


def _read(process: "subprocess.Popen[str]", timeout_s: float) -> dict[str, object] | None:
    """Return one reply, or None if time is up or the process has ended. A reply is one atomic write."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if ready else ""
    if not line:
        if ready:
            process.wait()  # so that poll() reports the exit: this is not a timeout
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
            with contextlib.suppress(BrokenPipeError):  # an unsent request to a process that has exited
                stream.close()
