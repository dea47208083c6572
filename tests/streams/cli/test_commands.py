"""The command line: help an operator can work from, refusals with exit code 1."""

import contextlib
import marshal
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from agents.bandit.errors import DuplicateQuery
from agents.catalogue.models import CatalogueError, ObjectiveError
from agents.decider.snapshot import RESET_KEY, START_KEY
from schemas.action import Action
from schemas.answer import Answer
from schemas.control import ControlRecord
from schemas.dead_letter import DeadLetter
from schemas.errors import InvalidField
from schemas.grader import Grader
from schemas.objective import Weights
from schemas.query import Origin, Query
from streams.cli import catalogue, control_records, keys, learner, main, objectives, operating, queries
from streams.cli.queries import show
from streams.client.recorded import Recorded
from streams.client.replay import Replay, SendSchedule
from streams.local.deployment import metrics_ports, service_commands
from streams.log import kafka_clients
from streams.runtime.kafka_transactions import StillRunning
from streams.settings import MAX_PORT, Settings, SettingsError
from streams.topics import Topics

COMMANDS = [
    "answers", "ask", "audit", "broker", "calibrate", "catalogue", "check", "dead-letters", "demo", "explain",
    "feedback", "follow", "init", "keys", "learner", "objective", "prior", "produce", "record", "replay", "settings",
    "simulate", "topics", "up", "verify-decisions", "worker",
]  # fmt: skip


NOWHERE = {"UNISCALE_BOOTSTRAP": "127.0.0.1:1", "UNISCALE_CATALOGUE": "infra/catalogue/qwen3.yaml"}


def test_all_commands_are_there() -> None:
    assert main.list_commands(click.Context(main)) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert len(command.help or "") > 40


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["topics", "check"], {"UNISCALE_GUARANTEE": "exactly_once"}, "UNISCALE_GUARANTEE"),
        (["--catalogue", "none.yaml", "topics", "list"], {}, "none.yaml"),
        (["topics", "check"], NOWHERE, "no broker answers at bootstrap=127.0.0.1:1"),
        (["up"], NOWHERE, "no broker answers at bootstrap=127.0.0.1:1"),
        (["settings"], {"UNISCALE_BROKERS": "x"}, "UNISCALE_BROKERS: there is no such setting"),
        (["--config", "none.yaml", "settings"], {}, "none.yaml: cannot be read"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], environ: dict[str, str], words: str
) -> None:
    monkeypatch.setattr(kafka_clients, "_BOOTSTRAP_MS", 200)
    result = CliRunner().invoke(main, arguments, env=environ)
    assert result.exit_code == 1
    assert words in result.output.splitlines()[-1]


def test_up_refuses_a_taken_gateway_port_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["up", "--gateway"], env={"UNISCALE_GATEWAY_PORT": str(port)})
    assert result.exit_code == 1
    assert f"gateway_port: the gateway cannot listen on 127.0.0.1:{port}" in result.output
    assert "topics: " not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--port", "99999"], "99999 is not in the range"),
        (["broker", "--port", "-1"], "-1 is not in the range"),
        (["worker", "embedder", "--metrics-port", "99999"], "99999 is not in the range"),
        (["up", "--metrics-port", "65536"], "65536 is not in the range"),
    ],
)
def test_a_port_that_does_not_exist_is_wrong_usage(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, words in result.output) == (2, True)


def test_the_first_port_for_metrics_leaves_one_to_each_process() -> None:
    *_, last = (made := service_commands(["a"], metrics_port=MAX_PORT - 4)).values()
    assert list(metrics_ports(made).items())[:2] == [("aggregator", MAX_PORT - 4), ("verifier", MAX_PORT - 3)]
    assert metrics_ports(service_commands(["a"])) == {}
    assert last[-1] == str(MAX_PORT)
    with pytest.raises(
        SettingsError, match=f"METRICS_PORT: .* give {MAX_PORT - 4} at most; got {MAX_PORT - 3}"
    ):
        service_commands(["a"], metrics_port=MAX_PORT - 3)


def test_a_letter_that_the_terminal_lacks_is_a_question_mark() -> None:
    ours, terminal = pty.openpty()
    environ = os.environ | {"PYTHONIOENCODING": "latin-1", "UNISCALE_STATE_DIR": "3 → ü"}
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-m", "streams", "settings"], stdout=terminal, env=environ
    ) as process:
        os.close(terminal)
        with contextlib.suppress(OSError):  # how a terminal ends
            while read := os.read(ours, 4096):
                shown += read
    os.close(ours)
    assert process.returncode == 0
    assert b"UNISCALE_STATE_DIR=3 ? \xfc" in shown


