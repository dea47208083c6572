"""The commands as an operator uses them: real processes against a running `up`, and every command of the documents."""

import json
import re
import shlex
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams.client.events import Timelines, read_timelines
from streams.local.broker import free_port, listening
from tests.support.command_line import Operator, read_until
from tests.support.deployment import recorded_in
from tests.support.recorded import CATALOGUE, question

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
# The README's line; the test adds which broker and where.
UP = ["up", "--broker", "auto", "--gateway"]

MODEL = """
name: mini-1m
group: mini
checkpoint: none
architecture: {parameters: 300000, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16}
sampling: {temperature: 1.0, step_tokens: 64, depth_limit: 8}
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator with a running system, started by the README's command and stopped by SIGTERM."""
    folder = tmp_path_factory.mktemp("operator")
    port = free_port()
    settings = recorded_in(
        folder, bootstrap=f"127.0.0.1:{port}", feedback_wait_s=60.0, gateway_port=free_port()
    )
    operator = Operator(folder, settings)
    # The model that joins while everything runs has its recording from the start.
    recording = folder / "recording.jsonl"
    known = recording.read_text()
    more = [line for line in known.splitlines(keepends=True) if '"model":"small"' in line]
    recording.write_text(
        known + "".join(line.replace('"model":"small"', '"model":"mini-1m"') for line in more)
    )
    lines = [json.dumps({"question": q, "answer": a}) for q, a in map(question, range(8))]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "my-model.yaml").write_text(MODEL)
    (folder / "my.yaml").write_text(CATALOGUE)
    up = operator.start(*UP, "--port", str(port), "--log", "up.log")
    read_until(up, "services are ready")
    # Nobody may let the pipe of a talkative process fill up.
    assert up.stdout is not None
    threading.Thread(target=up.stdout.read, daemon=True).start()
    yield operator
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
    assert not listening(port)


def timelines(live: Operator, about: str | None = None) -> Timelines:
    return read_timelines(live.settings, ["mini"], about=about)


def test_ask_prints_the_answer_and_exits_by_its_status(live: Operator) -> None:
    done = live.run("ask", "What is 2 + 3, number 0?", "--reference", "5", "--pin", "large/1/4/2")
    assert "boxed" in done.stdout
    assert re.search(r"\[ask-\w+: ok, large/1/4/2, score 0\.\d+, \d steps?\]", done.stderr)
    answer = json.loads(live.run("ask", "What is 2 + 3, number 0?", "--weights", "1,0,1", "--json").stdout)
    assert answer["status"] == "ok"
    assert timelines(live, answer["query_id"]).by_id[answer["query_id"]].answer is not None
    done = live.run("ask", "What?", "--model", "none-such", code=1)
    assert done.stdout == ""
    assert "rejected]" in done.stderr
    assert "choose one of small, large" in done.stderr
    assert "write three numbers" in live.run("ask", "What?", "--weights", "1,2", code=2).stderr
    assert "text: is empty" in live.run("ask", "", code=1).stderr


def test_produce_sends_a_file_once_and_refuses_a_bad_one_whole(live: Operator) -> None:
    done = live.run("produce", "questions.jsonl", "--rate", "20", "--wait")
    assert "8 queries: ok 8" in done.stderr
    again = live.run("produce", "questions.jsonl", "--limit", "2", "--wait", code=1)
    assert "id taken 2" in again.stderr
    assert "--run" in again.stderr
    before = len(timelines(live).by_id)
    for name, text, words in (
        ("bad.jsonl", '{"text": "a"}\nnot json\n', "bad.jsonl, line 2: not JSON"),
        ("field.jsonl", '{"q": "a"}\n', "line 1: no question"),
        ("weights.jsonl", '{"text": "a", "weights": {"cost": -1}}\n', "line 1"),
        ("twice.jsonl", '{"text": "a", "query_id": "x"}\n{"text": "b", "query_id": "x"}\n', "'x' appears more"),
        ("empty.jsonl", "\n", "contains no questions"),
    ):  # fmt: skip
        (live.folder / name).write_text(text)
        assert words in live.run("produce", name, code=1).stderr
    assert "does not exist" in live.run("produce", "none.jsonl", code=2).stderr
    assert len(timelines(live).by_id) == before


