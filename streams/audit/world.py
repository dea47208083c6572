"""What the checks know beside the query: how far each room had come, and what retention has removed."""

from collections.abc import Container
from dataclasses import dataclass

from streams.audit.facts import Facts
from streams.audit.log import Part, Span

BATCH = 64
"""Records that the decider takes at once are fewer: what lies so far behind its newest row is done with."""


@dataclass(slots=True)
class World:
    """What the checks know beside the query.

    Attributes:
        facts: How far each room had come by the first capture.
        names: Topic of each kind of record.
        spans: What each partition holds.
        oldest_ms: Append time of the first record of each partition that has lost some to retention.
        now_ms: The time.
        ended: Queries whose rows may have left the learner's log, as its snapshots hold them.
    """

    facts: Facts
    names: dict[type, str]
    spans: dict[Part, Span]
    oldest_ms: dict[Part, int]
    now_ms: int
    ended: Container[str]

    def keeps(self, kind: type, ts: int) -> bool:
        """Say whether a record of a kind, appended after `ts`, must still be there."""
        topic = self.names[kind]
        return all(oldest < ts for (name, _), oldest in self.oldest_ms.items() if name == topic)

    def holds(self, kind: type, part: int, off: int) -> bool:
        """Say whether a place in a topic is retained."""
        span = self.spans.get((self.names[kind], part))
        return span is not None and span.begin <= off < span.end
