"""The whole loop in memory: Query to Reward in milliseconds, the same bytes twice, and the same end after any death."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from agents.bandit import registry
from agents.bandit.policy import Observation, Pending
from agents.decider.decider import Decider
from agents.decider.rows import ActionRow, decode_row
from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Message, Query, ToolCall
from schemas.record import decode
from schemas.reward import Reward
from streams.log.memory import Effect
from streams.runtime.errors import Crash
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.settings import Settings
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    answered,
    decider_of,
    learner_log,
    learner_rows,
    read,
    recovered,
    running,
    send,
    successor,
    worker_of,
)


@pytest.fixture(scope="session")
def in_memory(in_memory: InMemory) -> InMemory:
    """Return settings with the policy whose sums these tests compare."""
    return lambda **fields: in_memory(**{"policy": "linucb", **fields})


def learned(cluster: Cluster) -> set[str]:
    """Return the queries whose row in the learner's log is closed."""
    return {row.query_id for row in learner_rows(cluster) if row.stage in ("closed", "abandoned")}


async def test_conversation_with_tools_is_rejected_undecided(in_memory: InMemory) -> None:
    calls = (ToolCall(id="c", name="add", arguments="{}"),)
    of_tools = (
        (Message(role="user", content="?"), Message(role="assistant", content=None, tool_calls=calls)),
        (Message(role="user", content="?"), Message(role="tool", content="7", tool_call_id="c")),
    )
    queries = [Query(query_id=f"t{at}", messages=messages) for at, messages in enumerate(of_tools)]

    async with running(in_memory()) as cluster:
        send(cluster, *queries)
        await cluster.until(lambda: len(answered(cluster)) == 2)
        answers = read(cluster, cluster.topics.answer, Answer)
        assert {answer.status for answer in answers} == {"rejected"}
        assert all("tools: is asked for" in str(answer.error) for answer in answers)
        assert not cluster.broker.records(cluster.topics.decision)
        await cluster.until(lambda: not cluster.busy)
        registry = worker_of(cluster, "aggregator").metrics.registry
        assert registry.get_sample_value("uniscale_answers_total", {"status": "rejected"}) == 2


async def lived(settings: Settings, queries: Sequence[Query], **how: Any) -> tuple[Cluster, dict[str, Any]]:
    """Run queries to their rewards and return the cluster, closed, and the learner's arrays."""
    ids = {query.query_id for query in queries}
    async with running(settings, **how) as cluster:
        send(cluster, *queries)
        await cluster.until(lambda: learned(cluster) >= ids)
        # What was redelivered late changes nothing; let it arrive.
        await cluster.until(lambda: not cluster.busy)
        # A death in the orderly stop below would be nobody's: what is done from here on is left out.
        state = {**state_of(decider_of(cluster)), "effects": list(cluster.broker.effects)}
    return cluster, state


def state_of(decider: Decider) -> dict[str, Any]:
    """Return everything a learner is compared by."""
    found: dict[str, Any] = {
        "bytes": decider.policy.state(), "seq": decider.seq, "clock": decider.clock,
        "version": decider.policy.version,
    }  # fmt: skip
    if (gram := getattr(decider.policy.inner, "gram", None)) is None:  # type: ignore[attr-defined]
        return found
    gram.flush()
    lower = np.tril(gram.a)
    return found | {"a": lower + np.tril(lower, -1).T, "b": gram.b, "theta": gram.theta}


