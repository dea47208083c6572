"""`follow`: conditions on fields, one line a record for people, times; live, and its ends."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
import pytest

from schemas.query import Query
from schemas.record import Record, encode
from streams.cli.following import SHOWN, Condition, SinceTime, WrongCondition, check_field, line_of
from streams.client.events import RECORDS, Kind, QueryEvent, kind_of, topic_names
from streams.local.broker import LocalBroker
from streams.local.deployment import settings_for
from streams.log import kafka_admin, kafka_clients
from streams.settings import Settings
from streams.topics import Topics
from tests.support.command_line import Operator, read_until
from tests.support.samples import SAMPLES

AT_MS = 1_763_700_000_123


def kind_of_record(record: Record) -> Kind:
    return next(kind for kind, held in RECORDS.items() if type(record) in (held, *get_args(held)))


def event_of(record: Record) -> QueryEvent:
    query_id = getattr(record, "query_id", None) or ""
    return QueryEvent(kind=kind_of_record(record), query_id=query_id, record=record, at_ms=AT_MS)


EVENTS = [event_of(each) for each in SAMPLES]


def first(kind: Kind) -> QueryEvent:
    return next(event for event in EVENTS if event.kind == kind)


def test_every_record_of_every_topic_can_be_followed() -> None:
    assert {event.kind for event in EVENTS} == set(RECORDS) == set(SHOWN)
    topics = Topics(Settings())
    assert {kind_of(topics, name) for name in topic_names(topics, RECORDS, ("mini",))} == set(RECORDS)


@pytest.mark.parametrize(
    ("kind", "said", "holds"),
    [
        ("decision", "query_id=q-1", True),
        ("decision", "query.tenant=acme", True),
        ("decision", "query.metadata.level=1", True),
        ("decision", "query.metadata.nothing=1", False),
        ("decision", "action=mini-3/1/2/1", True),
        ("decision", "action.model=mini-4", False),
        ("decision", "objective.weights.cost=0.8", True),
        ("decision", "runners_up.action=mini-4/1/1/1", True),
        ("decision", "masked_models=mini-6", True),
        ("decision", "cohort=policy", True),  # a default, which the wire leaves out
        ("decision", "randomised=false", True),
        ("step", "forest.drafts.finish=length", True),
        ("step", "forest.drafts.finish=eos", False),
        ("reward", "price.unit=eflops", True),
        ("query", "reference=7", True),  # a text that looks like a number
        ("query", "accuracy=null", True),
        ("query", "budget.tokens=4e3", True),
        ("query", 'tenant="acme"', True),
        ("control", "op=add", True),
    ],
)
def test_a_condition_holds_where_the_field_has_the_value(kind: Kind, said: str, holds: bool) -> None:
    assert Condition.parse(said, [kind]).holds(first(kind)) is holds


@pytest.mark.parametrize(
    ("kinds", "said", "complaint"),
    [
        (
            ["decision"],
            "prise_factor=1",
            r"decision has no field 'prise_factor'; did you mean 'price_factor'",
        ),
        (["reward"], "price.costs=1", r"price.costs: reward, field price has no field 'costs'; .* 'cost'"),
        (
            ["reward"],
            "price.cost.x=1",
            r"reward, field price.cost has no field 'x'; there is nothing below it",
        ),
        (["decision", "reward"], "seed=1", r"seed: reward has no field 'seed'"),
        (["step"], "forest.drafts.3.text=x", r"field forest.drafts has no field '3'; known: bound, depth"),
        (["control"], "operation=add", r"control has no field 'operation'; known: .*weights"),
        (["reward"], "status", r"--where status: write FIELD=VALUE"),
        (["reward"], "=ok", r"--where =ok: write FIELD=VALUE"),
    ],
)
def test_a_field_that_is_not_there_is_refused_by_name(kinds: list[Kind], said: str, complaint: str) -> None:
    with pytest.raises(WrongCondition, match=complaint):
        Condition.parse(said, kinds)


@pytest.mark.parametrize("kind", SHOWN)
def test_what_a_line_shows_are_fields(kind: Kind) -> None:
    for path in SHOWN[kind]:
        check_field(kind, tuple(path.split(".")))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event.record).__name__)
def test_a_line_says_when_what_and_of_which_query(event: QueryEvent) -> None:
    at, kind, about, *told = line_of(event).split(" ")
    assert (at, kind) == ("2025-11-21T04:40:00.123Z", event.kind)
    assert about == (event.query_id or event.record.key)
    assert told


def test_a_line_is_one_line_whatever_a_question_holds() -> None:
    line = line_of(event_of(Query(query_id="q", text="How\nmany\x1b[2J?\x9b" + "x" * 1000)))
    assert line.isprintable()
    assert len(line) < 160


@pytest.mark.parametrize(("said", "before_s"), [("30s", 30), ("10m", 600), ("2h", 7200), ("7d", 604_800)])
def test_since_is_so_long_ago(said: str, before_s: int) -> None:
    now_ms = time.time() * 1000
    assert SinceTime().convert(said, None, None) == pytest.approx(now_ms - before_s * 1000, abs=5000)


@pytest.mark.parametrize("said", ["2026-11-27T09:30Z", "2026-11-27T09:30:00.000Z", "2026-11-27T10:30+01:00"])
def test_since_is_a_time(said: str) -> None:
    wanted = datetime(2026, 11, 27, 9, 30, tzinfo=UTC).timestamp() * 1000
    assert SinceTime().convert(said, None, None) == wanted


def test_a_time_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(click.BadParameter, match="'yesterday': write 30s, 10m"):
        SinceTime().convert("yesterday", None, None)


Send = Callable[..., None]


@pytest.fixture
def settings(embedded_broker: LocalBroker) -> Settings:
    found = settings_for(Settings(), embedded_broker).replace(prefix=f"f{uuid.uuid4().hex[:6]}.")
    kafka_admin.create(found, Topics(found).declared(["mini"]))
    return found


@pytest.fixture
def operator(settings: Settings, tmp_path: Path) -> Operator:
    return Operator(tmp_path, settings)


@pytest.fixture
def send(settings: Settings) -> Iterator[Send]:
    topics = Topics(settings)
    names: dict[Kind, str] = {
        "decision": topics.decision,
        "step": topics.search_step,
        "verification": topics.verification_for("mini"),
        "cancel": topics.cancel_for("mini"),
    }
    with contextlib.closing(kafka_clients.producer(settings)) as producer:

        def one(*events: QueryEvent) -> None:
            for event in events:
                name = names.get(event.kind) or getattr(topics, event.kind.replace("-", "_"))
                producer.send(name, key=b"k", value=encode(event.record)).get(timeout=30)

        yield one


@pytest.mark.broker
def test_every_topic_is_read_from_a_time(operator: Operator, send: Send) -> None:
    send(*EVENTS)
    everything = operator.run("follow", *RECORDS, "--since", "1h", "--no-wait", "--json")
    records = [json.loads(line) for line in everything.stdout.splitlines()]
    assert sorted(each["kind"] for each in records) == sorted(event.kind for event in EVENTS)
    assert {each["record"]["schema"] for each in records} == {each.schema() for each in SAMPLES}
    some = operator.run(
        "follow", "action-decision", "reward", "--since", "1h", "--no-wait", "--where", "action=mini-3/1/2/1"
    )
    wanted = [event for event in EVENTS if event.kind in ("decision", "reward")]
    wanted = [event for event in wanted if str(event.record.action) == "mini-3/1/2/1"]
    assert len(some.stdout.splitlines()) == len(wanted) > 0
    later = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
    assert operator.run("follow", "reward", "--since", later, "--no-wait").stdout == ""


@pytest.mark.broker
def test_ctrl_c_ends_it_cleanly(operator: Operator, send: Send) -> None:
    send(first("reward"))
    process = operator.start("follow", "reward", "--since", "1h")
    read_until(process, f" reward {first('reward').query_id} ")
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (130, "stopped\n")


@pytest.mark.broker
def test_a_closed_pipe_ends_it_cleanly(operator: Operator, send: Send) -> None:
    send(*EVENTS)
    process = subprocess.Popen(
        [sys.executable, "-m", "streams", "follow", "query", "--since", "1h", "--json"],
        cwd=operator.folder, env=operator.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["kind"] == "query"
    process.stdout.close()  # as `head -1` does
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        send(first("query"))
    assert (process.poll(), process.stderr.read()) == (1, "")
