"""Closing a client that does not end, and what a standstill says of its tasks."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from streams.log.kafka import stop
from streams.runtime.kafka_watchdog import awaited


class Client:
    """Ends when it is told to, with an error if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end, self.ended, self.error = asyncio.Event(), False, error

    async def stop(self) -> None:
        await self.may_end.wait()
        if self.error:
            raise self.error
        self.ended = True


async def test_slow_connection_is_left_to_close_by_itself() -> None:
    slow = Client()
    await stop(slow, patience_s=0.05)
    assert not slow.ended
    slow.may_end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slow.ended
    quick = Client()
    quick.may_end.set()
    await stop(quick)
    assert quick.ended
    failing = Client(OSError("gone"))
    failing.may_end.set()
    with pytest.raises(OSError, match="gone"):
        await stop(failing)


def test_standstill_names_the_innermost_awaits() -> None:
    never = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        yield 1
        await never.wait()

    async def reads() -> None:
        async for _ in numbers():
            pass

    async def life() -> list[str]:
        task = asyncio.create_task(reads())
        for _ in range(3):  # until it waits for what never comes
            await asyncio.sleep(0)
        found = awaited(task)
        task.cancel()
        return [place.rsplit(".", 1)[-1].split(":")[0] for place in found]

    assert asyncio.run(life()) == ["reads", "numbers", "wait"]
