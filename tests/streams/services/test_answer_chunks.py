"""Text on its way to gateways while a model generates it: how often, until when, and what a second run does to it."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import EngineFaultError
from agents.serving.recorded import RecordedEngine
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.chat import ChatOptions
from schemas.chunk import AnswerChunk, Shown, digest
from schemas.query import Query
from streams.log.base import ConsumerRecord
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from tests.support.cluster import Ask, Audit, InMemory, closing, read, running, send, worker_of
from tests.support.recorded_engines import run_on

WIDTH_1 = "small/1/1/1"
ONE_SAMPLE = ChatOptions(temperature=0.0)


class Streaming(RecordedEngine):
    """Streams what it has recorded, a character every 60 ms, and fails where it is told to."""

    fails_at: ClassVar[int | None] = None
    text: ClassVar[Callable[[str], str]] = staticmethod(lambda text: text)

    async def stream(
        self, step_id: str, prefix: Prefix, seed: int, sampling: Sampling, on_text: Callable[[str], None]
    ) -> Drafted:
        [made] = await self.generate(step_id, [prefix], 1, [seed], sampling)
        for at, character in enumerate(Streaming.text(made.text)):
            if at == Streaming.fails_at:
                raise EngineFaultError(f"{self.model}: it broke off")
            on_text(character)
            await asyncio.sleep(0.06)
        return made


@pytest.fixture(autouse=True)
def _streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on(monkeypatch, Streaming)
    monkeypatch.setattr(Streaming, "fails_at", None)


def chunks(cluster: Cluster) -> list[AnswerChunk]:
    return read(cluster, cluster.topics.answer_chunk, AnswerChunk)


def times(cluster: Cluster) -> list[int]:
    raw: list[ConsumerRecord] = list(cluster.broker.records(cluster.topics.answer_chunk))
    return [each.timestamp_ms for each in raw]


def put_together(found: list[AnswerChunk]) -> str:
    """Return the text that a reader of chunks has."""
    shown = Shown()
    for chunk in found:
        shown.add(chunk)
    return shown.text


async def answered(cluster: Cluster, *queries: Query) -> Answer:
    send(cluster, *queries)
    await cluster.until(lambda: len(closing(cluster)) == len(queries) and not cluster.busy)
    return read(cluster, cluster.topics.answer, Answer)[0]


def test_chunks_go_out_at_once_and_then_ten_times_a_second(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    async def scenario() -> None:
        async with running(in_memory(), seed=3) as cluster:
            answer = await answered(cluster, ask(0, stream=True, pin_action=WIDTH_1))
            text, found, sent_ms = answer.text or "", chunks(cluster), times(cluster)
            assert text.startswith(known := put_together(found))
            assert len(known) > len(text) / 2
            assert (found[0].offset, len(found[0].text)) == (0, 1)
            assert len(found) > 2
            assert all(chunk.before == digest(text[: chunk.offset]) for chunk in found)
            assert all(later - before >= 100 for before, later in pairwise(sent_ms))
            audited(cluster)

    run(scenario())


@pytest.mark.parametrize("asked", [{}, {"stream": True, "pin_action": "small/4/4/2"}], ids=["whole", "wide"])
def test_nothing_is_sent_that_nobody_can_show(
    asked: dict[str, object], in_memory: InMemory, ask: Ask
) -> None:
    async def scenario() -> None:
        async with running(in_memory(), seed=3) as cluster:
            await answered(cluster, ask(0, **{"pin_action": WIDTH_1, **asked}))
            assert not chunks(cluster)

    run(scenario())


def test_a_broker_that_refuses_chunks_delays_no_answer(in_memory: InMemory, ask: Ask, audited: Audit) -> None:
    async def scenario() -> None:
        async with running(in_memory(), seed=3) as cluster:
            refused = iter(range(2))
            topic = cluster.topics.answer_chunk
            cluster.broker.refuses = lambda name, key: (
                "no leader" if name == topic and next(refused, None) is not None else ""
            )
            answer = await answered(cluster, ask(0, stream=True, pin_action=WIDTH_1))
            found = chunks(cluster)
            assert found[0].offset == 0, "what was refused is in the next chunk"
            assert (answer.text or "").startswith(put_together(found))
            audited(cluster)

    run(scenario())


def test_stop_text_and_its_beginning_are_held_back(in_memory: InMemory, ask: Ask) -> None:
    async def scenario() -> None:
        async with running(in_memory(), seed=3) as cluster:
            answer = await answered(cluster, ask(0, stream=True, pin_action=WIDTH_1))
            stop = (answer.text or "")[8:16]
        async with running(in_memory(), seed=3) as cluster:
            answer = await answered(cluster, ask(0, stream=True, pin_action=WIDTH_1, stop=(stop,)))
            text = put_together(chunks(cluster))
            assert text
            assert (answer.text or "").startswith(text)

    run(scenario())


@pytest.mark.parametrize(("fails_at", "attempts"), [(0, 2), (8, 1)], ids=["before", "after"])
def test_an_attempt_fails_for_good_once_its_text_was_sent(
    fails_at: int,
    attempts: int,
    in_memory: InMemory,
    ask: Ask,
    audited: Audit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Streaming, "fails_at", fails_at)

    async def scenario() -> None:
        async with running(in_memory(attempts=2, warm_up=50), seed=3) as cluster:
            for number in range(12):
                models = ("large", "small")
                send(cluster, ask(number, stream=True, allowed_models=models, options=ONE_SAMPLE))
            await cluster.until(lambda: len(closing(cluster)) == 12 and not cluster.busy)
            failed = {each.query_id for each in read(cluster, cluster.topics.attempt_failed, AttemptFailed)}
            streamed = {chunk.query_id for chunk in chunks(cluster)}
            assert (bool(failed), bool(streamed)) == (attempts == 2, attempts == 1)
            answers = {each.query_id: each for each in read(cluster, cluster.topics.answer, Answer)}
            assert all((answers[each].status, answers[each].attempt) == ("failed", 1) for each in streamed)
            audited(cluster)

    run(scenario())


@pytest.mark.parametrize("same", [True, False], ids=["same text", "other text"])
def test_a_second_run_continues_its_text_and_no_other(
    same: bool, in_memory: InMemory, ask: Ask, audited: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(in_memory(), seed=3) as cluster:
            send(cluster, ask(0, stream=True, pin_action=WIDTH_1))
            await cluster.until(lambda: len(chunks(cluster)) == 2)
            before = put_together(chunks(cluster))
            if not same:
                monkeypatch.setattr(Streaming, "text", staticmethod(lambda text: text.upper() + "!" * 200))
            cluster.kill(worker_of(cluster, "executor"))
            await cluster.until(lambda: len(closing(cluster)) == 1 and not cluster.busy)
            found = chunks(cluster)
            assert [chunk.offset for chunk in found].count(0) == 2, "the second run begins again"
            text = put_together(found)
            if same:
                assert len(text) > len(before)
                assert (read(cluster, cluster.topics.answer, Answer)[0].text or "").startswith(text)
            else:
                assert text == before, "no text is mixed"
            audited(cluster)

    run(scenario())
