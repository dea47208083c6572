"""Outages of what the services depend on: only poison is dead-lettered, and work resumes by itself."""

import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.catalogue.file import load_catalogue
from agents.serving.recorded import RecordedPath, RecordedStep, write_paths
from schemas.answer import Answer
from schemas.control import Heartbeat
from schemas.query import Query
from streams.client.client import Client
from streams.client.events import read_timelines
from streams.client.replay import SendSchedule
from streams.demo.summary import latencies
from streams.local.broker import free_port, kafka_home
from streams.local.deployment import python
from tests.support.deployment import Ask, Deploy, Deployment
from tests.support.http_servers import JsonHandler, Server
from tests.support.nodes import Nodes
from tests.support.recorded import recorded_paths

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]

OUTAGE_S = 60.0


def answered_well(loop: Deployment, ids: set[str]) -> None:
    """Hold what is promised after an outage: one good Answer each, no dead letter, a clean audit."""
    loop.settled()
    answers = {a.query_id: a for a in loop.read(loop.topics.answer, Answer)}
    assert set(answers) == ids
    assert {a.status for a in answers.values()} == {"ok"}
    assert loop.raw(loop.topics.dead_letter) == []


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    home = kafka_home(os.environ)
    assert home is not None
    with Nodes(home, tmp_path, voters=[1]) as made:  # so that one node can go on alone, and refuses writes
        yield made


@pytest.mark.kafka("three nodes")
def test_a_broker_that_refuses_writes(nodes: Nodes, deploy_on: Deploy, ask: Ask) -> None:
    loop = deploy_on(nodes, replication=3, session_timeout_s=20.0, rebalance_timeout_s=20.0)
    ids = loop.serve(*(ask(n) for n in range(20)))
    ids |= loop.send(*(ask(n) for n in range(20, 80)))
    loop.until(lambda: len(loop.closed()) > 22, what="some of the second rewards")
    nodes.stop(2, 3)
    # By the times at which the log took them: a new leader without its followers tells no end offsets.
    stopped_ms = 1000 * time.time()
    time.sleep(OUTAGE_S)
    started_ms = 1000 * time.time()
    nodes.start(2, 3)
    began = time.monotonic()
    loop.rewarded(ids)
    rewards = loop.raw(loop.topics.reward)
    assert not [r for r in rewards if stopped_ms < r.timestamp < started_ms], "writes were not refused"
    assert [r for r in rewards if r.timestamp > started_ms], "all were learned before"
    print(f"all rewards {time.monotonic() - began:.0f} s after the nodes were back")
    ids |= loop.serve(*(ask(n) for n in range(80, 90)))
    answered_well(loop, ids)


class Embeddings:
    """`/v1/embeddings` that can be taken away and brought back."""

    def __init__(self) -> None:
        self.port = free_port()
        self.server: Server | None = None
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        outer = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                body = self.body()
                outer.asked += 1
                rows = [[1.0 + sum(text.encode()[at::8]) % 97 for at in range(8)] for text in body["input"]]
                data = [{"index": at, "embedding": row} for at, row in enumerate(rows)]
                self.reply({"data": data, "model": "e"})

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.server.listen()

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None


def test_an_embedding_server_that_is_down(deploy: Deploy, ask: Ask) -> None:
    server = Embeddings()
    server.start()
    try:
        loop = deploy(encoder="http", encoder_url=server.url, encoder_model="e", encoder_dimension=8)
        ids = loop.serve(*(ask(n) for n in range(10)))
        pids = loop.pids
        server.stop()
        more = loop.send(*(ask(n) for n in range(10, 40)))
        time.sleep(OUTAGE_S)
        assert len(loop.raw(loop.topics.context)) == len(ids), "no question can have been embedded"
        server.start()
        began = time.monotonic()
        ids |= more
        loop.rewarded(ids)
        print(f"all rewards {time.monotonic() - began:.0f} s after the encoder was back")
        answered_well(loop, ids)
        assert loop.pids == pids
        assert "waiting" in loop.log.read_text()
    finally:
        server.stop()


ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / load_catalogue(ROOT / "infra" / "catalogue" / "mini-six.yaml").models[0].checkpoint
CATALOGUE = """
name: keyed
hardware: {{name: as an A800, intensity: 156}}
verifier: judge
cost_range: {{low: 1.0e+9, high: 1.0e+12}}
defaults:
  models:
    group: mini
    checkpoint: {checkpoint}
    sampling: {{temperature: 1.0, step_tokens: 64, depth_limit: 8}}
models:
  - name: small
    architecture: {{parameters: 100000, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16}}
    endpoint: {{kind: http, url: "{open}"}}
  - name: large
    architecture: {{parameters: 900000, layers: 4, query_heads: 8, kv_heads: 4, head_dim: 16}}
    endpoint: {{kind: http, url: "{locked}"}}
verifiers:
  - name: judge
    checkpoint: none
    family: skywork
    architecture: {{parameters: 200000, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16}}
"""


