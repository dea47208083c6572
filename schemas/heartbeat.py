"""Heartbeat: an executor says that it lives; the decider masks the models of those that do not."""

from typing import Annotated

from msgspec import Meta

from schemas.base import Record
from schemas.forest import Count
from schemas.search import Served


class Heartbeat(Record, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """One sign of life. Key: group/instance. Its age is told by the broker's append time.

    Attributes:
        group: The executor group.
        instance: The process in it.
        models: The models it serves now.
        every_s: Seconds until the next one.
        in_flight: Queries it is searching.
        stopping: Whether this is its last: mask at once.
        engine: What generates.
    """

    group: Annotated[str, Meta(min_length=1)]
    instance: Annotated[str, Meta(min_length=1)]
    models: tuple[str, ...]
    every_s: Annotated[float, Meta(gt=0.0)]
    in_flight: Count = 0
    stopping: bool = False
    engine: Served | None = None

    @property
    def key(self) -> str:
        """Return the record's key."""
        return f"{self.group}/{self.instance}"
