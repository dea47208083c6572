"""The ids of the latest queries that have ended, in memory that is bounded and soon stops growing."""


class RecentIds:
    """The latest ids of many, by their hashes, in two sets: once the newer one is full, it takes the older one's place.

    A dictionary in the order of insertion would forget one id at a time, but it searches what was deleted for its
    oldest key, and allocates all of its memory anew every few ten thousand ids.

    Of `most` ids, a new one is mistaken for one of them with probability most/2⁶⁴.

    >>> recent = RecentIds(most=4)
    >>> for name in "abcde":
    ...     recent.add(name)
    >>> [name for name in "abcdef" if name in recent]
    ['c', 'd', 'e']

    Args:
        most: Ids remembered at most, of which the latest half always are; about 80 bytes each.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def __contains__(self, query_id: object) -> bool:
        """Return whether an id is among those remembered."""
        hashed = hash(query_id)
        return hashed in self._newer or hashed in self._older

    def add(self, query_id: str) -> None:
        """Remember an id; where there is no room, the older half is forgotten."""
        if len(self._newer) >= max(1, self._most // 2):
            self._older, self._newer = self._newer, set()
        self._newer.add(hash(query_id))
