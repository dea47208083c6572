"""The page of topics keeps the invariants that joins and routing rest on."""

import re
from pathlib import Path

from streams.settings import Settings, variable
from streams.topics import DAY_MS, Topics


def test_the_topics_that_are_joined_have_equal_partition_counts() -> None:
    topics = Topics(Settings().replace(join_partitions=3, group_partitions=5))
    counts = {t.name: t.partitions for t in topics.declared(["a", "b"])}
    joined = [
        topics.decision,
        topics.answer,
        topics.feedback,
        topics.due,
        topics.changelog("aggregator", "join"),
    ]
    assert {counts[name] for name in joined} == {3}
    for group in ("a", "b"):
        to_group = (topics.decision_for, topics.verification_for, topics.cancel_for)
        assert {counts[name(group)] for name in to_group} == {5}


def test_learning_has_one_order() -> None:
    topics = Topics(Settings())
    counts = {t.name: t.partitions for t in topics.declared([])}
    assert [counts[n] for n in (topics.context, topics.reward, topics.changelog("decider", "pending"))] == [
        1,
        1,
        1,
    ]


def test_topics_have_prefix_record_limit_and_append_time() -> None:
    settings = Settings().replace(prefix="trial.", max_record_bytes=1_000_000, replication=3)
    for topic in Topics(settings).declared(["a"]):
        assert topic.name.startswith("trial.")
        assert topic.replication == 3
        assert topic.config()["max.message.bytes"] == "1000000"
        assert topic.config()["message.timestamp.type"] == "LogAppendTime"


def test_control_and_changelogs_are_compacted_and_never_deleted() -> None:
    compacted = {t.name: t.config() for t in Topics(Settings()).declared(["a"]) if t.compacted}
    assert set(compacted) == {
        "uniscale.control", "uniscale.decider-pending-changelog", "uniscale.learner-snapshot",
        "uniscale.aggregator-join-changelog",
    }  # fmt: skip
    assert all(c["cleanup.policy"] == "compact" and c["retention.ms"] == "-1" for c in compacted.values())


def test_the_page_of_what_is_kept_has_every_topic_as_declared() -> None:
    text = Path("docs/retention.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.<>-]+)` \| .* \| ([^|]+) \| [^|]+ \| `?(\w+)`? \|$", text, re.MULTILINE)
    shown = {name: (kept, partitions) for name, kept, partitions in rows}
    declared = {t.name.removeprefix("uniscale."): t for t in Topics(Settings()).declared(["<group>"])}
    assert shown.keys() == declared.keys()
    for name, topic in declared.items():
        kept, partitions = shown[name]
        assert partitions == (variable(topic.setting) if topic.setting else "1"), name
        if topic.compacted:
            assert kept.startswith(("for ever", "until")), name
        else:
            hours = topic.retention_ms * 24 // DAY_MS
            number, unit = (hours // 24, "day") if hours >= 24 else (hours, "hour")
            assert kept == f"{number} {unit}{'s' if number > 1 else ''}", name
