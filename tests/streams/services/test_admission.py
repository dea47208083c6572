"""Admission holds queries back until an earlier one has ended, and no tenant's for another's."""

import asyncio
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import pytest

from schemas.answer import Answer
from schemas.control import Heartbeat, ModelHealth
from schemas.query import Origin
from schemas.record import encode
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.admission import Admission, AdmissionRejected
from tests.support.cluster import Ask, InMemory, answered, read, send


async def entered(admission: Admission, tenant: str, names: str) -> "list[asyncio.Task[None]]":
    """Ask for a place for each name; return the tasks that wait for one."""
    asked = [asyncio.create_task(admission.enter(name, 60.0, tenant=tenant)) for name in names]
    await asyncio.sleep(0.01)
    return [task for task in asked if not task.done()]


async def test_the_third_waits_until_one_of_two_leaves() -> None:
    admission = Admission(2, clock=lambda: 0.0)
    (third,) = await entered(admission, "", "abc")
    assert ("a" in admission, "b" in admission) == (True, True)
    admission.leave("unknown")
    await asyncio.sleep(0.01)
    assert not third.done()
    admission.leave("a")
    await third
    assert len(admission) == 2


async def test_queries_are_admitted_in_the_order_in_which_they_came() -> None:
    admission = Admission(1, clock=lambda: 0.0)
    seen: list[str] = []

    async def enter(name: str) -> None:
        await admission.enter(name, 60.0)
        seen.append(name)

    await enter("a")
    waiting = [asyncio.create_task(enter(name)) for name in "bcd"]
    await asyncio.sleep(1.1)  # longer than one look at the clock
    for name in "abcd":
        admission.leave(name)
        if name == "a":
            waiting.append(asyncio.create_task(enter("e")))  # it comes when a slot is free
        await asyncio.sleep(0.01)
    await asyncio.gather(*waiting)
    assert seen == ["a", "b", "c", "d", "e"]


async def test_a_tenant_without_queries_in_flight_is_forgotten() -> None:
    admission = Admission(2, clock=lambda: 0.0)
    for tenant in "abc":
        await entered(admission, tenant, f"{tenant}{tenant.upper()}")
        assert list(admission._held) == [(True, tenant)]
        for name in (tenant, tenant.upper()):
            admission.leave(name)
    assert not admission._held


async def test_a_query_in_flight_takes_no_second_place() -> None:
    admission = Admission(1, clock=lambda: 0.0)
    await admission.enter("a", 60.0)
    await asyncio.wait_for(admission.enter("a", 60.0), 1.0)
    assert len(admission) == 1


async def test_a_place_is_free_again_when_the_answer_never_comes() -> None:
    now = [0.0]
    admission = Admission(1, clock=lambda: now[0])
    await admission.enter("a", 5.0)
    now[0] = 6.0
    await asyncio.wait_for(admission.enter("b", 5.0), 1.0)
    assert "a" not in admission
    assert "b" in admission


async def test_refused_duplicate_frees_only_its_own_slot() -> None:
    admission = Admission(2, lambda: 0.0)
    first, second = (Origin(topic="query", partition=0, offset=offset) for offset in (3, 8))
    await admission.enter("q", 60.0, first)
    await admission.enter("q", 60.0, second)
    admission.refused("q", second)
    assert "q" in admission, "the first is in flight"
    admission.ended("q")
    await admission.enter("old", 60.0, second)
    admission.refused("old", second)
    assert len(admission) == 0


async def test_tenant_gets_its_share_beside_a_greedy_one() -> None:
    admission = Admission(4, clock=lambda: 0.0)
    greedy = await entered(admission, "a", "123456")
    assert len(greedy) == 2, "one tenant alone may hold all places, and no more"
    modest = await entered(admission, "b", "xyz")
    assert len(modest) == 1, "half of the places are its share"
    admission.leave("x")
    await asyncio.sleep(0.01)
    assert "z" in admission, "the place of another tenant is not given to the one above its share"
    for name in "12":
        admission.leave(name)
    await asyncio.sleep(0.01)
    assert ("5" in admission, len(admission)) == (False, 4)
    admission.leave("3")
    await asyncio.sleep(0.01)
    assert "5" in admission
    for task in (*greedy, *modest):
        task.cancel()


async def test_unserved_queries_use_separate_slots() -> None:
    living = {"small"}
    admission = Admission(2, clock=lambda: 0.0, serving=lambda: frozenset(living))
    for name in "ab":
        await admission.enter(name, 60.0, models=frozenset({"large"}))
    third = asyncio.create_task(admission.enter("c", 60.0, models=frozenset({"large", "huge"})))
    await asyncio.sleep(0.01)
    assert not third.done(), "they have as many places as the others"
    for name in "xy":
        await asyncio.wait_for(admission.enter(name, 60.0, models=frozenset({"small"})), 1.0)
    living.add("huge")
    admission.look()
    await asyncio.sleep(0.01)
    assert not third.done(), "it is served, and waits among those that are"
    admission.leave("x")
    await asyncio.wait_for(third, 1.0)


