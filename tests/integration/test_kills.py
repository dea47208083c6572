"""kill -9 of each room, mid-flight: afterwards every query has one Answer that counts and one closed reward."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agents.decider.log import Row
from agents.decider.verify import mismatches
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import decode
from schemas.reward import Reward
from schemas.search import SearchStep, Verification
from streams.services.decider import policy_of
from streams.services.embedder import encoder_of

pytestmark = pytest.mark.broker


def conserved(loop: Any, ids: set[str]) -> None:
    """Compare action, Answer and reward of each id with the log."""
    t = loop.topics
    decisions: dict[str, list[bytes]] = {}
    for record in loop.raw(t.decision):
        decisions.setdefault(decode(record.value, Decision).query_id, []).append(record.value)
    answers: dict[str, Answer] = {}
    for answer in loop.read(t.answer, Answer):
        answers.setdefault(answer.query_id, answer)  # the first counts
    rewards: dict[str, dict[str, Reward]] = {}
    for reward in loop.read(t.reward, Reward):
        rewards.setdefault(reward.query_id, {}).setdefault(reward.kind, reward)
    assert set(decisions) == set(answers) == set(rewards) == ids
    for query_id in ids:
        assert len(set(decisions[query_id])) == 1, f"{query_id} was decided twice"
        decision = decode(decisions[query_id][0], Decision)
        answer, closing = answers[query_id], [r for r in rewards[query_id].values() if r.closes]
        assert len(closing) == 1
        assert answer.action == closing[0].action == decision.action
        assert closing[0].status == answer.status == "ok"
        assert closing[0].score == answer.score
        assert closing[0].correct == float(answer.extracted == decision.query.reference)


def learned(loop: Any, count: int) -> list[Any]:
    """Return the learner's rows once it has taken in the reward of every query: that is a moment after it came."""

    def stages() -> dict[str, int]:
        return Counter(r.stage for r in loop.learner_rows() if isinstance(r, Row))

    loop.until(lambda: stages() == {"closed": count}, what=f"{count} closed rows")
    return list(loop.learner_rows())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killing_each_room_in_turn_loses_and_repeats_nothing(
    deploy: Callable[..., Any], ask: Callable[[int], Query]
) -> None:
    # Small enough in flight that a backlog waits in `query` while each room dies.
    loop = deploy(max_in_flight=32, group_partitions=16)
    t = loop.topics
    ids: set[str] = set()
    for at, room in enumerate(loop.supervisor.rooms):
        batch = [ask(n) for n in range(at * 80, at * 80 + 80)]
        before = len(loop.raw(t.answer))
        loop.send(*batch)
        ids |= {q.query_id for q in batch}
        loop.until(
            lambda n=before: len(loop.raw(t.answer)) >= n + 8, what=f"some answers before {room} is killed"
        )
        loop.supervisor.kill(room)
        loop.until(
            lambda wanted=frozenset(ids): (
                {r.query_id for r in loop.read(t.reward, Reward) if r.closes} >= wanted
            ),
            what=f"all rewards after {room}",
        )
    loop.supervisor.wait_ready(240)
    conserved(loop, ids)
    loop.settled()
    assert all(r.restarts >= 1 for r in loop.supervisor.rooms.values())
    assert loop.raw(t.dead_letter) == []
    rows = learned(loop, len(ids))
    policy = policy_of(loop.settings, encoder_of(loop.settings))
    assert list(mismatches(policy, rows, loop.settings.policy.seed)) == []


def test_the_decider_killed_in_flight_goes_on_where_it_was(
    deploy: Callable[..., Any], ask: Callable[[int], Query]
) -> None:
    loop = deploy(max_in_flight=16, group_partitions=8)
    t = loop.topics
    batch = [ask(n) for n in range(60)]
    loop.send(*batch)
    loop.until(lambda: len(loop.raw(t.answer)) >= 10, what="some answers")
    loop.supervisor.kill("decider")
    loop.supervisor.kill("executor.mini")
    ids = {q.query_id for q in batch}
    loop.until(
        lambda: {r.query_id for r in loop.read(t.reward, Reward) if r.closes} >= ids, what="all rewards"
    )
    conserved(loop, ids)
    loop.settled()
    rows = learned(loop, len(ids))
    policy = policy_of(loop.settings, encoder_of(loop.settings))
    assert list(mismatches(policy, rows, loop.settings.policy.seed)) == []


def test_an_old_verification_in_the_middle_of_a_search_draws_no_second_step(
    deploy: Callable[..., Any], ask: Callable[[int], Query]
) -> None:
    loop = deploy(max_in_flight=32, group_partitions=16)
    t = loop.topics
    batch = [ask(n) for n in range(80)]
    ids = {q.query_id for q in batch}
    loop.send(*batch)
    loop.until(lambda: len(loop.raw(t.answer)) >= 10, what="some answers")
    loop.supervisor.park("verifier")
    seen: list[int] = []
    loop.until(
        lambda: _still(seen, len(loop.raw(t.search_step))), what="the executor to have nothing left to do"
    )
    latest = {s.query_id: s.forest.step for s in loop.read(t.search_step, SearchStep)}
    again = [
        record
        for record in loop.raw(t.verification_for("mini"))
        for search in [decode(record.value, Verification).search]
        if search.forest.step < latest[search.query_id]
    ]
    answered = {a.query_id for a in loop.read(t.answer, Answer)}
    under_way = {decode(r.value, Verification).query_id for r in again} - answered
    assert under_way, "some searches have stopped at a later step"
    for record in again:
        loop.put(t.verification_for("mini"), record.key, record.value)
    loop.supervisor.unpark("verifier")
    loop.until(
        lambda: {r.query_id for r in loop.read(t.reward, Reward) if r.closes} >= ids, what="all rewards"
    )
    conserved(loop, ids)
    loop.settled()
    steps = Counter((s.query_id, s.forest.step) for s in loop.read(t.search_step, SearchStep))
    assert {count for (query_id, _), count in steps.items() if query_id in under_way} == {1}


def _still(seen: list[int], count: int) -> bool:
    seen.append(count)
    return len(seen) > 4 and len(set(seen[-4:])) == 1
