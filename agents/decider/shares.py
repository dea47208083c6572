"""The tenants of the latest outcomes, which determine whether a tenant's next outcome counts."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

WINDOW: Final = 10_000
"""Window length, in outcomes. A prior's outcomes are the oldest."""

THINNED: Final = 4
"""While a tenant has more than half of the weight, one in this many of its outcomes has weight 1.

With 0 for all of them, a single outcome of a second tenant would end nearly all learning for a whole window.
"""


class Window(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The window as stored in a snapshot.

    Attributes:
        prior: Number of the prior's outcomes still in the window.
        outcomes: The others, oldest first, in 8 bytes each: a digest of the tenant, with the weight as its lowest bit.
    """

    prior: int = 0
    outcomes: bytes = b""


class TeachingShares:
    """The tenants of the latest outcomes. With several tenants, one with more than half of the weight teaches less.

    An outcome has weight 1 or 0. It has weight 1 if its tenant is the only one in the window, if its tenant does not
    yet have more than half of the window's weight, or if none of its tenant's last `THINNED` - 1 had. Outcomes without
    a tenant and the prior's have weight 1 and belong to nobody.

    The weights depend only on the order of the log, so a recovery computes the same ones. The window also contains
    outcomes with weight 0, so a tenant that has been the only active one for a whole window is alone in it.
    """

    def __init__(self, prior: int = 0) -> None:
        self._prior = min(prior, WINDOW)
        self._outcomes: deque[int] = deque()
        self._count: Counter[int] = Counter()  # by tenant
        self._weight: Counter[int] = Counter()
        self._since: Counter[int] = Counter()  # outcomes since the tenant's last one with weight 1

    def weight(self, tenant: str) -> int:
        """Return the weight of a tenant's next outcome.

        >>> shares = TeachingShares(prior=2)
        >>> def taught(tenant):
        ...     weight = shares.weight(tenant)
        ...     shares.add(tenant, weight)
        ...     return weight
        >>> [taught(tenant) for tenant in "aaaabbbaaa"]
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
        >>> [taught(tenant) for tenant in "aaaaaaaa"]
        [0, 0, 1, 0, 0, 0, 1, 0]
        """
        own = _digest(tenant)
        if own == NOBODY or self._count[own] + self._count[NOBODY] == len(self._outcomes):
            return 1
        others = self._prior + self._weight.total() - self._weight[own]
        return int(self._weight[own] <= others or self._since[own] >= THINNED - 1)

    def add(self, tenant: str, weight: int) -> None:
        """Add an outcome."""
        self._push(_digest(tenant) | weight)

    def window(self) -> Window:
        """Return the window for a snapshot."""
        return Window(prior=self._prior, outcomes=array("Q", self._outcomes).tobytes())

    @classmethod
    def of(cls, window: Window) -> TeachingShares:
        """Restore the window from a snapshot."""
        made = cls(window.prior)
        for outcome in array("Q", window.outcomes):
            made._push(outcome)
        return made

    def extend(self, outcomes: Iterable[tuple[str, int]]) -> None:
        """Add outcomes in order, each with its tenant and weight."""
        for tenant, weight in outcomes:
            self.add(tenant, weight)

    def _push(self, outcome: int) -> None:
        self._outcomes.append(outcome)
        self._note(outcome, 1)
        tenant = outcome & ~1
        self._since[tenant] = 0 if outcome & 1 else self._since[tenant] + 1
        if self._prior + len(self._outcomes) > WINDOW:
            if self._prior:
                self._prior -= 1
            else:
                self._note(self._outcomes.popleft(), -1)

    def _note(self, outcome: int, by: int) -> None:
        tenant = outcome & ~1
        self._count[tenant] += by
        self._weight[tenant] += by * (outcome & 1)
        if not self._count[tenant]:
            del self._count[tenant], self._weight[tenant], self._since[tenant]


def _digest(tenant: str) -> int:
    return int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=8).digest(), "little") & ~1


NOBODY: Final = _digest("")
"""The tenant of outcomes without one."""
