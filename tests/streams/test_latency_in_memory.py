"""Where the time of a query goes: what its Answer says adds up to the time from the Query's append to its own."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from msgspec import structs

from agents.serving.recorded import RecordedEngine
from agents.verifier.prm import RecordedVerifier
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.query import QueryContext
from schemas.record import decode, encode
from schemas.spent import Spent
from streams.runtime.memory import MemoryRuntime
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.topics import SHARD
from tests.support.cluster import Ask, Audit, InMemory, answered, read, reproduced, running, send, worker_of

T = TypeVar("T")

EMBED_S, GENERATE_S, VERIFY_S = 0.25, 2.0, 0.5
HOPS_S = 0.2
"""Query, Context, Decision, Answer: the cluster's sends take up to 0.02 s each, and those to the verifier are told."""


class InThreads(MemoryRuntime):
    """What runs in a thread takes a while: of these services, the encoder and the graders."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(EMBED_S if self.service == "embedder" else 0.0)
        return work()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step of an engine and of a verifier take a while."""

    def taking(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        async def slow(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(seconds)
            return await call(*given, **named)

        return slow

    monkeypatch.setattr(RecordedEngine, "generate", taking(GENERATE_S, RecordedEngine.generate))
    monkeypatch.setattr(RecordedVerifier, "score", taking(VERIFY_S, RecordedVerifier.score))


def times(cluster: Cluster) -> dict[str, tuple[Answer, float]]:
    """Return each query's Answer, and the seconds from the Query's append to the Answer's."""
    asked = {each.query_id: each.appended_ms for each in read(cluster, cluster.topics.decision, Decision)}
    found = [
        (decode(record.value, Answer), record.timestamp_ms)
        for record in cluster.broker.records(cluster.topics.answer)
    ]
    return {each.query_id: (each, (at_ms - asked[each.query_id]) / 1000) for each, at_ms in found}


@pytest.mark.usefixtures("unhurried")
async def test_the_components_of_an_answer_add_up_to_its_time(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    async with running(in_memory(policy="linucb", max_in_flight=1), seed=4, make=InThreads) as cluster:
        send(cluster, *(ask(n) for n in range(4)))
        await cluster.until(lambda: len(answered(cluster)) == 4)
        await cluster.until(lambda: not cluster.busy)
        found = sorted(times(cluster).values(), key=lambda each: each[1])
        assert {answer.status for answer, _ in found} == {"ok"}
        assert any(answer.steps > 1 for answer, _ in found)
        for answer, total_s in found:
            spent = answer.spent
            assert spent.embed_s == pytest.approx(EMBED_S)
            assert spent.generate_s == pytest.approx(GENERATE_S * answer.steps, abs=0.01)
            assert spent.verify_s == pytest.approx(VERIFY_S * answer.steps)
            # The rest is the way between services.
            assert 0 <= total_s - spent.total_s < HOPS_S
        first, *later = (answer.spent.admission_s for answer, _ in found)
        assert first < HOPS_S
        for waited_s, (before, total_s) in zip(later, found, strict=False):
            assert waited_s == pytest.approx(total_s, abs=HOPS_S), f"behind {before.query_id}"
        registry = worker_of(cluster, "aggregator").metrics.registry
        labels = {"component": "generate"}
        assert registry.get_sample_value("uniscale_spent_seconds_count", labels) == 4
        summed = sum(answer.spent.generate_s for answer, _ in found)
        assert registry.get_sample_value("uniscale_spent_seconds_sum", labels) == pytest.approx(summed)
        audited(cluster)
        reproduced(cluster)


async def test_expired_answer_reports_the_time_before_its_search(in_memory: InMemory, ask: Ask) -> None:
    without = {name: each for name, each in SERVICES.items() if name != "executor"}
    async with running(in_memory(policy="random"), without, make=InThreads) as cluster:
        send(cluster, ask(1, timeout_s=30.0))
        await cluster.until(lambda: bool(answered(cluster)))
        (answer,) = read(cluster, cluster.topics.answer, Answer)
        (decision,) = read(cluster, cluster.topics.decision, Decision)
        assert (answer.by, answer.spent) == ("aggregator", decision.spent)
        assert answer.spent.embed_s == pytest.approx(EMBED_S)


async def test_redelivered_context_gets_the_same_decision(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    async with running(in_memory(policy="linucb"), make=InThreads) as cluster:
        send(cluster, ask(1))
        await cluster.until(lambda: bool(answered(cluster)) and not cluster.busy)
        (context,) = read(cluster, cluster.topics.context, QueryContext)
        again = structs.replace(context, spent=Spent(admission_s=9.0, embed_s=3.0))
        cluster.produce(cluster.topics.context, SHARD, encode(again))
        await cluster.until(lambda: len(read(cluster, cluster.topics.decision, Decision)) == 2)
        first, second = (record.value for record in cluster.broker.records(cluster.topics.decision))
        assert first == second
        await cluster.until(lambda: not cluster.busy)
        audited(cluster)
