"""The command's output and exit codes, on the seam."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

import streams.audit
from schemas.query import Query
from schemas.reward import Reward
from streams.cli.operating import audit
from tests.support.topic_lists import TopicLists

Run = Callable[..., Result]
"""The command with some words."""


@pytest.fixture
def run(log: TopicLists, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(streams.audit, "BrokerLog", lambda settings: log)
    return lambda *words: CliRunner().invoke(audit, words, obj=log.settings)


def test_a_sound_log_gives_a_table_one_line_and_exit_0(run: Run) -> None:
    done = run()
    assert done.exit_code == 0, done.output
    assert "answered and learned" in done.output
    last = done.output.splitlines()[-1]
    assert last.startswith(
        "200 queries, 0 discrepancies, 0 pending (0 overdue); learner: 200 updates, 200 applied"
    )


def test_json_has_the_keys_that_scripts_read(run: Run) -> None:
    found = orjson.loads(run("--json").output)
    assert {"queries", "states", "discrepancies", "learner", "peak_mb", "seconds"} <= set(found)
    assert found["learner"] == {"updates": 200, "applied": 200}
    assert found["discrepancies"] == []


def test_a_discrepancy_is_named_and_exits_1(run: Run, log: TopicLists) -> None:
    real = log.find(log.topics.reward, Reward, "h20")
    log.change(log.topics.reward, Reward, "h20", correct=1.0 - real.correct)
    done = run()
    assert done.exit_code == 1
    assert "wrong: h20: Reward h20/final: correct is" in done.output
    assert {each["query_id"] for each in orjson.loads(run("--json").output)["discrepancies"]} == {"h20"}


def test_settled_makes_a_pending_query_a_discrepancy(run: Run, log: TopicLists) -> None:
    log.put(log.topics.query, "new", Query(query_id="new", text="What is 2 + 2?"))
    assert run().exit_code == 0
    done = run("--settled")
    assert done.exit_code == 1
    assert "wrong: new: is pending: it waits for the embedder" in done.output


def test_settled_counts_every_pending_query(run: Run, log: TopicLists) -> None:
    for at in range(150):
        log.put(log.topics.query, f"new{at}", Query(query_id=f"new{at}", text="What is 2 + 2?"))
    found = orjson.loads(run("--json", "--settled").output)
    assert (found["wrong"], len(found["discrepancies"])) == (150, 100)


def test_a_prefix_nobody_uses_is_said() -> None:
    class Nothing:
        def spans(self, topics: Any) -> dict[Any, Any]:
            return {}

    from streams.settings import Settings

    with pytest.raises(LookupError, match=r"uniscale\.query"):
        streams.audit.audit(Nothing(), Settings())  # type: ignore[arg-type]