def test_a_file_loses_no_letter() -> None:
    result = CliRunner(charset="latin-1").invoke(main, ["settings"], env={"UNISCALE_STATE_DIR": "3 → ü"})
    assert isinstance(result.exception, UnicodeEncodeError)


def test_settings_hide_secrets() -> None:
    options = '{"control_salt": "secret", "alpha": 0.5}'
    environ = {"UNISCALE_SASL_PASSWORD": "secret", "UNISCALE_POLICY_OPTIONS": options}
    result = CliRunner().invoke(main, ["settings"], env=environ)
    assert "secret" not in result.output
    assert "UNISCALE_SASL_PASSWORD=***" in result.output
    assert 'UNISCALE_POLICY_OPTIONS={"control_salt":"***","alpha":0.5}' in result.output
    settings = Settings.from_env(environ)
    assert "secret" not in repr(settings)
    assert Settings.from_env(settings.environ()) == settings


def test_settings_say_where_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("seed: 7\nprefix: mine.\n")
    line = ["--config", str(tmp_path / "mine.yaml"), "--prefix", "other.", "settings"]
    lines = CliRunner().invoke(main, line, env={"UNISCALE_TIMEOUT_S": "60"}).output.splitlines()
    assert f"UNISCALE_SEED=7  # {tmp_path / 'mine.yaml'}" in lines
    assert "UNISCALE_TIMEOUT_S=60.0  # environment" in lines
    assert "UNISCALE_PREFIX=other.  # command line" in lines
    assert "UNISCALE_CONCURRENCY=256  # default" in lines


def test_a_send_schedule_is_a_rate() -> None:
    assert [SendSchedule(20.0).due_s(n) for n in (0, 1, 10)] == [0.0, 0.05, 0.5]
    assert SendSchedule().due_s(7) == 0.0


def test_a_score_of_zero_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    action = Action(model="small", qp=1, cp=1, bs=1)
    show(Answer(query_id="q", status="ok", by="executor", action=action, text="7", score=0.0, steps=2), False)
    assert capsys.readouterr().err == "[q: ok, small/1/1/1, score 0.000, 2 steps]\n"
    show(Answer(query_id="q", status="ok", by="executor", action=action, text="7"), False)
    assert "score" not in capsys.readouterr().err


def test_outcomes_are_recorded_in_json_lines(tmp_path: Path) -> None:
    from streams.cli.recording import record

    (tmp_path / "questions.jsonl").write_text('{"question": "?", "reference": "1"}\n')
    words = [f"{tmp_path / 'questions.jsonl'}", "--out", f"{tmp_path / 'outcomes.json'}"]
    done = CliRunner().invoke(record, words, obj=Settings())
    assert done.exit_code == 2
    assert "outcomes are JSON lines; end its name in .jsonl" in done.output


