"""Keys, scopes, limits and hosts."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from schemas.action import Action
from schemas.answer import Answer
from schemas.control import KeyEntry
from schemas.objective import Weights
from schemas.query import Budget, Query
from schemas.record import encode
from schemas.reward import Charge, Cost, Reward
from streams.gateway.auth import ApiKeys, Credential, check_host, is_local
from streams.gateway.errors import ApiError
from streams.gateway.index import Index
from streams.gateway.quotas import LOOKUPS, MINUTE_BYTES, TARGETS, KeyLimits, Used
from tests.support.records import OBJECTIVE

MODELS = ("mini-1", "mini-2")
LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})


def key(name: str, secret: str, **more: object) -> KeyEntry:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return KeyEntry(name=name, op="add", sha256=digest, tenant=name, **more)  # type: ignore[arg-type]


def query(**fields: object) -> Query:
    return Query(query_id="q", text="?", **fields)  # type: ignore[arg-type]


def refused(limits: KeyLimits, who: Credential, **used: Any) -> ApiError:
    with pytest.raises(ApiError) as found:
        limits.admit(who, query(), Used(**used))
    return found.value


def status(call: Callable[[], object]) -> int:
    """Return the status with which a call is refused."""
    with pytest.raises(ApiError) as found:
        call()
    return found.value.status


def shop(keys: ApiKeys, **fields: Any) -> Credential:
    """Add a key and return its credential."""
    keys.change(key("shop", "one", **fields))
    return keys.credential("one")


def test_without_keys_anybody_is_let_in() -> None:
    keys = ApiKeys()
    assert keys.credential(None).tenant is None
    assert keys.credential("whatever").tenant is None


def test_a_key_is_known_until_it_is_revoked_or_replaced() -> None:
    keys = ApiKeys()
    keys.change(key("shop", "one"))
    assert keys.credential("one").tenant == "shop"
    for wrong in (None, "", "two", "One"):
        assert status(lambda wrong=wrong: keys.credential(wrong)) == 401  # type: ignore[misc]
    keys.change(key("shop", "two"))
    assert keys.credential("two").tenant == "shop"
    assert status(lambda: keys.credential("one")) == 401
    keys.change(key("other", "three"))
    keys.change(KeyEntry(name="shop", op="revoke"))
    assert status(lambda: keys.credential("two")) == 401
    keys.change(KeyEntry(name="other", op="revoke"))
    assert status(lambda: keys.credential("three")) == 401, "revoking the last key opens nothing"


def test_limits() -> None:
    keys, limits = ApiKeys(), KeyLimits()
    who = shop(keys, per_minute=2, eflops_per_day=100.0, in_flight=3)
    limits.admit(who, query(), Used(minute=1, in_flight=2, spent=99.0))
    spent = refused(limits, who, spent=100.0)
    assert (spent.status, spent.code, spent.headers["x-should-retry"]) == (429, "insufficient_quota", "false")
    full: list[dict[str, Any]] = [
        {"spent": 60.0, "reserved": 40.0},
        {"spent": 60.0, "reserved": 20.0, "mean": 21.0},
    ]
    for used in full:
        assert refused(limits, who, **used).code == "insufficient_quota"
    small = query(budget=Budget(eflops=20.0))
    limits.admit(who, small, Used(spent=60.0, reserved=20.0, mean=21.0))
    limited = refused(limits, who, minute=2, reset_s=7)
    assert (limited.status, limited.code) == (429, "rate_limit_exceeded")
    assert {name: limited.headers[name] for name in ("retry-after", "x-ratelimit-remaining-requests")} == {
        "retry-after": "7", "x-ratelimit-remaining-requests": "0",
    }  # fmt: skip
    assert refused(limits, who, in_flight=3).status == 429
    assert limits.headers(who, Used(minute=1, reset_s=9)) == {
        "x-ratelimit-limit-requests": "2", "x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "9s",
    }  # fmt: skip


def test_models_and_objectives_of_a_key_have_no_way_around() -> None:
    keys = ApiKeys()
    who = shop(keys, allowed_models=("auto", "mini-1"), allowed_objectives=("frugal",))
    for model, asked in (
        ("auto", query()), ("auto", query(objective="frugal")), ("auto", query(allowed_models=("mini-1",))),
        ("mini-1", query(allowed_models=("mini-1",))),
    ):  # fmt: skip
        assert keys.permitted(who, model, asked, MODELS).allowed_models == ("mini-1",)
    for model, asked, code, param in (
        ("mini-2", query(allowed_models=("mini-2",)), 404, "model"),
        ("auto", query(objective="rich"), 404, "objective"),
        ("auto", query(allowed_models=("mini-1", "mini-2")), 404, "uniscale.allowed_models"),
        ("auto", query(weights=Weights(correct=1.0, score=0.0, cost=0.0)), 403, "uniscale.weights"),
        ("auto", query(mean_cost=1e9), 403, "uniscale.mean_cost"),
        ("auto", query(accuracy=1.0), 403, "uniscale.accuracy"),
    ):
        with pytest.raises(ApiError) as found:
            keys.permitted(who, model, asked, MODELS)
        assert (found.value.status, found.value.param) == (code, param)


@pytest.mark.parametrize(
    ("allowed", "own"),
    [
        (None, None),
        (("auto", "auto:frugal"), None),
        (("auto", "mini-2", "mini-1"), ("mini-1", "mini-2")),
        (("auto", "mini-2", "gone"), ("mini-2",)),
        (("auto", "mini-2/1/1/1"), ("mini-2",)),
    ],
)
def test_auto_runs_the_models_that_a_key_names(
    allowed: tuple[str, ...] | None, own: tuple[str, ...] | None
) -> None:
    keys = ApiKeys()
    who = shop(keys, allowed_models=allowed)
    assert keys.permitted(who, "auto", query(), MODELS).allowed_models == own
    if own is not None:
        assert keys.permitted(who, "auto", query(allowed_models=own), MODELS).allowed_models == own
    pinned = query(pin_action="mini-2/1/1/1")
    if allowed is None or "mini-2/1/1/1" in allowed:
        assert keys.permitted(who, "mini-2/1/1/1", pinned, MODELS) == pinned


def test_auto_without_any_allowed_model_is_not_found() -> None:
    keys = ApiKeys()
    who = shop(keys, allowed_models=("auto", "gone"))
    assert status(lambda: keys.permitted(who, "auto", query(), MODELS)) == 404


def sent(query_id: str, key: str = "k") -> Query:
    return Query(query_id=query_id, text="?", timeout_s=60, metadata={"gateway": {"key": key}})


def ended(query_id: str) -> Answer:
    return Answer(query_id=query_id, status="failed", by="executor", error="no")


def test_gateways_that_read_one_log_count_the_same() -> None:
    """What one admitted counts at the other, and is settled by the Answer's price."""
    first, second = Index(100), Index(100)
    for index in (first, second):
        for at in range(3):
            index.query(sent(f"q-{at}"), 1_000_000 + 1000 * at)
            index.query(sent(f"q-{at}"), 1_000_000 + 1000 * at)  # its own, read back
    now_ms, sent_bytes = 1_010_000, 3 * len(encode(sent("q-0")))
    assert first.usage.used("k", now_ms) == second.usage.used("k", now_ms)
    assert first.usage.used("k", now_ms) == Used(minute=3, reset_s=50, bytes=sent_bytes, in_flight=3)
    first.answer(ended("q-0"), encode(ended("q-0")), now_ms)
    for _ in range(2):
        first.priced("q-0", 8.0)
    assert first.usage.used("k", now_ms) == Used(
        minute=3, reset_s=50, bytes=sent_bytes, in_flight=2, spent=8.0, reserved=16.0, mean=8.0
    )
    first.query(sent("q-3"), now_ms)
    assert first.usage.used("k", now_ms).reserved == 24.0
    assert first.usage.used("other", now_ms) == Used(mean=8.0)
    # Without an Answer a query stops to count when it must have expired.
    later = first.usage.used("k", now_ms + 3_600_000)
    assert (later.minute, later.in_flight, later.reserved, later.spent) == (0, 0, 0.0, 8.0)
    assert first.usage.used("k", now_ms + 26 * 3_600_000).spent == 0.0


