"""What the rest of the product needs to know about a service, without importing its code."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from schemas.record import Record
from streams.runtime.runtime import Runtime
from streams.topics import Topics


class Input(NamedTuple):
    """How the records of an input are read.

    Attributes:
        kind: The record.
        stage: Names what is done with it in metrics.
        waits: For a keyed service; see `Runtime.each`.
        most: Records in a batch, for an ordered one; see `Runtime.batches`.
    """

    kind: type[Record]
    stage: str
    waits: bool = False
    most: int = 1


class ServiceSpec(Struct, frozen=True, kw_only=True):
    """One service as the command line, the launcher, the gateway and the tests know it.

    Attributes:
        name: Its name on the command line, in consumer groups and in metrics.
        inputs: The topics it handles, by their names without the prefix, and how. `.<group>` stands for its own group.
        outputs: The topics it writes. `.<group>` stands for the group of a Decision.
        follows: The topics it reads beside its inputs, without a consumer group. `control` and `heartbeat`, which every
            service follows, are not named.
        state: The topics of its own state: it alone writes them, and reads them when it starts.
        one_writer: Whether one of its workers at a time may write its state, in transactions.
        build: Loads what the service needs and returns it. It imports the service's code only when called. What it
            returns is bound to the inputs by `streams.runtime.effects.connect`.
        grouped: Whether there is one deployment of it for each executor group.
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
        """Return the full names of all topics that it may read, handled ones and its own state included."""
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
