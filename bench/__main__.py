"""Runs the benchmarks: `python -m bench`."""

from bench.commands import main

if __name__ == "__main__":
    main()
