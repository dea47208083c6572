"""The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress."""

from streams.runtime.base import Runtime
from streams.runtime.spec import RoomSpec


async def build(runtime: Runtime) -> None:
    """Read the topics into the index, then serve HTTP."""
    from streams.rooms.gateway.room import GatewayRoom, serve

    settings = runtime.settings.gateway
    room = GatewayRoom(runtime, settings.recent)
    await room.follow()
    await serve(room, settings.host, settings.port, frozenset(settings.hosts))


SPEC = RoomSpec(
    name="gateway",
    inputs=(),
    outputs=("query", "feedback", "control", "cancel.<group>"),
    follows=("query", "action-decision", "answer", "reward", "feedback", "dead-letter", "search-step"),
    build=build,
    optional=True,
)