async def test_unserved_query_is_refused_when_its_slots_are_taken() -> None:
    now_s = 0.0
    living = {"small"}
    admission = Admission(1, clock=lambda: now_s, serving=lambda: frozenset(living))
    large = frozenset({"large"})

    async def looks(until_s: float) -> bool:
        """Look every second until then, and return whether the query still waits."""
        nonlocal now_s
        while now_s < until_s:
            now_s += 1.0
            admission.look()
        await asyncio.sleep(0.01)
        return not waits.done()

    await admission.enter("a", 6000.0, models=large)
    waits = asyncio.create_task(admission.enter("b", 6000.0, models=large))
    assert await looks(29), "executors that beat for the first time do so one after another"
    living.clear()
    assert await looks(400), "nothing is served, so nobody waits because of it"
    living.add("small")
    assert await looks(429), "the executors are coming back"
    assert not await looks(430)
    with pytest.raises(AdmissionRejected, match="no executor serves large now, and the 1 places"):
        await waits
    with pytest.raises(AdmissionRejected):
        await asyncio.wait_for(admission.enter("c", 600.0, models=large), 1.0)
    admission.leave("a")
    await asyncio.wait_for(admission.enter("d", 600.0, models=large), 1.0)
    assert ("a" in admission, "d" in admission, len(admission)) == (False, True, 1)


async def test_a_late_heartbeat_costs_no_query_that_waits() -> None:
    now_s = 100.0
    living = {"small", "large"}
    admission = Admission(1, clock=lambda: now_s, serving=lambda: frozenset(living))
    large = frozenset({"large"})
    await admission.enter("a", 6000.0, models=large)
    second = asyncio.create_task(admission.enter("b", 6000.0, models=large))
    now_s = 200.0
    admission.look()
    living.remove("large")
    now_s = 229.0
    admission.look()
    living.add("large")
    admission.leave("a")
    await asyncio.wait_for(second, 1.0)


@pytest.mark.parametrize("what", ["leave", "look", "ended"])
async def test_just_cancelled_query_takes_no_slot(what: str) -> None:
    """A partition that moves cancels the calls that hold its records; their tasks run later."""
    now_s = 0.0
    admission = Admission(1, clock=lambda: now_s, serving=lambda: frozenset({"small"}))
    models = frozenset({"large"})
    await admission.enter("a", 6000.0, models=models)
    second, third = (asyncio.create_task(admission.enter(name, 6000.0, models=models)) for name in "bc")
    await asyncio.sleep(0.01)
    second.cancel()
    now_s = 1000.0
    {
        "leave": lambda: admission.leave("a"),
        "look": admission.look,
        "ended": lambda: admission.ended("b"),
    }[what]()
    await asyncio.wait([second], timeout=1.0)
    assert second.cancelled()
    assert "b" not in admission
    if what == "leave":
        await asyncio.wait_for(third, 1.0)
    third.cancel()
    await asyncio.wait([third])


async def test_a_query_that_ends_while_it_waits_takes_no_place() -> None:
    admission = Admission(1, clock=lambda: 0.0)
    await admission.enter("a", 60.0)
    second = asyncio.create_task(admission.enter("b", 60.0))
    await asyncio.sleep(0.01)
    admission.ended("b")
    await asyncio.wait_for(second, 1.0)
    assert "b" not in admission


State: TypeAlias = Literal["loading", "suspended", "failed"]


@pytest.mark.parametrize("state", [*get_args(State), None])
def test_flood_for_an_unserved_model_delays_nobody(
    in_memory: InMemory, ask: Ask, tmp_path: Path, state: State | None
) -> None:
    """They are more than the places and the handlers together; with or without tenants, whatever its executor says."""
    settings = in_memory(max_in_flight=4, concurrency=8, query_partitions=1, policy="random")
    catalogue = tmp_path / "catalogue.yaml"
    catalogue.write_text(
        Path(settings.catalogue).read_text().replace("{name: large,", "{name: large, group: gpu,")
    )

    async def beat(cluster: Cluster) -> None:
        """Say every two seconds what the executor of `large` would; nothing where it does not live."""
        while state is not None:
            health = (ModelHealth(model="large", state=state, why="its endpoint refuses connections"),)
            one = Heartbeat(group="gpu", instance="0", models=(), every_s=2.0, in_flight=0, health=health)
            cluster.produce(cluster.topics.heartbeat, one.key.encode(), encode(one))
            await asyncio.sleep(2.0)

    async def main(evil: str | None, victim: str | None) -> float:
        cluster = Cluster(settings.replace(catalogue=str(catalogue)), SERVICES, seed=3)
        for service in ("verifier", "executor", "aggregator", "decider", "embedder"):
            await cluster.start(service, "mini" if service == "executor" else "")
        beats = asyncio.create_task(beat(cluster))
        send(cluster, ask(0, query_id="warm"))
        await cluster.until(lambda: "warm" in answered(cluster))
        pinned = {"pin_action": "large/1/1/1", "timeout_s": 21600.0, "tenant": evil}
        send(cluster, *(ask(n % 12, query_id=f"evil{n}", **pinned) for n in range(40)))
        await asyncio.sleep(60)
        began_s = asyncio.get_running_loop().time()
        send(cluster, ask(1, query_id="victim", allowed_models=("small",), tenant=victim))
        await cluster.until(lambda: "victim" in answered(cluster), 30000)
        took_s = asyncio.get_running_loop().time() - began_s
        # As many as make the window of their partition close behind a query that waits in its handler.
        send(cluster, *(ask(n % 12, query_id=f"more{n}", allowed_models=("small",)) for n in range(80)))
        await cluster.until(lambda: answered(cluster) >= {f"more{n}" for n in range(80)}, 600)
        refused = [each for each in read(cluster, cluster.topics.answer, Answer) if each.status == "rejected"]
        assert {each.query_id[:4] for each in refused} == {"evil"}
        assert len(refused) == 40 - 4, "beyond their places"
        assert all("no executor serves large" in (each.error or "") for each in refused)
        beats.cancel()
        await cluster.close()
        return took_s

    assert run(main("evil", "victim")) < 60
    assert run(main(None, None)) < 60
