"""kill -9 of each service, mid-flight: afterwards every query has one Answer that counts and one closed reward."""

from collections import Counter
from typing import Any

import pytest

from schemas.answer import Answer
from schemas.record import decode
from schemas.search import SearchStep, Verification
from tests.support.conservation import conserved, learned
from tests.support.deployment import Ask, Deploy, Deployment

pytestmark = pytest.mark.broker


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killing_each_service_in_turn_loses_and_repeats_nothing(deploy: Deploy, ask: Ask) -> None:
    # Small enough in flight that a backlog waits in `query` while each service dies.
    loop = deploy(max_in_flight=32, group_partitions=16)
    t = loop.topics
    ids: set[str] = set()
    for at, service in enumerate(loop.supervisor.services):
        before = len(loop.raw(t.answer))
        ids |= loop.send(*(ask(n) for n in range(at * 80, at * 80 + 80)))
        loop.answered(before + 8)
        loop.supervisor.kill(service)
        loop.rewarded(ids)
    loop.supervisor.wait_ready(240)
    conserved(loop, ids)
    loop.settled()
    assert all(r.restarts >= 1 for r in loop.supervisor.services.values())
    assert loop.raw(t.dead_letter) == []
    learned(loop, len(ids))


@pytest.mark.thorough
def test_redelivered_verification_draws_no_second_step(deploy: Deploy, ask: Ask) -> None:
    loop = deploy(max_in_flight=32, group_partitions=16)
    t = loop.topics
    ids: set[str] = set()
    # Which searches a stop catches between two steps is up to the machine: another wave until one is.
    for wave in range(8):
        before = len(loop.raw(t.answer))
        ids |= loop.send(*(ask(n) for n in range(wave * 80, wave * 80 + 80)))
        loop.answered(before + 10)
        loop.suspend("verifier")
        seen: list[int] = []
        loop.until(
            lambda seen=seen: _still(seen, len(loop.raw(t.search_step))),
            what="the executor to have nothing left to do",
        )
        again, under_way = _halfway(loop)
        if under_way:
            break
        loop.supervisor.kill("verifier")
    assert under_way, "some searches have stopped at a later step"
    for record in again:
        loop.put(t.verification_for("mini"), record.key, record.value)
    loop.supervisor.kill("verifier")
    loop.rewarded(ids)
    conserved(loop, ids)
    loop.settled()
    steps = Counter((s.query_id, s.forest.step) for s in loop.read(t.search_step, SearchStep))
    assert {count for (query_id, _), count in steps.items() if query_id in under_way} == {1}


def _halfway(loop: Deployment) -> tuple[list[Any], set[str]]:
    """Verifications of steps that their searches have left behind, and which of these searches have no Answer yet."""
    t = loop.topics
    latest = {s.query_id: s.forest.step for s in loop.read(t.search_step, SearchStep)}
    again = [
        record
        for record in loop.raw(t.verification_for("mini"))
        for search in [decode(record.value, Verification).search]
        if search.forest.step < latest[search.query_id]
    ]
    answered = {a.query_id for a in loop.read(t.answer, Answer)}
    return again, {decode(r.value, Verification).query_id for r in again} - answered


def _still(seen: list[int], count: int) -> bool:
    seen.append(count)
    return len(seen) > 4 and len(set(seen[-4:])) == 1
