"""The tenants of the latest outcomes, and whether the learner counts one more outcome of a tenant."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

WINDOW: Final = 10_000
"""Outcomes looked back on, those of a prior among them: the oldest of all."""


class Window(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The window as a snapshot holds it.

    Attributes:
        prior: Outcomes of the prior in it.
        outcomes: The others, oldest first, in 8 bytes each: a digest of the tenant, whose lowest bit is the weight.
    """

    prior: int = 0
    outcomes: bytes = b""


class TeachingShares:
    """The tenants of the latest outcomes: none of several may hold more than half of what they weigh.

    An outcome weighs 1 or 0. That of a tenant who taught alone in the window weighs 1. Where others did, it weighs 1
    unless its tenant holds more than half of the window's weight already. The prior's are nobody's and weigh 1.

    The weights follow from the order of the log, so that a recovery finds the same. An outcome that weighs 0 fills the
    window all the same: a tenant that goes on alone for a whole window is alone in it.
    """

    def __init__(self, prior: int = 0) -> None:
        self._prior = min(prior, WINDOW)
        self._outcomes: deque[int] = deque()
        self._count: Counter[int] = Counter()  # by tenant
        self._weight: Counter[int] = Counter()

    def weight(self, tenant: str) -> int:
        """Return what one more outcome of a tenant weighs.

        >>> shares = TeachingShares(prior=2)
        >>> def taught(tenant):
        ...     weight = shares.weight(tenant)
        ...     shares.add(tenant, weight)
        ...     return weight
        >>> [taught(tenant) for tenant in "aaaabbbaaa"]
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
        """
        own = _digest(tenant)
        if self._count[own] == len(self._outcomes):
            return 1
        others = self._prior + self._weight.total() - self._weight[own]
        return int(self._weight[own] <= others)

    def add(self, tenant: str, weight: int) -> None:
        """Add an outcome."""
        self._push(_digest(tenant) | weight)

    def window(self) -> Window:
        """Return what a snapshot holds."""
        return Window(prior=self._prior, outcomes=array("Q", self._outcomes).tobytes())

    @classmethod
    def of(cls, window: Window) -> TeachingShares:
        """Return what a snapshot held."""
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
            del self._count[tenant], self._weight[tenant]


def _digest(tenant: str) -> int:
    return int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=8).digest(), "little") & ~1
