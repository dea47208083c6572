"""The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress."""

from streams.runtime.base import Runtime
from streams.runtime.spec import RoomSpec


async def build(runtime: Runtime) -> None:
    """Read the topics into the index, then serve HTTP."""
    from streams.rooms.gateway.room import GatewayRoom, serve

    settings = runtime.settings
    room = GatewayRoom(runtime, settings.gateway_recent)
    await room.follow()
    hosts = frozenset(name for name in settings.gateway_hosts.split(",") if name)
    await serve(room, settings.gateway_host, settings.gateway_port, hosts)


SPEC = RoomSpec(
    name="gateway",
    inputs=(),
    outputs=("query", "feedback", "control", "cancel.<group>"),
    build=build,
    optional=True,
)
