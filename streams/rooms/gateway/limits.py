"""Who may ask, and how much: API keys from `control`, requests a minute, requests in flight, eFLOPs a day."""

import hashlib
import ipaddress
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from schemas.control import KeyEntry, Scope
from streams.rooms.gateway.openai.errors import NO_RETRY, ApiError, not_found

_MINUTE_S: Final = 60.0


Tenants: TypeAlias = tuple[str | None, ...] | None
"""Tenants whose queries may be seen; None for all. A key without a tenant sees those of keys without one."""


class Credential(Struct, frozen=True):
    """Who asks, as authenticated.

    Attributes:
        key: Digest of the API key; empty where the gateway has no keys.
        entry: What the key may do; None where the gateway has no keys: everything.
    """

    key: str = ""
    entry: KeyEntry | None = None

    @property
    def tenant(self) -> str | None:
        """Return the tenant that queries are stamped with."""
        return self.entry.tenant if self.entry else None

    @property
    def name(self) -> str:
        """Return the key's name, for feedback and logs."""
        return self.entry.name if self.entry else "local"

    @property
    def sees(self) -> Tenants:
        """Return the tenants whose queries this caller may list."""
        return None if self.entry is None or "admin" in self.entry.scopes else (self.entry.tenant,)

    def require(self, scope: Scope) -> None:
        """Refuse what the key was not made for. Raises ApiError 403."""
        if self.entry is not None and scope not in self.entry.scopes:
            raise ApiError(
                403, f"this key may not {scope}; ask its owner for a key with that scope",
                type="permission_error", code="insufficient_scope",
            )  # fmt: skip

    def may_see(self, tenant: str | None) -> bool:
        """Return whether a query of a tenant is this caller's to see."""
        return self.entry is None or "admin" in self.entry.scopes or tenant == self.entry.tenant


class Gate:
    """API keys and what is left of their limits, as one gateway sees them.

    Args:
        monotonic: Seconds on a clock that never goes back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._by_digest: dict[str, KeyEntry] = {}
        self._had_keys = False
        self._digest_of: dict[str, str] = {}
        self._asked: defaultdict[str, deque[float]] = defaultdict(deque)
        self._open: defaultdict[str, int] = defaultdict(int)

    @property
    def has_keys(self) -> bool:
        """Return whether any key exists or ever existed: revoking the last one does not open the gateway."""
        return self._had_keys

    def change(self, entry: KeyEntry) -> None:
        """Add a key entry from `control`: the last one with a name counts."""
        self._had_keys = True
        if (old := self._digest_of.pop(entry.name, None)) is not None:
            self._by_digest.pop(old, None)
        if entry.op == "add" and entry.sha256 is not None:
            self._digest_of[entry.name] = entry.sha256
            self._by_digest[entry.sha256] = entry

    def credential(self, bearer: str | None) -> Credential:
        """Return the credential of a bearer token. While no key exists, every request is let in.

        Raises:
            ApiError: 401, when keys exist and this is not one of them.
        """
        if not self.has_keys:
            return Credential()
        digest = hashlib.sha256((bearer or "").encode()).hexdigest()
        if (entry := self._by_digest.get(digest)) is None:
            what = (
                "is not valid, or was revoked" if bearer else "is missing; send `Authorization: Bearer KEY`"
            )
            raise ApiError(401, f"the API key {what}", type="authentication_error", code="invalid_api_key")
        return Credential(digest, entry)

    def check(self, who: Credential, model: str, objective: str | None) -> None:
        """Refuse a model or an objective that the key may not use. Raises ApiError 404."""
        entry = who.entry
        if entry is None:
            return
        if entry.allowed_models is not None and model not in entry.allowed_models:
            raise not_found("model", model, "model_not_found")
        if (
            entry.allowed_objectives is not None
            and objective is not None
            and objective not in entry.allowed_objectives
        ):
            raise not_found("objective", objective)

    def admit(self, who: Credential, model: str, objective: str | None, spent_eflops: float) -> None:
        """Admit a request, or raise an error that names the limit it exceeds. `leave` ends it.

        Args:
            who: Who asks.
            model: The model name asked for.
            objective: The objective asked for by name.
            spent_eflops: What this key's answers of the last 24 hours cost.

        Raises:
            ApiError: 404 for a model or objective the key may not use; 429 for a limit.
        """
        self.check(who, model, objective)
        entry = who.entry
        if entry is None:
            return
        if entry.eflops_per_day is not None and spent_eflops >= entry.eflops_per_day:
            raise ApiError(
                429, f"this key has spent {spent_eflops:.3g} of {entry.eflops_per_day:.3g} eFLOPs in 24 hours",
                type="insufficient_quota", code="insufficient_quota", headers=dict(NO_RETRY),
            )  # fmt: skip
        now, asked = self._monotonic(), self._asked[who.key]
        while asked and now - asked[0] >= _MINUTE_S:
            asked.popleft()
        if entry.per_minute is not None and len(asked) >= entry.per_minute:
            wait_s = max(1, int(_MINUTE_S - (now - asked[0])) + 1)
            raise _rate(f"{entry.per_minute} requests a minute", wait_s)
        if entry.in_flight is not None and self._open[who.key] >= entry.in_flight:
            raise _rate(f"{entry.in_flight} requests in flight", 1)
        asked.append(now)
        self._open[who.key] += 1

    def leave(self, who: Credential) -> None:
        """End an admitted request."""
        if who.entry is not None and self._open[who.key] > 0:
            self._open[who.key] -= 1

    def headers(self, who: Credential) -> dict[str, str]:
        """Return how much of the limit a minute is left, in OpenAI's headers."""
        if who.entry is None or who.entry.per_minute is None:
            return {}
        left = max(0, who.entry.per_minute - len(self._asked[who.key]))
        return {
            "x-ratelimit-limit-requests": str(who.entry.per_minute),
            "x-ratelimit-remaining-requests": str(left),
        }


def check_host(host: str | None, origin: str | None, allowed: frozenset[str]) -> None:
    """Refuse a request for another host, or from a page of another one: a browser must not be led here (DNS rebinding).

    Args:
        host: The Host header.
        origin: The Origin header, where there is one.
        allowed: Host names, without ports.

    Raises:
        ApiError: 403.
    """
    given = (
        {"host": host or "", "origin": (origin or "").partition("://")[2]} if origin else {"host": host or ""}
    )
    for name, value in given.items():
        if _name(value) not in allowed:
            raise ApiError(
                403, f"{name} {value!r} is not allowed here; add it to gateway_hosts", type="permission_error",
                code="host_not_allowed",
            )  # fmt: skip


def is_local(address: str) -> bool:
    """Return whether an address to listen on can be reached only from this machine."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _name(value: str) -> str:
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    return value.rpartition(":")[0] if value.count(":") == 1 else value


def _rate(what: str, wait_s: int) -> ApiError:
    return ApiError(
        429, f"this key may have {what}; try again in {wait_s} s", type="rate_limit_error",
        code="rate_limit_exceeded", headers={"retry-after": str(wait_s)},
    )  # fmt: skip
