"""What the checks know besides the query itself: how far each room had come, and what retention has removed."""

from collections.abc import Container
from dataclasses import dataclass

from streams.audit.reading.facts import Facts
from streams.audit.reading.log import Part, Span

BATCH = 64
"""More records than the decider handles at once: it has finished with whatever lies this far behind its newest row."""


@dataclass(slots=True)
class World:
    """What the checks know besides the query itself.

    Attributes:
        facts: How far each room had come by the first capture.
        names: Topic of each kind of record.
        spans: The offsets that each partition holds.
        oldest_ms: Append time of the first record of each partition that has lost records to retention.
        now_ms: The time.
        ended: Queries that the learner's snapshots list as ended: their rows may have left its log.
    """

    facts: Facts
    names: dict[type, str]
    spans: dict[Part, Span]
    oldest_ms: dict[Part, int]
    now_ms: int
    ended: Container[str]

    def keeps(self, kind: type, ts: int) -> bool:
        """Return whether a record of a kind, appended after `ts`, must still be there."""
        topic = self.names[kind]
        return all(oldest < ts for (name, _), oldest in self.oldest_ms.items() if name == topic)

    def holds(self, kind: type, part: int, off: int) -> bool:
        """Return whether a partition still holds an offset."""
        span = self.spans.get((self.names[kind], part))
        return span is not None and span.begin <= off < span.end
