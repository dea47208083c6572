"""Bind handlers to topics: a record counts as done when its handler has returned, and not before.

Each handler has a faust agent, which starts with the worker, subscribes to the topic and ends with the app. The agent
itself receives no records: they go through the lanes (`consuming/lanes.py`).
"""

import asyncio
from typing import Any

import faust

from streams.runtime.base import BatchHandler
from streams.runtime.kafka.consuming.lanes import Lanes
from streams.runtime.kafka.transport import consumer_of


def bind(app: faust.App, topic: str, handle: BatchHandler, *, name: str, most: int = 1) -> None:
    """Bind a handler to a topic. Each call gets up to `most` of the records that wait in one partition, in order.

    A call takes what arrived during the previous call; it never waits for more records to arrive.
    """
    lanes = Lanes(handle, most=most)

    async def agent(stream: Any) -> None:
        consumer_of(app).bind(topic, lanes)
        await asyncio.Future()

    channel = app.topic(topic, key_serializer="raw", value_serializer="raw", allow_empty=True)
    app.agent(channel, name=name)(agent)
