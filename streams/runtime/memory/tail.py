"""Follows topics outside the consumer group: shows what is there, then what is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streams.runtime.base import Begin
from streams.runtime.records import Record

if TYPE_CHECKING:
    from streams.runtime.memory.runtime import MemoryRuntime


def follow(
    runtime: MemoryRuntime, topics: Sequence[str], on_record: Callable[[Record], None], begin: Begin
) -> None:
    """Show every record of topics to a worker until it dies; what is appended later is shown on a later turn."""
    broker = runtime.broker
    for topic in topics:
        runtime.require_read(topic)
        for partition in range(broker.partitions(topic)):
            first, end = broker.first(topic, partition), broker.end(topic, partition)
            at = first if begin == "beginning" else end
            if isinstance(begin, int):
                at = max(first, end - begin)
            while (found := broker.at(topic, partition, at)) is not None:
                on_record(found[1])
                at = found[1].offset + 1

    loop = asyncio.get_running_loop()

    def show(record: Record) -> None:
        if not runtime.dead:
            on_record(record)

    def show_later(record: Record) -> None:
        loop.call_soon(show, record)

    broker.watch(runtime, topics, show_later)