def test_answers_are_one_json_line_each(live: Operator) -> None:
    lines = live.run("answers", "--all", "--no-follow", "--text").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert max(Counter(x["query_id"] for x in found).values()) == 1
    assert {f"questions-{n}" for n in range(1, 9)} <= {x["query_id"] for x in found}
    assert all("boxed" in x["text"] for x in found if x["status"] == "ok")


def test_explain_tells_why_and_what_each_step_was(live: Operator) -> None:
    text = live.run("explain", "questions-1").stdout
    timeline = timelines(live, "questions-1").by_id["questions-1"]
    assert timeline.decision is not None
    assert timeline.answer is not None
    for words in (
        f"Decision {timeline.decision.seq}: {timeline.decision.action}", "what was ranked", "the search, by step",
        f"{len(timeline.answer.trace)} drafts", "Reward (final)", "eFLOPs: prefill", "verification/1",
        "where the time went", "admission", "between services",
    ):  # fmt: skip
        assert words in text
    for other in timeline.decision.runners_up:
        assert other.action in text
    records = json.loads(live.run("explain", "questions-1", "--json").stdout)
    kinds = Counter(r["schema"].partition(".")[0] for r in records)
    assert kinds["decision"] == kinds["answer"] == kinds["reward"] == 1
    assert kinds["search-step"] == kinds["verification"] == timeline.answer.steps
    # An id with rich's own markup in its question must come out as it is.
    done = live.run("ask", "Is [/b] in [0, 1]?", "--json")
    odd = json.loads(done.stdout)["query_id"]
    assert "Is [/b] in [0, 1]?" in live.run("explain", odd).stdout
    assert "nothing on record for no-such" in live.run("explain", "no-such", code=1).stderr


def test_replay_uses_new_ids_and_leaves_originals_alone(live: Operator) -> None:
    before = timelines(live).by_id
    report = live.run("replay", "--run", "r1", "--speed", "1000", "--limit", "9").stdout
    assert report.startswith("run r1\nsent 9\nanswered 9: ok ")
    after = timelines(live).by_id
    new = {q: s for q, s in after.items() if q not in before}
    assert len(new) == 9
    assert all(q.startswith("r1:") and q[3:] in before for q in new)
    assert all(s.query is not None and s.query.metadata["replay_of"] == q[3:] for q, s in new.items())
    assert all(s.answer is not None for s in new.values())
    for query_id, timeline in before.items():
        assert after[query_id].answers == timeline.answers
        assert len(after[query_id].contexts) == len(timeline.contexts)
    # A replay of a replay is left out, and a run's name serves once.
    assert "id taken" in live.run("replay", "--run", "r1", "--limit", "1", code=1).stderr


