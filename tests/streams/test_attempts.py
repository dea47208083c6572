"""A query whose model fails is decided again; workers killed between two attempts leave one Answer and both costs."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import EngineFaultError, EngineReplyError
from agents.serving.recorded import RecordedEngine
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.prices import Billed
from schemas.query import Origin
from schemas.search import SearchStep
from streams.log.base import ConsumerRecord
from streams.log.memory import MemoryLog
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    closing,
    decider_of,
    learner_rows,
    read,
    recovered,
    reproduced,
    running,
    send,
    worker_of,
)
from tests.support.recorded_engines import run_on


class Failing(RecordedEngine):
    """Fails a client's search at its second step, which is priced, while its model is among `down`."""

    down: frozenset[str] = frozenset()

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        await asyncio.sleep(0.2)
        if self.model in Failing.down and step_id.endswith("/2"):
            raise EngineFaultError(f"{self.model}: HTTP 500")
        return await super().generate(step_id, prefixes, n, seeds, sampling)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    run_on(monkeypatch, Failing)
    monkeypatch.setattr(Failing, "down", frozenset({"large"}))
    return Failing


def failures(cluster: Cluster) -> list[AttemptFailed]:
    return read(cluster, cluster.topics.attempt_failed, AttemptFailed)


def seconds(cluster: Cluster) -> list[Decision]:
    return [each for each in read(cluster, cluster.topics.decision, Decision) if each.attempt == 2]


Moment = Callable[[Cluster], bool]

MOMENTS: dict[str, Moment] = {
    "the attempt has failed": lambda cluster: bool(failures(cluster)),
    "it was decided again": lambda cluster: bool(seconds(cluster)),
    "the second attempt has begun": lambda cluster: any(
        each.attempt == 2 for each in read(cluster, cluster.topics.search_step, SearchStep)
    ),
    "it was answered": lambda cluster: any(
        each.attempt == 2 for each in read(cluster, cluster.topics.answer, Answer)
    ),
}


