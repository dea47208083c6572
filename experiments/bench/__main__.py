"""The benchmarks' command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.bench import learner


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark and write its JSON."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "learner", help=learner.__doc__.splitlines()[0] if learner.__doc__ else None
    )
    command.add_argument("--out", type=Path, default=Path("out/bench/learner.json"), help="the JSON to write")
    command.add_argument("--rounds", type=int, default=400, help="timed rounds of each row")
    command.add_argument(
        "--smoke", action="store_true", help="tiny sizes: shows that it runs, measures nothing"
    )
    chosen = parser.parse_args(argv)
    return learner.run(chosen.out, rounds=chosen.rounds, smoke=chosen.smoke)


if __name__ == "__main__":
    sys.exit(main())