def test_what_is_reserved_does_not_depend_on_what_was_read_first() -> None:
    """After a restart all Queries are read before the first price."""
    found = []
    for order in ("answer first", "queries first"):
        index = Index(100)
        index.query(sent("priced"), 1_000_000)
        for at in range(2):
            if (order == "answer first") == (at == 0):
                index.answer(ended("priced"), b"", 1_000_001)
                index.priced("priced", 5.0)
            else:
                index.query(sent("open"), 1_000_002)
                cheap = msgspec.structs.replace(sent("cheap"), budget=Budget(eflops=2.0))
                index.query(cheap, 1_000_002)
        found.append(index.usage.used("k", 1_000_003))
    assert found[0] == found[1]
    assert found[0].reserved == 7.0


def test_what_a_key_spent_outlasts_the_queries_that_are_kept() -> None:
    index = Index(10)
    for at in range(200):
        index.query(sent(f"q-{at}"), 1_000_000 + at)
        index.answer(ended(f"q-{at}"), b"", 1_000_000 + at)
        index.priced(f"q-{at}", 1.0)
    assert len(index) < 20
    assert index.usage.used("k", 1_001_000).spent == 200.0


@pytest.mark.parametrize("most", [{"most": 10}, {"most": 1000, "most_bytes": 1000}])
def test_a_minute_counts_the_queries_that_are_no_longer_kept(most: dict[str, Any]) -> None:
    """Others' queries push those of a key out of the index, and the key has sent them all the same."""
    admitted, restarted = Index(**most), Index(**most)
    log = [(f"{key}-{at}", key, 1_000_000 + 100 * at) for at in range(100) for key in ("k", "other")]
    for index in (admitted, restarted):
        for query_id, key, at_ms in [*(log if index is admitted else log[::-1]), *log]:
            index.query(sent(query_id, key), at_ms)  # the second time as its Decision carries it
            index.answer(ended(query_id), bytes(100), at_ms)
        assert len(index) < 30
    used, of_k = admitted.usage.used("k", 1_020_000), [encode(sent(f"k-{at}")) for at in range(100)]
    assert (used.minute, used.bytes, used.reset_s) == (100, sum(map(len, of_k)), 40)
    assert restarted.usage.used("k", 1_020_000) == used
    later = admitted.usage.used("k", 1_064_950)
    assert (later.minute, later.reset_s) == (50, 1)
    assert admitted.usage.used("k", 1_070_000).bytes == 0


