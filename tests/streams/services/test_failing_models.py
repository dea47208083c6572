"""A model that always fails: the policy turns away from it, probes suspend it, and clients' queries alone do not."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import EngineReplyError, RequestRefusedError
from agents.serving.recorded import RecordedEngine
from schemas.answer import Answer
from schemas.decision import Decision
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
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

LARGE = "large/1/1/1"


class Failing(RecordedEngine):
    """The large model fails each request, or each of a client, as `how` says; any other takes a fifth of a second.

    Attributes:
        how: `refuses` (400), `refuses clients`, `hangs`, `babbles` (no completion), or nothing.
        asked: Requests of clients that it was sent.
    """

    how = ""
    asked = 0

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        await asyncio.sleep(0.2)
        if self.model == "large" and step_id != "first question":  # it is asked as it is loaded
            Failing.asked += step_id != "probe"
            if Failing.how == "refuses" or (Failing.how == "refuses clients" and step_id != "probe"):
                raise RequestRefusedError("http://large/v1: HTTP 400: unknown parameter 'seed'")
            if Failing.how == "babbles":
                raise EngineReplyError("http://large/v1: the reply is not JSON")
            if Failing.how == "hangs":
                await asyncio.sleep(1e6)
        return await super().generate(step_id, prefixes, n, seeds, sampling)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    run_on(monkeypatch, Failing)
    monkeypatch.setattr(Failing, "how", "")
    monkeypatch.setattr(Failing, "asked", 0)
    return Failing


async def asked(cluster: Cluster, ask: Ask, begin: int, end: int, **fields: Any) -> int:
    """Ask so many questions, two a second, and return how many went to the large model."""
    for at in range(begin, end):
        send(cluster, ask(at % 12, query_id=f"q{at}", **fields))
        await asyncio.sleep(0.5)
    ids = {f"q{at}" for at in range(begin, end)}
    await cluster.until(lambda: ids <= {each.query_id for each in answers(cluster)} and not cluster.busy)
    decided = {each.query_id: each for each in read(cluster, cluster.topics.decision, Decision)}
    return sum(decided[query_id].action.model == "large" for query_id in ids)


def answers(cluster: Cluster) -> list[Answer]:
    return read(cluster, cluster.topics.answer, Answer)


def state(cluster: Cluster) -> str:
    return worker_of(cluster, "decider").control.health()["large"][0]


def learner(in_memory: InMemory, **fields: Any) -> Settings:
    few = {"parallelism": "1/1,4/1"}  # of many configurations each refit takes seconds
    # One attempt: every failure is an Answer, and every query one choice.
    return in_memory(policy="contextual", prior="none", attempts=1, **few, **fields)


def check(cluster: Cluster, audited: Audit) -> None:
    """The records account for everything, a replay makes the same decisions, and the log folds to the live learner."""
    audited(cluster)
    reproduced(cluster)
    assert decider_of(cluster).policy.version == recovered(cluster).policy.version


@pytest.mark.seconds
@pytest.mark.parametrize("how", ["refuses", "babbles"])
def test_a_model_that_fails_from_the_start_is_soon_left_alone(
    how: str,
    in_memory: InMemory,
    ask: Ask,
    audited: Audit,
    failing: type[Failing],
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing.how = how

    async def scenario() -> None:
        async with running(learner(in_memory), SERVICES, seed=5) as cluster:
            assert await asked(cluster, ask, 0, 80) <= 12
            assert await asked(cluster, ask, 80, 120) == 0
            assert state(cluster) == "suspended"
            failed = [each for each in answers(cluster) if each.fault]
            assert failed
            assert {each.fault for each in failed} == {"model"}
            rows = {row.query_id: row for row in learner_rows(cluster)}
            assert {rows[each.query_id].stage for each in failed} == {"failed"}
            check(cluster, audited)
            failing.how, asked_before = "", failing.asked
            await asyncio.sleep(200.0)  # longer than the pause between two probes is by now
            assert state(cluster) == "ready"
            assert failing.asked == asked_before, "only probes were sent"
            told = [each for each in caplog.messages if each.startswith("large is")]
            assert [each.split(",")[0] for each in told] == ["large is suspended", "large is ready again"]

    run(scenario())


@pytest.mark.seconds
def test_model_that_begins_to_fail_soon_loses_its_share(
    in_memory: InMemory, ask: Ask, audited: Audit, failing: type[Failing]
) -> None:
    async def scenario() -> None:
        async with running(learner(in_memory), SERVICES, seed=5) as cluster:
            await asked(cluster, ask, 0, 200)
            failing.how = "refuses"
            assert await asked(cluster, ask, 200, 260) > 0
            assert await asked(cluster, ask, 260, 320) <= 3
            check(cluster, audited)

    run(scenario())


@pytest.mark.seconds
def test_a_model_that_is_too_slow_each_time_is_left_alone(
    in_memory: InMemory, ask: Ask, audited: Audit, failing: type[Failing]
) -> None:
    """The first time-out comes after 36 s, so what was asked before is asked of it as well."""
    failing.how = "hangs"

    async def scenario() -> None:
        async with running(learner(in_memory, timeout_s=40.0), SERVICES, seed=5) as cluster:
            await asked(cluster, ask, 0, 30)
            assert await asked(cluster, ask, 30, 60) == 0
            late = [each for each in answers(cluster) if each.fault == "model"]
            assert late
            assert {(each.status, each.cause) for each in late} == {("budget", "timeout")}
            check(cluster, audited)

    run(scenario())


@pytest.mark.parametrize(
    ("how", "fields"),
    [("refuses clients", {}), ("hangs", {"timeout_s": 5.0})],
    ids=["questions that no model would take", "clients in a hurry"],
)
def test_requests_of_clients_cannot_suspend_a_model(
    how: str, fields: dict[str, Any], in_memory: InMemory, ask: Ask, audited: Audit, failing: type[Failing]
) -> None:
    failing.how = how

    async def scenario() -> None:
        async with running(learner(in_memory), SERVICES, seed=5) as cluster:
            assert await asked(cluster, ask, 0, 30, pin_action=LARGE, **fields) == 30
            assert {each.fault for each in answers(cluster)} == {""}
            assert {row.stage for row in learner_rows(cluster)} == {"abandoned"}
            assert state(cluster) == "ready"
            told = {each.probe.passed for each in answers(cluster) if each.probe is not None}
            assert told == ({True} if how == "refuses clients" else set())
            audited(cluster)

    run(scenario())
