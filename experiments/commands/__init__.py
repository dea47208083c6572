"""The commands of `python -m experiments`: each parses, calls one function, prints."""
