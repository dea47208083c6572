"""The log of a deployment in memory, as the audit reads it."""

from collections.abc import Iterable, Iterator

from streams.audit.reading import Raw, Span
from streams.runtime.memory_cluster import Cluster


class InMemoryLog:
    """The topics of a cluster in memory, as the audit reads them."""

    def __init__(self, cluster: Cluster) -> None:
        self.broker = cluster.broker

    def spans(self, topics: Iterable[str]) -> dict[tuple[str, int], Span]:
        """Return what each partition holds."""
        return {
            (name, at): Span(self.broker.first(name, at), self.broker.end(name, at))
            for name in topics
            for at in range(self.broker.partitions(name))
        }

    def read(self, part: tuple[str, int], span: Span) -> Iterator[Raw]:
        """Yield the records of a span."""
        for r in self.broker.records(part[0]):
            if r.partition == part[1] and span.begin <= r.offset < span.end:
                yield Raw(r.offset, r.timestamp_ms, r.key, r.value)
