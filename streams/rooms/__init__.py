"""The rooms: each binds the pure code of one package of `agents` to its topics.

ROOMS is the one list of rooms. A room is a folder (or a file) with a `SPEC`, and one line
here. Importing this package loads no engine, encoder or policy: a room's `build` does.
"""

from streams.rooms import aggregator, decider, embedder, executor, gateway, verifier
from streams.runtime.spec import RoomSpec

__all__ = ["ROOMS", "RoomSpec"]

ROOMS: dict[str, RoomSpec] = {
    spec.name: spec
    for spec in (
        embedder.SPEC,
        decider.SPEC,
        executor.SPEC,
        verifier.SPEC,
        aggregator.SPEC,
        gateway.SPEC,
    )
}
"""Every room by name, in stream order."""
