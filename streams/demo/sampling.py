"""Which questions are asked, and in which order."""

import random
from collections.abc import Sequence
from itertools import pairwise

from schemas.query import Query


def thirds(queries: Sequence[Query], count: int, seed: int) -> list[Query]:
    """Return `count` queries in random order, every level in each third with the share that it has of all.

    >>> qs = [Query(query_id=f"{l}{i}", text="x", metadata={"level": l}) for l in "ab" for i in range(6)]
    >>> [sorted(q.metadata["level"] for q in thirds(qs, 12, 1)[t * 4 : t * 4 + 4]) for t in range(3)]
    [['a', 'a', 'b', 'b'], ['a', 'a', 'b', 'b'], ['a', 'a', 'b', 'b']]
    """
    rng = random.Random(seed)
    levels: dict[str, list[Query]] = {}
    for query in queries:
        levels.setdefault(str(query.metadata.get("level", "")), []).append(query)
    for group in levels.values():
        rng.shuffle(group)
    # Each level's questions are spread evenly over the whole, so that any prefix has nearly the same shares.
    spread = [((i + 0.5) / len(group), query) for group in levels.values() for i, query in enumerate(group)]
    dealt = [query for _, query in sorted(spread, key=lambda each: each[0])][:count]
    cuts = [round(len(dealt) * part / 3) for part in range(4)]
    ordered = []
    for begin, end in pairwise(cuts):
        part = dealt[begin:end]
        rng.shuffle(part)
        ordered += part
    return ordered