@pytest.mark.parametrize("teach", ["yes", "no"])
def test_replayed_file_teaches_only_on_request(live: Operator, teach: str) -> None:
    rows = [
        {"timestamp": 1e9 + n, "query_id": f"then{n}", "question": question(n)[0], "answer": question(n)[1]}
        for n in range(3)
    ]
    (live.folder / "traffic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = f"file-{teach}"
    report = live.run("replay", "traffic.jsonl", "--run", run, "--speed", "10", "--teach", teach).stdout
    assert report.startswith(f"run {run}\nsent 3\nanswered 3: ok 3\n")
    assert report.endswith("3 of 3 are graded\n")
    found = timelines(live).by_id
    replayed = [found[f"{run}:then{n}"] for n in range(3)]
    assert [each.closing.learn for each in replayed if each.closing] == [teach == "yes"] * 3


def test_outcomes_are_recorded_in_parts_and_make_a_prior(live: Any) -> None:
    two = ("--action", "small/1/1/1", "--action", "large/1/4/2")
    record = ("record", "questions.jsonl", "--out", "out/recorded.jsonl", *two)
    stopped = live.run(*record, "--at-once", "3", "--max-cost", "1", code=1)
    assert "8 questions × 2 configurations: 16 searches, 0 done" in stopped.stdout
    assert "stopped at --max-cost 1: 13 searches left" in stopped.stderr
    done = live.run(*record)
    assert "16 searches, 3 done" in done.stdout
    assert "13 outcomes" in done.stdout
    rows = [json.loads(line) for line in (live.folder / "out" / "recorded.jsonl").read_text().splitlines()]
    assert len({(row["question_id"], row["action"]) for row in rows}) == len(rows) == 16
    assert {row["correct"] for row in rows} <= {0.0, 1.0}
    assert all(row["cost"] > 0 and row["propensity"] == 1.0 for row in rows)
    by_id = timelines(live).by_id
    recorded = [each for query_id, each in by_id.items() if query_id.startswith("record-")]
    assert [each.closing.learn for each in recorded if each.closing] == [False] * 16
    made = live.run(
        "prior", "out/recorded.jsonl", "--out", "out/prior.bin", UNISCALE_POLICY="contextual"
    ).stdout
    assert "8 questions" in made
    assert (
        "linucb; only contextual"
        in live.run("prior", "out/recorded.jsonl", "--out", "x", code=1, UNISCALE_POLICY="linucb").stderr
    )
    assert "is not in the catalogue" in live.run(*record, "--action", "gpt/1/1/1", code=2).stderr
    (live.folder / "ungraded.jsonl").write_text('{"text": "Who?"}\n')
    refused = live.run("record", "ungraded.jsonl", "--out", "x.jsonl", code=1).stderr
    assert "'ungraded-1' has no reference" in refused


def test_a_model_and_an_objective_come_and_go_at_run_time(live: Operator) -> None:
    # Other settings than the deployment's would make topics that end every process.
    other = live.run("catalogue", "add", "my-model.yaml", code=1, UNISCALE_GROUP_PARTITIONS="5").stderr
    assert "search-step: partitions is 4, must be 5" in other
    done = live.run("catalogue", "add", "my-model.yaml")
    assert "mini-1m added to group mini" in done.stdout
    assert "mini-1m" in live.run("catalogue", "list").stdout
    assert "ok, mini-1m/1/1/1" in live.run("ask", "What is 2 + 3, number 0?", "--pin", "mini-1m/1/1/1").stderr
    assert "mini-1m charges 2.5 an eFLOP" in live.run("catalogue", "price", "mini-1m", "2.5").stdout
    assert re.search(r"mini-1m.*2\.5", live.run("catalogue", "list").stdout)
    dear = json.loads(live.run("ask", "What is 2 + 3, number 0?", "--pin", "mini-1m/1/1/1", "--json").stdout)
    assert "an eFLOP costs 2.5" in " ".join(live.run("explain", dear["query_id"]).stdout.split())
    assert (
        "factor: is 0.0; give a finite number"
        in live.run("catalogue", "price", "mini-1m", "0", code=1).stderr
    )
    live.run("catalogue", "remove", "mini-1m")
    assert "rejected]" in live.run("ask", "What?", "--model", "mini-1m", code=1).stderr
    assert "no model 'mini-1m'" in live.run("catalogue", "remove", "mini-1m", code=1).stderr
    (live.folder / "broken.yaml").write_text("name: [")
    assert "broken.yaml: is not YAML" in live.run("catalogue", "add", "broken.yaml", code=1).stderr
    live.run("objective", "set", "mine", "3", "1", "0")
    assert re.search(r"mine\W+correct 0\.75, score 0\.25, cost 0 ", live.run("objective", "list").stdout)
    asked = json.loads(live.run("ask", "What?", "--objective", "mine", "--json").stdout)["query_id"]
    decision = timelines(live, asked).by_id[asked].decision
    assert decision is not None
    assert decision.objective.weights.correct == 0.75
    live.run("objective", "remove", "mine")
    assert "objective 'mine' is unknown" in live.run("ask", "What?", "--objective", "mine", code=1).stderr
    assert "sum to 0" in live.run("objective", "set", "mine", "0", "0", "0", code=1).stderr


def test_dead_letters_are_listed_and_sent_again(live: Operator) -> None:
    live.run("ask", "What?", "--model", "none-such", code=1)
    listed = [json.loads(x) for x in live.run("dead-letters", "list", "--json").stdout.splitlines()]
    last = listed[-1]
    assert (last["service"], last["error"]) == ("decider", "ActionError")
    assert last["origin"] in live.run("dead-letters", "list").stdout
    live.run("dead-letters", "retry", last["origin"])
    # Wrong in itself, it comes back; behind a fresh answer it has.
    live.run("ask", "What is 2 + 3, number 0?")
    again = [json.loads(x) for x in live.run("dead-letters", "list", "--json").stdout.splitlines()]
    assert [x["query_id"] for x in again[len(listed) :]] == [last["query_id"]]
    assert "no such dead letter" in live.run("dead-letters", "retry", "x/0/1", code=1).stderr
    live.run("dead-letters", "retry", code=2)


def test_topics_are_made_checked_and_named_when_wrong(live: Operator) -> None:
    assert "topics are as declared" in live.run("topics", "check").stdout
    wrong = live.run("topics", "check", code=1, UNISCALE_GROUP_PARTITIONS="5").stderr
    assert f"{live.settings.kafka.prefix}search-step: partitions is 4, must be 5" in wrong
    assert "missing; run" in live.run("topics", "check", code=1, UNISCALE_PREFIX="new.").stderr
    assert re.search(
        r"created (\d+) of \1 topics", live.run("topics", "create", UNISCALE_PREFIX="new.").stdout
    )
    live.run("topics", "check", UNISCALE_PREFIX="new.")
    assert "holds no queries" in live.run("replay", code=1, UNISCALE_PREFIX="new.").stderr
    for words in (
        ("ask", "x"),
        ("produce", "questions.jsonl"),
        ("dead-letters", "list"),
    ):
        assert (
            "run `python -m streams topics create`" in live.run(*words, code=1, UNISCALE_PREFIX="no.").stderr
        )


def readme_commands() -> list[str]:
    """Return every line of the bash blocks of README and docs/usage.md, comments off."""
    pages = "\n".join((ROOT / name).read_text() for name in ("README.md", "docs/usage.md"))
    blocks = re.findall(r"```bash\n(.*?)```", pages, re.DOTALL)
    whole = [block.replace("\\\n", " ") for block in blocks]
    lines = [line.partition(" #")[0].strip() for block in whole for line in block.splitlines()]
    return [line for line in lines if line]


def test_every_command_of_the_readme_runs(live: Operator) -> None:
    asked = json.loads(live.run("ask", "What is 4 + 5, number 2?", "--json").stdout)["query_id"]
    elsewhere = [line for line in readme_commands() if not line.startswith("python -m streams")]
    # The demo has a test of its own.
    curl = [line for line in elsewhere if line.startswith("curl ")]
    assert elsewhere == ["make demo", *curl]
    assert curl
    for line in curl:
        asks = line.replace("127.0.0.1:8080", f"127.0.0.1:{live.settings.gateway.port}")
        done = subprocess.run(shlex.split(asks), capture_output=True, timeout=60, check=True)
        # The recording does not know the question; that it was searched for is what counts here.
        assert json.loads(done.stdout)["object"] == "chat.completion", done.stdout
    for line in readme_commands():
        if line in elsewhere:
            continue
        words = shlex.split(
            line.replace("QUERY_ID", asked).replace("broker:9092", live.settings.kafka.bootstrap)
        )[3:]
        other: dict[str, Any] = {"UNISCALE_PREFIX": "readme."} if "--bootstrap" in words else {}
        if words == UP:
            continue  # runs already: the fixture started it
        if "worker" in words:
            process = live.start(*words, **other)
            read_until(process, "uniscale: ready")
            process.terminate()
            process.wait(60)
        elif words[0] == "answers":
            process = live.start(*words)
            _until_one_line(live, process)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        elif words[0] == "produce":
            live.run(*words, "--run", "readme")
        else:
            live.run(*words, **other)
    timeline = timelines(live, asked).by_id[asked]
    deadline = 60
    while [r.kind for r in timeline.rewards] != ["provisional", "correction"] and deadline:
        timeline, deadline = timelines(live, asked).by_id[asked], deadline - 1
    assert [r.kind for r in timeline.rewards] == ["provisional", "correction"]


def _until_one_line(live: Operator, process: "subprocess.Popen[str]") -> None:
    """Ask until a process that prints answers has printed one: it tells nobody when it has begun to listen."""
    said: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(
        target=lambda out: said.append(out.readline()), args=(process.stdout,), daemon=True
    )
    reader.start()
    for _ in range(20):
        live.run("ask", "What is 2 + 3, number 0?")
        if said:
            break
    assert json.loads(said[0])["status"] == "ok"


def test_a_taken_port_is_said_in_one_line(live: Operator) -> None:
    port = live.settings.kafka.bootstrap.rpartition(":")[2]
    assert f"port {port} is taken" in live.run(*UP, "--port", port, "--log", "second.log", code=1).stderr
