"""Recorded traffic is read row by row, sent at its pace or another, and teaches only if it shall."""

import asyncio
import csv
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.grader import Grader
from schemas.query import Origin, Query
from schemas.record import encode
from schemas.reward import Reward
from streams.client.questions import QuestionError
from streams.client.recorded import Recorded, read_recorded
from streams.client.replay import OPEN, Replay, SendSchedule
from tests.support.cluster import Audit, InMemory, read, running
from tests.support.recorded import question

ROWS: list[dict[str, Any]] = [
    {"timestamp": 1_790_000_000, "question": "1 + 1?", "answer": "2", "level": "easy"},
    {"timestamp": 1_790_000_001_500, "query_id": "b", "text": "7 + 7?", "timeout_s": 30.0, "learn": False},
    {"timestamp": "2026-09-21T14:53:25Z", "query_id": "c", "messages": [{"role": "user", "content": "9?"}]},
]


def written(folder: Path, suffix: str, rows: Sequence[dict[str, Any]]) -> Path:
    path = folder / f"asked{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            kept = [{k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()} for row in rows]
            writer.writerows(kept)
    else:
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        at_s = [each.at_s for each in read_recorded(written(folder, ".jsonl", rows))]
        times = [datetime.fromtimestamp(each, UTC) for each in at_s]
        names = dict.fromkeys(name for row in rows for name in row)
        timed = [
            {name: row.get(name) for name in names} | {"timestamp": at}
            for row, at in zip(rows, times, strict=True)
        ]
        pq.write_table(pa.Table.from_pylist(timed), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_the_formats_say_the_same(tmp_path: Path, suffix: str) -> None:
    first, second, third = read_recorded(written(tmp_path, suffix, ROWS))
    assert [each.at_s for each in (first, second, third)] == [
        1_790_000_000.0,
        1_790_000_001.5,
        1_790_002_405.0,
    ]
    assert (first.query.query_id, first.query.question, first.query.reference) == ("asked-1", "1 + 1?", "2")
    assert first.query.metadata == {"level": "easy"}
    assert (second.query.timeout_s, second.query.learn) == (30.0, False)
    assert third.query.messages is not None
    assert third.query.messages[0].content == "9?"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"text": "?"}', "line 1: timestamp: is missing"),
        ('{"timestamp": "noon", "text": "?"}', "line 1: timestamp: cannot be read; write seconds"),
        ('{"timestamp": true, "text": "?"}', "line 1: timestamp: cannot be read"),
        ('{"timestamp": -1, "text": "?"}', "line 1: timestamp: cannot be read"),
        (
            '{"timestamp": 9, "text": "?"}\n\n{"timestamp": 8, "text": "?"}',
            "line 3: timestamp: is earlier than",
        ),
        (
            '{"timestamp": 9, "prompts": "?"}',
            "line 1: prompts: is not a field of a recorded query; did you mean prompt?",
        ),
        ('{"timestamp": 9}', "line 1: no question"),
        ('{"timestamp": 9, "text": "?", "timeout_s": "long"}', r"line 1: .*timeout_s"),
        ("[1]", "line 1: a list, not an object"),
        ("{", "line 1: not JSON"),
        ("", "holds no query"),
    ],
)
def test_a_row_that_cannot_be_replayed_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(text)
    with pytest.raises(QuestionError, match=words):
        list(read_recorded(path))


