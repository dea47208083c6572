"""Words of messages."""


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun.

    >>> counted(1, "model"), counted(2, "model"), counted(1200, "query", "queries")
    ('1 model', '2 models', '1,200 queries')
    """
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"
