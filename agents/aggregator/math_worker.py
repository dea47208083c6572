"""A process of `math_pool` that compares answers with math-verify: one JSON line in, one out.

It runs alone because a comparison may never end: math-verify's own time-outs need the main thread of a
process, and a signal handler cannot interrupt compiled code. So they are off, and the process dies instead:
the parent kills it, and an alarm without a handler does when there is no parent any more.
"""

import json
import os
import resource
import signal
import sys
from typing import TextIO


def main(timeout_s: float, memory_mb: int) -> None:
    """Answer requests {"gold", "answer"} with {"correct"} or {"error"} until standard input ends."""
    # The protocol keeps a descriptor of its own: a parser that prints must not break it.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import logging

    logging.disable(logging.CRITICAL)  # a warning a call that the time-outs are off
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    config = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    _say(out, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1.0)
        try:
            gold = parse(f"${request['gold']}$", config, parsing_timeout=None)
            answer = parse(f"\\boxed{{{request['answer']}}}", config, parsing_timeout=None)
            # Gold first: the comparison is not symmetric.
            reply: dict[str, object] = {"correct": bool(verify(gold, answer, timeout_seconds=None))}
        except (Exception, RecursionError, MemoryError) as error:  # the library promises no error type
            reply = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(out, reply)


def _say(out: TextIO, reply: dict[str, object]) -> None:
    out.write(json.dumps(reply) + "\n")
    out.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
