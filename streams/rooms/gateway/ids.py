"""Ids of queries that come through a gateway."""

import hashlib
import re
import uuid
from typing import Final

ID: Final = "chatcmpl-"
"""What every id begins with."""

_TIMED: Final = re.compile(ID + "([0-9a-f]{12})[0-9a-f]{20}")


def new_id(now_ms: int) -> str:
    """Return a new query id. It begins with its time, so that a gateway can tell an old id from an unknown one."""
    return f"{ID}{now_ms:012x}{uuid.uuid4().hex[:20]}"


def time_of(query_id: str) -> int | None:
    """Return when a gateway made an id, in ms since the epoch; None where the id does not say.

    >>> time_of(new_id(1_700_000_000_000)), time_of("q-1")
    (1700000000000, None)
    """
    found = _TIMED.fullmatch(query_id)
    return int(found[1], 16) if found else None


def keyed_id(tenant: str | None, key: str) -> str:
    """Return the id of a query with an Idempotency-Key: the same for the same tenant and key."""
    scope = f"{tenant or ''}\0{key}"
    return f"{ID}{hashlib.sha256(scope.encode()).hexdigest()[:40]}"
