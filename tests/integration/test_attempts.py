"""A model that fails, in a whole deployment: kill -9 of decider and executor between two attempts loses nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.reward import Reward
from tests.support.deployment import Ask, Deploy, Deployment
from tests.support.upstream import Upstream

pytestmark = pytest.mark.broker

QUERIES = 40


@pytest.fixture
def upstreams() -> Iterator[dict[str, Upstream]]:
    made = {"down": Upstream(), "up": Upstream()}
    yield made
    for each in made.values():
        each.close()


def catalogue(folder: Path, upstreams: dict[str, Upstream]) -> Path:
    """Write a catalogue of chat endpoints without a verifier, priced in USD."""
    prices = {"input": 0.15, "output": 0.60}
    models: list[dict[str, Any]] = [
        {
            "name": name,
            "group": "hosted",
            "price": prices,
            "endpoint": {"kind": "chat", "url": f"{at.url}/v1", "model": "hosted", "max_output_tokens": 64},
        }
        for name, at in upstreams.items()
    ]
    content: dict[str, Any] = {"name": "hosted", "verifier": "none", "models": models, "verifiers": []}
    content |= {"cost_range": {"unit": "usd", "low": 1e-6, "high": 1e-2}}
    path = folder / "hosted.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_between_two_attempts_leave_one_answer(
    deploy: Deploy, ask: Ask, upstreams: dict[str, Upstream], tmp_path: Path
) -> None:
    loop: Deployment = deploy(
        catalogue=str(catalogue(tmp_path, upstreams)),
        recorded="",
        policy="random",
        attempts=2,
        engine_attempts=1,
    )
    t = loop.topics
    upstreams["down"].spoilt[:] = [(500, b"oops", {})] * 10_000
    ids = loop.send(*(ask(number) for number in range(QUERIES)))
    loop.until(lambda: len(loop.raw(t.attempt_failed)) >= 1, "an attempt that failed")
    for service in ("decider", "executor.hosted"):
        loop.supervisor.kill(service)
    loop.rewarded(ids)
    loop.settled()
    failed = {each.query_id: each for each in loop.read(t.attempt_failed, AttemptFailed)}
    answers: dict[str, Answer] = {}
    for answer in loop.read(t.answer, Answer):
        answers.setdefault(answer.query_id, answer)
    rewards = {each.query_id: each for each in loop.read(t.reward, Reward) if each.closes}
    assert failed
    assert {answers[query_id].status for query_id in ids} == {"ok"}
    for query_id in ids:
        reward = rewards[query_id]
        assert [each.action.model for each in reward.earlier] == ["down"] * (reward.attempt - 1)
        assert (reward.attempt, reward.seq) == (answers[query_id].attempt, answers[query_id].seq)
        assert (reward.attempt == 2) == (query_id in failed)
    second = [each for each in loop.read(t.decision, Decision) if each.attempt == 2]
    assert {each.query_id for each in second} == set(failed)
    assert len({each.seq for each in second}) == len(failed), "each was decided again once"
    assert all(each.excluded == ("down",) and not each.randomised for each in second)