def test_a_query_that_could_not_be_sent_does_not_count() -> None:
    index = Index(10)
    for query_id in ("q", "lost", "refused"):
        index.query(sent(query_id), 1_000_000)
    for _ in range(2):
        index.withdraw("lost")
    index.forget("refused")  # the topic has it
    used = index.usage.used("k", 1_000_001)
    assert (used.minute, used.bytes, used.in_flight) == (
        2,
        len(encode(sent("q")) + encode(sent("refused"))),
        1,
    )


def test_answer_is_charged_after_its_query_left_the_index() -> None:
    index = Index(10)
    index.query(sent("q"), 1_000_000)
    for at in range(100):
        index.query(sent(f"other-{at}", "other"), 1_000_000 + at)
        index.answer(ended(f"other-{at}"), b"", 1_000_000 + at)
    assert index.usage.used("k", 1_001_000).in_flight == 1
    index.answer(ended("q"), b"", 1_001_000)
    index.priced("q", 5.0)
    used = index.usage.used("k", 1_001_000)
    assert (used.in_flight, used.spent) == (0, 5.0)


def test_a_credential_is_good_until_its_key_changes() -> None:
    keys = ApiKeys()
    before = keys.credential(None)
    assert keys.knows(before)
    keys.change(key("shop", "one", scopes=("ask",)))
    asks = keys.credential("one")
    assert (keys.knows(before), keys.knows(asks)) == (False, True)
    keys.change(key("shop", "one", scopes=("read",)))
    assert not keys.knows(asks)


