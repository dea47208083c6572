"""What a dependency of a service does to a query when it is slow, down, or wrong; each in the memory runtime."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.embedding import EncoderUnavailable, Vectors
from schemas.answer import Answer
from schemas.control import CatalogueEntry
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES, decider
from streams.services.embedder import HashedEncoder
from streams.settings import Settings

InMemory = Callable[..., Settings]
Ask = Callable[..., Query]


def read(cluster: Cluster, topic: str, kind: Any) -> list[Any]:
    return [decode(r.value, kind) for r in cluster.broker.records(topic)]


def counted(cluster: Cluster, service: str, name: str) -> float:
    """Return the sum of a counter over the workers of a service."""
    lines = [
        line
        for worker in cluster.workers
        if worker.service == service
        for line in worker.metrics.text().decode().splitlines()
        if line.startswith(f"uniscale_{name}_total")
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


class DownAtTimes(HashedEncoder):
    """An encoder as an embedding server is: at times it embeds nothing."""

    down = False

    def encode(self, texts: Sequence[str]) -> Vectors:
        if self.down:
            raise EncoderUnavailable("http://encoder: 4 attempts failed")
        return super().encode(texts)


ADDED = {
    "name": "mid",
    "architecture": {"parameters": 300000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16},
    "group": "mini",
    "checkpoint": "none",
    "sampling": {"temperature": 1.0, "step_tokens": 64, "depth_limit": 8},
}


def test_a_model_that_is_added_while_the_encoder_is_away_waits_and_nothing_else_does(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder = DownAtTimes(8)
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)

    async def main() -> None:
        cluster = Cluster(in_memory(state_dir=str(tmp_path)), SERVICES, seed=3)
        await cluster.up()
        topics = cluster.topics
        cluster.produce(topics.query, b"q0", encode(ask(0, feedback_wait_s=600.0, reference=None)))
        await cluster.until(lambda: len(cluster.broker.records(topics.reward)) == 1)
        encoder.down = True
        entry = CatalogueEntry(name="mid", op="add", model=ADDED)
        cluster.produce(topics.control, b"model/mid", encode(entry))
        await asyncio.sleep(1.0)
        cluster.produce(topics.feedback, b"q0", encode(Feedback(query_id="q0", correct=True)))
        for n in range(1, 6):
            cluster.produce(topics.query, b"q%d" % n, encode(ask(n)))
        closed = lambda: {r.query_id for r in read(cluster, topics.reward, Reward) if r.closes}  # noqa: E731
        await cluster.until(lambda: len(closed()) == 6, 120)
        assert {answer.status for answer in read(cluster, topics.answer, Answer)} == {"ok"}
        await cluster.until(lambda: counted(cluster, "decider", "rewards_applied") == 7)
        assert counted(cluster, "decider", "engine_faults") == 1, (
            "decisions do not wait for it again and again"
        )
        encoder.down = False
        await asyncio.sleep(31.0)
        cluster.produce(topics.query, b"q6", encode(ask(6, pin_action="mid/1/1/1")))
        await cluster.until(lambda: any(d.query_id == "q6" for d in read(cluster, topics.decision, Decision)))
        assert cluster.broker.records(topics.dead_letter) == []
        assert cluster.deaths == []
        await cluster.close()

    run(main())
