"""The rights on the broker follow from the services, and give nobody what is another's."""

import shlex
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest
from click.testing import CliRunner

from streams.acls import CLIENT, OPERATOR, grants
from streams.cli import main
from streams.services import SERVICES
from streams.settings import Settings
from streams.topics import Topics

GROUPS = ("mini", "other")


def who_may(topics: Topics, operation: str) -> dict[str, set[str]]:
    """Return, by topic, which processes may do something with it; the operator may do everything."""
    found = defaultdict(set)
    for worker, granted in grants(topics, GROUPS).items():
        for grant in granted:
            for kind, name in grant.resources:
                if worker == OPERATOR or kind != "topic" or operation not in grant.operations:
                    continue
                for topic in topics.declared(GROUPS):
                    if topic.name == name or (grant.prefixed and topic.name.startswith(name)):
                        found[topic.name].add(worker)
    return found


def test_one_service_alone_writes_what_the_learner_learns_from(in_memory: Callable[..., Settings]) -> None:
    topics = Topics(in_memory())
    writers = who_may(topics, "Write")
    assert writers[topics.changelog("decider", "pending")] == writers[topics.snapshot] == {"decider"}
    assert writers[topics.changelog("aggregator", "join")] == writers[topics.reward] == {"aggregator"}
    assert writers[topics.context] == {"embedder"}
    assert writers[topics.control] == {"gateway"}
    assert writers[topics.query] == {"gateway", CLIENT}
    assert set(writers) == {topic.name for topic in topics.declared(GROUPS)}, "nobody writes a topic"


def test_an_executor_reads_and_answers_for_its_own_group(in_memory: Callable[..., Settings]) -> None:
    topics = Topics(in_memory())
    readers, writers = who_may(topics, "Read"), who_may(topics, "Write")
    for group in GROUPS:
        assert (
            readers[topics.decision_for(group)]
            == readers[topics.verification_for(group)]
            == {f"executor.{group}"}
        )
        assert writers[topics.decision_for(group)] == {"decider"}
        assert writers[topics.verification_for(group)] == {"verifier"}


def test_groups_per_service_and_transactions_for_the_decider(in_memory: Callable[..., Settings]) -> None:
    topics = Topics(in_memory())
    held = defaultdict(set)
    for worker, granted in grants(topics, GROUPS).items():
        for grant in granted:
            for kind, name in grant.resources:
                if kind != "topic" and not grant.prefixed:
                    held[kind].add((name.removeprefix(topics.prefix), worker))
    assert held["group"] == {(worker, worker) for worker in held_by_services()}
    assert held["transactional-id"] == {("decider-pending-changelog.writer", "decider")}


def held_by_services() -> set[str]:
    return {
        f"{spec.name}.{group}" if group else spec.name
        for spec in SERVICES.values()
        if spec.inputs
        for group in (GROUPS if spec.grouped else ("",))
    }


@pytest.mark.parametrize("prefix", ["acme.", ""])
def test_the_command_prints_one_line_for_each_grant(in_memory: Callable[..., Settings], prefix: str) -> None:
    settings = in_memory(prefix=prefix)
    words = ["topics", "acls", "--principal", "User:CN={worker},O=acme", "--tool", "kafka-acls"]
    done = CliRunner().invoke(main, words, env=settings.environ())
    assert done.exit_code == 0, done.output
    lines = [shlex.split(line) for line in done.output.splitlines() if not line.startswith("#")]
    assert {line[0] for line in lines} == {"kafka-acls"}
    assert {line[line.index("--allow-principal") + 1] for line in lines} >= {
        "User:CN=decider,O=acme", "User:CN=executor.mini,O=acme", "User:CN=operator,O=acme",
    }  # fmt: skip
    assert len(lines) == sum(len(granted) for granted in grants(Topics(settings), ["mini"]).values())
    names = {name for line in lines for flag, name in pairwise(line) if flag == "--topic"}
    assert all(name == "*" or name.startswith(prefix) for name in names)
