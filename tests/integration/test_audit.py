"""The audit of a real broker's log: clean while it runs and when it is quiet; then each forgery is named, exit 1."""

import os
from typing import Any

import msgspec
import orjson
import pytest

from schemas.answer import Answer
from schemas.query import Query
from schemas.record import encode
from schemas.reward import Feedback, Reward
from tests.support.command_line import streams
from tests.support.deployment import Ask, Deploy, Deployment

pytestmark = pytest.mark.broker

QUERIES = 60


@pytest.fixture(scope="module")
def loop(deploy: Deploy, ask: Ask) -> Any:
    """A deployment that was audited under load and has come to rest."""
    # 125 sequence numbers make one snapshot: rows leave the log only once two of them hold it.
    deployment = deploy(snapshot_every=100)
    t = deployment.topics
    deployment.send(*(ask(n) for n in range(QUERIES)))
    told = Query(query_id="told", text="What is 2 + 3, number 0?", feedback_wait_s=120)
    deployment.send(told, Query(query_id="silent", text="What is 2 + 3, number 0?", feedback_wait_s=1))
    deployment.put(t.query, b"bad", b'{"schema":"query.v1","query_id":"bad","text":7}')
    deployment.until(lambda: len(deployment.raw(t.answer)) >= 10, what="some answers")
    under_load = deployment.audited()
    assert under_load.wrong == 0, under_load.discrepancies
    assert under_load.states["pending"] > 0
    rewards = t.reward
    deployment.until(
        lambda: any(r.query_id == "told" for r in deployment.read(rewards, Reward)),
        what="a provisional reward",
    )
    deployment.put(t.feedback, b"told", encode(Feedback(query_id="told", correct=True)))
    deployment.settled()
    return deployment


def audit(loop: Deployment, code: int = 0) -> dict[str, Any]:
    """Run the command as an operator does and return its JSON."""
    done = streams("audit", "--json", "--settled", env=loop.environ)
    assert done.returncode == code, (done.stdout[-2000:], done.stderr[-2000:])
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


def test_the_command_accounts_for_every_query(loop: Deployment) -> None:
    before = os.times()
    found = audit(loop)
    after = os.times()
    assert found["discrepancies"] == []
    assert found["queries"] == QUERIES + 3
    assert found["states"] == {"answered and learned": QUERIES + 2, "rejected (InvalidField)": 1}
    # One more for the correction of `told`.
    assert found["learner"]["updates"] == found["learner"]["applied"] == QUERIES + 3
    # Of the processor: a busy machine makes it take longer.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 5


def test_each_forgery_is_named_and_the_command_exits_1(loop: Deployment) -> None:
    t = loop.topics
    loop.supervisor.stop()
    rewards = {r.query_id: r for r in loop.read(t.reward, Reward)}
    named: set[str] = set()

    def forged(query_id: str, topic: str, key: bytes, value: bytes | None) -> list[str]:
        loop.put(topic, key, value)
        named.add(query_id)
        found = audit(loop, code=1)["discrepancies"]
        assert {d["query_id"] for d in found} == named
        return [d["what"] for d in found if d["query_id"] == query_id]

    real = rewards["q1"]
    assert real.correct is not None
    forgery = msgspec.structs.replace(real, correct=1.0 - real.correct)
    assert "two Rewards q1/final that differ" in forged("q1", t.reward, b"0", encode(forgery))

    assert "the learner's row is missing" in forged("q2", t.changelog("decider", "pending"), b"q2", None)

    price = rewards["q4"].price
    assert price is not None
    cheaper = msgspec.structs.replace(price, cost=price.cost / 2)
    said = forged("q4", t.reward, b"0", encode(msgspec.structs.replace(rewards["q4"], price=cheaper)))
    assert any("the trace's" in what or "price's" in what for what in said)

    nobody = Answer(query_id="nobody", status="ok", by="executor", text="42", action=real.action, seq=10**6)
    assert "an Answer without a Decision" in forged("nobody", t.answer, b"nobody", encode(nobody))
