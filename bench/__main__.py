"""`python -m bench`: the measurements."""

from bench.commands import main

if __name__ == "__main__":
    main()
