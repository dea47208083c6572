"""Service specifications, which describe a service without importing its code."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from schemas.record import Record
from streams.runtime.runtime import Runtime
from streams.topics import Topics


class Input(NamedTuple):
    """How the records of an input are read.

    Attributes:
        kind: The record class.
        stage: Name of the handling in metrics.
        waits: For a keyed service; see `Runtime.each`.
        most: Most records in a batch, for an ordered service; see `Runtime.batches`.
    """

    kind: type[Record]
    stage: str
    waits: bool = False
    most: int = 1


class ServiceSpec(Struct, frozen=True, kw_only=True):
    """One service as the command line, the launcher, the gateway and the tests know it.

    Attributes:
        name: Its name on the command line, in consumer groups and in metrics.
        inputs: The topics it handles, by name without the prefix, and how. `.<group>` stands for its own group.
        outputs: The topics it writes. `.<group>` stands for the group of a Decision.
        follows: The topics it also reads, without a consumer group. `control` and `heartbeat`, which every service
            follows, are not listed.
        state: The topics of its own state, which only it writes, and which it reads at startup.
        one_writer: Whether only one of its workers at a time may write its state, in transactions.
        build: Creates the service, importing its code only when called. `streams.runtime.effects.connect` binds the
            result to the inputs.
        grouped: Whether there is one instance of it per executor group.
        optional: Whether `up` starts it only on request.
    """

    name: str
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...]
    build: Callable[[Runtime], Awaitable[object]]
    follows: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    one_writer: bool = False
    grouped: bool = False
    optional: bool = False

    def reads(self, topics: Topics, group: str = "") -> tuple[str, ...]:
        """Return the full names of the topics it handles."""
        return _full(topics, self.inputs, group)

    def looks_at(self, topics: Topics, group: str = "") -> tuple[str, ...]:
        """Return the full names of all topics that it may read, including its inputs and its own state."""
        beside = (*self.follows, *self.state, "control", "heartbeat")
        return _full(topics, (*self.inputs, *beside), group)

    def keeps(self, topics: Topics) -> tuple[str, ...]:
        """Return the full names of the topics of its own state."""
        return _full(topics, self.state)

    def writes(self, topics: Topics, topic: str) -> bool:
        """Return whether it may write a topic."""
        name = topic.removeprefix(topics.prefix)
        return any(
            name == out or (out.endswith(".<group>") and name.startswith(out.removesuffix("<group>")))
            for out in self.outputs
        )

    def apps(self, topics: Topics, groups: "tuple[str, ...]") -> tuple[str, ...]:
        """Return its consumer groups in a deployment with these executor groups."""
        if not self.inputs:
            return ()
        if not self.grouped:
            return (topics.app_id(self.name),)
        return tuple(topics.app_id(self.name, group) for group in groups)


def _full(topics: Topics, names: Iterable[str], group: str = "") -> tuple[str, ...]:
    return tuple(topics.prefix + name.replace("<group>", group) for name in names)
