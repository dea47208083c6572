"""The aggregator: Decision, Answer, Feedback and Due joined into Rewards."""

from streams.runtime.base import Runtime
from streams.runtime.spec import RoomSpec


async def build(runtime: Runtime) -> None:
    """Load what the room needs and bind its handlers."""
    from streams.rooms.aggregator.room import AggregatorRoom

    room = await AggregatorRoom.build(runtime)
    topics = runtime.topics
    # Four topics with equal partitions meet in one table, one record of a partition at a time.
    runtime.each(topics.decision, room.on_decision, stage="open")
    runtime.each(topics.answer, room.on_answer, stage="close")
    runtime.each(topics.feedback, room.on_feedback, stage="feedback")
    runtime.each(topics.due, room.on_due, stage="due")


SPEC = RoomSpec(
    name="aggregator",
    inputs=("action-decision", "answer", "feedback", "due"),
    outputs=("reward", "answer", "due", "feedback", "dead-letter"),
    state=("aggregator-join-changelog",),
    build=build,
)