def test_scopes_and_tenants() -> None:
    keys = ApiKeys()
    keys.change(key("shop", "one", scopes=("ask",)))
    keys.change(key("boss", "two", scopes=("admin",)))
    asks, boss = keys.credential("one"), keys.credential("two")
    asks.require("ask")
    assert status(lambda: asks.require("admin")) == 403
    assert [asks.may_see(tenant) for tenant in ("shop", "boss", None)] == [True, False, False]
    assert boss.may_see("shop")


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:80", "127.0.0.1"])
def test_local_hosts_are_allowed(host: str) -> None:
    check_host(host, f"http://{host}", LOCAL)


@pytest.mark.parametrize(
    ("host", "origin"),
    [(None, None), ("", None), ("evil.example", None), ("127.0.0.1.evil.example:80", None),
     ("127.0.0.1", "http://evil.example"), ("127.0.0.1", "null")],
)  # fmt: skip
def test_other_hosts_and_origins_are_refused(host: str | None, origin: str | None) -> None:
    assert status(lambda: check_host(host, origin, LOCAL)) == 403


def test_local_addresses() -> None:
    assert all(map(is_local, ("127.0.0.1", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "10.0.0.1", "example.org")))


def test_default_in_flight_limit_of_a_key_is_the_deployments() -> None:
    keys, limits = ApiKeys(), KeyLimits(in_flight=5)
    who = shop(keys)
    limits.admit(who, query(), Used(in_flight=4))
    assert refused(limits, who, in_flight=5).status == 429


async def test_completion_of_a_gone_client_makes_room_at_once() -> None:
    """Its retry may come sooner."""
    keys, limits = ApiKeys(), KeyLimits()
    who = shop(keys, in_flight=1)
    left = False

    async def gone() -> bool:
        return left

    with await limits.completion(who, gone):
        with pytest.raises(ApiError) as found:
            await limits.completion(who, gone)
        assert (found.value.status, found.value.headers["retry-after"]) == (429, "1")
        left = True
        with await limits.completion(who, gone):
            pass
    assert not limits._completions


def test_a_key_may_not_send_more_bytes_a_minute() -> None:
    keys, limits = ApiKeys(), KeyLimits()
    who = shop(keys)
    limits.admit(who, query(), Used(bytes=MINUTE_BYTES - 1))
    error = refused(limits, who, bytes=MINUTE_BYTES, reset_s=7)
    assert (error.status, error.headers["retry-after"]) == (429, "7")


def test_cut_steps_are_charged_and_not_in_the_mean() -> None:
    """A key that lets its queries be cut pays for them, and reserves no less for the next."""
    index, by_reward = Index(100), Index(100)
    cheap = msgspec.structs.replace(sent("cut"), budget=Budget(eflops=1e-9))
    for at, query in enumerate((sent("whole"), cheap)):
        index.query(query, 1_000_000 + at)
        index.answer(ended(query.query_id), b"", 1_000_010 + at)
    index.priced("whole", 8.0)
    index.priced("cut", None, 100.0)
    for charged in (index, by_reward):
        for _ in range(2):  # a Reward tells the same as its Answer, and may be redelivered
            charged.spent(reward("whole", price=8.0, charge=8.0), 1_000_020)
            charged.spent(reward("cut", price=None, charge=100.0), 1_000_020)
        used = charged.usage.used("k", 1_000_030)
        assert (used.spent, used.reserved, used.mean) == (108.0, 0.0, 8.0)


def reward(query_id: str, *, price: float | None, charge: float) -> Reward:
    return Reward(
        reward_id=f"{query_id}/default",
        query_id=query_id,
        kind="default",
        seq=0,
        action=Action.parse("m/1/1/1"),
        status="budget",
        correct=None,
        score=None,
        log_cost=None,
        price=None if price is None else Cost(cost=price),
        objective=OBJECTIVE,
        charge=Charge(key="k", eflops=charge),
    )


