"""The fold check: a learner that differs from its log in anything that it knows is found."""

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agents.bandit.contextual import Contextual
from agents.bandit.exploration import Explored
from agents.decider.decider import Decider
from agents.decider.shares import TeachingShares
from agents.decider.snapshot import EndedIds, start_of
from schemas.query import Query
from schemas.record import encode
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.decider import DeciderService
from streams.simulate.fold import compared
from tests.support.recorded import question, recorded_in_memory, recorded_paths

QUERIES = 24


@pytest.fixture(scope="module")
def lived(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[DeciderService, dict[bytes, bytes], dict[bytes, bytes]]:
    """Return a decider that has learned from some queries of two tenants, its log and its snapshots."""
    return run(_lived(tmp_path_factory.mktemp("fold")))


async def _lived(folder: Path) -> tuple[DeciderService, dict[bytes, bytes], dict[bytes, bytes]]:
    settings = recorded_in_memory(
        folder, recorded_paths(8), policy="contextual", parallelism="1/1", snapshot_every=12
    )
    cluster = Cluster(settings, SERVICES, seed=5)
    await cluster.up()
    for at in range(QUERIES):
        text, answer = question(at % 8)
        query = Query(query_id=f"q{at}", text=text, reference=answer, tenant="ab"[at % 2])
        cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
        await asyncio.sleep(0.3)
    await asyncio.sleep(60.0)
    (service,) = (worker.built for worker in cluster.workers if worker.service == "decider")
    snapshots = cluster.broker.changelog(cluster.topics.snapshot, 0)
    log = cluster.broker.changelog(cluster.topics.changelog("decider", "pending"), 0, start_of(snapshots))
    await cluster.close()
    return service, log, snapshots


def _policy(change: Callable[[Contextual], object]) -> Callable[[Decider], object]:
    def of(decider: Decider) -> object:
        assert isinstance(decider.policy, Explored)
        assert isinstance(decider.policy.inner, Contextual)
        return change(decider.policy.inner)

    return of


def _offered(**changes: Any) -> Callable[[Decider], object]:
    return lambda decider: setattr(decider, "offered", replace(decider.offered, **changes))


FALSIFIED: dict[str, Callable[[Decider], object]] = {
    "paces": _policy(lambda p: setattr(next(iter(p.pacer.accounts.values())), "price", 1e9)),
    "open": _policy(lambda p: p.pacer.open.update(ghost=(("a", "x"), 1.0, 1.0))),
    "tried": _policy(lambda p: p.estimates.tried.update(small=0)),
    "standing": _policy(lambda p: p.estimates.standing.update(large=77)),
    "cost_drift": _policy(lambda p: p.estimates.costs.sums.update(large=(20.0, 60.0))),
    "accuracy_drift": _policy(lambda p: p.estimates.accuracy.sums.update(large=(-9.0, 1.0, 0.0))),
    "noise": _policy(lambda p: setattr(p.estimates.right, "noise", 1e6)),
    "variances": _policy(lambda p: p.estimates.right.variances.update({"model": 1e6})),
    "estimates.price_factors": _policy(lambda p: p.estimates.price_factors.update(large=1000.0)),
    "refits": _policy(lambda p: setattr(p.refits, "at", ())),
    "the tenants": lambda d: setattr(d, "shares", TeachingShares(10_000)),
    "ids of ended queries": lambda d: setattr(d, "ended", EndedIds()),
    "prior": lambda d: setattr(d, "prior", "0" * 64),
    "offered.price_factors": _offered(price_factors={"large": 5.0}),
    "context_offset": lambda d: setattr(d, "context_offset", 10**9),
    "reward_offset": lambda d: setattr(d, "reward_offset", 10**9),
    "offered.actions": _offered(actions=()),
    "actions": lambda d: d.actions.clear(),
    "seq": lambda d: setattr(d, "seq", 10**6),
}


def test_a_learner_as_its_log_says_is_not_named(
    lived: tuple[DeciderService, dict[bytes, bytes], dict[bytes, bytes]],
) -> None:
    assert list(compared(*lived)) == []


@pytest.mark.parametrize("what", FALSIFIED)
def test_whatever_a_learner_knows_otherwise_is_named(
    what: str, lived: tuple[DeciderService, dict[bytes, bytes], dict[bytes, bytes]]
) -> None:
    service, log, snapshots = lived
    before = service.learner.decider
    service.learner.decider = copy.deepcopy(before)
    try:
        FALSIFIED[what](service.learner.live)
        named = list(compared(service, log, snapshots))
    finally:
        service.learner.decider = before
    assert any(what in each for each in named), named