def close(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare two learners. Updates made together and one by one differ in their last bits, no further."""
    for name in ("seq", "clock", "version"):
        assert one[name] == other[name], name
    for name in ("a", "b", "theta"):
        assert np.abs(one[name] - other[name]).max() <= 1e-12 * max(1.0, np.abs(other[name]).max()), name


def test_every_query_gets_one_decision_answer_and_reward(in_memory: InMemory, ask: Ask) -> None:
    queries = [ask(n) for n in range(12)]
    cluster, _ = run(lived(in_memory(), queries))
    t, broker = cluster.topics, cluster.broker
    ids = {query.query_id for query in queries}
    kinds: dict[str, type[Any]] = {t.decision: Decision, t.answer: Answer, t.reward: Reward}
    for topic, kind in kinds.items():
        assert Counter(each.query_id for each in read(cluster, topic, kind)) == dict.fromkeys(ids, 1)
    assert broker.records(t.dead_letter) == []
    assert cluster.deaths == []
    assert {each.status for each in read(cluster, t.answer, Answer)} == {"ok"}


@pytest.mark.parametrize("seed", [None, 5])
def test_the_same_seed_gives_the_same_bytes(in_memory: InMemory, ask: Ask, seed: int | None) -> None:
    def log() -> list[tuple[str, bytes | None, bytes | None]]:
        cluster, _ = run(lived(in_memory(), [ask(n) for n in range(6)], seed=seed))
        topics = [x.name for x in cluster.topics.declared(["mini"])]
        return [(r.topic, r.key, r.value) for topic in topics for r in cluster.broker.records(topic)]

    assert log() == log()


def outcome(cluster: Cluster) -> dict[str, Any]:
    """Return what counts at the end: the first Answer a query, each reward, and the rows, without positions.

    A redelivered record is appended again, so that later ones lie further on: only positions may differ.
    """
    broker, t = cluster.broker, cluster.topics
    answers: dict[str, bytes | None] = {}
    for r in broker.records(t.answer):
        answers.setdefault(decode(r.value, Answer).query_id, r.value)
    rewards = {decode(r.value, Reward).reward_id: r.value for r in broker.records(t.reward)}
    kept = [
        msgspec.structs.replace(row, context_origin=row.query_origin, reward_offset=-1)
        for row in learner_rows(cluster)
    ]
    joined = {
        key: value
        for partition in range(cluster.settings.kafka.join_partitions)
        for key, value in broker.changelog(t.changelog("aggregator", "join"), partition).items()
    }
    return {
        "answers": answers,
        "rewards": rewards,
        "rows": sorted(kept, key=lambda row: row.seq),
        "join": joined,
        "letters": [r.value for r in broker.records(t.dead_letter)],
    }


@pytest.mark.seconds
def test_a_death_after_any_single_effect_changes_nothing(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    queries = [ask(n) for n in range(3)]
    undisturbed, state = run(lived(in_memory(), queries))
    wanted = outcome(undisturbed)
    effects = state["effects"]
    assert {effect.kind for effect in effects} == {"send", "row", "commit"}
    assert {effect.app.removeprefix("m.") for effect in effects} == {
        "embedder", "decider", "executor.mini", "verifier", "aggregator",
    }  # fmt: skip
    # The rows of the actions are all of one kind: the first, one between and the last of the 56.
    offered = [at for at, effect in enumerate(effects) if effect.key.startswith(b"\x00action")]
    for at in sorted({*range(len(effects))} - {*offered} | {offered[0], offered[28], offered[-1]}):
        seen = iter(range(1_000_000))
        disturbed, found = run(
            lived(in_memory(), queries, dies_after=lambda effect, at=at, seen=seen: next(seen) == at)
        )
        assert len(disturbed.deaths) == 1, effects[at]
        assert outcome(disturbed) == wanted, effects[at]
        close(found, state)
        assert audited(disturbed).states == {"answered and learned": 3}, effects[at]
        if effects[at].app != "m.decider":
            assert found["bytes"] == state["bytes"], effects[at]


# Two deaths at most: the third with one record in flight makes it a dead letter, which is another test.
@examples(
    max_examples=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,
)
@given(seed=st.integers(0, 2**32), deaths=st.sets(st.integers(0, 250), max_size=2))
def test_any_order_and_deaths_conserve_queries_and_fold(
    in_memory: InMemory, ask: Ask, audited: Audit, seed: int, deaths: set[int]
) -> None:
    queries = [ask(n) for n in range(5)]
    ids = {query.query_id for query in queries}
    seen = iter(range(1_000_000))

    def dies(effect: Effect) -> bool:
        return next(seen) in deaths

    cluster, state = run(lived(in_memory(), queries, seed=seed, dies_after=dies))
    found = outcome(cluster)
    # Conservation: one Answer that counts, one row in each table and one closing reward a query.
    assert set(found["answers"]) == ids
    assert {row.query_id for row in found["rows"]} == ids
    assert len(found["rewards"]) == len(ids)
    assert len({each.seq for each in read(cluster, cluster.topics.decision, Decision)}) == 5
    letters = [decode(value, DeadLetter) for value in found["letters"]]
    assert all(letter.error == "KilledProcess" for letter in letters)
    assert "pending" not in audited(cluster).states
    # Fold = live: a learner rebuilt from the log alone is the one that ran.
    close(run(refolded(cluster)), state)


@pytest.fixture(params=["linucb", "contextual"])
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that lets a policy fail at q2, with the change made by half, and returns the policy's name."""
    name: str = request.param
    kind = registry.kinds()[name]

    def make(method: str) -> str:
        def policy(options: Any, on: registry.Inputs) -> Any:
            made = kind.make(options, on)
            work = getattr(made, method)

            def fails(told: Sequence[Observation] | Sequence[Pending]) -> None:
                work(told)
                if any(each.observation_id == "q2" for each in told):
                    raise MemoryError("no room")

            setattr(made, method, fails)
            return made

        monkeypatch.setitem(registry._KINDS, name, registry.Kind(name, kind.options, policy))
        return name

    return make


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("method", ["learn", "decided"])
async def test_a_learner_that_failed_while_it_changed_does_not_go_on(
    in_memory: InMemory, ask: Ask, failing: Callable[[str], str], method: str, seed: int | None
) -> None:
    policy = failing(method)
    settings = in_memory(policy=policy)
    others = {f"q{n}" for n in (0, 1, 3, 4, 5)}

    async with running(settings, seed=seed) as cluster:
        send(cluster, *(ask(n) for n in range(6)))
        await cluster.until(lambda: learned(cluster) >= others and not cluster.busy)
        await cluster.until(lambda: bool(cluster.broker.records(cluster.topics.dead_letter)))
        assert [isinstance(death, Crash) for death in cluster.deaths] == [True] * 3
        cluster.kill(worker_of(cluster, "decider"))
        send(cluster, ask(9))
        await cluster.until(lambda: learned(cluster) >= {*others, "q9"} and not cluster.busy)
        # With a seed some commits are late: the record is then delivered, and fails, three times more.
        assert seed is not None or len(cluster.deaths) == 4, "only the kill"
        state = state_of(decider_of(cluster))
    topic = cluster.topics.reward if method == "learn" else cluster.topics.context
    for letter in read(cluster, cluster.topics.dead_letter, DeadLetter):
        assert (letter.query_id, letter.error, letter.attempts) == ("q2", "KilledProcess", 3)
        assert (letter.origin.topic, "MemoryError: no room" in letter.reason) == (topic, True)
    pending = {row.query_id for row in learner_rows(cluster) if row.stage == "pending"}
    assert pending == ({"q2"} if method == "learn" else set())
    # Fold = live.
    if policy == "linucb":
        close(await refolded(cluster), state)
    else:
        fold = recovered(cluster)
        assert fold.policy.state() == state["bytes"]
        assert fold.seq == state["seq"]


async def test_batch_waiting_during_a_rebalance_decides_once(in_memory: InMemory, ask: Ask) -> None:
    """The rows of its queries are being read anew when it goes on, and its records come again afterwards."""
    settings = in_memory()
    async with running(settings, seed=3) as cluster:
        models = set(worker_of(cluster, "decider").control.catalogue.model_names)
        await cluster.until(lambda: worker_of(cluster, "decider").control.serving() == models)
        await cluster.stop(worker_of(cluster, "executor"))
        send(cluster, *(ask(n) for n in range(4)))
        await cluster.until(lambda: len(read(cluster, cluster.topics.decision, Decision)) == 4)
        before = worker_of(cluster, "decider")
        for each in [each for each in cluster.broker.committed if each[0] == before.app]:
            del cluster.broker.committed[each]  # it dies before its next commit
        cluster.kill(before)
        await cluster.until(lambda: any(w.service == "decider" and w.queues.busy for w in cluster.workers))
        await asyncio.sleep(settings.executor.heartbeat_grace_s - 0.5)
        await cluster.start("decider", instance="1")
        await cluster.until(lambda: len(read(cluster, cluster.topics.decision, Decision)) >= 8)
        await cluster.until(lambda: not cluster.busy)
        decisions = {(each.query_id, each.seq) for each in read(cluster, cluster.topics.decision, Decision)}
        assert len(decisions) == 4
        assert len(cluster.deaths) == 1, "only the kill"


async def test_a_late_first_query_waits_for_no_executor(in_memory: InMemory, ask: Ask) -> None:
    settings = in_memory()
    async with running(settings, seed=3) as cluster:
        await cluster.stop(worker_of(cluster, "executor"))
        await asyncio.sleep(settings.executor.heartbeat_grace_s)
        asked_s = asyncio.get_running_loop().time()
        send(cluster, ask(1))
        await cluster.until(lambda: len(read(cluster, cluster.topics.decision, Decision)) == 1)
        assert asyncio.get_running_loop().time() - asked_s < settings.executor.heartbeat_grace_s / 2


async def refolded(cluster: Cluster) -> dict[str, Any]:
    """Return the learner's arrays as a new process reads them from the log."""
    assert any(isinstance(decode_row(*record), ActionRow) for record in learner_log(cluster).items())
    async with successor(cluster) as fresh:
        return state_of(decider_of(fresh))
