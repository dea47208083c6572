"""The benchmarks of the pure parts; `learner`, the only one yet, is also what no name means."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.bench import learner


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark and write its JSON."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__)
    parser.add_argument("benchmark", nargs="?", choices=["learner"], default="learner", help="which one")
    parser.add_argument("--out", type=Path, default=Path("out/bench/learner.json"), help="the JSON to write")
    parser.add_argument("--rounds", type=int, default=400, help="timed rounds of each row")
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes: shows that it runs, measures nothing"
    )
    chosen = parser.parse_args(argv)
    return learner.run(chosen.out, rounds=chosen.rounds, smoke=chosen.smoke)


if __name__ == "__main__":
    sys.exit(main())
