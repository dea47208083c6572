"""Heartbeat: an executor says that it lives; the decider masks the models of those that do not."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.base import Record
from schemas.forest import Count
from schemas.search import Served


class ModelHealth(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one model in an executor.

    Attributes:
        model: Its name in the catalogue.
        state: ready: it can be asked. loading: not yet. suspended: its endpoint failed several times in a row and
            is left alone for a while. failed: it could not be loaded.
        why: What is wrong; empty when nothing is.
    """

    model: str
    state: Literal["ready", "loading", "suspended", "failed"]
    why: str = ""


class Heartbeat(Record, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """One sign of life. Key: group/instance. Its age is told by the broker's append time.

    Attributes:
        group: The executor group.
        instance: The process in it.
        models: The models it serves now: those that are ready.
        every_s: Seconds until the next one.
        in_flight: Queries it is searching.
        stopping: Whether this is its last: mask at once.
        engine: What generates.
        health: The state of each model of the group, also of those it cannot serve.
    """

    group: Annotated[str, Meta(min_length=1)]
    instance: Annotated[str, Meta(min_length=1)]
    models: tuple[str, ...]
    every_s: Annotated[float, Meta(gt=0.0)]
    in_flight: Count = 0
    stopping: bool = False
    engine: Served | None = None
    health: tuple[ModelHealth, ...] = ()

    @property
    def key(self) -> str:
        """Return the record's key."""
        return f"{self.group}/{self.instance}"
