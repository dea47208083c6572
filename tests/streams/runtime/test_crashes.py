"""Failures at one record are counted across restarts, and so are the deaths of a process with it in hand."""

import asyncio
import os
from pathlib import Path

import pytest

from streams.runtime.guard import Crashes, InFlightFile, Turns


def test_the_count_survives_the_process_and_forgets_when_told(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "crashes.json"
    assert Crashes(path).add("t/0/1") == 1
    assert Crashes(path).add("t/0/1") == 2
    assert Crashes(path).add("t/0/2") == 1
    assert Crashes(path).add("t/0/1", "ValueError: " + "x" * 1000) == 3
    assert Crashes(path).reason("t/0/1").startswith("ValueError: xxx")
    assert (Crashes(path).of("t/0/1"), Crashes(path).reason("t/0/2")) == (3, "")
    Crashes(path).forget("t/0/1")
    assert Crashes(path).add("t/0/1") == 1


def test_a_torn_file_starts_the_count_again(tmp_path: Path) -> None:
    path = tmp_path / "crashes.json"
    path.write_bytes(b'{"t/0/1": 2')
    assert Crashes(path).add("t/0/1") == 1


def test_what_a_dead_process_had_in_flight_is_what_it_had_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "in-hand"
    child = os.fork()
    if child == 0:
        mine = InFlightFile(path)
        with mine.holding(["t/0/1"]):
            pass
        with mine.holding(["t/0/2", "t/1/7"]):
            os._exit(9)
    os.waitpid(child, 0)
    after = InFlightFile(path)
    assert sorted(after.left) == ["t/0/2", "t/1/7"]
    assert InFlightFile(path).left == []


def test_an_error_or_an_ordered_end_leaves_nothing_in_flight(tmp_path: Path) -> None:
    mine = InFlightFile(tmp_path / "f")
    with pytest.raises(ZeroDivisionError), mine.holding(["t/0/1"]):
        raise ZeroDivisionError
    assert InFlightFile(tmp_path / "f").left == []
    with mine.holding(["t/0/1"]):
        mine.clear()
        assert InFlightFile(tmp_path / "f").left == []


def test_more_in_flight_than_the_file_has_room_for_is_no_error(tmp_path: Path) -> None:
    many = [f"t/0/{n}" for n in range(2000)]
    mine = InFlightFile(tmp_path / "f")
    with mine.holding(many):
        assert set(InFlightFile(tmp_path / "f").left) < set(many)
    with mine.holding(["t/1/1"]):
        assert InFlightFile(tmp_path / "f").left == ["t/1/1"]


def test_one_alone_runs_beside_nobody_and_is_not_overtaken() -> None:
    turns, running, seen = Turns(), set[str](), list[tuple[str, frozenset[str]]]()

    async def handle(name: str, alone: bool) -> None:
        async with turns.alone() if alone else turns.together():
            running.add(name)
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append((name, frozenset(running)))
            running.discard(name)

    async def main() -> None:
        await asyncio.gather(*(handle(n, n == "c") for n in "abcde"))

    asyncio.run(main())
    assert {beside for name, beside in seen if name == "c"} == {frozenset("c")}
    assert any(beside == frozenset("ab") for _, beside in seen)
    order = [name for name, _ in seen]
    assert order.index("c") < min(order.index("d"), order.index("e"))