def test_a_key_may_state_a_few_targets_of_its_own_a_minute() -> None:
    keys, limits = ApiKeys(), KeyLimits()
    who = shop(keys)
    keys.change(key("other", "two"))
    for at in range(TARGETS):
        limits.aim(who, query(mean_cost=1e9 + at), 1000 * at)
    with pytest.raises(ApiError) as found:
        limits.aim(who, query(accuracy=0.9), 10_000)
    assert (found.value.status, found.value.headers["retry-after"]) == (429, "51")
    limits.aim(who, query(mean_cost=1e9), 10_000)  # a known one is no other
    for plain in (query(), query(objective="careful")):
        limits.aim(who, plain, 10_000)
    limits.aim(keys.credential("two"), query(accuracy=0.9), 10_000)
    limits.aim(Credential(), query(accuracy=0.9), 10_000)
    limits.aim(who, query(accuracy=0.9), 61_001)


async def test_lookups_are_limited_per_key() -> None:
    keys, limits = ApiKeys(), KeyLimits()
    who = shop(keys)
    keys.change(key("other", "two"))
    let_go, began = asyncio.Event(), []

    async def look(one: Credential) -> None:
        async with limits.lookup(one):
            began.append(one.name)
            await let_go.wait()

    looking = [asyncio.create_task(look(who)) for _ in range(LOOKUPS)]
    looking.append(asyncio.create_task(look(keys.credential("two"))))
    await asyncio.sleep(0)
    assert began == ["shop", "other"]
    with pytest.raises(ApiError) as found:
        await look(who)
    assert (found.value.status, found.value.headers["retry-after"]) == (429, "1")
    let_go.set()
    await asyncio.gather(*looking)
    await look(who)
    assert began.count("shop") == LOOKUPS + 1


def test_a_key_may_read_so_often_a_minute() -> None:
    keys, limits = ApiKeys(), KeyLimits(reads=2)
    who = shop(keys)
    keys.change(key("other", "two"))
    for at_ms in (0, 20_000):
        limits.read(who, at_ms)
    with pytest.raises(ApiError) as found:
        limits.read(who, 50_000)
    assert (found.value.status, found.value.headers["retry-after"]) == (429, "11")
    limits.read(keys.credential("two"), 50_000)
    limits.read(who, 60_000)
    assert status(lambda: limits.read(who, 79_999)) == 429
    for _ in range(3):
        limits.read(Credential(), 0)


def test_feedback_has_the_limit_of_requests_or_else_of_reads() -> None:
    keys, limits = ApiKeys(), KeyLimits(reads=1)
    keys.change(key("other", "two"))
    who, other = shop(keys, per_minute=2), keys.credential("two")
    limits.read(who, 0)
    for at_ms in (0, 1000):
        limits.feedback(who, at_ms)
    with pytest.raises(ApiError) as found:
        limits.feedback(who, 2000)
    assert (found.value.status, found.value.headers["retry-after"]) == (429, "59")
    limits.feedback(other, 2000)
    assert status(lambda: limits.feedback(other, 2000)) == 429
    limits.feedback(who, 60_000)
    for _ in range(3):
        limits.feedback(Credential(), 0)


def test_previews_count_against_the_requests_a_minute() -> None:
    keys, limits = ApiKeys(), KeyLimits()
    who = shop(keys, per_minute=3)
    for at in range(2):
        limits.preview(who, 1, Used(minute=1), 1000 * at)
    assert status(lambda: limits.preview(who, 1, Used(minute=1), 2000)) == 429
    limits.preview(who, 1, Used(minute=1), 60_500)
    limits.preview(Credential(), 1, Used(), 0)


def test_previews_count_against_the_bytes_a_minute() -> None:
    keys, limits = ApiKeys(), KeyLimits()
    who = shop(keys)
    limits.preview(who, MINUTE_BYTES // 2, Used(bytes=MINUTE_BYTES // 2 - 1), 0)
    limits.preview(who, 1, Used(bytes=MINUTE_BYTES // 2 - 1), 1)
    assert status(lambda: limits.preview(who, 1, Used(bytes=MINUTE_BYTES // 2 - 1), 2)) == 429
    limits.preview(who, 1, Used(), 60_001)
