"""API keys from `control`: who a caller is, and what it may see and ask for."""

import hashlib
import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from schemas.control import KeyEntry, Scope
from schemas.query import Query, account_of
from streams.gateway.errors import ApiError, no_model, not_found
from streams.gateway.request import AUTO

Tenants: TypeAlias = tuple[str | None, ...] | None
"""Tenants whose queries are visible; None for all. A key without a tenant sees the queries of all such keys."""


class Credential(Struct, frozen=True):
    """An authenticated caller.

    Attributes:
        key: Digest of the API key; empty if the gateway has no keys.
        entry: The key's entry; None if the gateway has no keys, which permits everything.
    """

    key: str = ""
    entry: KeyEntry | None = None

    @property
    def tenant(self) -> str | None:
        """Return the tenant that this caller's queries belong to."""
        return self.entry.tenant if self.entry else None

    @property
    def account(self) -> str:
        """Return the account that this caller's queries count against; see `Query.account`."""
        return account_of(self.tenant, self.key)

    @property
    def name(self) -> str:
        """Return the key's name, for feedback and logs."""
        return self.entry.name if self.entry else "local"

    @property
    def teaches(self) -> bool:
        """Return whether the learner may learn from this caller's queries and feedback."""
        return self.entry is None or "teach" in self.entry.scopes

    @property
    def sees(self) -> Tenants:
        """Return the tenants whose queries this caller may list."""
        return None if self.entry is None or "admin" in self.entry.scopes else (self.entry.tenant,)

    def require(self, scope: Scope) -> None:
        """Refuse a key without this scope. Raises ApiError 403."""
        if self.entry is not None and scope not in self.entry.scopes:
            raise ApiError(
                403,
                f"this key may not {scope}; ask its owner for a key with that scope",
                type="permission_error",
                code="insufficient_scope",
            )

    def may_see(self, tenant: str | None) -> bool:
        """Return whether this caller may see a tenant's queries."""
        return self.entry is None or "admin" in self.entry.scopes or tenant == self.entry.tenant


class ApiKeys:
    """The API keys of a deployment, and what each may ask for."""

    def __init__(self) -> None:
        self._by_digest: dict[str, KeyEntry] = {}
        self._had_keys = False
        self._digest_of: dict[str, str] = {}

    @property
    def has_keys(self) -> bool:
        """Return whether any key exists or ever existed, so that revoking the last one does not open the gateway."""
        return self._had_keys

    @property
    def has_quotas(self) -> bool:
        """Return whether any key has a limit on what its answers may cost per day."""
        return any(entry.limits_spending for entry in self._by_digest.values())

    def change(self, entry: KeyEntry) -> None:
        """Apply a key entry from `control`, where the last entry of each name counts."""
        self._had_keys = True
        if (old := self._digest_of.pop(entry.name, None)) is not None:
            self._by_digest.pop(old, None)
        if entry.op == "add" and entry.sha256 is not None:
            self._digest_of[entry.name] = entry.sha256
            self._by_digest[entry.sha256] = entry

    def teaches(self, who: Credential, query: Query) -> bool:
        """Return whether the learner may learn from a query.

        It learns from keys with the scope `teach`. While no key has that scope, it learns from everybody's plain
        questions: those that bring no reference, grader or configuration of their own.
        """
        if who.teaches:
            return True
        plain = query.reference is None and query.grader is None and query.pinned is None
        return plain and not any("teach" in entry.scopes for entry in self._by_digest.values())

    def credential(self, bearer: str | None) -> Credential:
        """Return the credential of a bearer token. While no key exists, every request is allowed.

        Raises:
            ApiError: 401, if keys exist and the token is not one of them.
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

    def knows(self, who: Credential) -> bool:
        """Return whether a credential is still valid, because its key may have been revoked or replaced."""
        return self._by_digest.get(who.key) == who.entry if who.entry else not self.has_keys

    def has_key(self, digest: str) -> bool:
        """Return whether a key with this digest is valid; the empty digest is valid while no key exists."""
        return digest in self._by_digest if digest else not self.has_keys

    def permitted(self, who: Credential, model: str, query: Query, models: Sequence[str]) -> Query:
        """Refuse models and objectives that the key may not use; return the query restricted to allowed models.

        Args:
            who: The caller.
            model: The model name of the request.
            query: Its query.
            models: Model names of the current catalogue.

        Raises:
            ApiError: 404 for a name that the key may not use; 403 if the query sets weights or targets and the key may
                only name objectives.
        """
        entry = who.entry
        if entry is None:
            return query
        if entry.allowed_models is not None:
            if model not in entry.allowed_models:
                raise no_model(model)
            # A virtual name leaves the choice to the policy, but only among the allowed models.
            if _is_virtual(model):
                own = _own(model, entry.allowed_models, models)
                for name in query.allowed_models or ():
                    if name not in (own or ()):
                        raise not_found("uniscale.allowed_models", name, "model_not_found")
                if query.allowed_models is None:
                    query = structs.replace(query, allowed_models=own)
        if entry.allowed_objectives is not None:
            if query.objective is not None and query.objective not in entry.allowed_objectives:
                raise not_found("objective", query.objective)
            for field in ("weights", "mean_cost", "accuracy"):
                if getattr(query, field) is not None:
                    raise ApiError(
                        403,
                        f"this key may not set {field}; name one of its objectives: "
                        f"{', '.join(entry.allowed_objectives)}",
                        type="permission_error",
                        param=f"uniscale.{field}",
                        code="objective_not_allowed",
                    )
        return query


def check_host(host: str | None, origin: str | None, allowed: frozenset[str]) -> None:
    """Refuse a request for a foreign host, or from a page of one, to prevent DNS rebinding.

    Args:
        host: The Host header.
        origin: The Origin header, if any.
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
                403,
                f"{name} {value!r} is not allowed here; add it to UNISCALE_GATEWAY_HOSTS",
                type="permission_error",
                code="host_not_allowed",
            )


def is_local(address: str) -> bool:
    """Return whether a listening address can be reached only from this machine."""
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


def _is_virtual(model: str) -> bool:
    return model == AUTO or model.startswith(f"{AUTO}:")


def _own(model: str, allowed: tuple[str, ...], models: Sequence[str]) -> tuple[str, ...] | None:
    """Return the catalogue models that a key allows, named directly or in a configuration.

    Return None if it names only virtual models, which do not restrict the models.

    Raises:
        ApiError: 404 if none of the named models is in the catalogue any more.
    """
    named = [name for name in allowed if not _is_virtual(name)]
    if not named:
        return None
    bare = {name if name in models else name.rsplit("/", 3)[0] for name in named}
    if own := tuple(name for name in models if name in bare):
        return own
    raise no_model(model)
