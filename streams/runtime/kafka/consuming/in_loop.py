"""faust's consumer thread, without the thread.

faust runs aiokafka's consumer in a thread with its own event loop. Every fetch, seek and commit goes through a queue
and back, waking up the other loop each way, and both threads compete for one interpreter. Here the same object lives in
the app's event loop, so a call to "the thread" is an ordinary call.

Code that blocks the loop therefore also delays the heartbeats to the group. A batch of the policy blocks it for some
milliseconds, while a session lasts seconds; anything longer runs in threads.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from mode.services import Service
from mode.utils.futures import maybe_async

from streams.runtime.kafka.consuming import fetching, namesake


class InLoop(AIOKafkaConsumerThread):
    """aiokafka's consumer behind the interface that faust's consumer expects, in the app's event loop."""

    wait_for_shutdown = False

    def __init__(self, consumer: Any, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(consumer, loop=loop, thread_loop=loop, **kwargs)

    async def on_start(self) -> None:
        """Connect."""
        await super().on_start()
        consumer = self._ensure_consumer()
        app: Any = self.app
        fetching.improve(consumer._fetcher, embedded=app.embedded(), moving=lambda: app.rebalancing)
        namesake.notice(consumer._coordinator, lambda: app.replaced())

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return await maybe_async(fun(*args, **kwargs))

    async def cast_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call the function and drop its result."""
        await maybe_async(fun(*args, **kwargs))

    async def commit(self, tps: Mapping[Any, int]) -> bool:
        """Commit offsets. faust would first build a set of the whole assignment for each of them."""
        consumer = self._ensure_consumer()
        try:
            await consumer.commit(
                {TopicPartition(tp.topic, tp.partition): offset for tp, offset in tps.items()}
            )
        except CommitFailedError as error:
            if "already rebalanced" not in str(error):
                await self.crash(error)
            return False
        except Exception as error:
            await self.crash(error)
            return False
        return True

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Tell the consumer."""
        await self.consumer.on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[Any], generation_id: int = 0) -> None:
        """Tell the consumer."""
        await self.consumer.on_partitions_assigned(assigned, generation_id)

    async def maybe_start(self) -> bool:
        """Start as any service does."""
        return bool(await Service.maybe_start(self))

    async def start(self) -> None:
        """Start as any service does."""
        await Service.start(self)

    async def stop(self) -> None:
        """Stop as any service does."""
        await Service.stop(self)

    async def on_stop(self) -> None:
        """Leave the group and close the connections."""
        if self._consumer is not None:
            await self._consumer.stop()

    async def crash(self, reason: BaseException) -> None:
        """Crash as any service does."""
        await Service.crash(self, reason)

    def _stopped_set(self) -> None:
        self._stopped.set()

    def set_shutdown(self) -> None:
        """Record that it has stopped."""
        self._shutdown.set()

    async def _stop_children(self) -> None:
        await self._default_stop_children()

    async def _stop_futures(self) -> None:
        await self._default_stop_futures()

    async def _stop_exit_stacks(self) -> None:
        await self._default_stop_exit_stacks()
