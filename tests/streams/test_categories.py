"""Two applications behind one deployment: worded alike, and told apart by `metadata.route` alone."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from agents.serving.recorded import RecordedPath, RecordedStep
from schemas.decision import Decision
from schemas.query import Query
from streams.runtime.memory_cluster import Cluster
from streams.services.previews import Previews
from streams.settings import Settings
from tests.support.cluster import Audit, decider_of, read, reproduced, running, served, successor, worker_of
from tests.support.recorded import recorded_in_memory

ROUTES = {"orders": "small", "claims": "large"}
"""The model that is good at each application's requests."""

KEYS = {"route": [*ROUTES]}
TEXTS = [f"Please see to number {n}." for n in range(40)]
WRONG, RIGHT = "0", {"orders": "1", "claims": "2"}
SHARE_RIGHT = 0.9


def paths() -> list[RecordedPath]:
    """Return answers to the same texts: each model mostly gives what its application wants to hear."""
    rng, found = random.Random(1), []
    for text in TEXTS:
        for route, model in ROUTES.items():
            for sample in range(4):
                said = RIGHT[route] if rng.random() < SHARE_RIGHT else WRONG
                end = RecordedStep(text=f"\\boxed{{{said}}}", tokens=6, score=0.5, finish="eos")
                found.append(
                    RecordedPath(question=text, model=model, path=sample, steps=(end,), prompt_tokens=9)
                )
    return found


def requests(count: int, *, first: int = 0) -> list[Query]:
    """Return this many requests of each application, in turn."""
    return [
        Query(
            query_id=f"{route}-{n}",
            text=TEXTS[n % len(TEXTS)],
            reference=RIGHT[route],
            # `careful` would also try the cheap model on claims: it asks only for what is sure to be within reach.
            objective="quality-priority",
            metadata={"route": route, "user": f"u{n}"},
        )
        for n in range(first, first + count)
        for route in ROUTES
    ]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    options = {"policy": "contextual", "warm_up": 0, "parallelism": "1/1", "context_keys": KEYS}
    return recorded_in_memory(tmp_path, paths()).replace(**options)


def own_share(cluster: Cluster, first: int) -> dict[str, float]:
    """Return the share of each application's requests from a number on that went to its own model."""
    own: Counter[str] = Counter()
    made = read(cluster, cluster.topics.decision, Decision)
    late = [each for each in made if int(each.query_id.split("-")[1]) >= first]
    own.update(
        each.query_id.split("-")[0]
        for each in late
        if each.action.model == ROUTES[each.query_id.split("-")[0]]
    )
    return {route: 2 * own[route] / len(late) for route in ROUTES}


@pytest.mark.seconds
async def test_each_application_gets_its_own_model_if_its_key_is_named(
    settings: Settings, audited: Audit
) -> None:
    async with running(settings) as cluster:
        for at in range(0, 400, 10):
            await served(cluster, *requests(10, first=at))
    assert min(own_share(cluster, 300).values()) >= 0.8
    reproduced(cluster)
    audited(cluster)


@pytest.mark.seconds
async def test_a_key_that_is_not_named_teaches_nothing(settings: Settings) -> None:
    async with running(settings.replace(context_keys={})) as cluster:
        for at in range(0, 400, 10):
            await served(cluster, *requests(10, first=at))
    assert min(own_share(cluster, 300).values()) < 0.65
    assert {each.features for each in read(cluster, cluster.topics.decision, Decision)} == {()}


async def test_a_restart_with_another_list_learns_on(settings: Settings, audited: Audit) -> None:
    async with running(settings.replace(context_keys={"route": ["orders"]})) as cluster:
        await served(cluster, *requests(6))
        made = read(cluster, cluster.topics.decision, Decision)
        audited(cluster)
        assert {each.features for each in made} == {(), ("route=orders",)}
        async with successor(cluster, tuple(cluster.services), settings) as later:
            await served(later, *requests(6, first=6))
            made = read(later, later.topics.decision, Decision)
            assert {each.features for each in made} == {("route=orders",), ("route=claims",)}
            assert not decider_of(later).policy.left_out()
            reproduced(later)
            shown = await Previews(worker_of(later, "decider").built).preview(requests(1)[0])
    assert shown.features == ("route=orders",)
    assert "model × route=orders" in {each.part for each in shown.contributions}
