"""The member that leads a group assigns the partitions of all topics, although the broker was away when it asked."""

import asyncio
from typing import Any

from streams.runtime.kafka_consumer import assign_all_topics


class Leader:
    """aiokafka's coordinator on a broker that says what partitions there are when it is asked for the nth time.

    It stands for cluster, client and coordinator: each is used by one method.
    """

    _group_subscription = frozenset({"query", "context"})

    def __init__(self, known_after: int) -> None:
        self.asked, self.known_after = 0, known_after
        self._cluster = self._client = self

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {0, 1} if self.asked >= self.known_after else None

    async def force_metadata_update(self) -> bool:
        self.asked += 1
        return self.asked >= self.known_after

    async def _perform_assignment(self, response: Any) -> list[str]:
        return sorted(each for each in self._group_subscription if self.partitions_for_topic(each))


def test_topics_that_are_not_known_yet_are_asked_for_again() -> None:
    leader = Leader(known_after=3)
    assign_all_topics(leader, pause_s=0.0)
    assert asyncio.run(leader._perform_assignment(None)) == ["context", "query"]
    assert leader.asked == 3


def test_unknown_topics_delay_the_group_only_for_a_while() -> None:
    leader = Leader(known_after=1000)
    assign_all_topics(leader, pause_s=0.0)
    assert asyncio.run(leader._perform_assignment(None)) == []
