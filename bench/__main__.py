"""Runs `python -m bench`, the benchmarks."""

from bench.commands import main

if __name__ == "__main__":
    main()
