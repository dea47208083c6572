"""The decider: the learner of the deployment, its log and its policy."""

from streams.runtime.base import Runtime
from streams.runtime.spec import RoomSpec


async def build(runtime: Runtime) -> None:
    """Load what the room needs and bind its handlers."""
    from streams.rooms.decider.previews import Previews
    from streams.rooms.decider.room import DeciderRoom

    room = await DeciderRoom.build(runtime)
    topics = runtime.topics
    # One partition each: learning has one order. Batches share one delivery and one pass of BLAS.
    runtime.batches(topics.context, room.on_contexts, stage="decide", most=32)
    runtime.batches(topics.reward, room.on_rewards, stage="learn", most=32)
    if runtime.settings.previews.port:
        runtime.background("previews", Previews(room).serve)


SPEC = RoomSpec(
    name="decider",
    inputs=("context", "reward"),
    outputs=("action-decision", "action-decision.<group>", "answer", "dead-letter"),
    state=("decider-pending-changelog", "learner-snapshot"),
    one_writer=True,
    build=build,
)
