"""Bind handlers to topics: a record counts as done when its handler has returned, and not before.

An agent of faust stands for each: it starts with the worker, has the topic subscribed to and ends with the app. It
gets no record: those go by the lanes (`lanes.py`).
"""

import asyncio
from typing import Any

import faust

from streams.runtime.base import BatchHandler
from streams.runtime.kafka.consumer import consumer_of
from streams.runtime.kafka.lanes import Lanes


def bind(app: faust.App, topic: str, handle: BatchHandler, *, name: str, most: int = 1) -> None:
    """Bind a handler to a topic: of each partition what waits, in order, up to `most` records in one call.

    What is given in one call has come while the call before it ran: nothing waits for others to come.
    """
    lanes = Lanes(handle, most=most)

    async def agent(stream: Any) -> None:
        consumer_of(app).bind(topic, lanes)
        await asyncio.Future()

    channel = app.topic(topic, key_serializer="raw", value_serializer="raw", allow_empty=True)
    app.agent(channel, name=name)(agent)
