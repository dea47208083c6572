"""`python -m streams`: the one command line."""

from streams.commands import main

if __name__ == "__main__":
    main()
