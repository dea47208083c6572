"""Fill batches from many searches: whatever waits for a model is run together, the longest queue first."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol


class Worker(Protocol):
    """Whoever runs a batch. It blocks: while one batch runs, nothing else could."""

    rows: int

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Return one result an item."""
        ...


class Pump:
    """Queues of items by worker, run once every search in flight waits.

    Attributes:
        batches: How many batches were run.
        items: How many items, over all of them.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.items = 0
        self._queues: dict[Worker, list[tuple[Any, asyncio.Future[Any]]]] = {}
        self._running: asyncio.Task[None] | None = None

    async def submit(self, worker: Worker, items: Sequence[Any]) -> list[Any]:
        """Return the results of items, whatever batches they were run in; a failed batch fails its callers."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        self._queues.setdefault(worker, []).extend(zip(items, futures, strict=True))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
        return list(await asyncio.gather(*futures))

    async def _run(self) -> None:
        while True:
            await self._settle()
            worker = max(self._queues, key=lambda each: len(self._queues[each]), default=None)
            if worker is None:
                return
            queue = self._queues.pop(worker)
            batch, rest = queue[: worker.rows], queue[worker.rows :]
            if rest:
                self._queues[worker] = rest
            self._finish(worker, [(item, future) for item, future in batch if not future.done()])

    def _finish(self, worker: Worker, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        if not batch:
            return
        self.batches += 1
        self.items += len(batch)
        try:
            results = worker.run([item for item, _ in batch])
        # What a model throws belongs to those who asked, not to the task that runs batches.
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)

    async def _settle(self) -> None:
        """Let every search that can go on without a model do so, until no more items come."""
        before = -1
        while (waiting := sum(map(len, self._queues.values()))) != before:
            before = waiting
            for _ in range(8):  # gather, draft, and search each hand on once before a search asks again
                await asyncio.sleep(0)