@pytest.mark.parametrize(
    ("text", "grader"),
    [("regex", "regex"), ('{""name"": ""json"", ""fields"": [""a""]}', Grader(name="json", fields=("a",)))],
)
def test_a_column_of_csv_names_a_grader_or_describes_one(
    tmp_path: Path, text: str, grader: str | Grader
) -> None:
    path = tmp_path / "asked.csv"
    path.write_text(f'timestamp,text,reference,grader\n1,?,"{{""a"": 1}}","{text}"\n')
    [each] = read_recorded(path)
    assert (each.query.reference, each.query.grader) == ('{"a": 1}', grader)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timestamp,text\n1,?,more\n", "line 2: has more values than the header"),
        ("timestamp,text,messages\n1,,[{\n", "line 2: messages: values in this column must be JSON"),
        ("timestamp,text\n", "holds no query"),
        ('timestamp,text\n1,"?', "line [23]: not CSV"),
    ],
)
def test_so_is_a_row_of_csv(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "asked.csv"
    path.write_text(text)
    with pytest.raises(QuestionError, match=words):
        list(read_recorded(path))


def test_unknown_and_broken_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match=r"is not one of \.jsonl, \.csv, \.parquet"):
        list(read_recorded(tmp_path / "asked.xlsx"))
    pytest.importorskip("pyarrow")
    (tmp_path / "asked.parquet").write_text("timestamp")
    with pytest.raises(QuestionError, match="not Parquet"):
        list(read_recorded(tmp_path / "asked.parquet"))


def asked(count: int, apart_s: float) -> list[Recorded]:
    made = []
    for n in range(count):
        text, answer = question(n % 12)
        made.append(Recorded(1e9 + n * apart_s, Query(query_id=f"q{n}", text=text, reference=answer)))
    return made


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize(
    ("pace", "apart_s"),
    [(SendSchedule(), 2.0), (SendSchedule(speed=10.0), 0.2), (SendSchedule(per_s=4.0), 0.25)],
)
async def test_a_replay_keeps_its_pace_and_teaches_only_if_it_shall(
    in_memory: InMemory, audited: Audit, learn: bool, pace: SendSchedule, apart_s: float
) -> None:
    loop = asyncio.get_running_loop()
    sending = Replay(asked(20, 2.0), "again", pace, learn=learn)
    async with running(in_memory(policy="linucb"), seed=3) as cluster:
        began_s, began_ms = loop.time(), cluster.broker.now_ms()
        while not sending.all_sent:
            await asyncio.sleep(sending.wait_s(loop.time() - began_s))
            for query in sending.due(loop.time() - began_s):
                cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
        await asyncio.sleep(60.0)
        records = [record.timestamp_ms - began_ms for record in cluster.broker.records(cluster.topics.query)]
        assert sorted(records) == pytest.approx([n * apart_s * 1000 for n in range(20)], abs=2)
        for kind, topic in ((Answer, cluster.topics.answer), (Reward, cluster.topics.reward)):
            for record in read(cluster, topic, kind):
                sending.take(record)
        rewards = [each for each in read(cluster, cluster.topics.reward, Reward) if each.closes]
        assert {each.learn for each in rewards} == {learn}
        assert audited(cluster).queries == 20
    right = sum(each.correct or 0 for each in rewards)
    cost = sum(each.price.cost for each in rewards if each.price)
    assert sending.report() == (
        f"sent 20\nanswered 20: ok 20\ncost {cost:.4g} eflops, {cost / 20:.4g} a query\n"
        f"accuracy {right / 20:.1%}: 20 of 20 are graded"
    )


def test_open_queries_are_bounded_and_taken_ids_counted() -> None:
    sending = Replay(asked(OPEN + 2, 0.0), "again", SendSchedule(per_s=0.0))
    assert sum(1 for _ in sending.due(1.0)) == sending.unanswered == OPEN
    origin = Origin(topic="query", partition=0, offset=0)
    letter = DeadLetter(
        service="embedder", origin=origin, error="DuplicateQuery", reason="taken", head=b"", size=0, sha256="",
        query_id="again:q0", query_origin=origin,
    )  # fmt: skip
    sending.take(letter)
    assert sum(1 for _ in sending.due(1.0)) == 1
    sending.take(Answer(query_id="again:q1", status="failed", by="executor", error="x"))
    assert sum(1 for _ in sending.due(1.0)) == 1
    sending.take(Answer(query_id="again:q1", status="expired", by="aggregator", error="x"))
    sending.take(Answer(query_id="other", status="failed", by="executor", error="x"))
    assert dict(sending.ends) == {"id taken": 1, "failed": 1}
