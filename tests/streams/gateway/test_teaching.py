"""What a key teaches: without the scope `teach` nothing, and its claims grade an answer for its owner alone."""

import time
from collections.abc import Callable
from typing import Any

from schemas.query import Query
from schemas.reward import Feedback, Reward

ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "reference": {"uniscale": {"reference": "4"}},
    "pinned": {"model": "large/1/1/1"},
}


def ask(house: Any, key: str | None, **more: Any) -> str:
    body = {"model": "auto", "messages": [{"role": "user", "content": "What is 2 + 3?"}], **more}
    with house.http(key) as client:
        answered = client.post("/v1/chat/completions", json=body)
    assert answered.status_code == 200, answered.text
    return str(answered.json()["id"])


def learned(house: Any, key: str | None) -> dict[str, bool]:
    """Return which of three queries under a key the learner may learn from."""
    ids = {ask(house, key, **more): name for name, more in ASKED.items()}
    sent = house.read(house.cluster.topics.query, Query)
    return {ids[query.query_id]: query.learn for query in sent if query.query_id in ids}


def test_a_key_teaches_by_its_claims_only_if_it_says_so(house: Callable[..., Any]) -> None:
    there = house(feedback_wait_s=60.0)
    topics = there.cluster.topics
    assert learned(there, None) == {"plain": True, "reference": True, "pinned": True}, "no key exists"
    asks = there.key("asks")
    assert learned(there, asks) == {"plain": True, "reference": False, "pinned": False}, "no key teaches"
    teaches = there.key("teaches", scopes=("ask", "feedback", "read", "teach"))
    assert learned(there, asks) == {"plain": False, "reference": False, "pinned": False}
    assert learned(there, teaches) == {"plain": True, "reference": True, "pinned": True}
    told = {}
    for key in (asks, teaches):
        query_id = ask(there, key)
        with there.http(key) as client:
            sent = client.post("/v1/feedback", json={"id": query_id, "value": False})
        assert sent.status_code == 200, sent.text
        told[query_id] = key == teaches
    assert {each.query_id: each.learn for each in there.read(topics.feedback, Feedback)} == told
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        closed = {r.query_id: r for r in there.read(topics.reward, Reward) if r.kind == "correction"}
        if set(closed) == set(told):
            break
        time.sleep(0.05)
    assert {query_id: reward.learn for query_id, reward in closed.items()} == told
    assert {reward.correct for reward in closed.values()} == {0.0}, "its owner has its grade"
