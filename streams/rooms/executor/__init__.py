"""The executor: the searches of one group of models, and their engines."""

from streams.runtime.base import Runtime
from streams.runtime.spec import RoomSpec


async def build(runtime: Runtime) -> None:
    """Load what the room needs and bind its handlers."""
    from streams.rooms.executor.room import CANCELS, ExecutorRoom

    room = await ExecutorRoom.build(runtime)
    topics, group = runtime.topics, runtime.group
    await runtime.follow([topics.cancel_for(group)], room.on_cancel, begin=CANCELS)
    runtime.each(topics.decision_for(group), room.on_decision, stage="begin")
    runtime.each(topics.verification_for(group), room.on_verification, stage="search")


SPEC = RoomSpec(
    name="executor",
    inputs=("action-decision.<group>", "verification.<group>"),
    outputs=("search-step", "answer", "heartbeat", "dead-letter"),
    follows=("cancel.<group>",),
    build=build,
    grouped=True,
)
