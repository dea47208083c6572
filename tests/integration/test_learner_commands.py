"""The learner's log is checked, exported, repaired and reset by the commands, on a broker, with a decider that runs."""

import subprocess
from pathlib import Path

import orjson
import pytest

from agents.decider.rows import Row
from schemas.query import Message, Query
from streams.local.deployment import python
from streams.log import kafka_clients
from tests.support.deployment import Ask, Deploy, Deployment

pytestmark = pytest.mark.broker


def learner(loop: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [*python(), "learner", *arguments]
    return subprocess.run(words, env=loop.environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.kafka("the embedded broker does not say who runs")
@pytest.mark.slow
def test_check_export_repair_and_reset(deploy: Deploy, ask: Ask, tmp_path: Path) -> None:
    loop = deploy(snapshot_every=25)
    queries = [ask(n) for n in range(30)]
    asked = ask(35)
    said = (Message(role="system", content="Be brief."), Message(role="user", content=asked.text or ""))
    queries.append(Query(query_id="chat", messages=said, reference=asked.reference))
    loop.serve(*queries)
    loop.settled()
    refused = learner(loop, "repair", "--yes")
    assert (refused.returncode, "stop it" in refused.stderr) == (1, True), refused.stderr
    loop.suspend("decider")
    loop.until(
        lambda: "running" not in learner(loop, "repair", "--yes").stderr, what="the end of its session"
    )
    whole = learner(loop, "check")
    assert (whole.returncode, whole.stdout[:6]) == (0, "whole:"), whole.stderr
    folder = tmp_path / "exported"
    assert learner(loop, "export", str(folder)).returncode == 0
    logged = [orjson.loads(line) for line in (folder / "logged.jsonl").read_text().splitlines()]
    assert {"text", "action", "correct", "score", "cost", "propensity"} <= set(logged[0])
    assert len(logged) == len(queries)
    assert f"{asked.text}\n\nBe brief." in {row["text"] for row in logged}
    assert (folder / "state.bin").read_bytes().startswith(b"USPOLICY")

    row = max((r for r in loop.learner_rows(gone=False) if isinstance(r, Row)), key=lambda r: r.seq)
    producer = kafka_clients.producer(loop.settings)
    changelog = loop.topics.changelog("decider", "pending")
    producer.send(changelog, key=row.query_id.encode(), value=b'{"schema":"?"}', partition=0).get(60)
    foreign = producer.send(loop.topics.snapshot, key=b"p", value=b"{", partition=0).get(60)
    producer.close()
    damaged = learner(loop, "check")
    assert damaged.returncode == 1
    assert f"row {row.query_id} cannot be read" in damaged.stdout
    named = f"{loop.topics.snapshot}, offset {foreign.offset}: p is not part of a snapshot"
    assert named in damaged.stdout
    repaired = learner(loop, "repair", "--yes")
    assert repaired.returncode == 0, repaired.stderr
    assert "1 row and 1 record of snapshots removed" in repaired.stdout
    assert learner(loop, "check").returncode == 0
    loop.supervisor.kill("decider")
    loop.serve(*(ask(n) for n in range(30, 40)))

    for topic in (changelog, loop.topics.snapshot):
        loop.put(topic, b"foreign", b"{")
    loop.supervisor.kill("decider")
    for topic in (changelog, loop.topics.snapshot):
        removed = {"key": b"foreign", "value": None}.items()
        loop.until(
            lambda t=topic, r=removed: any(r <= each._asdict().items() for each in loop.raw(t)),
            what="the next decider to delete what is not its own",
        )

    loop.suspend("decider")
    loop.until(lambda: learner(loop, "reset", "--yes").returncode == 0, what="the reset")
    assert loop.learner_rows(gone=False) == []
    verify = [*python(), "verify-decisions"]
    verified = subprocess.run(verify, env=loop.environ, capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stderr
    assert "0 decisions replayed since `learner reset`, 0 mismatches" in verified.stdout
    loop.supervisor.kill("decider")
    last = loop.serve(*(ask(n) for n in range(40, 45)))
    assert {r.query_id for r in loop.learner_rows(gone=False) if isinstance(r, Row)} == last
    assert "row_missing" not in loop.audited().checks