@pytest.mark.parametrize("heals", [False, True], ids=["down", "up again"])
@pytest.mark.parametrize(
    "killed", [("executor",), ("decider",), ("executor", "decider", "aggregator")], ids=str
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_deaths_between_attempts_leave_one_answer_both_costs(
    moment: str,
    killed: tuple[str, ...],
    heals: bool,
    in_memory: InMemory,
    ask: Ask,
    audited: Audit,
    failing: type[Failing],
) -> None:
    async def scenario() -> None:
        async with running(in_memory(attempts=2, warm_up=50), seed=3) as cluster:
            for number in range(12):
                send(cluster, ask(number, allowed_models=("large", "small")))
            await cluster.until(lambda: MOMENTS[moment](cluster))
            for service in killed:
                cluster.kill(worker_of(cluster, service))
            if heals:
                failing.down = frozenset()
            await cluster.until(lambda: len(closing(cluster)) == 12 and not cluster.busy)
            check(cluster, audited)

    run(scenario())


def test_no_attempt_is_decided_that_has_no_time_left_to_search(
    in_memory: InMemory, ask: Ask, audited: Audit, failing: type[Failing]
) -> None:
    """No decider runs until a tenth of the time is left before the queries expire, which no search may use."""

    async def scenario() -> None:
        async with running(in_memory(attempts=2, warm_up=50, timeout_s=20.0), seed=3) as cluster:
            loop = asyncio.get_running_loop()
            sent_s = loop.time()
            for number in range(12):
                send(cluster, ask(number, allowed_models=("large", "small")))
            await cluster.until(lambda: len(read(cluster, cluster.topics.decision, Decision)) == 12)
            decider = worker_of(cluster, "decider")
            await cluster.stop(decider)
            await asyncio.sleep(sent_s + 19.2 - loop.time())
            assert failures(cluster)
            await cluster.start("decider", decider.group, decider.instance)
            await cluster.until(lambda: len(closing(cluster)) == 12 and not cluster.busy)
            assert not seconds(cluster)
            audited(cluster)

    run(scenario())


def test_a_slow_broker_holds_up_no_other_decision(
    in_memory: InMemory, ask: Ask, audited: Audit, failing: type[Failing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Context of a query that is decided again is read from the broker, which takes 20 s here."""
    at = MemoryLog.at

    async def slowly(log: MemoryLog, origin: Origin) -> ConsumerRecord | None:
        await asyncio.sleep(20.0)
        return await at(log, origin)

    async def scenario() -> None:
        async with running(in_memory(attempts=2, warm_up=50), seed=3) as cluster:
            monkeypatch.setattr(MemoryLog, "at", slowly)
            for number in range(12):
                send(cluster, ask(number, allowed_models=("large", "small")))
            await cluster.until(lambda: bool(failures(cluster)))
            send(cluster, ask(0, query_id="other", allowed_models=("small",)))
            await cluster.until(lambda: "other" in closing(cluster), timeout_s=10.0)
            assert not seconds(cluster)
            await cluster.until(lambda: len(closing(cluster)) == 13 and not cluster.busy)
            assert seconds(cluster)
            audited(cluster)

    run(scenario())


class Billing(RecordedEngine):
    """Bills the tokens of each request as soon as it has it, as an upstream does that is not told of a kill."""

    billed: ClassVar[list[int]] = []

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        drafts = await super().generate(step_id, prefixes, n, seeds, sampling)
        if step_id.startswith("q"):
            Billing.billed.append(sum(each.tokens for each in drafts))
        await asyncio.sleep(0.5)
        return drafts


class Unusable(RecordedEngine):
    """Bills a client's first step, and fails it."""

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        await asyncio.sleep(0.5)
        if step_id.startswith("q"):
            error = EngineReplyError("no choices")
            error.billed = BILL
            raise error
        return await super().generate(step_id, prefixes, n, seeds, sampling)


BILL = Billed(input=11, output=7)


def test_failed_request_that_ran_again_is_counted(
    in_memory: InMemory, ask: Ask, audited: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, Unusable)

    async def scenario() -> None:
        async with running(in_memory(attempts=1, warm_up=50), seed=3) as cluster:
            send(cluster, ask(0))
            await cluster.until(lambda: len(read(cluster, cluster.topics.decision, Decision)) == 1)
            await asyncio.sleep(0.3)
            cluster.kill(worker_of(cluster, "executor"))
            await cluster.until(lambda: len(closing(cluster)) == 1 and not cluster.busy)
            counter = worker_of(cluster, "executor").metrics.repeated_tokens
            [model] = {each.action.model for each in closing(cluster).values()}
            assert [counter.labels(model, kind)._value.get() for kind in ("input", "output")] == [11, 7]
            audited(cluster)

    run(scenario())


@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_tokens_billed_twice_after_a_kill_are_counted(
    killed: bool, in_memory: InMemory, ask: Ask, audited: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, Billing)
    Billing.billed.clear()

    async def scenario() -> None:
        async with running(in_memory(warm_up=50), seed=3) as cluster:
            for number in range(12):
                send(cluster, ask(number))
            await cluster.until(lambda: bool(Billing.billed))
            if killed:
                cluster.kill(worker_of(cluster, "executor"))
            await cluster.until(lambda: len(closing(cluster)) == 12 and not cluster.busy)
            answers = {each.query_id: each for each in reversed(read(cluster, cluster.topics.answer, Answer))}
            twice = sum(Billing.billed) - sum(each.generated_tokens for each in answers.values())
            counter = worker_of(cluster, "executor").metrics.repeated_tokens
            counted = sum(counter.labels(model, "output")._value.get() for model in ("small", "large"))
            assert (twice > 0) == killed
            assert twice <= counted
            assert (counted > 0) == killed
            audited(cluster)

    run(scenario())


def check(cluster: Cluster, audited: Audit) -> None:
    """Every query was answered, whatever its first attempt came to; and all that it cost is in its Reward."""
    answers = read(cluster, cluster.topics.answer, Answer)
    # A search of several paths may have completed one before its model failed: that is an answer.
    assert all(each.text is not None for each in answers)
    failed: dict[str, Any] = {each.query_id: each.answer for each in failures(cluster)}
    rewards = closing(cluster)
    assert any(each.attempt == 2 for each in rewards.values())
    for query_id, reward in rewards.items():
        assert reward.price is not None
        if reward.attempt == 2:
            [earlier] = reward.earlier
            assert (earlier.seq, earlier.action) == (failed[query_id].seq, failed[query_id].action)
            assert earlier.cost > 0.0, "its first step"
            assert reward.cost == pytest.approx(earlier.cost + reward.price.cost)
    rows = learner_rows(cluster)
    assert all(row.stage in ("closed", "abandoned", "failed") for row in rows)
    assert sum(row.attempt == 1 for row in rows) == 12
    audited(cluster)
    reproduced(cluster)
    assert decider_of(cluster).policy.version == recovered(cluster).policy.version
