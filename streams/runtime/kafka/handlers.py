"""Bind handlers to topics: a record counts as done when its handler has returned, and not before."""

import asyncio
from collections.abc import Sequence
from typing import Any

import faust

from streams.runtime.base import BatchHandler, Handler, Record
from streams.runtime.kafka.app import crash
from streams.runtime.kafka.consumer import consumer_of
from streams.runtime.kafka.offsets import SkippedRecord


def _record(event: Any) -> Record:
    message = event.message
    return Record(
        message.topic,
        message.partition,
        message.offset,
        int((message.timestamp or 0) * 1000),
        message.key,
        message.value,
        message.epoch,
    )


def _handled(app: faust.App, events: Sequence[Any]) -> None:
    """Let the offset move past records that were handled to their end.

    faust acknowledges also what it takes away from a handler, when it stops a room or loses a partition.
    """
    try:
        for event in events:
            consumer_of(app).handled(event.message)
    except SkippedRecord as error:
        crash(
            f"{event.message.tp}: a record was lost between fetcher and handler; it will be read again", error
        )


def each(app: faust.App, topic: str, handle: Handler, *, name: str) -> None:
    """Bind a handler to a topic: one record at a time in each partition, acknowledged when it returns."""

    async def agent(stream: Any) -> None:
        async for event in stream.events():
            with consumer_of(app).at_work():
                await handle(_record(event))
            _handled(app, [event])

    channel = app.topic(topic, key_serializer="raw", value_serializer="raw", allow_empty=True)
    app.agent(channel, name=name, isolated_partitions=True)(agent)


def batches(app: faust.App, topic: str, handle: BatchHandler, *, name: str, most: int = 32) -> None:
    """Bind a handler to a topic of one partition: what waits, up to `most` records at a time, acknowledged together.

    A batch is what has come while the one before it was handled, so nothing waits for others to come. faust's own
    `take_events` waits, and looks two hundred times a second whether there is anything.
    """
    waiting: list[Any] = []
    arrived, room = asyncio.Event(), asyncio.Event()

    async def agent(stream: Any) -> None:
        waiting.clear()
        worker = asyncio.create_task(work())
        try:
            async for event in stream.events():
                waiting.append(event)
                arrived.set()
                while len(waiting) >= 4 * most:
                    room.clear()
                    await room.wait()
        finally:
            worker.cancel()

    async def work() -> None:
        try:
            while True:
                await arrived.wait()
                consumer = consumer_of(app)
                # What was not taken up before its partition was given out again comes again, here or elsewhere.
                events = [event for event in waiting[:most] if consumer.takes_up(event.message)]
                del waiting[:most]
                room.set()
                if not waiting:
                    arrived.clear()
                if events:
                    with consumer.at_work():
                        await handle([_record(event) for event in events])
                    _handled(app, events)
        except Exception as error:
            crash(f"the batches of {topic} ended", error)

    channel = app.topic(topic, key_serializer="raw", value_serializer="raw", allow_empty=True)
    app.agent(channel, name=name)(agent)
