"""Create and check the topics of `streams/topics.py`, and read lag and group members, with kafka-python."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorError,
    TopicAlreadyExistsError,
)

from schemas.errors import UniscaleError
from streams.log import kafka_clients
from streams.log.base import ConsumerGroup
from streams.settings import Settings, variable
from streams.topics import Topic


class TopicsWrong(UniscaleError):
    """The broker's topics differ from the declared ones. Each line of the message names a topic and the fix."""

    def __init__(self, findings: Iterable[str]) -> None:
        self.findings = list(findings)
        super().__init__("topics are not as declared:\n  " + "\n  ".join(self.findings))


def create(settings: Settings, topics: Iterable[Topic]) -> list[str]:
    """Create missing topics and return their names. Existing topics are not changed."""
    with contextlib.closing(kafka_clients.admin(settings)) as client:
        existing = set(client.list_topics())
        missing = [t for t in topics if t.name not in existing]
        for topic in missing:
            spec = {
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication,
                "configs": topic.config(),
            }
            try:
                client.create_topics({topic.name: spec}, timeout_ms=90_000)
            except TopicAlreadyExistsError:
                continue  # another process created the topic; `require` verifies it
        if missing:
            client.wait_for_topics([t.name for t in missing], timeout_ms=120_000)
            _wait_for_coordinator(client, settings.kafka.prefix + "first")
        return [t.name for t in missing]


def _wait_for_coordinator(client: KafkaAdminClient, group: str, seconds: float = 60.0) -> None:
    """Wait until a new broker has its offsets topic, which it creates on the first request for a group.

    A consumer that joins before then logs errors and retries.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            client.list_group_offsets({group: None})
        except (CoordinatorNotAvailableError, CoordinatorLoadInProgressError, NotCoordinatorError):
            time.sleep(0.1)
        except KafkaError:
            return  # this process may create topics but not read a group's offsets
        else:
            return


def require(settings: Settings, topics: Iterable[Topic]) -> list[str]:
    """Raise TopicsWrong unless every topic is as declared; return notes on what could not be checked."""
    topics = list(topics)
    with contextlib.closing(kafka_clients.admin(settings)) as client:
        existing = set(client.list_topics())
        findings = [
            f"{t.name}: missing; run `python -m streams topics create`"
            for t in topics
            if t.name not in existing
        ]
        present = [t for t in topics if t.name in existing]
        partitions = (
            {t["name"]: t["partitions"] for t in client.describe_topics([t.name for t in present])}
            if present
            else {}
        )
        for topic in present:
            findings += _partitions_wrong(topic, partitions.get(topic.name) or [])
        configs = _configs(client, present)
        notes = []
        if present and not any(configs.values()):
            notes.append(
                "this broker reports no topic settings (the embedded one does not): only partitions were checked, "
                "not retention, compaction or record size"
            )
        else:
            for topic in present:
                findings += _config_wrong(topic, configs[topic.name])
    if findings:
        raise TopicsWrong(findings)
    return notes


def miscounted(topics: Iterable[Topic], found: Callable[[str], int]) -> list[str]:
    """Return a finding, including the fix, for each topic with the wrong partition count. Missing topics are left out.

    Args:
        topics: The topics as declared.
        found: Returns the number of partitions a topic has on the broker; 0 if the topic does not exist.
    """
    wrong = []
    for topic in topics:
        count = found(topic.name)
        if count in (0, topic.partitions):
            continue
        fix = (
            f"set {variable(topic.setting)} to one count for all topics that share it"
            if topic.setting
            else "recreate it with a single partition"
        )
        wrong.append(
            f"{topic.name}: partitions is {count}, must be {topic.partitions}; the count decides which worker gets a "
            f"query's records: {fix}, see docs/operating.md, 'Change a partition count'"
        )
    return wrong


def groups(settings: Settings, app_ids: Iterable[str]) -> dict[str, ConsumerGroup]:
    """Return consumer groups by id, except groups that have never committed an offset."""
    found: dict[str, ConsumerGroup] = {}
    with (
        contextlib.closing(kafka_clients.admin(settings)) as client,
        contextlib.closing(kafka_clients.consumer(settings)) as reader,
    ):
        for app_id in app_ids:
            try:
                offsets = client.list_group_offsets({app_id: None})[app_id]
            except KafkaError:
                continue
            committed: dict[TopicPartition, int] = {
                tp: o.offset for tp, o in offsets.items() if o.offset >= 0
            }
            if not committed:
                continue
            ends: Mapping[TopicPartition, int] = reader.end_offsets(list(committed))
            waiting = sum(max(0, ends[tp] - offset) for tp, offset in committed.items())
            members = None
            # ValueError if the embedded broker lists permissions that kafka-python does not know.
            with contextlib.suppress(KafkaError, ValueError):
                members = len(client.describe_groups([app_id])[app_id]["members"])
            found[app_id] = ConsumerGroup(waiting, members)
    return found


def members(settings: Settings, group: str) -> list[dict[str, Any]]:
    """Return the members of a consumer group as kafka-python describes them.

    Raises:
        KafkaError, KeyError: the broker does not return them.
    """
    with contextlib.closing(kafka_clients.admin(settings)) as client:
        return client.describe_groups([group])[group].get("members") or []


def _configs(client: KafkaAdminClient, topics: list[Topic]) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, t.name) for t in topics]
    try:
        described = client.describe_configs(resources, config_filter="all")
    except KafkaError:
        return {t.name: {} for t in topics}
    by_name = described.get("topic", {})
    return {t.name: {k: str(v["value"]) for k, v in (by_name.get(t.name) or {}).items()} for t in topics}


def _partitions_wrong(topic: Topic, found: list[Mapping[str, Any]]) -> list[str]:
    wrong = miscounted([topic], lambda name: len(found))
    least = min(
        (len(nodes) for nodes in (each.get("replica_nodes") for each in found) if nodes), default=None
    )
    if least is not None and least < topic.replication:
        wrong.append(
            f"{topic.name}: replication is {least}, must be {topic.replication}, or acknowledged records are lost when "
            "fewer brokers fail than you planned for; add replicas with kafka-reassign-partitions.sh, or set "
            f"`replication` to {least}"
        )
    return wrong


def _config_wrong(topic: Topic, found: Mapping[str, str]) -> list[str]:
    wrong = []
    for name, want in topic.config().items():
        have = found.get(name)
        if have is None or have == want:
            continue
        if name in ("min.cleanable.dirty.ratio", "segment.bytes", "delete.retention.ms"):
            continue  # tuning is the operator's choice
        if name == "retention.ms" and not topic.compacted and (have == "-1" or int(have) >= int(want)):
            continue  # keeping records longer is safe
        if name == "max.message.bytes" and int(have) >= int(want):
            continue
        if name == "min.insync.replicas" and int(want) <= int(have) <= topic.replication:
            continue  # stricter
        wrong.append(
            f"{topic.name}: {name} is {have}, must be {want}; "
            f"kafka-configs.sh --alter --entity-type topics --entity-name {topic.name} --add-config {name}={want}"
        )
    return wrong
