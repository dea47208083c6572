"""Each service as what it is: records and rows in, effects out. Nothing is sent and nothing runs beside it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from msgspec import UNSET
from msgspec.structs import replace

from agents.bandit.errors import DuplicateQuery
from agents.embedding import EncoderUnavailable, Vectors
from agents.encoders import HashedEncoder
from agents.grading.grade import Rule, Verdict
from agents.grading.pool import GraderFailed, GradingPool
from agents.reward.join_row import JoinRow, dues
from agents.serving.errors import EngineUnreachableError
from agents.verifier.prm import RecordedVerifier
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.control import Cancel
from schemas.decision import Decision
from schemas.errors import RecordTooLarge
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode, encode
from schemas.reward import Due, Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.log.base import ConsumerRecord, Outgoing, Unavailable
from streams.log.partitioner import partition_for
from streams.runtime.effects import BatchEffects, Effects
from streams.runtime.handler_guard import Refusal
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES, aggregator
from streams.services.aggregator import AggregatorService, MisplacedRecord, OrphanFeedback
from streams.services.decider import DeciderService
from streams.services.embedder import EmbedderService
from streams.services.executor import ExecutorService
from streams.services.verifier import UnknownGroup, VerifierService
from streams.settings import Settings

InMemory = Callable[..., Settings]
Lived = dict[str, list[ConsumerRecord]]
PREFIX = "m."
S = TypeVar("S")


@pytest.fixture(scope="module")
def lived(in_memory: InMemory, ask: Callable[..., Query]) -> Lived:
    """The records of one answered query, by topic without its prefix; its search has two steps or more."""

    async def main() -> Lived:
        cluster = Cluster(in_memory(), SERVICES)
        await cluster.up()
        query = ask(2, query_id="q0", pin_action="small/4/1/1")
        cluster.produce(cluster.topics.query, b"q0", encode(query))
        await cluster.until(lambda: bool(cluster.broker.records(cluster.topics.reward)))
        found = {
            topic.name.removeprefix(PREFIX): cluster.broker.records(topic.name)
            for topic in cluster.topics.declared(cluster.groups)
        }
        await cluster.close()
        return found

    found = run(main())
    assert len(found["search-step"]) > 1
    return found


@asynccontextmanager
async def alone(settings: Settings, kind: type[S]) -> AsyncIterator[S]:
    """Build a service on a runtime of its own, without any other; it may do nothing itself."""
    service = kind.__module__.rpartition(".")[2]
    cluster = Cluster(settings, SERVICES)
    worker = await cluster.start(service, "mini" if SERVICES[service].grouped else "")
    before = len(cluster.broker.effects)
    assert isinstance(worker.built, kind)
    yield worker.built
    left = [each for each in cluster.broker.effects[before:] if each.topic != cluster.topics.heartbeat]
    assert left == [], "a service does nothing itself"
    await cluster.close()


def sent(effects: Effects[Any] | BatchEffects, kind: Any) -> list[Any]:
    return [decode(out.value, kind) for out in effects.send]


def kept(effects: Effects[JoinRow]) -> JoinRow:
    assert isinstance(effects.row, JoinRow)
    return effects.row


def count(counter: Any, topic: str) -> float:
    return float(counter.labels(PREFIX + topic)._value.get())


def at(record: ConsumerRecord, **changed: Any) -> ConsumerRecord:
    return replace(record, **changed)


# The verifier.


async def test_verifier_answers_the_group_of_the_step(in_memory: InMemory, lived: Lived) -> None:
    async with alone(in_memory(), VerifierService) as service:
        for record, scored in zip(lived["search-step"], lived["verification.mini"], strict=True):
            effects = await service.on(None, decode(record.value, SearchStep), record)
            (out,) = effects.send
            assert (out.topic, out.key) == ("m.verification.mini", b"q0")
            assert decode(out.value, Verification).scores == decode(scored.value, Verification).scores
            assert effects == Effects(send=[out], then=effects.then)


async def test_unscorable_step_is_answered_unknown_group_refused(
    in_memory: InMemory, lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def score(*_: object) -> list[Any]:
        raise EngineUnreachableError("judge: no connection")

    monkeypatch.setattr(RecordedVerifier, "score", score)
    record = lived["search-step"][0]
    step = decode(record.value, SearchStep)
    async with alone(in_memory(), VerifierService) as service:
        (answer,) = sent(await service.on(None, step, record), Answer)
        assert (answer.status, answer.by, answer.fault) == ("failed", "verifier", "infrastructure")
        assert "judge: no connection" in answer.error
        assert [draft.tokens for draft in answer.trace] == [draft.tokens for draft in step.forest.drafts]
        assert answer.prompt_tokens == step.forest.prompt_tokens, "what was drafted is priced"
        with pytest.raises(UnknownGroup, match="'nowhere' has no topic"):
            await service.on(None, replace(step, group="nowhere"), record)


async def test_verifier_warns_at_start_of_paths_beyond_its_context(
    in_memory: InMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = yaml.safe_load(Path(in_memory().catalogue).read_text(encoding="utf-8"))
    async with alone(in_memory(), VerifierService):
        assert "scores the last steps alone" not in caplog.text
    for verifier in written["verifiers"]:
        verifier["engine"] = {"context_tokens": 100}
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    async with alone(in_memory(catalogue=str(tmp_path / "short.yaml")), VerifierService):
        [said] = [message for message in caplog.messages if "scores the last steps alone" in message]
    assert re.search(r"paths of .*small.* may have up to \d+ tokens .* beyond the 100 of verifier", said)


# The executor.


async def test_scores_of_paths_that_were_shortened_are_counted(in_memory: InMemory, lived: Lived) -> None:
    record = lived["verification.mini"][0]
    verification = decode(record.value, Verification)
    first, *others = verification.scores
    cut = replace(verification, scores=(replace(first, shortened=True), *others))
    async with alone(in_memory(), ExecutorService) as service:
        await service.on(None, cut, record)
        counted = service.runtime.metrics.shortened.labels(verification.verifier.name)
        assert counted._value.get() == 1


async def test_executor_repeats_no_delivered_step(in_memory: InMemory, lived: Lived) -> None:
    async with alone(in_memory(), ExecutorService) as service:
        (begun,) = lived["action-decision.mini"]
        decision = decode(begun.value, Decision)
        first = await service.on(None, decision, begun)
        assert first.send[0].topic == "m.search-step"
        assert sent(first, SearchStep)[0].forest == decode(lived["search-step"][0].value, SearchStep).forest
        assert (await service.on(None, decision, begun)).send, "nothing is remembered before it is delivered"
        first.then()
        again = await service.on(None, decision, begun)
        assert again.send == ()
        again.then()
        duplicates = service.runtime.metrics.duplicates
        assert count(duplicates, "action-decision.mini") == 1
        for record in lived["verification.mini"]:
            effects = await service.on(None, decode(record.value, Verification), record)
            effects.then()
        (answer,) = sent(effects, Answer)
        assert (answer.text, answer.status) == (decode(lived["answer"][0].value, Answer).text, "ok")
        assert (await service.on(None, decode(record.value, Verification), record)).send == ()


async def test_the_settings_of_the_search_hold_for_every_search(in_memory: InMemory, lived: Lived) -> None:
    (begun,) = lived["action-decision.mini"]
    settings = in_memory().replace(eta=1.5, early_exit=False, cut_completes=True)
    async with alone(settings, ExecutorService) as service:
        (step,) = sent(await service.on(None, decode(begun.value, Decision), begun), SearchStep)
    limits = step.forest.limits
    assert (limits.eta, limits.early_exit, limits.cut_completes) == (1.5, False, True)


async def test_a_cancelled_search_ends_with_the_record_that_comes_next(
    in_memory: InMemory, lived: Lived
) -> None:
    (begun,) = lived["action-decision.mini"]
    scored = lived["verification.mini"][0]
    async with alone(in_memory(), ExecutorService) as service:
        stop = encode(Cancel(query_id="q0", by="client", reason="hung up"))
        service.on_cancel(at(begun, value=stop))
        for record, message in (
            (begun, decode(begun.value, Decision)),
            (scored, decode(scored.value, Verification)),
        ):
            (answer,) = sent(await service.on(None, message, record), Answer)
            assert (answer.status, answer.error) == ("cancelled", "cancelled by client: hung up")


async def test_old_decision_does_not_end_a_search_that_went_on(
    in_memory: InMemory, lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    (begun,) = lived["action-decision.mini"]
    scored = lived["verification.mini"][0]
    decision, verification = decode(begun.value, Decision), decode(scored.value, Verification)
    deadline_ms = verification.search.forest.limits.deadline_ms
    assert deadline_ms is not None
    async with alone(in_memory(), ExecutorService) as service:
        monkeypatch.setattr(service.runtime.clock, "now_ms", lambda: deadline_ms + 1000)
        before = at(begun, timestamp_ms=service.since_ms - 1)
        assert await service.on(None, decision, before) == Effects(), "nothing to say, nothing remembered"
        (answer,) = sent(await service.on(None, verification, scored), Answer)
        assert (answer.status, answer.error) == ("budget", "the budget of deadline ran out")
        assert answer.text, "the best path so far"
    async with alone(in_memory(), ExecutorService) as service:
        monkeypatch.setattr(service.runtime.clock, "now_ms", lambda: deadline_ms + 1000)
        (answer,) = sent(await service.on(None, decision, at(begun, timestamp_ms=service.since_ms)), Answer)
        assert (answer.status, answer.text) == ("budget", None), "no repeat: its client waits no longer"


async def test_oversized_step_ends_the_search_with_its_trace(
    in_memory: InMemory, lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(topic: str, record: Any) -> Outgoing:
        if not isinstance(record, Answer):
            raise RecordTooLarge(topic, "", "exceeds the limit")
        return Outgoing(topic, record.query_id.encode(), encode(record))

    monkeypatch.setattr(Outgoing, "of", of)
    (begun,) = lived["action-decision.mini"]
    first = decode(lived["search-step"][0].value, SearchStep)
    async with alone(in_memory(), ExecutorService) as service:
        (failed,) = sent(await service.on(None, decode(begun.value, Decision), begun), AttemptFailed)
        answer = failed.answer
        assert (answer.status, answer.by) == ("failed", "executor")
        assert [draft.tokens for draft in answer.trace] == [draft.tokens for draft in first.forest.drafts]
    async with alone(in_memory(), VerifierService) as verifier:
        (answer,) = sent(await verifier.on(None, first, lived["search-step"][0]), Answer)
        assert (answer.status, answer.by) == ("failed", "verifier")
        assert "exceeds the limit" in answer.error
        assert [draft.tokens for draft in answer.trace] == [draft.tokens for draft in first.forest.drafts]


async def test_budget_of_an_unpriced_model_ends_the_search(in_memory: InMemory, lived: Lived) -> None:
    scored = lived["verification.mini"][0]
    verification = decode(scored.value, Verification)
    forest = verification.search.forest
    forest = replace(
        forest,
        action=replace(forest.action, model="gone"),
        limits=replace(forest.limits, budget_eflops=1.0),
    )
    verification = replace(verification, search=replace(verification.search, forest=forest))
    async with alone(in_memory(), ExecutorService) as service:
        (failed,) = sent(await service.on(None, verification, scored), AttemptFailed)
        answer = failed.answer
        assert (answer.status, len(answer.trace)) == ("failed", len(forest.drafts))
        assert "UnpricedAnswer" in answer.error


async def test_a_model_that_has_left_the_catalogue_is_a_failure(in_memory: InMemory, lived: Lived) -> None:
    (begun,) = lived["action-decision.mini"]
    decision = decode(begun.value, Decision)
    async with alone(in_memory(), ExecutorService) as service:
        gone = replace(decision, action=replace(decision.action, model="gone"))
        (failed,) = sent(await service.on(None, gone, begun), AttemptFailed)
        answer = failed.answer
        assert answer.status == "failed"
        assert "gone: is no longer in the catalogue" in answer.error


# The embedder.


async def test_embedder_keeps_the_slot_until_the_answer(in_memory: InMemory, lived: Lived) -> None:
    (asked,) = lived["query"]
    query = decode(asked.value, Query)
    async with alone(in_memory(max_in_flight=1), EmbedderService) as service:
        effects = await service.on(None, query, asked)
        assert effects.send == (
            [Outgoing("m.context", lived["context"][0].key, lived["context"][0].value or b"")]
        )
        assert sent(effects, QueryContext)[0].query == query
        assert "q0" in service.admission
        other = asyncio.ensure_future(service.on(None, replace(query, query_id="q1"), at(asked, offset=1)))
        await asyncio.sleep(5.0)
        assert not other.done(), "one place, and it is taken"
        service._on_answer(lived["answer"][0])
        assert (await other).send


class Down(HashedEncoder):
    def encode(self, texts: Sequence[str]) -> Vectors:
        raise EncoderUnavailable("http://encoder: no connection")


async def test_abandoned_query_is_answered_for_its_first_record(
    in_memory: InMemory, lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.services.embedder.encoder_of", lambda settings: Down(8))
    (asked,) = lived["query"]
    query = decode(asked.value, Query)
    async with alone(in_memory(), EmbedderService) as service:
        assert service.answers_for("q0", asked.origin), "it was never admitted"
        with pytest.raises(Unavailable, match="the encoder"):
            await service.on(None, query, asked)
        assert service.runtime.answers_for("q0", asked.origin)
        assert not service.runtime.answers_for("q0", at(asked, offset=9).origin), "the first one is in flight"


# The aggregator.


def at_home(topic: str, message: Any, offset: int = 0, **changed: Any) -> tuple[Any, ConsumerRecord]:
    """Return a record of the query in the partition where it belongs."""
    partition = changed.pop("partition", partition_for(message.query_id.encode(), 2))
    record = ConsumerRecord(PREFIX + topic, partition, offset, 1_700_000_000_000, b"q0", encode(message))
    return message, replace(record, **changed)


async def test_decision_and_answer_make_one_reward_in_any_order(in_memory: InMemory, lived: Lived) -> None:
    decided = decode(lived["action-decision"][0].value, Decision), lived["action-decision"][0]
    answered = decode(lived["answer"][0].value, Answer), lived["answer"][0]
    async with alone(in_memory(), AggregatorService) as service:
        rewards = []
        for first, second in ((decided, answered), (answered, decided)):
            opened = await service.on(None, *first)
            assert not opened.send
            closed = await service.on(kept(opened), *second)
            assert closed.row is None, "a closed query has no row"
            rewards += sent(closed, Reward)
            again = await service.on(kept(opened), *second)
            assert (again.send, again.row) == (closed.send, None), "the same record sends the same"
        assert rewards == [decode(lived["reward"][0].value, Reward)] * 2
        assert "q0" not in service.closed, "its Reward is not delivered yet"
        closed.then()
        again = await service.on(kept(opened), *second)
        assert (list(again.send), again.row) == ([], None), "a row that was left or came late goes"
        again.then()
        assert count(service.runtime.metrics.duplicates, "action-decision") == 1


async def test_slow_grader_leaves_the_reward_without_correctness(
    in_memory: InMemory, lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator, "GradingPool", partial(GradingPool, timeout_s=0.05))
    slow = " | ".join(["repeat 10000", *["times 1"] * 30, "take 1"])
    record = lived["action-decision"][0]
    decision = decode(record.value, Decision)
    # Seconds of work, so that a parent that is descheduled for a moment still finds no result in time.
    decision = replace(decision, query=replace(decision.query, reference={"tests": [[[0], [0]]] * 256}))
    async with alone(in_memory(), AggregatorService) as service:
        opened = await service.on(None, decision, record)
        answered = lived["answer"][0]
        answer = replace(decode(answered.value, Answer), text=rf"\boxed{{{slow}}}")
        (reward,) = sent(await service.on(kept(opened), answer, answered), Reward)
        assert (reward.kind, reward.correct, reward.reward) == ("default", None, None)
        assert reward.missing == "correct: GraderFailed: program: no result in 0.05 s"
        assert service.runtime.metrics.ungraded._value.get() == 1


async def test_ungraded_provisional_reward_stays_ungraded(
    in_memory: InMemory, lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def ask(self: GradingPool, rule: Rule, request: Mapping[str, Any]) -> Verdict:
        asked.append(request["answer"])
        if len(asked) == 1:
            raise GraderFailed("math-verify: no result in 5 s")
        return Verdict(correct=True, how=rule)

    monkeypatch.setattr(GradingPool, "ask", ask)
    record = lived["action-decision"][0]
    decision = decode(record.value, Decision)
    query = replace(decision.query, reference="x/2", feedback_wait_s=60.0)
    answered = lived["answer"][0]
    answer = replace(decode(answered.value, Answer), text=r"\boxed{0.5x}")
    async with alone(in_memory(), AggregatorService) as service:
        opened = await service.on(None, replace(decision, query=query), record)
        first = await service.on(kept(opened), answer, answered)
        (reward,) = sent(first, Reward)
        assert (reward.kind, reward.correct) == ("provisional", None)
        # It ends here, before the row is written, and whoever goes on reads what was sent.
        (out,) = first.send
        service._on_reward(ConsumerRecord(out.topic, 0, 0, 1, out.key, out.value))
        again = await service.on(kept(opened), answer, answered)
        assert (again.send, again.row) == (first.send, first.row)
        assert len(asked) == 1


async def test_misplaced_feedback_moves_and_misplaced_answer_fails(in_memory: InMemory) -> None:
    home = partition_for(b"q0", 2)
    async with alone(in_memory(), AggregatorService) as service:
        told, record = at_home(
            "feedback", Feedback(query_id="q0", correct=True), partition=1 - home, key=None
        )
        effects = await service.on(None, told, record)
        assert effects.send == [Outgoing("m.feedback", b"q0", record.value or b"", home)]
        assert (effects.row, effects.refused) == (UNSET, ())
        forged = Answer(query_id="q0", status="failed", by="nobody", error="forged")
        message, record = at_home("answer", forged, partition=1 - home)
        effects = await service.on(None, message, record)
        (refused,) = effects.refused
        assert isinstance(refused.error, MisplacedRecord)
        assert refused == Refusal(refused.error, record.value, record.origin), "its query goes on"
        assert (effects.row, effects.send) == (UNSET, ())


async def test_parked_feedback_is_refused_when_it_is_due(in_memory: InMemory) -> None:
    async with alone(in_memory(), AggregatorService) as service:
        told, record = at_home("feedback", Feedback(query_id="q0", correct=True), offset=7)
        parked = await service.on(None, told, record)
        ((kind, deadline_ms),) = dues(kept(parked))
        theirs = Due(query_id="q0", kind=kind, deadline_ms=deadline_ms, sent_ms=deadline_ms + 1)
        due, later = at_home("due", theirs, timestamp_ms=deadline_ms)
        assert (await service.on(kept(parked), due, later)) == Effects(), (
            "its Answer may be there, and unread"
        )
        # The timer has seen it delivered and sent a Due, but in the query's queue the Answer waits behind theirs.
        service._delivered_ms["m.answer", record.partition] = deadline_ms
        service._sent["q0", kind, deadline_ms] = deadline_ms + 2
        assert (await service.on(kept(parked), due, later)) == Effects()
        due, later = at_home("due", replace(theirs, sent_ms=deadline_ms + 2), timestamp_ms=deadline_ms)
        effects = await service.on(kept(parked), due, later)
        (refused,) = effects.refused
        assert isinstance(refused.error, OrphanFeedback)
        assert decode(refused.value, Feedback) == told
        assert refused.origin == Origin(topic="m.feedback", partition=record.partition, offset=7)


async def write(service: AggregatorService, effects: Effects[JoinRow], partition: int) -> None:
    """Write what a record has changed, as `effects.connect` does."""
    await service.table.put_all((key, value, partition) for key, value in effects.beside)
    effects.then()


async def test_query_rejected_undecided_leaves_a_closing_digest(in_memory: InMemory, lived: Lived) -> None:
    decided = lived["action-decision"][0]
    decision = decode(decided.value, Decision)
    no = Answer(query_id="q0", status="rejected", by="embedder", error="n: at most 4 paths are on offer")
    answer, record = at_home("answer", no, timestamp_ms=decided.timestamp_ms + 1500)
    cluster = Cluster(in_memory(), SERVICES)
    service: AggregatorService = (await cluster.start("aggregator")).built
    effects = await service.on(None, answer, record)
    assert effects.row is None
    await write(service, effects, record.partition)
    ((key, value),) = service.table.items()
    assert (len(key), len(value)) == (18, 13), "a digest and a time: the Answer is on its topic"
    assert len(service._due) == 0, "nothing waits for it"
    again = await service.on(None, *at_home("answer", no, offset=1))
    assert (again.row, list(again.beside)) == (None, []), "the first Answer counts"
    service = (await cluster.start("aggregator", instance="1")).built  # the partitions may be its own now
    await cluster.stop(cluster.workers[0])
    await cluster.until(lambda: bool(service.table.items()))
    closed = await service.on(None, decision, decided)
    (reward,) = sent(closed, Reward)
    assert (reward.status, reward.kind, reward.latency_s, closed.row) == ("rejected", "final", 1.5, None)
    await cluster.close()


async def test_the_oldest_rejected_ids_make_room(
    in_memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator, "_REJECTED", 20)  # of two partitions
    cluster = Cluster(in_memory(), SERVICES)
    service: AggregatorService = (await cluster.start("aggregator")).built
    for n in range(100):
        no = Answer(query_id=f"q{n}", status="rejected", by="embedder", error="no")
        answer, record = at_home("answer", no, offset=n, timestamp_ms=1_700_000_000_000 + n)
        await write(service, await service.on(None, answer, record), record.partition)
    assert len(service.table.items()) == 20
    assert service.rejected.answered_ms("q99") == 1_700_000_000_099
    week = 8 * 24 * 3_600_000
    no = Answer(query_id="late", status="rejected", by="embedder", error="no")
    for n in range(100):
        answer, record = at_home(
            "answer", replace(no, query_id=f"late{n}"), timestamp_ms=record.timestamp_ms + week
        )
        await write(service, await service.on(None, answer, record), record.partition)
    assert len(service.table.items()) <= 4, "what is older than a week goes, too"
    await cluster.close()


async def test_a_deadline_leaves_with_its_row(in_memory: InMemory, lived: Lived) -> None:
    record = lived["action-decision"][0]
    decision = decode(record.value, Decision)
    query = replace(decision.query, reference=None, feedback_wait_s=30 * 24 * 3600.0)
    async with alone(in_memory(), AggregatorService) as service:
        opened = await service.on(None, replace(decision, query=query), record)
        opened.then()
        assert len(service._due) == 1, "its Answer is awaited"
        answered = await service.on(
            kept(opened), decode(lived["answer"][0].value, Answer), lived["answer"][0]
        )
        answered.then()
        assert len(service._due) == 1, "its feedback is awaited, and its Answer no longer"
        told, feedback = at_home("feedback", Feedback(query_id="q0", correct=True))
        (await service.on(kept(answered), told, feedback)).then()
        assert len(service._due) == 0


# The decider.


async def test_decider_writes_rows_and_resends_what_they_hold(in_memory: InMemory, lived: Lived) -> None:
    (asked,) = lived["context"]
    context = decode(asked.value, QueryContext)

    cluster = Cluster(in_memory(), SERVICES)
    worker = await cluster.start("decider")
    service: DeciderService = worker.built
    await service.ready(Reward, [])
    before = len(cluster.broker.effects)
    taken = replace(context, query=replace(context.query, text="another"), origin=at(asked, offset=9).origin)
    effects = await service.on_batch([(context, asked), (taken, at(asked, offset=1))])
    assert [out.topic for out in effects.send] == ["m.action-decision", "m.action-decision.mini"]
    (decision, same) = sent(effects, Decision)
    assert (decision.query, decision.seq) == (context.query, same.seq)
    ((key, _),) = effects.rows
    assert key == b"q0"
    (refused,) = effects.refused
    assert isinstance(refused.error, DuplicateQuery)
    assert (refused.answer, refused.query_origin) == (False, taken.origin), "the first has an Answer coming"
    assert len(cluster.broker.effects) == before, "a service does nothing itself"
    await service.write(effects.rows)
    again = await service.on_batch([(context, at(asked, offset=2))])
    assert (again.rows, again.send) == ([], effects.send)
    again.then()
    assert count(service.runtime.metrics.duplicates, "context") == 1
    await cluster.close()
