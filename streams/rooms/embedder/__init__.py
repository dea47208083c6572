"""The embedder: admits queries, and encodes each Query into a Context."""

from streams.runtime.base import Runtime
from streams.runtime.spec import RoomSpec


async def build(runtime: Runtime) -> None:
    """Load what the room needs and bind its handlers."""
    from streams.rooms.embedder.room import EmbedderRoom

    room = await EmbedderRoom.build(runtime)
    runtime.each(runtime.topics.query, room.on_query, stage="embed")


SPEC = RoomSpec(
    name="embedder",
    inputs=("query",),
    outputs=("context", "answer", "dead-letter"),
    follows=("answer", "dead-letter"),
    build=build,
)
