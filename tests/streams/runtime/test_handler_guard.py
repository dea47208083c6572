"""Failures at one record are counted across restarts, and so are the deaths of a process with it in hand."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from streams.log.base import ConsumerRecord
from streams.runtime.errors import Crash
from streams.runtime.handler_guard import Crashes, HandlerGuard, InFlightFile, SuspectGroups

SLOTS = 100


def test_the_count_survives_the_process_and_forgets_when_told(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "crashes.json"
    assert Crashes(path).failed("t/0/1") == 1
    assert Crashes(path).failed("t/0/1") == 2
    assert Crashes(path).failed("t/0/2") == 1
    assert Crashes(path).guilty("t/0/1") == 0
    assert Crashes(path).failed("t/0/1", "ValueError: " + "x" * 1000) == 3
    assert Crashes(path).reason("t/0/1").startswith("ValueError: xxx")
    assert (Crashes(path).guilty("t/0/1"), Crashes(path).reason("t/0/2")) == (3, "")
    Crashes(path).forget("t/0/1")
    assert Crashes(path).failed("t/0/1") == 1


# It writes no bytecode: what the limit cuts off would stay beside the module and break every later import of it.
FULL = """
import resource, sys
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from streams.cli import main
main(["worker", "embedder"])
"""


def test_a_worker_whose_state_dir_is_full_says_so(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL], env={**os.environ, "UNISCALE_STATE_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path}")
    assert "UNISCALE_STATE_DIR" in line


FULL_DISK = """
mount -t tmpfs -o size=64k tmpfs "$1" && head -c 64k /dev/zero > "$1/rest" || exit 9
exec "$2" -c "
from pathlib import Path
from streams.runtime.handler_guard import InFlightFile, StateDirError
try:
    InFlightFile(Path('$1/in-hand'), 256)
except StateDirError as error:
    print(error)
