"""10,000 poison records on all topics of a real broker: no service ends, every good query between is learned."""

import pytest

from schemas.dead_letter import DeadLetter
from schemas.query import Query
from schemas.record import encode
from schemas.reward import Reward
from streams.log import kafka_clients
from tests.support import poison
from tests.support.deployment import Ask, Deploy, Deployment

pytestmark = pytest.mark.broker

GOOD = 60


def samples_of(loop: Deployment) -> dict[str, list[tuple[bytes | None, bytes | None]]]:
    """Return real records of every topic, of queries that are not asked again."""
    t = loop.topics
    texts = [f"What is {n + 2} + {n + 3}, number {n}?" for n in range(4)]
    loop.serve(*(Query(query_id=f"p{n}", text=text, reference="5") for n, text in enumerate(texts)))
    for topic, key, record in poison.of_nobody(t):
        loop.put(topic, key.encode(), encode(record))
    return {topic.name: [(r.key, r.value) for r in loop.raw(topic.name)][:12] for topic in loop.page}


@pytest.mark.parametrize("count", [pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_poison_ends_no_service_and_touches_no_good_query(deploy: Deploy, ask: Ask, count: int) -> None:
    loop = deploy(timeout_s=60.0, snapshot_every=4)
    t = loop.topics
    samples = samples_of(loop)
    log, own = t.changelog("decider", "pending"), {key for key, _ in samples[t.snapshot]}
    own |= {key for key, _ in samples[t.changelog("decider", "pending")]}
    pids = loop.pids
    good = [ask(n) for n in range(GOOD)]
    producer = kafka_clients.producer(loop.settings)
    for at, dose in enumerate(poison.doses(count, seed=13)):
        topic, (key, value) = poison.poison(dose, samples)
        # What would pass for the learner's own is left out.
        if topic not in (log, t.snapshot) or not (key in own or poison.is_forged(key, value)):
            # A compacted topic takes no record without a key, and refuses the whole batch with it.
            producer.send(topic, key=key or b"0", value=value)
        if at % (count // GOOD) == 0 and at // (count // GOOD) < GOOD:
            query = good[at // (count // GOOD)]
            producer.send(t.query, key=query.query_id.encode(), value=encode(query))
    producer.flush(timeout=300)
    producer.close()
    wanted = {query.query_id for query in good}

    def rewarded() -> bool:
        return {r.query_id for r in poison.readable(loop.raw(t.reward), Reward) if r.closes} >= wanted

    loop.until(rewarded, what="the good queries")
    # What was sent last has gone through every service when a query sent after it has.
    loop.send(ask(GOOD))
    wanted.add(f"q{GOOD}")
    loop.until(rewarded, what="one more query")
    assert loop.pids == pids, "no service has ended"
    letters = poison.readable(loop.raw(t.dead_letter), DeadLetter)
    assert len(letters) > count // 4
    assert not {letter.query_id for letter in letters} & wanted
    loop.until(lambda: not {p.query_id for p in loop.audited().pending} & wanted, what="the learner")
    report = loop.audited()
    assert not wanted & set(report.ids), report.discrepancies
    print(f"{count} poison records, {len(letters)} dead letters: {report.line}")
