"""Configurations on offer: a deployment offers the (QP, CP) of its settings, and another set after a restart."""

import pytest

from schemas.answer import Answer
from schemas.decision import Decision
from schemas.query import Query
from streams.control_follower import Control
from streams.runtime.memory_cluster import Cluster
from streams.settings import SettingsError
from tests.support.cluster import Ask, InMemory, answered, read, reproduced, running, send, successor
from tests.support.gateway_deployment import DEPLOYED


async def asked(cluster: Cluster, queries: list[Query]) -> dict[str, Answer]:
    send(cluster, *queries)
    await cluster.until(lambda: len(answered(cluster)) >= len(queries) and not cluster.busy)
    return {answer.query_id: answer for answer in read(cluster, cluster.topics.answer, Answer)}


def chosen(cluster: Cluster) -> set[tuple[int, int]]:
    made = read(cluster, cluster.topics.decision, Decision)
    return {(decision.action.qp, decision.action.cp) for decision in made}


async def test_choices_follow_the_parallelism_on_offer(in_memory: InMemory, ask: Ask) -> None:
    narrow = in_memory(parallelism="1/1,2/2", warm_up=40)
    pinned = ask(90, pin_action="large/4/4/2")
    async with running(narrow) as first:
        answers = await asked(first, [*(ask(n) for n in range(16)), pinned])
    assert chosen(first) == {(1, 1), (2, 2)}
    refused = answers[pinned.query_id]
    assert refused.status == "rejected"
    assert "qp 4 with cp 4 is not on offer; choose qp/cp from 1/1, 2/2" in str(refused.error)

    wide = in_memory(parallelism="1/1,4/1", warm_up=40)
    async with successor(first, DEPLOYED, wide) as second:
        await asked(second, [ask(n) for n in range(30, 54)])
    assert chosen(second) == {(1, 1), (4, 1)}
    reproduced(second)


def test_what_is_no_parallelism_is_refused_at_the_start(in_memory: InMemory) -> None:
    with pytest.raises(
        SettingsError,
        match=r"UNISCALE_PARALLELISM: '3/1' is not a QP/CP pair in the action space: use powers",
    ):
        Control(in_memory(parallelism="1/1,3/1"))
