"""Tenants take turns by the time they have had; nobody is refused who has not the most waiting."""

import asyncio

import pytest

from streams.runtime.memory import run
from streams.services.fair_queue import FairQueue, QueueFull

MOST = 512


class Graders:
    """Two graders, and what came of the answers of each tenant: the seconds each took, None where it got no grade."""

    def __init__(self) -> None:
        self.time = asyncio.get_running_loop().time
        self.queue = FairQueue(2, self.time, most=MOST)
        self.took: dict[str, list[float | None]] = {}

    async def grade(self, tenant: str, seconds: float) -> None:
        came_s, took = self.time(), self.took.setdefault(tenant, [])
        try:
            async with self.queue.turn(tenant):
                await asyncio.sleep(seconds)
            took.append(self.time() - came_s)
        except QueueFull:
            took.append(None)


@pytest.mark.parametrize("seconds", [0.9, 5.0])
def test_tenant_waits_for_no_other_tenants_queue(seconds: float) -> None:
    async def main() -> None:
        graders = Graders()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(60):
                tasks.create_task(graders.grade("quick", 0.02))
                for _ in range(20):
                    tasks.create_task(graders.grade("hard", seconds))
                    await asyncio.sleep(1 / 20)
        quick = [took for took in graders.took["quick"] if took is not None]
        assert len(quick) == 60
        assert max(quick) <= seconds + 0.05
        assert graders.took["hard"].count(None) > 500, "more than may wait"
        assert not graders.queue._used_s, "nothing is remembered of who is not there"

    run(main())


@pytest.mark.parametrize(("answers", "apart_s"), [(300, 0.0), (120, 1.0), (MOST + 2, 0.0)])
def test_a_tenant_alone_only_waits(answers: int, apart_s: float) -> None:
    async def main() -> None:
        graders = Graders()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(answers):
                tasks.create_task(graders.grade("alone", 1.5))
                await asyncio.sleep(apart_s)
        assert len(graders.took["alone"]) == answers
        assert None not in graders.took["alone"]

    run(main())


def test_tenant_with_the_longest_queue_is_refused() -> None:
    async def main() -> None:
        graders = Graders()
        async with asyncio.TaskGroup() as tasks:
            for tenant, answers in (("many", MOST + 2), ("few", MOST // 2), ("one", 1)):
                for _ in range(answers):
                    tasks.create_task(graders.grade(tenant, 1.5))
                await asyncio.sleep(0.1)
        refused = {tenant: took.count(None) for tenant, took in graders.took.items()}
        assert refused == {"many": MOST // 2 + 1, "few": 0, "one": 0}

    run(main())


def test_who_stops_waiting_or_grading_leaves_nothing_behind() -> None:
    async def main() -> None:
        graders = Graders()
        tasks = [asyncio.create_task(graders.grade("a", 5.0)) for _ in range(5)]
        await asyncio.sleep(0.1)
        tasks[0].cancel()  # with a grader: the third has it in the same moment
        tasks[2].cancel()
        tasks[4].cancel()
        await asyncio.sleep(0.1)
        tasks[3].cancel()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        queue = graders.queue
        assert (queue._free, queue._waiting, queue._used_s, +queue._running) == (2, {}, {}, {})

    run(main())
