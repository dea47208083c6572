"""All rooms at once told to stop, as an upgrade does, or killed, with records in hand and a backlog: nothing is lost.

What a room finds waiting when it starts is where faust would lose records; see `streams/transport.py`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.query import Query
from schemas.reward import Reward
from streams.supervisor import READY

pytestmark = pytest.mark.broker


def closed(loop: Any) -> set[str]:
    """Return the queries whose reward is closed."""
    return {r.query_id for r in loop.read(loop.topics.reward, Reward) if r.closes}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_all_rooms_ended_in_flight_lose_nothing(
    deploy: Callable[..., Any], ask: Callable[[int], Query], how: signal.Signals
) -> None:
    loop = deploy(max_in_flight=32, group_partitions=16)
    ids: set[str] = set()
    for at in range(2):
        batch = [ask(n) for n in range(at * 120, at * 120 + 120)]
        before = len(loop.raw(loop.topics.answer))
        loop.send(*batch)
        ids |= {q.query_id for q in batch}
        loop.until(lambda n=before: len(loop.raw(loop.topics.answer)) >= n + 10, what="some answers")
        for room in loop.supervisor.rooms.values():
            os.kill(room.pid, how)
        loop.until(lambda wanted=frozenset(ids): closed(loop) >= wanted, 120, "all rewards")
    assert loop.raw(loop.topics.dead_letter) == []
    loop.close()
    log = loop.log.read_text()
    assert "was lost between" not in log
    if how == signal.SIGTERM:
        assert log.count("ended with code 0") == 2 * len(loop.supervisor.rooms)


def test_workers_that_join_and_leave_in_flight_lose_nothing(
    deploy: Callable[..., Any], ask: Callable[[int], Query], tmp_path: Path
) -> None:
    loop = deploy(max_in_flight=32, group_partitions=16)
    batch = [ask(n) for n in range(480)]
    loop.send(*batch)
    ids = {q.query_id for q in batch}
    answers = loop.topics.answer
    loop.until(lambda: len(loop.raw(answers)) >= 10, what="some answers")
    with (tmp_path / "joined.log").open("w+") as log:
        joined = [
            subprocess.Popen(
                [sys.executable, "-m", "streams", "worker", *room, "--instance", "1"], env=loop.environ,
                stdout=log, stderr=log,
            )
            for room in (("executor", "--group", "mini"), ("verifier",), ("aggregator",))
        ]  # fmt: skip
        loop.until(lambda: Path(log.name).read_text().count(READY) == len(joined), what="more workers")
        before = len(loop.raw(answers))
        assert before < len(ids), "they joined in flight"
        loop.until(lambda: len(loop.raw(answers)) >= min(before + 40, len(ids)), what="answers with them")
        for process in joined:
            process.terminate()
        loop.until(lambda: closed(loop) >= ids, 180, "all rewards")
        assert [process.wait(30) for process in joined] == [0, 0, 0]
    assert loop.raw(loop.topics.dead_letter) == []
