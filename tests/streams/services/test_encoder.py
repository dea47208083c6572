"""The encoder embeds one text at a time, for tenants in turn, and what its server says is not a client's to read."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from agents.embedding import BadEmbedding, EncoderError, EncoderRefused, TextUnanswered, Vectors
from agents.encoders import HashedEncoder
from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.query import Query, QueryContext
from streams.runtime.memory import MemoryRuntime
from streams.services import embedder
from tests.support.cluster import Ask, InMemory, read, running, send

T = TypeVar("T")

LONG_S, SHORT_S = 0.06, 0.006


class Slow(HashedEncoder):
    """Takes a while for a text, and ten times as long for a long one."""

    took_s = 0.0

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.took_s = sum(LONG_S if len(text) > 1000 else SHORT_S for text in texts)
        return super().encode(texts)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Return the embedder's encoder."""
    slow = Slow(8)
    monkeypatch.setattr(embedder, "encoder_of", lambda settings: slow)
    return slow


async def test_tenants_take_turns_at_the_encoder(in_memory: InMemory, ask: Ask, encoder: Slow) -> None:
    class InThreads(MemoryRuntime):
        async def in_thread(self, work: Callable[[], T]) -> T:
            done = work()
            took_s, encoder.took_s = encoder.took_s, 0.0
            await asyncio.sleep(took_s)
            return done

    async with running(in_memory(policy="random", max_in_flight=256), seed=4, make=InThreads) as cluster:
        many = [
            Query(query_id=f"m{n}", text=f"{n} " + "long " * 300, tenant="many", learn=False)
            for n in range(200)
        ]
        send(cluster, *many)
        await asyncio.sleep(0.3)
        send(cluster, ask(1, query_id="one", tenant="other"))
        await asyncio.sleep(2 * LONG_S + 0.4)  # each send takes up to 0.02 s
        embedded = {each.query_id for each in read(cluster, cluster.topics.context, QueryContext)}
        assert "one" in embedded
        assert len(embedded) < 20, "most of the others still wait"


SAID = "http://embed.internal:8080/v1/embeddings: HTTP 400: tenant acme on node gpu-17, token sk-1: too long"


@pytest.mark.parametrize("kind", [EncoderRefused, BadEmbedding, TextUnanswered])
async def test_encoder_errors_go_to_the_dead_letter_alone(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch, kind: type[EncoderError]
) -> None:
    class Refuses(HashedEncoder):
        def encode(self, texts: Sequence[str]) -> Vectors:
            raise kind(SAID)

    monkeypatch.setattr(embedder, "encoder_of", lambda settings: Refuses(8))
    async with running(in_memory(policy="random")) as cluster:
        send(cluster, ask(1))
        await cluster.until(lambda: bool(cluster.broker.records(cluster.topics.answer)))
        [answer] = read(cluster, cluster.topics.answer, Answer)
        [letter] = read(cluster, cluster.topics.dead_letter, DeadLetter)
    assert (answer.status, answer.by, answer.error) == ("rejected", "embedder", kind.instead)
    assert (letter.error, letter.reason) == (kind.__name__, SAID)