def test_dead_letters_are_retried_once_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent again fails again, at a new offset."""
    records, letters = [b"broken", b"taken"], list[DeadLetter]()

    def fail(offset: int) -> None:
        origin = Origin(topic="query", partition=0, offset=offset)
        taken = records[offset] == b"taken"
        error = DuplicateQuery("q", "another question", "this one") if taken else ValueError("broken")
        letters.append(DeadLetter.of(records[offset], error, service="decider", origin=origin))

    class Topics(contextlib.nullcontext[None]):
        def __enter__(self) -> Any:
            return self

        def append_again(self, origin: Origin) -> bool:
            records.append(records[origin.offset])
            fail(len(records) - 1)
            return True

    def retried(*words: str) -> list[str]:
        done = CliRunner().invoke(operating.retry, list(words), obj=Settings())
        assert done.exit_code == 0, done.output
        return done.output.split("\n")[:-1]

    monkeypatch.setattr(operating, "read_dead_letters", lambda settings: list(letters))
    monkeypatch.setattr(operating, "BlockingLog", lambda settings: Topics())
    fail(0)
    fail(1)
    assert retried("--all") == ["sent again: query/0/0"]
    assert retried("--all") == ["sent again: query/0/2"]
    assert retried("query/0/1", "query/0/1") == ["sent again: query/0/1"]


def test_a_replay_under_an_objective_takes_the_place_of_any_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    goals: list[dict[str, Any]] = [
        {},
        {"accuracy": 0.9},
        {"mean_cost": 1e9},
        {"weights": Weights(correct=1.0)},
    ]
    recorded = [Recorded(n, Query(query_id=f"q{n}", text="?", **goal)) for n, goal in enumerate(goals)]
    sent: list[Query] = []

    def send(settings: Settings, replay: Replay, wait: bool) -> int:
        sent.extend(replay.due(10.0))
        return 0

    monkeypatch.setattr(queries, "_recorded", lambda *_: (each for each in recorded))
    monkeypatch.setattr(queries, "_replayed", send)
    done = CliRunner().invoke(queries.replay, ["--objective", "mine"], obj=Settings())
    assert done.exit_code == 0, done.output
    assert [(q.objective, q.accuracy, q.mean_cost, q.weights) for q in sent] == [
        ("mine", None, None, None)
    ] * 4


def test_ask_takes_several_references_and_a_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Query] = []

    class Asked:
        def __init__(self, settings: Settings) -> None:
            pass

        def __enter__(self) -> "Asked":
            return self

        def __exit__(self, *raised: object) -> None:
            pass

        def ask(self, query: Query, **how: object) -> Answer:
            asked.append(query)
            return Answer(query_id=query.query_id, status="ok", by="executor", text="!")

        def follow(self, kind: str) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    monkeypatch.setattr(queries, "Client", Asked)
    for words in (
        ["--reference", "7"],
        ["--reference", "7", "--reference", "x", "--grader", "exact"],
        ["--grader", '{"name": "json", "schema": {"type": "object"}}'],
    ):
        done = CliRunner().invoke(queries.ask, ["?", *words], obj=Settings())
        assert done.exit_code == 0, done.output
    assert [(q.reference, q.grader) for q in asked] == [
        ("7", None),
        (["7", "x"], "exact"),
        (None, Grader(name="json", schema={"type": "object"})),
    ]
    done = CliRunner().invoke(queries.ask, ["?", "--grader", "regex"], obj=Settings())
    assert isinstance(done.exception, InvalidField)
    assert "reference: is missing, and grader regex compares with it" in str(done.exception)


def test_produce_sets_the_grader_of_lines_that_name_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, sent = tmp_path / "set.jsonl", list[Query]()
    file.write_text(
        '{"text": "a", "answer": "7"}\n{"text": "b", "answer": "7", "grader": "exact"}\n{"text": "c"}\n'
    )

    def send(settings: Settings, made: Sequence[Query], pace: SendSchedule, *, wait: bool) -> int:
        sent.extend(made)
        return 0

    monkeypatch.setattr(queries, "send_and_wait", send)
    done = CliRunner().invoke(queries.produce, [str(file), "--grader", "last-number"], obj=Settings())
    assert done.exit_code == 0, done.output
    assert [query.grader for query in sent] == ["last-number", "exact", None]


class ControlTopic:
    """`control` as the commands see it: what is sent is in force."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[ControlRecord] = []
        monkeypatch.setattr(control_records, "entries", lambda settings: enumerate(self.sent))
        monkeypatch.setattr(control_records, "send", self.send)

    def send(self, settings: Settings, entry: ControlRecord) -> int:
        self.sent.append(entry)
        return len(self.sent) - 1


def test_objectives_are_those_of_the_deployments_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ControlTopic(monkeypatch)
    settings = Settings().replace(objectives={"exact": {"accuracy": 0.95}})

    def said(*words: str) -> str:
        done = CliRunner().invoke(objectives.objective, list(words), obj=settings)
        assert done.exit_code == 0, done.output
        return done.output

    assert "exact" in said("list")
    said("remove", "exact")
    assert "exact" not in said("list")
    said("remove", "cost-sensitive")
    assert "no effect" not in said("list")
    before = list(topic.sent)
    refused = CliRunner().invoke(objectives.objective, ["remove", "careful"], obj=settings)
    assert isinstance(refused.exception, ObjectiveError)
    assert "'careful' is the default" in str(refused.exception)
    assert topic.sent == before


def test_an_entry_is_read_as_strictly_as_a_catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ControlTopic(monkeypatch)
    (tmp_path / "model.yaml").write_text("name: new\ngroup: one\ngroup: two\n")
    words = ["add", str(tmp_path / "model.yaml")]
    done = CliRunner().invoke(catalogue.catalogue, words, obj=Settings())
    assert isinstance(done.exception, CatalogueError)
    assert "'group' appears twice" in str(done.exception)


