"""All topics, each with its record, key, partitions, retention, compaction and maximum record size.

`action-decision.<group>` and `verification.<group>` have equal partition counts, as do the four topics that the
aggregator joins, so that all of a query's records are in the same partition. The two changelogs are also declared here,
because faust would create them with the broker's defaults.
"""

from collections.abc import Iterable

import msgspec

from streams.settings import Settings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# A single partition and key: θ is shared by all queries, so learning needs a single order.
SHARD = b"0"


def writer_of(changelog: str) -> str:
    """Return the transactional id of a single-writer changelog."""
    return f"{changelog}.writer"


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """The required configuration of a topic. `retention_ms` is -1 for compacted topics.

    `setting` names the setting for its partition count; empty if the count is fixed.
    """

    name: str
    record: str
    key: str
    partitions: int
    retention_ms: int = 7 * DAY_MS
    compacted: bool = False
    max_bytes: int
    replication: int = 1
    setting: str = ""

    def config(self) -> dict[str, str]:
        """Return the topic's configuration on the broker."""
        config = {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "retention.ms": str(self.retention_ms),
            "max.message.bytes": str(self.max_bytes),
            # Deadlines are measured by the broker's clock, never by a client's.
            "message.timestamp.type": "LogAppendTime",
            # With several replicas, an acknowledged record is on more than one broker, and only those brokers can
            # become leader. With three replicas, one broker may be down.
            "min.insync.replicas": str(max(1, self.replication - 1)),
            "unclean.leader.election.enable": "false",
        }
        if self.compacted:
            # Readers that return after a long outage must still see tombstones.
            config |= {
                "delete.retention.ms": str(7 * DAY_MS),
                "segment.bytes": str(64 * 1024 * 1024),
                "min.cleanable.dirty.ratio": "0.2",
            }
        return config


class Topics:
    """Topic names with the deployment's prefix. No other module builds topic names itself."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        prefix = self.prefix = settings.kafka.prefix
        self.query = prefix + "query"
        self.context = prefix + "context"
        self.decision = prefix + "action-decision"
        self.attempt_failed = prefix + "attempt-failed"
        self.search_step = prefix + "search-step"
        self.answer_chunk = prefix + "answer-chunk"
        self.answer = prefix + "answer"
        self.feedback = prefix + "feedback"
        self.due = prefix + "due"
        self.reward = prefix + "reward"
        self.control = prefix + "control"
        self.heartbeat = prefix + "heartbeat"
        self.snapshot = prefix + "learner-snapshot"
        self.dead_letter = prefix + "dead-letter"

    def decision_for(self, group: str) -> str:
        """Return the topic that the executors of `group` read decisions from."""
        return f"{self.decision}.{group}"

    def verification_for(self, group: str) -> str:
        """Return the topic that returns scored steps to the executors of `group`."""
        return f"{self.prefix}verification.{group}"

    def cancel_for(self, group: str) -> str:
        """Return the topic that the executors of `group` read Cancels from."""
        return f"{self.prefix}cancel.{group}"

    def app_id(self, service: str, group: str = "") -> str:
        """Return a service's consumer group."""
        return f"{self.prefix}{service}" + (f".{group}" if group else "")

    def changelog(self, service: str, table: str) -> str:
        """Return the changelog name that faust derives for a service's table."""
        return f"{self.app_id(service)}-{table}-changelog"

    def declared(self, groups: Iterable[str]) -> list[Topic]:
        """Return every topic in a deployment with these executor groups."""
        kafka = self.settings.kafka
        queries, join, group_n = "query_partitions", "join_partitions", "group_partitions"

        def topic(
            name: str,
            record: str,
            key: str,
            setting: str,
            retention_ms: int = 7 * DAY_MS,
            compacted: bool = False,
        ) -> Topic:
            return Topic(
                name=name,
                record=record,
                key=key,
                partitions=getattr(kafka, setting) if setting else 1,
                setting=setting,
                compacted=compacted,
                retention_ms=-1 if compacted else retention_ms,
                max_bytes=kafka.max_record_bytes,
                replication=kafka.replication,
            )

        page = [
            topic(self.query, "Query", "query_id", queries),
            topic(self.context, "Context", "policy shard", ""),
            topic(self.decision, "Decision", "query_id", join, 30 * DAY_MS),
            topic(self.search_step, "SearchStep", "query_id", group_n, DAY_MS),
            topic(self.attempt_failed, "AttemptFailed", "policy shard", "", 30 * DAY_MS),
            topic(self.answer_chunk, "AnswerChunk", "query_id", group_n, HOUR_MS),
            topic(self.answer, "Answer", "query_id", join, 30 * DAY_MS),
            topic(self.feedback, "Feedback", "query_id", join, 30 * DAY_MS),
            topic(self.due, "Due", "query_id", join, DAY_MS),
            topic(self.reward, "Reward", "policy shard", "", 30 * DAY_MS),
            topic(self.control, "control records", "name", "", compacted=True),
            topic(self.heartbeat, "Heartbeat", "group/instance", "", HOUR_MS),
            topic(self.dead_letter, "DeadLetter", "origin", "", 30 * DAY_MS),
            topic(self.changelog("decider", "pending"), "decider row", "query_id", "", compacted=True),
            topic(self.snapshot, "learner snapshot", "version/part", "", compacted=True),
            topic(self.changelog("aggregator", "join"), "join row", "query_id", join, compacted=True),
        ]
        for group in sorted(set(groups)):
            page.append(topic(self.decision_for(group), "Decision", "query_id", group_n, DAY_MS))
            page.append(topic(self.verification_for(group), "Verification", "query_id", group_n, DAY_MS))
            page.append(topic(self.cancel_for(group), "Cancel", "query_id", group_n, DAY_MS))
        return page