class Completions:
    """`/v1/completions` of a server that takes one key, and answers what was recorded.

    Args:
        key: What it takes.
        recorded: What it answers, by question.
        hangs: A question that it answers once `goes_on` is set; until then it sends a space a second, so that no wait
            for a reply ends.
    """

    def __init__(self, key: str, recorded: Mapping[str, str], hangs: str = "") -> None:
        self.key, self.goes_on = key, threading.Event()
        from transformers import AutoTokenizer  # takes seconds, which collecting the other tests need not

        outer, one_at_a_time = self, threading.Lock()
        tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                self.let_in({"data": []})

            def do_POST(self) -> None:
                ids = self.body()["prompt"]
                with one_at_a_time:
                    asked = tokenizer.decode(ids)
                choice = {
                    "text": next(text for question, text in recorded.items() if question in asked),
                    "finish_reason": "stop",
                    "stop_reason": None,
                    "token_ids": [1, 2],
                }
                if hangs and hangs in asked:
                    self.reply_slowly({"choices": [choice]}, outer.goes_on)
                else:
                    self.let_in({"choices": [choice]})

            def let_in(self, said: dict[str, Any]) -> None:
                if self.headers["Authorization"] == f"Bearer {outer.key}":
                    self.reply(said)
                else:
                    self.reply({"error": {"message": "Incorrect API key provided"}}, 401)

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = self.server.url
        self.server.listen()

    def stop(self) -> None:
        self.server.close()


def asking(
    deploy: Deploy,
    folder: Path,
    paths: Sequence[RecordedPath],
    small: Completions,
    large: Completions,
    **fields: Any,
) -> tuple[Deployment, Callable[..., float]]:
    """Return a deployment whose executor asks these servers, and what reads the one metric of its that begins so.

    Its verifier goes on with the recording: the executor alone asks the servers.
    """
    catalogue, recording, port = folder / "served.yaml", folder / "recording.jsonl", free_port()
    catalogue.write_text(CATALOGUE.format(checkpoint=CHECKPOINT, open=small.url, locked=large.url))
    write_paths(recording, paths)
    executor = [
        "env", "UNISCALE_RECORDED=", "UNISCALE_ENGINE_KEY=ours", *python(), "worker", "executor", "--group",
        "mini", "--metrics-port", str(port),
    ]  # fmt: skip
    commands = {"executor.mini": executor}
    loop = deploy(catalogue=str(catalogue), recorded=str(recording), commands=commands, **fields)

    def metric(begins: str, has: str = "") -> float:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        (line,) = (line for line in page.splitlines() if line.startswith(begins) and has in line)
        return float(line.split()[-1])

    return loop, metric


