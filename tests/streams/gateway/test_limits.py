"""Keys, scopes, limits and hosts."""

import hashlib

import pytest

from schemas.control import KeyEntry
from streams.rooms.gateway.limits import Credential, Gate, check_host, is_local
from streams.rooms.gateway.openai.errors import ApiError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def key(name: str, secret: str, **more: object) -> KeyEntry:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return KeyEntry(name=name, op="add", sha256=digest, tenant=name, **more)  # type: ignore[arg-type]


def refused(gate: Gate, who: Credential, **more: object) -> ApiError:
    with pytest.raises(ApiError) as found:
        gate.admit(who, **{"model": "auto", "objective": None, "spent_eflops": 0.0, **more})  # type: ignore[arg-type]
    return found.value


def test_without_keys_anybody_is_let_in() -> None:
    gate = Gate(Clock())
    assert gate.credential(None).tenant is None
    assert gate.credential("whatever").tenant is None


def test_a_key_is_known_until_it_is_revoked_or_replaced() -> None:
    gate = Gate(Clock())
    gate.change(key("shop", "one"))
    assert gate.credential("one").tenant == "shop"
    for wrong in (None, "", "two", "One"):
        with pytest.raises(ApiError) as found:
            gate.credential(wrong)
        assert found.value.status == 401
    gate.change(key("shop", "two"))
    assert gate.credential("two").tenant == "shop"
    with pytest.raises(ApiError):
        gate.credential("one")
    gate.change(key("other", "three"))
    gate.change(KeyEntry(name="shop", op="revoke"))
    with pytest.raises(ApiError):
        gate.credential("two")


def test_revoking_the_last_key_opens_nothing() -> None:
    gate = Gate(Clock())
    gate.change(key("shop", "one"))
    gate.change(KeyEntry(name="shop", op="revoke"))
    with pytest.raises(ApiError) as found:
        gate.credential("one")
    assert found.value.status == 401


def test_limits() -> None:
    clock = Clock()
    gate = Gate(clock)
    gate.change(
        key(
            "shop",
            "one",
            per_minute=2,
            eflops_per_day=100.0,
            allowed_models=("auto",),
            allowed_objectives=("frugal",),
        )
    )
    who = gate.credential("one")
    assert refused(gate, who, model="mini-1").status == 404
    assert refused(gate, who, objective="rich").status == 404
    spent = refused(gate, who, spent_eflops=100.0)
    assert (spent.status, spent.code, spent.headers["x-should-retry"]) == (429, "insufficient_quota", "false")
    gate.admit(who, "auto", "frugal", 99.0)
    gate.admit(who, "auto", None, 99.0)
    limited = refused(gate, who)
    assert (limited.status, limited.code) == (429, "rate_limit_exceeded")
    assert 1 <= int(limited.headers["retry-after"]) <= 61
    assert gate.headers(who)["x-ratelimit-remaining-requests"] == "0"
    clock.now = 60.0
    gate.admit(who, "auto", None, 0.0)


def test_requests_in_flight() -> None:
    gate = Gate(Clock())
    gate.change(key("shop", "one", in_flight=1))
    who = gate.credential("one")
    gate.admit(who, "auto", None, 0.0)
    assert refused(gate, who).status == 429
    gate.leave(who)
    gate.admit(who, "auto", None, 0.0)


def test_scopes_and_tenants() -> None:
    gate = Gate(Clock())
    gate.change(key("shop", "one", scopes=("ask",)))
    gate.change(key("boss", "two", scopes=("admin",)))
    shop, boss = gate.credential("one"), gate.credential("two")
    shop.require("ask")
    with pytest.raises(ApiError) as found:
        shop.require("admin")
    assert found.value.status == 403
    assert shop.may_see("shop")
    assert not shop.may_see("boss")
    assert not shop.may_see(None)
    assert boss.may_see("shop")


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:80", "127.0.0.1"])
def test_local_hosts_are_allowed(host: str) -> None:
    check_host(host, f"http://{host}", frozenset({"127.0.0.1", "localhost", "[::1]"}))


@pytest.mark.parametrize(
    ("host", "origin"),
    [(None, None), ("", None), ("evil.example", None), ("127.0.0.1.evil.example:80", None),
     ("127.0.0.1", "http://evil.example"), ("127.0.0.1", "null")],
)  # fmt: skip
def test_other_hosts_and_origins_are_refused(host: str | None, origin: str | None) -> None:
    with pytest.raises(ApiError) as found:
        check_host(host, origin, frozenset({"127.0.0.1", "localhost", "[::1]"}))
    assert found.value.status == 403


def test_local_addresses() -> None:
    assert is_local("127.0.0.1")
    assert is_local("::1")
    assert is_local("localhost")
    assert not is_local("0.0.0.0")
    assert not is_local("10.0.0.1")
    assert not is_local("example.org")
