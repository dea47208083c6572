"""Every service is restarted in turn under load, the decider with a standby: nothing is lost, the audit is clean."""

import os
import random
import signal

import pytest

from schemas.answer import Answer
from streams.local.deployment import python
from tests.support.deployment import Ask, Deploy

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kafka("the embedded broker has no transactions, which two deciders need"),
    pytest.mark.slow,
]


@pytest.mark.parametrize("seed", range(10))
def test_a_rolling_restart_under_load(deploy: Deploy, ask: Ask, seed: int) -> None:
    standby = [*python(), "worker", "decider", "--instance", "1"]
    loop = deploy(seed=seed, max_in_flight=32, group_partitions=8, commands={"decider-1": standby})
    t = loop.topics
    ids: set[str] = set()
    rng = random.Random(seed)  # in which order, and how much is answered before each
    services = list(loop.supervisor.services)
    rng.shuffle(services)
    for at, service in enumerate(services):
        ids |= loop.send(*(ask(n) for n in range(at * 25, at * 25 + 25)))
        before, wanted = len(loop.raw(t.answer)), rng.randint(0, 12)
        loop.answered(before + wanted)
        one = loop.supervisor.services[service]
        os.kill(one.pid, signal.SIGTERM)
        loop.until(lambda one=one: one.restarts == 1 and one.ready.is_set(), what=f"{service} to be back")
    loop.rewarded(ids)
    loop.settled()
    first: dict[str, Answer] = {}
    for answer in loop.read(t.answer, Answer):
        first.setdefault(answer.query_id, answer)
    assert {query_id: answer.status for query_id, answer in first.items()} == dict.fromkeys(ids, "ok")
    assert loop.raw(t.dead_letter) == []