def test_an_engine_that_refuses_our_key(deploy: Deploy, ask: Ask, tmp_path: Path) -> None:
    """Its model is left out of the choice until the server takes the key; nothing is learned from the failures."""
    paths = recorded_paths(40, steps=(1, 1))
    texts = {path.question: path.steps[0].text for path in paths}
    allowed, locked = Completions("ours", texts), Completions("another", texts)
    try:
        loop, metric = asking(deploy, tmp_path, paths, allowed, locked, warm_up=200, attempts=1)
        t = loop.topics
        pids = loop.pids

        def states() -> dict[str, str]:
            beats = loop.read(t.heartbeat, Heartbeat)
            return {each.model: each.state for each in beats[-1].health} if beats else {}

        def suspended() -> float:
            return metric("uniscale_suspended_models{", '"large"')

        asked = [ask(n) for n in range(40)]
        for query in asked:
            loop.send(query)
            time.sleep(0.1)
        loop.until(
            lambda: states() == {"small": "ready", "large": "suspended"}, what="the breaker in the heartbeats"
        )
        assert suspended() == 1.0
        loop.rewarded(q.query_id for q in asked)
        answers = {a.query_id: a for a in loop.read(t.answer, Answer)}
        failed = {a.query_id for a in answers.values() if a.status != "ok"}
        assert 0 < len(failed) < len(asked), {a.error for a in answers.values()}
        assert {answers[query_id].action.model for query_id in failed} == {"large"}
        assert all("HTTP 401" in answers[q].error or "not asked" in answers[q].error for q in failed)
        locked.key = "ours"  # the server's operator lets us in
        loop.until(lambda: states().get("large") == "ready", what="the model to come back")
        ids = loop.serve(*(ask(n) for n in range(40, 80)))
        later = [a for a in loop.read(t.answer, Answer) if a.query_id in ids]
        assert {a.status for a in later} == {"ok"}, {a.error for a in later}
        assert {a.action.model for a in later} == {"small", "large"}
        assert suspended() == 0.0
        assert loop.raw(t.dead_letter) == []
        assert loop.pids == pids
        report = loop.settled()
        assert report.learner["updates"] == len(asked) + len(ids) - len(failed), (
            "nothing is learned from failures"
        )
        print(f"{len(failed)} of {len(asked)} queries failed before the breaker masked the model")
    finally:
        allowed.stop()
        locked.stop()


@pytest.mark.timeout(1800)
def test_a_search_that_hangs_for_ten_minutes_holds_up_no_other(
    deploy: Deploy, ask: Ask, tmp_path: Path
) -> None:
    """Others go on beside it at five a second: 1,500 on its partition, where 2,048 records are let past an open one."""
    paths = recorded_paths(40, steps=(1, 1))
    stuck = Query(query_id="stuck", text="What is it that never ends?", timeout_s=3600.0)
    texts = {path.question: path.steps[0].text for path in paths} | {stuck.text: "Nothing. \\boxed{0}"}
    node = RecordedStep(text=texts[stuck.text], tokens=2, score=0.5, finish="eos")
    own = [
        RecordedPath(question=stuck.text, model=model, path=0, steps=(node,)) for model in ("small", "large")
    ]
    engine = Completions("ours", texts, hangs=stuck.text)
    try:
        loop, metric = asking(deploy, tmp_path, [*paths, *own], engine, engine)
        loop.serve(*(ask(n) for n in range(100)))
        loop.send(stuck)
        began = time.monotonic()
        with Client(loop.settings) as client:
            # One path a search: the server of the test is slower than an engine.
            others = [
                msgspec.structs.replace(ask(n), pin_action="small/1/1/1") for n in range(100, 100 + 5 * 600)
            ]
            asked = client.ask_all(others, pace=SendSchedule(5.0), timeout_s=900.0)
        hung_s = time.monotonic() - began
        assert hung_s > 590.0
        assert not asked.missing, "others waited for it"
        answers = {answer.query_id for answer in loop.read(loop.topics.answer, Answer)}
        assert stuck.query_id not in answers
        assert metric("uniscale_oldest_open_seconds") == pytest.approx(hung_s, abs=30.0)
        assert f"(query {stuck.query_id}) has been in flight for" in loop.log.read_text()
        engine.goes_on.set()
        loop.rewarded([stuck.query_id, *(q.query_id for q in others)])
        answered_well(loop, {stuck.query_id, *(f"q{n}" for n in range(100 + len(others)))})
        timelines = read_timelines(loop.settings, ["mini"]).by_id
        for what, part in (("first", others[:300]), ("last", others[-300:])):
            print(f"{what} minute: {latencies([timelines[q.query_id] for q in part])['query_to_answer']} ms")
    finally:
        engine.goes_on.set()
        engine.stop()
