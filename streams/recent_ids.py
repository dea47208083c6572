"""Ids of recently ended queries, in bounded memory."""


class RecentIds:
    """Recent ids, stored as hashes in two sets: once the newer one is full, it replaces the older one.

    An insertion-ordered dictionary could drop one id at a time, but finding its oldest key scans deleted entries, and
    it reallocates its memory every few tens of thousands of ids.

    With `most` ids stored, a new one is mistaken for one of them with probability most/2⁶⁴.

    >>> recent = RecentIds(most=4)
    >>> for name in "abcde":
    ...     recent.add(name)
    >>> [name for name in "abcdef" if name in recent]
    ['c', 'd', 'e']

    Args:
        most: Maximum number of ids, of about 80 bytes each; at least the latest half of this number are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def __contains__(self, query_id: object) -> bool:
        """Return whether an id is remembered."""
        hashed = hash(query_id)
        return hashed in self._newer or hashed in self._older

    def add(self, query_id: str) -> None:
        """Remember an id; if the structure is full, drop the older half."""
        if len(self._newer) >= max(1, self._most // 2):
            self._older, self._newer = self._newer, set()
        self._newer.add(hash(query_id))