"
"""


def test_a_full_disk_does_not_end_a_worker_without_a_word(tmp_path: Path) -> None:
    """A page of a sparse file for which the disk has no room is SIGBUS when it is touched."""
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL_DISK, "sh", str(tmp_path)]
    try:
        ran = subprocess.run([*words, sys.executable], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if ran.returncode == 9 or ran.stderr.startswith("unshare:"):
        pytest.skip(f"a disk of one's own is not allowed here: {ran.stderr}")
    assert ran.returncode == 0, ran.stderr
    assert "No space left on device" in ran.stdout


def test_failures_count_where_they_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    crashes = Crashes(tmp_path / "file" / "crashes.json")
    assert [crashes.failed("t/0/1") for _ in range(3)] == [1, 2, 3]
    assert crashes.guilty("t/0/1") == 3
    assert "does not outlast this process" in caplog.text


def test_a_torn_file_starts_the_count_again(tmp_path: Path) -> None:
    path = tmp_path / "crashes.json"
    path.write_bytes(b'{"t/0/1": {"failures": 2')
    assert Crashes(path).failed("t/0/1") == 1


def test_in_flight_file_names_the_unfinished_records(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "in-hand"
    child = os.fork()
    if child == 0:
        mine = InFlightFile(path, SLOTS)
        with mine.holding(["t/0/1"]):
            pass
        with mine.holding(["t/0/2", "t/1/7"]):
            os._exit(9)
    os.waitpid(child, 0)
    after = InFlightFile(path, SLOTS)
    assert sorted(after.left) == ["t/0/2", "t/1/7"]
    assert InFlightFile(path, SLOTS).left == []


def test_an_error_or_an_ordered_end_leaves_nothing_in_flight(tmp_path: Path) -> None:
    mine = InFlightFile(tmp_path / "f", SLOTS)
    with pytest.raises(ZeroDivisionError), mine.holding(["t/0/1"]):
        raise ZeroDivisionError
    assert InFlightFile(tmp_path / "f", SLOTS).left == []
    with mine.holding(["t/0/1"]):
        mine.clear()
        assert InFlightFile(tmp_path / "f", SLOTS).left == []


def test_more_in_flight_than_the_file_has_room_for_is_no_error(tmp_path: Path) -> None:
    many = [f"t/0/{n}" for n in range(2 * SLOTS)]
    mine = InFlightFile(tmp_path / "f", SLOTS)
    with mine.holding(many):
        assert set(InFlightFile(tmp_path / "f", SLOTS).left) < set(many)
    with mine.holding(["t/1/1"]):
        assert InFlightFile(tmp_path / "f", SLOTS).left == ["t/1/1"]


def test_suspect_groups_run_alone_in_fifo_order() -> None:
    groups, running, seen = SuspectGroups(), set[str](), list[tuple[str, frozenset[str]]]()

    async def handle(name: str, group: str) -> None:
        await groups.enter(group)
        running.add(name)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append((name, frozenset(running)))
        finally:
            running.discard(name)
            groups.leave()

    async def main() -> None:
        given_up = asyncio.create_task(handle("x", "3"))
        await asyncio.sleep(0)
        given_up.cancel()  # while it runs
        left = [asyncio.create_task(handle(*each)) for each in (("a", ""), ("b", ""), ("c", "1"), ("y", "2"))]
        await asyncio.sleep(0)
        left.pop().cancel()  # while it waits
        await asyncio.gather(*left, handle("d", ""), handle("e", "1"))

    async def handed_back() -> None:
        groups = SuspectGroups()
        await groups.enter("1")
        waiting = asyncio.create_task(groups.enter("2"))
        await asyncio.sleep(0)
        groups.leave()
        waiting.cancel()  # its turn has come, and it never takes it
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(groups.enter("3"), 1.0)

    asyncio.run(main())
    beside = {name: {each for one, them in seen if one == name for each in them} for name in "abcde"}
    assert beside["a"] == beside["b"] == set("ab")
    assert beside["c"] == beside["e"] == set("ce"), "both of a group, though another came between"
    assert beside["d"] == set("d")
    order = [name for name, _ in seen]
    assert order.index("c") < order.index("d")
    asyncio.run(handed_back())


def searched(in_flight: Sequence[str], culprits: frozenset[str], rng: random.Random) -> tuple[int, set[str]]:
    """Let a process die at its culprits until it lives; return how often it died, and which records it gave up."""
    crashes, given_up, deaths = Crashes(None), set[str](), 0
    left = sorted(in_flight)
    while True:
        groups: dict[str, list[str]] = {}
        for each in left:
            if crashes.guilty(each):
                given_up.add(each)
                crashes.refused(each)  # and stays: its offset is committed after those of the others
            else:
                groups.setdefault(crashes.group(each), []).append(each)
        order = list(groups)
        rng.shuffle(order)
        for name in order:
            members = groups[name]
            rng.shuffle(members)
            if not (deadly := culprits & set(members)):
                for each in members:
                    crashes.forget(each)
                left = sorted(set(left) - set(members))
                continue
            # Some are done before the first culprit strikes.
            done = set(rng.sample(members, rng.randint(0, len(members)))) - deadly if name else set()
            for each in done:
                crashes.forget(each)
            left = sorted(set(left) - done)
            crashes.died(sorted(set(members) - done))
            deaths += 1
            break
        else:
            return deaths, given_up


@pytest.mark.parametrize(
    ("count", "guilty", "most_deaths"),
    [*((count, 1, 8) for count in (1, 2, 3, 5, 64, 200, 256)), (256, 3, 24)],
)
def test_culprits_are_found_within_eight_deaths_each(count: int, guilty: int, most_deaths: int) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        in_flight = [f"t/{n % 2}/{n}" for n in range(count)]
        culprits = frozenset(rng.sample(in_flight, guilty))
        deaths, given_up = searched(in_flight, culprits, rng)
        assert given_up == culprits
        assert 3 <= deaths <= most_deaths


def test_a_refused_record_stays_guilty_until_there_are_many(tmp_path: Path) -> None:
    path = tmp_path / "crashes.json"
    for at in range(300):
        crashes = Crashes(path)
        for _ in range(3):
            crashes.died([f"t/0/{at}"])
        crashes.refused(f"t/0/{at}")
    crashes = Crashes(path)
    assert [at for at in range(300) if crashes.guilty(f"t/0/{at}")] == list(range(44, 300))
    crashes.died(["t/0/300"])
    crashes.refused("t/0/300")
    assert "t/0/300" not in crashes, "one death convicts nobody"


def test_deaths_with_others_in_flight_do_not_convict(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "crashes.json")
    for _ in range(3):
        crashes.died(["t/0/1", "t/0/2"])
    assert Crashes(tmp_path / "crashes.json").guilty("t/0/1") == 0
    assert crashes.failed("t/0/1") == 1
    crashes.died(["t/0/1"])
    assert Crashes(tmp_path / "crashes.json").guilty("t/0/1") == 4


def test_counts_tell_logs_apart_by_append_time(tmp_path: Path) -> None:
    def begun() -> tuple[HandlerGuard, InFlightFile]:
        in_flight = InFlightFile(tmp_path / "in-hand", SLOTS)
        guard = HandlerGuard(MagicMock(service="executor"), Crashes(tmp_path / "counts.json"), in_flight)
        return guard, in_flight

    async def fails(records: Sequence[ConsumerRecord]) -> None:
        raise ZeroDivisionError

    older, newer = (
        ConsumerRecord("t" * 249, 2**31 - 1, 2**63 - 1, at_ms, None, None) for at_ms in (10**12, 10**12 + 1)
    )
    for number in (1, 2):
        with pytest.raises(Crash, match=f"failure {number} of 3"):
            asyncio.run(begun()[0].call([older], fails))
    kept = []
    for _ in range(3):
        kept.append(begun()[1].holding([older.identity]))
        kept[-1].__enter__()  # and it dies
    guard, _ = begun()
    assert (guard.crashes.guilty(older.identity), guard.crashes.guilty(newer.identity)) == (3, 0)
    with pytest.raises(Crash, match="failure 1 of 3"):
        asyncio.run(guard.call([newer], fails))
