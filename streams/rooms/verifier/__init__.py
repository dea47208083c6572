"""The verifier: scores the steps of all groups."""

from streams.runtime.base import Runtime
from streams.runtime.spec import RoomSpec


async def build(runtime: Runtime) -> None:
    """Load what the room needs and bind its handlers."""
    from streams.rooms.verifier.room import VerifierRoom

    room = await VerifierRoom.build(runtime)
    runtime.each(runtime.topics.search_step, room.on_step, stage="verify")


SPEC = RoomSpec(
    name="verifier",
    inputs=("search-step",),
    outputs=("verification.<group>", "answer", "dead-letter"),
    build=build,
)
