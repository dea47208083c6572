"""Fill batches from many searches: whatever waits for a model is run together, the longest queue first."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol


class BatchRunner(Protocol):
    """Whoever runs a batch. It blocks: while one batch runs, nothing else could.

    Attributes:
        rows: About how many items a batch should have; those of one call stay together.
    """

    rows: int

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Return one result an item."""
        ...


class Pump:
    """Queues of calls by worker, run once every search in flight waits.

    Attributes:
        batches: How many batches were run.
        items: How many items, over all of them.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.items = 0
        self._queues: dict[BatchRunner, list[tuple[Sequence[Any], asyncio.Future[list[Any]]]]] = {}
        self._running: asyncio.Task[None] | None = None

    async def submit(self, worker: BatchRunner, items: Sequence[Any]) -> list[Any]:
        """Return the results of items, whatever batch they were run in; a failed batch fails its callers."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._queues.setdefault(worker, []).append((items, future))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while True:
            await self._settle()
            worker = max(self._queues, key=self._waiting, default=None)
            if worker is None:
                return
            queue = self._queues.pop(worker)
            taken = count = 0
            while taken < len(queue) and (not taken or count + len(queue[taken][0]) <= worker.rows):
                count += len(queue[taken][0])
                taken += 1
            if taken < len(queue):
                self._queues[worker] = queue[taken:]
            self._finish(worker, [call for call in queue[:taken] if not call[1].done()])

    def _finish(
        self, worker: BatchRunner, calls: list[tuple[Sequence[Any], asyncio.Future[list[Any]]]]
    ) -> None:
        if not calls:
            return
        items = [item for call, _ in calls for item in call]
        self.batches += 1
        self.items += len(items)
        try:
            results = iter(worker.run(items))
        # What a model throws belongs to those who asked, not to the task that runs batches.
        except Exception as error:
            for _, future in calls:
                future.set_exception(error)
            return
        for call, future in calls:
            future.set_result([next(results) for _ in call])

    def _waiting(self, worker: BatchRunner) -> int:
        return sum(len(items) for items, _ in self._queues[worker])

    async def _settle(self) -> None:
        """Let every search that can go on without a model do so, until no more calls come."""
        before = -1
        while (waiting := sum(map(len, self._queues.values()))) != before:
            before = waiting
            for _ in range(8):  # gather, draft, and search each hand on once before a search asks again
                await asyncio.sleep(0)
