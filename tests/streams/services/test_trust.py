"""What the services do when a client, a broker, an encoder or a former owner misbehaves; each in the memory runtime."""

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import Counter

from agents.decider.decider import Decider
from agents.embedding import EncoderUnavailable, TextUnanswered
from agents.grading.grade import Rule, Verdict
from agents.grading.pool import GraderFailed, GradingPool
from agents.reward.join_row import DecisionInfo, JoinRow, encode_row
from schemas.action import Action
from schemas.answer import Answer
from schemas.control import CatalogueEntry, Heartbeat
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Due, Feedback, Reward
from streams.control_follower import Control
from streams.log.base import ConsumerRecord
from streams.runtime.memory import MemoryRuntime
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES, decider
from streams.services.aggregator import AggregatorService
from streams.services.embedder import NotEmbeddedInTime
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    added,
    answered,
    change,
    closing,
    decider_of,
    read,
    recovered,
    reproduced,
    running,
    send,
    served,
    worker_of,
)
from tests.support.encoders import DownFor, Mute, Refusing
from tests.support.records import decision_for


def total(counter: Counter) -> float:
    """Return the sum of a counter over its labels."""
    samples = [sample for metric in counter.collect() for sample in metric.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


async def test_duplicate_of_an_old_query_frees_its_slot(in_memory: InMemory, ask: Ask) -> None:
    async with running(in_memory(max_in_flight=1, timeout_s=1000.0), seed=3) as cluster:
        # More than the embedder remembers as ended.
        many = [ask(n, query_id=f"first{n}") for n in range(20)]
        send(cluster, *many)
        await cluster.until(lambda: len(answered(cluster)) == 20)
        send(cluster, ask(0, query_id="first0"))
        await cluster.until(lambda: bool(cluster.broker.records(cluster.topics.dead_letter)), 60)
        send(cluster, ask(1, query_id="another"))
        # Far less than the 1,060 s after which a slot is freed without an Answer.
        await cluster.until(lambda: "another" in answered(cluster), 30)
        (letter,) = read(cluster, cluster.topics.dead_letter, DeadLetter)
        assert (letter.error, letter.query_id) == ("DuplicateQuery", "first0")
        assert letter.query_origin is not None
        assert letter.query_origin.topic == cluster.topics.query
        assert sum(a.query_id == "first0" for a in read(cluster, cluster.topics.answer, Answer)) == 1


async def test_a_broker_that_refuses_writes_costs_no_record(in_memory: InMemory, ask: Ask) -> None:
    async with running(in_memory(), seed=3) as cluster:
        why, decided_from = "fewer replicas in sync than min.insync.replicas", cluster.topics.context
        cluster.broker.refuses = lambda topic, key: "" if topic == decided_from else why
        send(cluster, *(ask(n) for n in range(4)))
        await cluster.until(lambda: bool(cluster.broker.records(decided_from)))
        cluster.broker.refuses = lambda topic, key: why
        send(cluster, *(ask(n) for n in range(4, 8)))
        before = len(cluster.broker.effects)
        await asyncio.sleep(120)
        assert {effect.kind for effect in cluster.broker.effects[before:]} <= {"commit"}
        ended = {str(death) for death in cluster.deaths}
        assert ended == {"the learner's rows could not be written"}, "the others go on, and count no failure"
        cluster.broker.refuses = lambda topic, key: ""
        await cluster.until(lambda: len(answered(cluster)) == 8, 200)
        assert {a.status for a in read(cluster, cluster.topics.answer, Answer)} == {"ok"}
        assert cluster.broker.records(cluster.topics.dead_letter) == []


async def test_refused_send_keeps_counts_and_pending_right(in_memory: InMemory, ask: Ask) -> None:
    async with running(in_memory(), seed=3) as cluster:
        topics, metrics = cluster.topics, worker_of(cluster, "decider").metrics
        await served(cluster, ask(0))
        cluster.broker.refuses = lambda topic, key: "no" if topic.startswith(topics.decision) else ""
        send(cluster, *(ask(n) for n in range(1, 9)))
        await asyncio.sleep(20)
        cluster.broker.refuses = lambda topic, key: ""
        await cluster.until(lambda: len(closing(cluster)) == 9 and not cluster.busy)
        assert cluster.deaths == []
        await served(cluster, ask(9))
        assert (metrics.pending._value.get(), total(metrics.decisions)) == (0, 10)


async def test_a_decider_that_has_lost_the_learner_has_nothing_pending(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = {name: spec for name, spec in SERVICES.items() if name != "executor"}
    async with running(in_memory(timeout_s=600.0), services, seed=3) as cluster:
        worker, topics = worker_of(cluster, "decider"), cluster.topics
        send(cluster, ask(0))
        await cluster.until(lambda: len(cluster.broker.records(topics.decision)) == 1)
        await asyncio.sleep(60.0)
        pending, oldest_s = worker.metrics.pending._value, worker.metrics.oldest_pending._value
        assert (pending.get(), worker.clock.now_ms() / 1000 - oldest_s.get() > 50) == (1, True)
        monkeypatch.setattr(worker, "assigned", lambda topic: frozenset())
        await worker.built._recovered()
        assert (pending.get(), oldest_s.get()) == (0, worker.clock.now_ms() / 1000)


async def test_unlearnable_query_awaiting_feedback_is_not_overdue(in_memory: InMemory, ask: Ask) -> None:
    async with running(in_memory(), seed=3) as cluster:
        worker, topics = worker_of(cluster, "decider"), cluster.topics
        send(cluster, ask(0, learn=False, reference=None, feedback_wait_s=3600.0))
        await cluster.until(lambda: len(cluster.broker.records(topics.reward)) == 1 and not cluster.busy)
        await asyncio.sleep(60.0)
        worker.built.pending.show()
        pending, oldest_s = worker.metrics.pending._value, worker.metrics.oldest_pending._value
        assert (pending.get(), oldest_s.get()) == (1, worker.clock.now_ms() / 1000)


async def test_queries_wait_for_an_encoder_that_is_down(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.services.embedder.encoder_of", lambda settings: DownFor(25))
    async with running(in_memory(), seed=3) as cluster:
        send(cluster, *(ask(n) for n in range(5)))
        await cluster.until(lambda: len(answered(cluster)) == 5)
        assert {a.status for a in read(cluster, cluster.topics.answer, Answer)} == {"ok"}
        assert cluster.broker.records(cluster.topics.dead_letter) == []
        assert cluster.deaths == []
        assert asyncio.get_running_loop().time() > 10


async def test_text_that_alone_fails_is_refused_after_some_rounds(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.services.embedder.encoder_of", lambda settings: Mute(poison=1000, unlucky=2))
    async with running(in_memory(), seed=3) as cluster:
        texts = {"q0": "poison", "q1": "unlucky"}
        send(cluster, *(ask(0, query_id=query_id, text=text) for query_id, text in texts.items()))
        send(cluster, *(ask(n) for n in range(2, 6)))
        await cluster.until(lambda: len(answered(cluster)) == 4, 10)
        assert answered(cluster) == {f"q{n}" for n in range(2, 6)}, "between the rounds, others are embedded"
        await cluster.until(lambda: len(answered(cluster)) == 6, 60)
        (letter,) = read(cluster, cluster.topics.dead_letter, DeadLetter)
        assert (letter.query_id, letter.error) == ("q0", "TextUnanswered")
        answers = {a.query_id: a for a in read(cluster, cluster.topics.answer, Answer)}
        assert (answers["q0"].status, answers["q0"].error) == ("rejected", TextUnanswered.instead)
        assert cluster.deaths == []


async def test_unembedded_query_is_refused_past_its_deadline(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text may be what the server dies of: then no other text is embedded either."""
    encoder = DownFor(10**6)
    monkeypatch.setattr("streams.services.embedder.encoder_of", lambda settings: encoder)
    async with running(in_memory(), seed=3) as cluster:
        send(cluster, ask(0, timeout_s=60.0), ask(1, timeout_s=600.0))
        await cluster.until(lambda: answered(cluster) == {"q0"}, 120)
        (answer,) = read(cluster, cluster.topics.answer, Answer)
        assert answer.status == "rejected"
        assert answer.error == NotEmbeddedInTime.instead
        [letter] = read(cluster, cluster.topics.dead_letter, DeadLetter)
        assert "timeout_s: 60 s are over, and http://encoder: no connection" in letter.reason
        encoder.left = 0
        await cluster.until(lambda: len(answered(cluster)) == 2, 60)
        assert {a.query_id: a.status for a in read(cluster, cluster.topics.answer, Answer)}["q1"] == "ok"


def test_heartbeats_are_judged_without_comparing_two_clocks(in_memory: InMemory) -> None:
    now_s = 0.0
    control = Control(in_memory(), lambda: now_s)

    def beat(instance: str, model: str, appended_ms: int) -> None:
        value = encode(Heartbeat(group="mini", instance=instance, models=(model,), every_s=2.0))
        control._on_heartbeat(ConsumerRecord("m.heartbeat", 0, 0, appended_ms, b"", value))

    beat("0", "small", 1_000)  # the broker's clock is decades behind this machine's
    beat("1", "large", 1_500)
    assert control.serving() == {"small", "large"}
    for at in (3_500, 5_500, 7_500):
        beat("1", "large", at)
    assert control.serving() == {"large"}, "7.0 s after its last beat by the broker's clock"
    now_s = 6.5
    assert control.serving() == frozenset(), "nothing was received for 6.5 s"


async def test_an_executor_that_stops_in_order_is_masked_at_once(in_memory: InMemory) -> None:
    async with running(in_memory(), seed=3) as cluster:
        executor, decider = (worker_of(cluster, service) for service in ("executor", "decider"))
        await cluster.until(lambda: decider.control.serving() == {"small", "large"}, 10)
        began = asyncio.get_running_loop().time()
        await cluster.stop(executor)
        await cluster.until(lambda: decider.control.serving() == frozenset(), 10)
        assert asyncio.get_running_loop().time() - began < 0.2
        assert read(cluster, cluster.topics.heartbeat, Heartbeat)[-1].stopping


async def test_contexts_that_expired_unread_are_reported(
    in_memory: InMemory, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(in_memory(), seed=3) as cluster:
        send(cluster, ask(0))
        await cluster.until(lambda: len(answered(cluster)) == 1)
        await cluster.stop(worker_of(cluster, "decider"))
        send(cluster, *(ask(n) for n in range(1, 4)))
        await cluster.until(lambda: cluster.broker.end(cluster.topics.context, 0) == 4)
        cluster.broker.delete_before(cluster.topics.context, 0, 3)
        back = await cluster.start("decider")
        assert total(back.metrics.expired) == 2
    assert "up to 2 records expired unread (offsets 1 to 2)" in caplog.text


@pytest.mark.parametrize("keep_bytes", [0, 20, 4096])
async def test_dead_letter_keeps_as_many_bytes_as_configured(in_memory: InMemory, keep_bytes: int) -> None:
    async with running(in_memory(dead_letter_bytes=keep_bytes), seed=3) as cluster:
        t = cluster.topics
        bad = b'{"schema":"query.v1","text":"my secret","query_id":"bad","n":0}'
        orphan = (
            b'{"schema":"feedback.v1","query_id":"nobody","correct":true,"metadata":{"said":"my secret"}}'
        )
        cluster.produce(t.query, b"bad", bad)
        cluster.produce(t.feedback, b"nobody", orphan)
        await cluster.until(lambda: len(cluster.broker.records(t.dead_letter)) == 2, 60)
        for letter in read(cluster, t.dead_letter, DeadLetter):
            assert len(letter.head) == min(keep_bytes, letter.size)
            assert letter.size > 60
            assert len(letter.sha256) == 64


async def test_a_deadline_that_nothing_comes_of_shows_in_a_metric(in_memory: InMemory, ask: Ask) -> None:
    services = {name: spec for name, spec in SERVICES.items() if name != "executor"}
    async with running(in_memory(timeout_s=30.0), services, seed=3) as cluster:
        aggregator = worker_of(cluster, "aggregator")
        overdue_s = lambda: next(iter(aggregator.metrics.overdue.collect())).samples[0].value  # noqa: E731
        cluster.broker.refuses = lambda topic, key: "full" if topic == cluster.topics.due else ""
        send(cluster, ask(0))
        await asyncio.sleep(25)
        assert len(cluster.broker.records(cluster.topics.decision)) == 1
        assert overdue_s() == 0
        await asyncio.sleep(95)
        assert 88 < overdue_s() < 92, "30 of 120 s were its own"
        assert answered(cluster) == set()
        cluster.broker.refuses = lambda topic, key: ""
        await cluster.until(lambda: len(answered(cluster)) == 1, 30)
        await asyncio.sleep(30)
        assert overdue_s() == 0


def opened(query_id: str, at_ms: int) -> bytes:
    return encode_row(
        JoinRow(
            query_id=query_id,
            decision=DecisionInfo(
                seq=0, action=Action(model="small", qp=1, cp=1, bs=1),
                objective=ObjectiveInForce(
                    weights=Weights(correct=1.0), cost_range=CostRange(low=1.0, high=2.0)
                ),
                appended_ms=at_ms, timeout_ms=1000, feedback_ms=0, reference=None,
            ),
        )
    )  # fmt: skip


async def test_a_bad_row_does_not_stop_the_deadlines_of_others(in_memory: InMemory) -> None:
    cluster = Cluster(in_memory(), {"aggregator": SERVICES["aggregator"]}, seed=1)
    changelog = cluster.topics.changelog("aggregator", "join")
    cluster.broker.create(changelog, 2)
    for partition, key, bad in ((0, b"q0", b"bad2"), (1, b"q4", b"bad0")):
        cluster.broker.append(changelog, bad, b"{no row", partition)
        cluster.broker.append(changelog, key, opened(key.decode(), cluster.broker.now_ms()), partition)
    await cluster.up()
    await cluster.until(lambda: len(read(cluster, cluster.topics.due, Due)) == 2, 10)
    assert {due.query_id for due in read(cluster, cluster.topics.due, Due)} == {"q0", "q4"}
    assert cluster.deaths == []
    await cluster.close()


async def test_former_owner_sends_no_deadlines(in_memory: InMemory, ask: Ask) -> None:
    cluster = Cluster(in_memory(timeout_s=20.0), {"aggregator": SERVICES["aggregator"]}, seed=1)
    changelog = cluster.topics.changelog("aggregator", "join")
    cluster.broker.create(changelog, 2)
    for partition, key in ((0, b"q0"), (1, b"q4")):
        row = opened(key.decode(), cluster.broker.now_ms() + 5_000)
        cluster.broker.append(changelog, key, row, partition)
    first = await cluster.start("aggregator")
    await cluster.start("aggregator", instance="1")
    assert first.assigned(cluster.topics.answer) == {0}
    await asyncio.sleep(10)
    dues = [due.query_id for due in read(cluster, cluster.topics.due, Due)]
    assert sorted(dues) == ["q0", "q4"], "each deadline by its owner, once"
    await cluster.close()


@pytest.mark.parametrize(
    "value",
    [
        b'{"schema": "context.v1", "query": {"query_id": "two words", "text": "?"}}',
        b'{"schema": "context.v1", "query": {"query_id": ""}}',
        b'{"search": {"query_id": "\\u0000"}}',
        b"[" * 5000,
        b'{"schema": "context.v1", "query": ' + b'{"query":' * 300 + b"1" + b"}" * 300 + b"}",
        b"\xff\xfe",
        b"",
    ],
)
async def test_poison_with_any_nested_id_is_one_dead_letter(
    in_memory: InMemory, ask: Ask, value: bytes
) -> None:
    def readable(topic: str) -> list[bytes]:
        return [r.value for r in cluster.broker.records(topic) if r.value not in (None, value)]

    async with running(in_memory(), seed=3) as cluster:
        t = cluster.topics
        topics = [t.query, t.context, t.reward, t.answer, t.search_step, t.verification_for("mini")]
        for topic in topics:
            cluster.produce(topic, b"0", value)
        send(cluster, ask(0))
        await cluster.until(
            lambda: "q0" in {decode(each, Answer).query_id for each in readable(t.answer)}, 100
        )
        await cluster.until(lambda: len(cluster.broker.records(t.dead_letter)) >= len(topics), 100)
        letters = read(cluster, t.dead_letter, DeadLetter)
        assert sorted(letter.origin.topic for letter in letters) == sorted(topics)
        assert cluster.deaths == [], "none ends a worker"
        await cluster.until(lambda: bool(readable(t.reward)), 100)


async def test_a_closed_query_has_no_row_and_is_known_after_a_restart(in_memory: InMemory, ask: Ask) -> None:
    """What is delivered of it again changes nothing."""
    waits = ask(0, query_id="waits", reference=None, feedback_wait_s=3000.0)
    async with running(in_memory(), seed=3) as cluster:
        topics = cluster.topics
        send(cluster, *(ask(n) for n in range(20)), waits)
        await cluster.until(lambda: len(cluster.broker.records(topics.reward)) == 21)
        rewards, answers = read(cluster, topics.reward, Reward), cluster.broker.records(topics.answer)
        for restart in (False, True):
            if restart:
                cluster.kill(worker_of(cluster, "aggregator"))
            await asyncio.sleep(60.0)
            for record in [*cluster.broker.records(topics.decision), *answers]:
                if record.key != b"waits":
                    cluster.produce(record.topic, record.key, record.value)
            cluster.produce(topics.feedback, b"q0", encode(Feedback(query_id="q0", correct=False)))
            await asyncio.sleep(10.0)
            await cluster.until(lambda: not cluster.busy)
            aggregator = worker_of(cluster, "aggregator")
            (table,) = aggregator.tables
            assert [key for key, _ in table.items()] == [b"waits"]
            assert aggregator.metrics.open_rows._value.get() == 1
            assert aggregator.metrics.late.labels(topics.feedback)._value.get() == 1
        await asyncio.sleep(700.0)  # past every deadline but the feedback's
        assert read(cluster, topics.reward, Reward) == rewards
        assert cluster.broker.records(topics.dead_letter) == []


async def test_late_row_of_a_suspended_aggregator_changes_nothing(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    """It is suspended past its session, and goes on when another has its partitions."""
    async with running(in_memory(timeout_s=60.0), seed=3) as cluster:
        first = worker_of(cluster, "aggregator")
        table, held = first.tables[0], list[tuple[bytes, bytes, int]]()
        put = table.put_all

        async def put_late(rows: Iterable[tuple[bytes, bytes, int]]) -> None:
            if held:
                await put(rows)
                return
            held.extend(rows)
            await asyncio.Future()

        table.put_all = put_late  # type: ignore[method-assign]
        send(cluster, ask(0))
        await cluster.until(lambda: bool(held))
        cluster.kill(first)
        await cluster.until(lambda: bool(closing(cluster)))
        for key, value, partition in held:  # its request had left the process, and the topic has no fence
            cluster.broker.append(table.changelog, key, value, partition)
        cluster.kill(worker_of(cluster, "aggregator"))
        await asyncio.sleep(120.0)  # past the deadline of the query
        await cluster.until(lambda: not cluster.busy)
        assert [(a.status, a.by) for a in read(cluster, cluster.topics.answer, Answer)] == [
            ("ok", "executor")
        ]
        assert [each.closes for each in read(cluster, cluster.topics.reward, Reward)].count(True) == 1
        audited(cluster)


async def test_only_the_new_model_waits_for_an_absent_encoder(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder = DownFor(0)
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)
    async with running(in_memory(state_dir=str(tmp_path)), seed=3) as cluster:
        topics, metrics = cluster.topics, worker_of(cluster, "decider").metrics
        send(cluster, ask(0, feedback_wait_s=600.0, reference=None))
        await cluster.until(lambda: len(cluster.broker.records(topics.reward)) == 1)
        encoder.left = 1 << 30
        change(cluster, added("mid"))
        await asyncio.sleep(1.0)
        cluster.produce(topics.feedback, b"q0", encode(Feedback(query_id="q0", correct=True)))
        send(cluster, *(ask(n) for n in range(1, 6)))
        await cluster.until(lambda: len(closing(cluster)) == 6, 120)
        assert {answer.status for answer in read(cluster, topics.answer, Answer)} == {"ok"}
        await cluster.until(lambda: total(metrics.rewards_applied) == 7)
        assert total(metrics.engine_faults) == 1, "decisions do not wait for it again and again"
        encoder.left = 0
        await asyncio.sleep(31.0)
        send(cluster, ask(6, pin_action="mid/1/1/1"))
        await cluster.until(lambda: any(d.query_id == "q6" for d in read(cluster, topics.decision, Decision)))
        assert cluster.broker.records(topics.dead_letter) == []
        assert cluster.deaths == []


async def test_model_that_the_encoder_refuses_costs_no_record(
    in_memory: InMemory,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(decider, "encoder_of", lambda settings: Refusing("mid"))
    async with running(in_memory(state_dir=str(tmp_path)), seed=3) as cluster:
        topics = cluster.topics
        send(cluster, *(ask(n, feedback_wait_s=600.0, reference=None) for n in range(2)))
        await cluster.until(lambda: len(cluster.broker.records(topics.reward)) == 2)
        change(cluster, added("mid"))
        await asyncio.sleep(1.0)
        for query_id in ("q0", "q1"):
            cluster.produce(
                topics.feedback, query_id.encode(), encode(Feedback(query_id=query_id, correct=True))
            )
        send(cluster, *(ask(n) for n in range(2, 6)))
        await cluster.until(lambda: len(closing(cluster)) == 6, 120)
        assert "not on offer until the encoder embeds it: mid: http://encoder: HTTP 413" in caplog.text
        cluster.kill(worker_of(cluster, "decider"))
        await cluster.until(lambda: any(each.service == "decider" for each in cluster.workers))
        send(cluster, ask(6))
        await cluster.until(lambda: len(closing(cluster)) == 7, 120)
        assert {answer.status for answer in read(cluster, topics.answer, Answer)} == {"ok"}
        assert cluster.broker.records(topics.dead_letter) == []
        assert len(cluster.deaths) == 1


async def pinned(cluster: Cluster, query: Query, model: str) -> str:
    """Return why a query that pins a model is rejected; empty if it is decided."""
    send(cluster, msgspec.structs.replace(query, pin_action=f"{model}/1/1/1"))
    await cluster.until(lambda: query.query_id in closing(cluster) or query.query_id in answered(cluster), 60)
    if any(each.query_id == query.query_id for each in read(cluster, cluster.topics.decision, Decision)):
        return ""
    (answer,) = (a for a in read(cluster, cluster.topics.answer, Answer) if a.query_id == query.query_id)
    return answer.error or ""


@pytest.mark.parametrize("apart_s", [0.0, 1.0])
async def test_refused_new_model_does_not_delay_another(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch, apart_s: float, tmp_path: Path
) -> None:
    encoder = Refusing("mid")
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)
    async with running(in_memory(state_dir=str(tmp_path)), seed=3) as cluster:
        await served(cluster, ask(0))
        change(cluster, added("mid"))
        if apart_s:
            await asyncio.sleep(apart_s)
            await served(cluster, ask(1))
        change(cluster, added("other"))
        await asyncio.sleep(1.0)
        assert await pinned(cluster, ask(2), "other") == ""
        assert "not on offer yet" in await pinned(cluster, ask(3), "mid")
        encoder.models = ()
        await asyncio.sleep(31.0)
        assert await pinned(cluster, ask(4), "mid") == ""
        assert cluster.deaths == []
        reproduced(cluster)


async def test_fresh_log_begins_without_a_refused_model(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The centre of its features is that of the first models on offer, and a replay finds the same."""
    encoder = Refusing("large")
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)
    async with running(
        in_memory(policy="linucb", policy_options='{"action_features": "centred"}', state_dir=str(tmp_path)),
        seed=3,
    ) as cluster:
        await served(cluster, *(ask(n) for n in range(6)))
        assert {each.action.model for each in read(cluster, cluster.topics.decision, Decision)} == {"small"}
        encoder.models = ()
        await asyncio.sleep(31.0)
        assert await pinned(cluster, ask(6), "large") == ""
        await served(cluster, *(ask(n) for n in range(7, 12)))
        assert cluster.deaths == []
        live: Any = decider_of(cluster).policy
        again: Any = recovered(cluster).policy
        assert again.inner.features.anchor.centre.tolist() == live.inner.features.anchor.centre.tolist()
        reproduced(cluster)


async def test_fresh_log_waits_until_any_model_is_embedded(
    in_memory: InMemory,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    encoder = Refusing("small", "large")
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)
    async with running(in_memory(state_dir=str(tmp_path)), seed=3) as cluster:
        assert "no model can be offered: the encoder: small: http://encoder: HTTP 413" in caplog.text
        send(cluster, ask(0))
        await asyncio.sleep(60.0)
        assert answered(cluster) == set()
        encoder.models = ()
        await cluster.until(lambda: answered(cluster) == {"q0"}, 120)
        assert {answer.status for answer in read(cluster, cluster.topics.answer, Answer)} == {"ok"}
        assert cluster.deaths == []


async def test_first_offer_waits_for_an_absent_encoder(
    in_memory: InMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder = Refusing("large")
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)
    async with running(in_memory(state_dir=str(tmp_path)), seed=3) as cluster:
        learner = worker_of(cluster, "decider").built.learner
        catalogue = learner.runtime.control.catalogue
        encoder.error = EncoderUnavailable("http://encoder: no connection")
        fresh = Decider(decider.policy_of(cluster.settings, encoder))
        with pytest.raises(decider.NotEmbedded, match="large: http://encoder: no connection"):
            await learner.vectors(fresh, catalogue)


async def test_catalogue_without_an_unembedded_model_is_in_force(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decider, "encoder_of", lambda settings: Refusing("mid"))
    async with running(in_memory(state_dir=str(tmp_path)), seed=3) as cluster:
        topics = cluster.topics
        send(cluster, ask(0))
        await cluster.until(lambda: len(closing(cluster)) == 1)
        change(cluster, CatalogueEntry(name="small", op="remove"), added("mid"))
        await asyncio.sleep(1.0)
        before = len(read(cluster, topics.decision, Decision))
        send(cluster, *(ask(n % 12, query_id=f"w{n}") for n in range(24)))
        send(cluster, ask(1, query_id="either", allowed_models=["mid", "large"]))
        await cluster.until(lambda: len(closing(cluster)) == 26, 120)
        made = read(cluster, topics.decision, Decision)[before:]
        assert {(each.action.model, each.catalogue_version) for each in made} == {("large", 1)}
        send(cluster, ask(1, query_id="pin", pin_action="mid/1/1/1"))
        send(cluster, ask(1, query_id="only", allowed_models=["mid"]))
        await cluster.until(lambda: answered(cluster) >= {"pin", "only"}, 60)
        refused = {
            a.query_id: a.error or "" for a in read(cluster, topics.answer, Answer) if a.status != "ok"
        }
        assert {each.partition(":")[0] for each in refused.values()} == {"pin_action", "allowed_models"}
        assert all("not on offer yet" in each for each in refused.values())
        reproduced(cluster)


async def test_decisions_follow_a_catalogue_changed_while_embedding(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(in_memory(), seed=3) as cluster:
        topics, worker = cluster.topics, worker_of(cluster, "decider")
        send(cluster, ask(0))
        await cluster.until(lambda: len(closing(cluster)) == 1)
        begun = list[int]()
        in_thread = worker.in_thread

        async def slowly(work: Callable[[], Any]) -> Any:
            begun.append(worker.control.catalogue_version)
            await asyncio.sleep(1.0)
            return await in_thread(work)

        monkeypatch.setattr(worker, "in_thread", slowly)
        change(cluster, added("mid"))
        await asyncio.sleep(0.5)
        send(cluster, *(ask(n % 12, query_id=f"w{n}") for n in range(40)))
        await cluster.until(lambda: bool(begun))
        change(cluster, CatalogueEntry(name="small", op="remove"))
        await cluster.until(lambda: len(closing(cluster)) == 41, 120)
        made = read(cluster, topics.decision, Decision)[1:]
        assert {(each.action.model, each.catalogue_version) for each in made} <= {("large", 1), ("mid", 1)}
        assert cluster.broker.records(topics.dead_letter) == []


async def test_slow_references_do_not_delay_other_tenants(
    in_memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = {"h+1": 5.0, "x/2": 0.02}
    free = asyncio.Semaphore(2)

    def ask(self: GradingPool, rule: Rule, request: Mapping[str, Any]) -> Verdict:
        (gold,) = request["gold"]
        golds.append(gold)
        if gold == "h+1":
            raise GraderFailed("math-verify: no result in 5 s")
        return Verdict(correct=True, how=rule)

    class Threads(MemoryRuntime):
        async def in_thread(self, work: Callable[[], Any]) -> Any:
            async with free:
                found = work()
                await asyncio.sleep(took[golds.pop()] if golds else 0.0)
                return found

    golds: list[str] = []
    monkeypatch.setattr(GradingPool, "ask", ask)

    def ended(cluster: Cluster, name: str, numbers: range, reference: str) -> None:
        for number in numbers:
            query = Query(query_id=f"{name}{number}", text="?", reference=reference, tenant=name)
            action = Action(model="small", qp=1, cp=1, bs=1)
            answer = Answer(
                query_id=query.query_id, status="ok", by="executor", text=r"\boxed{0.5x}", score=0.5
            )
            key = query.query_id.encode()
            cluster.produce(cluster.topics.decision, key, encode(decision_for(query, action=action)))
            cluster.produce(cluster.topics.answer, key, encode(answer))

    settings = in_memory(concurrency=32)
    async with running(settings, {"aggregator": SERVICES["aggregator"]}, seed=1, make=Threads) as cluster:
        ended(cluster, "quick", range(60), "x/2")
        await cluster.until(lambda: len(closing(cluster)) == 60, 10)
        assert {each.correct for each in closing(cluster).values()} == {1.0}, "who waits briefly is graded"
        ended(cluster, "hard", range(100), "h+1")
        await asyncio.sleep(1.0)
        ended(cluster, "quick", range(60, 80), "x/2")
        await cluster.until(lambda: len(closing(cluster).keys() & {f"quick{n}" for n in range(80)}) == 80, 7)
        ended(cluster, "quick", range(80, 100), "x/2")
        await cluster.until(lambda: "quick99" in closing(cluster), 7)
        found = closing(cluster)
        assert {found[f"quick{n}"].correct for n in range(100)} == {1.0}
        await cluster.until(lambda: len(closing(cluster)) == 200, 200)
        missing = Tally(each.missing.partition(": no")[0] for each in closing(cluster).values())
        assert sum(missing.values()) == 200
        assert any("answers: 64 wait, most of them of tenant 'hard'" in why for why in missing)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Topics that nobody reads for the time being: a broker has no order between topics."""
    topics, waiting = set[str](), Cluster._waiting

    def without(self: Cluster, of: Any = None) -> Any:
        return [each for each in waiting(self, of) if each[2].topic not in topics]

    monkeypatch.setattr(Cluster, "_waiting", without)
    return topics


async def test_feedback_waits_for_a_decision_read_last(
    in_memory: InMemory, ask: Ask, behind: set[str]
) -> None:
    async with running(in_memory(), seed=3) as cluster:
        topics = cluster.topics
        await cluster.stop(worker_of(cluster, "aggregator"))
        send(cluster, *(ask(n, reference=None, feedback_wait_s=600.0) for n in range(5)))
        await cluster.until(lambda: len(cluster.broker.records(topics.answer)) == 5)
        for n in range(5):
            told = Feedback(query_id=f"q{n}", correct=True)
            cluster.produce(topics.feedback, told.query_id.encode(), encode(told))
        behind.add(topics.decision)
        await cluster.start("aggregator")
        await asyncio.sleep(60)
        assert closing(cluster) == {}
        behind.clear()
        cluster._stir(topics.decision)
        await cluster.until(lambda: len(closing(cluster)) == 5, 60)
        found = {(each.kind, each.correct) for each in closing(cluster).values()}
        assert found == {("correction", 1.0)}
        assert cluster.broker.records(topics.dead_letter) == []


async def test_timely_feedback_counts_after_an_aggregator_outage(
    in_memory: InMemory, ask: Ask, behind: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline may be fetched first."""
    looked: list[str] = []
    awaits = AggregatorService._awaits

    def look(self: AggregatorService, query_id: str, kind: str, deadline_ms: int) -> int | None:
        looked.append(query_id)
        return awaits(self, query_id, kind, deadline_ms)

    monkeypatch.setattr(AggregatorService, "_awaits", look)
    async with running(in_memory(), seed=3) as cluster:
        send(cluster, *(ask(n, reference=None, feedback_wait_s=600.0) for n in range(6)))
        topics = cluster.topics
        await cluster.until(lambda: len(cluster.broker.records(topics.reward)) == 6 and not cluster.busy)
        await cluster.stop(worker_of(cluster, "aggregator"))
        for n in range(5):
            told = Feedback(query_id=f"q{n}", correct=True)
            cluster.produce(topics.feedback, told.query_id.encode(), encode(told))
        await asyncio.sleep(900)
        behind.add(topics.feedback)
        await cluster.start("aggregator")
        await asyncio.sleep(20)
        assert {each.query_id for each in closing(cluster).values()} <= {"q5"}, (
            "what may have been told is awaited"
        )
        looked.clear()
        await asyncio.sleep(20)
        assert set(looked) <= {"q5"}, "the row of a deadline that is held is not read every time"
        behind.clear()
        cluster._stir(topics.feedback)
        await cluster.until(lambda: len(closing(cluster)) == 6, 60)
        found = {query_id: (each.kind, each.correct) for query_id, each in closing(cluster).items()}
        assert found == {f"q{n}": ("correction", 1.0) for n in range(5)} | {"q5": ("default", None)}