@pytest.mark.parametrize("tenant", ["", "x" * 300])
def test_key_with_an_invalid_tenant_is_not_added(monkeypatch: pytest.MonkeyPatch, tenant: str) -> None:
    topic = ControlTopic(monkeypatch)
    done = CliRunner().invoke(keys.keys, ["add", "k", "--tenant", tenant], obj=Settings())
    assert isinstance(done.exception, InvalidField)
    assert "tenant: has" in str(done.exception)
    assert topic.sent == []


def test_bytecode_that_a_full_disk_cut_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(settings: Settings) -> None:
        marshal.loads(marshal.dumps("whole")[:-1])

    monkeypatch.setattr(control_records, "entries", cut_off)
    done = CliRunner().invoke(main, ["keys", "list"])
    assert "Aborted" not in done.output
    assert "delete the __pycache__ folder" in str(done.exception)


def test_commands_on_keys_say_where_none_of_them_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    ControlTopic(monkeypatch)

    def warned(*words: str) -> bool:
        done = CliRunner().invoke(keys.keys, list(words), obj=Settings())
        assert done.exit_code == 0, done.output
        return "none of the keys has the scope `teach`" in done.stderr

    assert not warned("list")  # while no key exists, everything teaches
    assert warned("add", "shop", "--tenant", "shop")
    assert not warned("add", "judge", "--tenant", "shop", "--scope", "ask", "--scope", "teach")
    assert not warned("add", "other", "--tenant", "other")
    assert not warned("list")
    assert warned("revoke", "judge")
    assert warned("list")
    assert warned("revoke", "other")
    assert not warned("revoke", "shop")


@pytest.mark.parametrize("runs", [True, False])
def test_a_decider_that_ran_while_the_question_stood_is_noticed(
    monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """Whether it still runs, or has written and stopped."""
    changelog = Topics(Settings()).changelog("decider", "pending")
    log = [SimpleNamespace(topic=changelog, offset=0, key=b"q", value=b"row")]
    asked: list[str] = []

    def require_stopped(settings: Settings, group: str) -> None:
        asked.append(group)
        if len(asked) == 2:
            log.append(SimpleNamespace(topic=changelog, offset=1, key=b"p", value=b"row"))
            if runs:
                raise StillRunning("running")

    def read_all(settings: Settings, topics: Sequence[str], **_: Any) -> list[Any]:
        return log if topics == [changelog] else []

    monkeypatch.setattr(learner, "require_stopped", require_stopped)
    monkeypatch.setattr(learner, "require_topics", lambda *_: None)
    monkeypatch.setattr(learner, "read_all", read_all)
    result = CliRunner().invoke(learner.learner, ["reset"], obj=Settings(), input="y\n")
    assert result.exit_code == 1
    said = "running" if runs else "a decider has run in the meantime"
    assert said in f"{result.output} {result.exception}"
    assert len(asked) == 2


def test_reset_notes_the_last_decision_before_it_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics(Settings())
    changelog = topics.changelog("decider", "pending")
    start = SimpleNamespace(topic=topics.snapshot, offset=0, key=START_KEY, value=b"0")
    before = SimpleNamespace(topic=topics.snapshot, offset=1, key=RESET_KEY, value=b'{"0":3}')

    class Ends(contextlib.nullcontext[None]):
        def __enter__(self) -> Any:
            return self

        def end_offsets(self, read: Sequence[str]) -> dict[tuple[str, int], int]:
            return {(topic, at): 10 + at for topic in read for at in (0, 1)}

    def read_all(settings: Settings, read: Sequence[str], **_: Any) -> list[Any]:
        return [start, before] if read == [topics.snapshot] else []

    written: list[tuple[str, list[tuple[bytes, bytes | None]]]] = []
    monkeypatch.setattr(learner, "require_stopped", lambda *_: None)
    monkeypatch.setattr(learner, "advance_offsets", lambda *_: None)
    monkeypatch.setattr(learner, "rewrite", lambda settings, log, writes: written.extend(writes))
    monkeypatch.setattr(learner, "require_topics", lambda *_: None)
    monkeypatch.setattr(learner, "read_all", read_all)
    monkeypatch.setattr(learner, "latest", lambda *_: {b"q": b"row"})
    monkeypatch.setattr(learner, "BlockingLog", lambda settings: Ends())
    settings = Settings().replace(prior="none")
    result = CliRunner().invoke(learner.learner, ["reset", "--yes"], obj=settings)
    assert result.exit_code == 0, result.output
    assert topics.decision.endswith("action-decision")
    assert written == [
        (topics.snapshot, [(RESET_KEY, b'{"0":10,"1":11}')]),
        (changelog, [(b"q", None)]),
        (topics.snapshot, [(START_KEY, None)]),
    ]
