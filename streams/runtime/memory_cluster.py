"""An in-memory deployment: the workers of all services on one broker, with scheduling, deaths and restarts."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any

from agents.catalogue.file import load_catalogue
from streams.log.base import ConsumerRecord
from streams.log.memory import BEGAN_MS, Effect, MemoryBroker
from streams.runtime.effects import connect
from streams.runtime.errors import Crash
from streams.runtime.handler_guard import Crashes
from streams.runtime.memory import Died, MemoryRuntime, Subscription
from streams.runtime.queues import WINDOW, Offsets
from streams.runtime.runtime import BatchHandler, ServiceSpec
from streams.settings import Settings
from streams.topics import Topics

_MOST_DEATHS = 200
_PAUSE_S = 1.0
_GRACE_S = 3.0  # for calls in progress when a worker stops

_Work = tuple[int, MemoryRuntime, Subscription, int, ConsumerRecord]


class Cluster:
    """All workers of a deployment. Create a cluster inside `memory.run`, because it runs on that loop's clock.

    Args:
        settings: Every worker's settings.
        services: The services by name.
        seed: Seed for effect latencies and late commits. With None, effects take no time, every record is followed by a
            commit, and records are delivered one at a time, oldest first.
        dies_after: Called after each effect; returns whether its worker dies now.
        began_ms: Start of the broker's clock, ms since the epoch.
        make: Creates a worker.

    Attributes:
        deaths: Errors that ended workers, in order; each of these workers was restarted.
    """

    def __init__(
        self,
        settings: Settings,
        services: Mapping[str, ServiceSpec],
        *,
        seed: int | None = None,
        dies_after: Callable[[Effect], bool] = lambda effect: False,
        began_ms: int = BEGAN_MS,
        make: Callable[..., MemoryRuntime] = MemoryRuntime,
    ) -> None:
        self.settings = settings
        self._make = make
        self.services = dict(services)
        self.groups = tuple(load_catalogue(Path(settings.catalogue)).groups)
        self.topics = Topics(settings)
        declared = {topic.name: topic.partitions for topic in self.topics.declared(self.groups)}
        self.broker = MemoryBroker(declared, asyncio.get_running_loop().time, began_ms)
        self.workers: list[MemoryRuntime] = []
        self.deaths: list[BaseException] = []
        self._rng = None if seed is None else random.Random(seed)
        self._dies_after = dies_after
        self._counts: dict[tuple[str, str], Crashes] = {}
        self._left: dict[tuple[str, str], list[str]] = {}
        self._errors: list[BaseException] = []
        self._changed = asyncio.Event()
        self._stirred: set[str] = set()  # topics with records that may be deliverable
        self._ended: set[asyncio.Task[None]] = set()  # tasks of dead workers, being cancelled
        self._starting: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.broker.watch(self, declared, lambda record: self._stir(record.topic))
        self._keep(self._dispatch())

    async def up(self) -> None:
        """Start one worker of each service (one per group if the service is grouped), except optional services.

        Services downstream start first.
        """
        for spec in reversed(self.services.values()):
            for group in () if spec.optional else self.groups if spec.grouped else ("",):
                await self.start(spec.name, group)

    async def start(self, service: str, group: str = "", instance: str = "0") -> MemoryRuntime:
        """Start a worker: read control records, build the service, assign partitions and recover tables."""
        spec = self.services[service]
        app = self.topics.app_id(service, group)
        name = (app, instance)
        worker = self._make(
            self.settings,
            self.broker,
            spec,
            group=group,
            instance=instance,
            crashes=self._counts.setdefault(name, Crashes(None)),
            left=self._left.pop(name, ()),
            errors=self._errors,
            rng=self._rng,
            dies_after=self._dies_after,
        )
        self.workers.append(worker)
        try:
            await worker.control.start(worker.log)
            worker.built = await connect(worker, spec)
            for each in worker.subscriptions:
                handle = partial(self._handle, worker, each, each.binding.handle)
                each.binding = each.binding._replace(handle=handle)
            await self._rebalance(app)
        except (Crash, Died) as error:
            self.ended(worker, error)
        if worker not in self.workers:
            return worker
        for what, run in worker.later:
            self._keep(self._background(worker, what, run), worker.tasks)
        return worker

    async def stop(self, worker: MemoryRuntime) -> None:
        """Stop a worker cleanly: start no more records, commit handled records, and reassign its partitions."""
        worker.guard.stop()
        until = asyncio.get_running_loop().time() + _GRACE_S
        while worker.in_flight.noted and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for subscription in worker.subscriptions:
            for partition in list(subscription.offsets):
                await worker.commit(subscription, partition)
        for close in worker.closers:
            await close()
        self._leave(worker)
        await self._rebalance(worker.app)

    def kill(self, worker: MemoryRuntime) -> None:
        """Kill a worker immediately, and start its successor at once."""
        worker.die()
        self.ended(worker, Died(f"{worker.app} was killed"))

    async def expel(self, worker: MemoryRuntime) -> None:
        """Remove a silent worker from its group without its knowledge, and reassign its partitions."""
        self.workers.remove(worker)
        self.broker.unwatch(worker)
        if any(each.app == worker.app for each in self.workers):
            await self._rebalance(worker.app)
        else:
            await self.start(worker.service, worker.group, f"{worker.instance}+")

    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None = None
    ) -> ConsumerRecord:
        """Append a record as a client does. Pass a partition to act as a client with a different partitioner."""
        return self.broker.append(topic, key, value, partition)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 600.0) -> None:
        """Run the deployment until a condition holds.

        Raises:
            TimeoutError: the condition did not hold within this many virtual seconds.
            BaseException: any error in the deployment that is not the end of a worker.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while not condition():
            self.check()
            if loop.time() > until:
                raise TimeoutError(f"did not come true in {timeout_s:.0f} s; deaths: {self.deaths[-3:]}")
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """Raise the first error in the deployment, if there was one. The end of a worker is not an error."""
        if self._errors:
            raise self._errors[0]

    @property
    def busy(self) -> bool:
        """Whether a record is waiting or being handled, or a worker is starting."""
        handling = not all(worker.queues.idle for worker in self.workers)
        return bool(handling or self._starting or self._waiting())

    async def close(self) -> None:
        """Close all of the services' resources and end every task. Nothing is sent or committed afterwards."""
        for worker in self.workers:
            worker.die()
            for close in worker.closers:
                with contextlib.suppress(Died):
                    await close()
        tasks = {*self._tasks, *self._ended, *self._starting}
        for worker in self.workers:
            tasks |= worker.tasks | worker.queues.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _dispatch(self) -> None:
        """Deliver records: one at a time if there is no seed, otherwise as many as each worker's queues accept."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while True:
                if self._starting and self._rng is None:
                    await asyncio.wait(self._starting)
                if not (work := self._waiting(self._stirred)):
                    self._stirred.clear()
                    break
                for _, worker, subscription, partition, record in work if self._rng else work[:1]:
                    subscription.offsets[partition].delivered(record.offset)
                    worker.queues.put(subscription.binding, record)
                    while self._rng is None and worker.queues.tasks:
                        await asyncio.wait(worker.queues.tasks)

    def _stir(self, topic: str) -> None:
        self._stirred.add(topic)
        self._changed.set()

    def _waiting(self, topics: Collection[str] | None = None) -> list[_Work]:
        """Return the records of these topics (None for all) that can be delivered now, oldest first."""
        found: list[_Work] = []
        window = WINDOW * self.settings.kafka.concurrency
        for worker in self.workers:
            for subscription in worker.subscriptions:
                if topics is not None and subscription.topic not in topics:
                    continue
                positions = {at: offsets.next for at, offsets in subscription.offsets.items()}
                for order, record in self.broker.after(subscription.topic, positions):
                    if subscription.offsets[record.partition].span < window:
                        work = _under(record, worker.epoch)
                        found.append((order, worker, subscription, record.partition, work))
        return sorted(found, key=lambda work: work[0])

    async def _handle(
        self,
        worker: MemoryRuntime,
        subscription: Subscription,
        handle: BatchHandler,
        records: Sequence[ConsumerRecord],
    ) -> None:
        partition = records[0].partition
        try:
            await worker.guard.call(records, handle)
            for record in records:
                if worker.is_ours(record):
                    subscription.offsets[partition].handled(record.offset)
                    self._stirred.add(subscription.topic)  # there is room in the window
                    worker.metrics.records.labels(worker.service, subscription.topic).inc()
            if self._rng is None or self._rng.random() < 0.5:
                await worker.commit(subscription, partition)
        except (Crash, Died) as error:
            self.ended(worker, error)
        finally:
            self._changed.set()

    async def _background(self, worker: MemoryRuntime, what: str, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await worker.guard.beside(run)
        except (Crash, Died) as error:
            self.ended(worker, error)
        except Exception as error:
            crash = Crash(f"{what} failed: {error}")
            crash.__cause__ = error
            self.ended(worker, crash)

    def ended(self, worker: MemoryRuntime, error: BaseException) -> None:
        """Remove a worker that has ended, and start its successor."""
        if worker not in self.workers:
            return
        self.deaths.append(error)
        if len(self.deaths) > _MOST_DEATHS:
            raise RuntimeError(f"workers died {_MOST_DEATHS} times; last: {error!r}") from error
        worker.die()
        # A crash has counted its failure; after a kill the successor counts what it finds in flight.
        self._left[worker.app, worker.instance] = worker.left_in_flight if isinstance(error, Died) else []
        self._leave(worker)
        # As with the supervisor, a restart is delayed after a crash but immediate after a kill.
        pause_s = _PAUSE_S if isinstance(error, Crash) else 0.0
        self._keep(self._restart(worker, pause_s), self._starting)
        self._changed.set()

    async def _restart(self, worker: MemoryRuntime, pause_s: float) -> None:
        if pause_s:
            await asyncio.sleep(pause_s)
        await self.start(worker.service, worker.group, worker.instance)

    def _leave(self, worker: MemoryRuntime) -> None:
        worker.dead = True
        if worker in self.workers:
            self.workers.remove(worker)
        self.broker.unwatch(worker)
        for task in worker.queues.tasks:
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)
        worker.queues.keep(())
        current = asyncio.current_task()
        for task in worker.tasks:
            if task is not current:
                task.cancel()

    async def _rebalance(self, app: str) -> None:
        """Reassign the partitions of a consumer group, and let its workers recover."""
        members = [worker for worker in self.workers if worker.app == app]
        for at, worker in enumerate(members):
            worker.epoch += 1
            worker.partitions = {
                each.topic: frozenset(range(at, self.broker.partitions(each.topic), len(members)))
                for each in worker.subscriptions
            }
            worker.queues.forget()
            worker.queues.keep(
                {(topic, each) for topic, parts in worker.partitions.items() for each in parts}
            )
            for subscription in worker.subscriptions:
                subscription.offsets.clear()
        epochs = {worker: worker.epoch for worker in members}
        for worker in members:
            if worker.epoch != epochs[worker]:
                continue  # reassigned again in the meantime: the worker recovers for the later assignment
            try:
                for table in worker.tables:
                    await table.recover()
            except (Crash, Died) as error:
                self.ended(worker, error)
            except Exception as error:
                crash = Crash(f"{worker.app}: its tables are not recovered: {error}")
                crash.__cause__ = error
                self.ended(worker, crash)
            if worker not in self.workers or worker.epoch != epochs[worker]:
                continue
            for subscription in worker.subscriptions:
                topic = subscription.topic
                for partition in sorted(worker.assigned(topic)):
                    offsets = subscription.offsets[partition] = Offsets()
                    first = self.broker.first(topic, partition)
                    offsets.start(self.broker.committed.get((app, topic, partition), first))
                self._stirred.add(topic)
        self._changed.set()

    def _keep(
        self, coroutine: Coroutine[Any, Any, None], among: "set[asyncio.Task[None]] | None" = None
    ) -> None:
        kept = self._tasks if among is None else among
        # Start the task in a new context, not in that of the calling handler, whose worker may have died.
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine, context=Context())
        kept.add(task)

        def ended(done: "asyncio.Task[None]") -> None:
            kept.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self._errors.append(error)

        task.add_done_callback(ended)


def _under(record: ConsumerRecord, epoch: int) -> ConsumerRecord:
    return ConsumerRecord(
        record.topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value, epoch
    )
