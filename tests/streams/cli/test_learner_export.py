"""What `learner export` says of a graded decision, in the form from which a prior is made."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.features import counts
from agents.bandit.logged import LoggedOutcome, prior_of_log
from agents.bandit.registry import build_policy
from agents.catalogue.file import load_catalogue
from agents.embedding import embedded_text
from agents.encoders import HashedEncoder
from schemas.action import Action
from schemas.query import Message, Query
from schemas.record import encode
from streams.cli import learner
from streams.cli.learner import graded, graded_row
from streams.client.outcomes import read_outcomes
from streams.settings import Settings
from streams.topics import Topics
from tests.support.records import decision_for, paid, reward_for

ACTION = Action(model="mini-2m", qp=1, cp=4, bs=1)
SAID = (Message(role="system", content="Be brief."), Message(role="user", content="What is 2 + 2? And 3?"))


def row_of(query: Query, *, propensity: float | None = 0.25, **changes: Any) -> LoggedOutcome | None:
    decision = decision_for(query, action=ACTION, propensity=propensity)
    return graded_row(decision, reward_for(decision, **{"log_cost": math.log(1e10), **changes}))


def test_question_and_conversation_are_logged_as_embedded() -> None:
    row = row_of(Query(query_id="q", text="What is 2 + 2?"))
    assert row is not None
    assert row.cost == pytest.approx(1e10)
    assert (row.text, row.action) == ("What is 2 + 2?", "mini-2m/1/4/1")
    assert (row.correct, row.score, row.propensity) == (1.0, 0.5, 0.25)
    chat = Query(query_id="c", messages=SAID)
    row = row_of(chat)
    assert row is not None
    assert row.text == embedded_text(chat) == "What is 2 + 2? And 3?\n\nBe brief."
    # The learner counts in the order of the conversation: a prior that counts in this one sees the same.
    assert counts(row.text).tolist() == counts(chat.question).tolist()


def test_prior_counts_each_conversation_as_a_question(tmp_path: Path) -> None:
    said = [(Message(role="user", content=f"What is {n} + {n % 7}?"),) for n in range(40)]
    rows = [row_of(Query(query_id=f"q{n}", messages=each), correct=n % 2) for n, each in enumerate(said)]
    path = tmp_path / "logged.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    catalogue = load_catalogue(Path(__file__).parents[3] / "infra" / "catalogue" / "mini-six.yaml")
    policy = build_policy("contextual", query_dim=16, action_dim=16)
    assert isinstance(policy, Contextual)
    assert prior_of_log(read_outcomes(path), policy, HashedEncoder(16), catalogue)[1] == 40


def test_a_record_that_cannot_be_read_is_noted_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decision = decision_for(Query(query_id="q", text="?"), action=ACTION, propensity=0.25)
    topics = Topics(Settings())
    held = {
        topics.reward: [b"garbage", encode(reward_for(decision, log_cost=1.0))],
        topics.decision: [encode(decision), b'{"schema":"decision.v9"}'],
    }
    monkeypatch.setattr(
        learner,
        "read_all",
        lambda settings, asked: [
            SimpleNamespace(offset=at, value=value) for at, value in enumerate(held[asked[0]])
        ],
    )
    assert len(list(graded(Settings(), topics))) == 1
    said = capsys.readouterr().err
    assert f"note: {topics.reward}, offset 0 cannot be read" in said
    assert f"note: {topics.decision}, offset 1 cannot be read" in said


def test_a_cost_is_logged_without_its_price() -> None:
    row = row_of(Query(query_id="q", text="?"), log_cost=math.log(3e10), price=paid(3e10, factor=3.0))
    assert row is not None
    assert row.cost == pytest.approx(1e10)


@pytest.mark.parametrize("propensity", [None, 0.0])
def test_a_decision_without_propensity_teaches_no_prior(propensity: float | None) -> None:
    assert row_of(Query(query_id="q", text="?"), propensity=propensity) is None
    assert row_of(Query(query_id="q", text="?"), log_cost=None) is None


def test_unlearnable_query_teaches_no_prior() -> None:
    query = Query(query_id="q", text="?", learn=False)
    assert row_of(query, learn=False) is None
