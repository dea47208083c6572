"""A `GradingPool` process, which reads one JSON line per request and writes one per reply.

It is a separate process because grading may never finish: math-verify's own timeouts work only in a process's main
thread, and a signal handler cannot interrupt compiled code. So these timeouts are disabled, and the process is killed
instead: by its parent or, if the parent has exited, by an alarm without a handler.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import TextIO

from agents.grading.compiled import conforms, matches, refusal
from agents.grading.programs import passes


def main(timeout_s: float, memory_mb: int) -> None:
    """Answer requests, one per line, until the input ends.

    {"gold", "answer"}, {"program", "tests"}, {"patterns", "text"} and {"schema", "value"} are answered with
    {"correct"}, and {"check"} with {"why"}; any of them may be answered with {"error"}. {"math"} must come once before
    the first request with `gold`, and is answered with {"ready"}.
    """
    # The protocol uses its own descriptor, so that a parser's prints cannot break it.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _limit(resource.RLIMIT_AS, memory_mb * 2**20)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)  # pipes are not files
    graders: dict[str, Callable[..., bool]] = {"program": passes, "patterns": matches, "schema": conforms}
    _say(out, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if "math" in request:
            graders["gold"] = _mathematics()  # takes seconds, which do not count towards an answer's limit
            _say(out, {"ready": True})
            continue
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1.0)
        try:
            reply: dict[str, object]
            if "check" in request:
                reply = {"why": refusal(**request["check"])}
            else:
                grade = next(grader for name, grader in graders.items() if name in request)
                reply = {"correct": grade(**request)}
        except (Exception, RecursionError, MemoryError) as error:  # math-verify's exceptions are undocumented
            reply = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(out, reply)


def _mathematics() -> Callable[..., bool]:
    """Return math-verify's comparison function. Importing it takes seconds and a hundred megabytes."""
    import logging

    logging.disable(logging.CRITICAL)  # avoids a warning on each call that timeouts are disabled
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    config = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())

    def equal(gold: list[str], answer: str) -> bool:
        given = parse(f"\\boxed{{{answer}}}", config, parsing_timeout=None)
        # The gold answer comes first, because the comparison is not symmetric.
        return any(
            verify(parse(f"${each}$", config, parsing_timeout=None), given, timeout_seconds=None)
            for each in gold
        )

    return equal


def _limit(what: int, most: int) -> None:
    resource.setrlimit(what, (most, most))


def _say(out: TextIO, reply: dict[str, object]) -> None:
    out.write(json.dumps(reply) + "\n")
    out.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
