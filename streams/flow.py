"""The page to read first: which room reads and writes which topic.

    query ──────────────▶ embedder ──▶ context ──▶ decider ──▶ action-decision, action-decision.<group>
                             ▲                        ▲                     │
    answer (admission) ──────┘         reward ────────┘                     ▼
                                          ▲          verification.<group> ▶ executor <group> ──▶ search-step
    answer, feedback, due,                │                     ▲           │                        │
    action-decision ─────▶ aggregator ────┘                     └─ verifier ◀────────────────────────┘
                             │    │                                         ▼
                             │    └──▶ answer (expired), due              answer
    control and heartbeat are followed by every process that needs them, outside of faust; every room may
    write `answer` (rejected, failed) and `dead-letter`.

A record is acknowledged when its handler returns, and a handler returns when everything the record caused has
been delivered. Handlers are idempotent by identity, so a second delivery changes nothing.
"""

from collections.abc import Awaitable, Callable

from streams.runtime.plumbing import Plumbing


async def connect(plumbing: Plumbing) -> None:
    """Build the room of this process and bind its handlers to its topics."""
    await _rooms()[plumbing.room](plumbing)


async def _embedder(p: Plumbing) -> None:
    from streams.rooms.embedder.room import EmbedderRoom

    room = await EmbedderRoom.build(p)
    p.each(p.topics.query, room.on_query, stage="embed")


async def _decider(p: Plumbing) -> None:
    from streams.rooms.decider.room import DeciderRoom

    room = await DeciderRoom.build(p)
    # One partition each: learning has one order. Batches share one delivery and one pass of BLAS.
    p.batches(p.topics.context, room.on_contexts, stage="decide", most=32)
    p.batches(p.topics.reward, room.on_rewards, stage="learn", most=32)


async def _executor(p: Plumbing) -> None:
    from streams.rooms.executor.room import ExecutorRoom

    room = await ExecutorRoom.build(p)
    p.each(p.topics.decision_for(p.group), room.on_decision, stage="begin")
    p.each(p.topics.verification_for(p.group), room.on_verification, stage="search")


async def _verifier(p: Plumbing) -> None:
    from streams.rooms.verifier import VerifierRoom

    room = await VerifierRoom.build(p)
    p.each(p.topics.search_step, room.on_step, stage="verify")


async def _aggregator(p: Plumbing) -> None:
    from streams.rooms.aggregator import AggregatorRoom

    room = await AggregatorRoom.build(p)
    # Four topics with equal partitions meet in one table, one record of a partition at a time.
    p.each(p.topics.decision, room.on_decision, stage="open")
    p.each(p.topics.answer, room.on_answer, stage="close")
    p.each(p.topics.feedback, room.on_feedback, stage="feedback")
    p.each(p.topics.due, room.on_due, stage="due")


def _rooms() -> dict[str, Callable[[Plumbing], Awaitable[None]]]:
    return {
        "embedder": _embedder,
        "decider": _decider,
        "executor": _executor,
        "verifier": _verifier,
        "aggregator": _aggregator,
    }
