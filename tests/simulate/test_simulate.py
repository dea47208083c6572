"""The simulator: seeds pass, a known fault is found when its fix is taken out, the same seeds give the same bytes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from streams.cli import main
from streams.log.memory import MemoryBroker
from streams.simulate.faults import KINDS, Fault
from streams.simulate.run import Lived, SeedJournal, SeedsError, coverage, lived, seeds_of, shrunk, simulate
from tests.simulate.without import FIXES


def test_a_few_seeds_pass() -> None:
    assert [failure.what for failure in simulate(1, 8).failures] == []


@pytest.mark.seconds
def test_seeds_pass_and_every_kind_of_fault_strikes() -> None:
    journal = simulate(1, 150)
    assert [(failure.command, failure.what) for failure in journal.failures] == []
    assert set(KINDS) - set(journal.kinds) == set(), "\n".join(coverage(journal))


@pytest.mark.seconds
@pytest.mark.parametrize(
    "seed",
    [
        *(301033, 301304, 301495, 301859, 301899, 310791, 343109, 425575, 427380, 450808, 475814, 500679),
        *(509012, 510252, 510670, 533100, 822448, 132, 310, 990051, 113),
    ],
)
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    """What was wrong with each is in docs/simulation.md."""
    assert lived(seed).failures == []


def test_every_fix_has_seeds_that_fail_without_it() -> None:
    assert [name for name, fix in FIXES.items() if not fix.seeds] == []


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, fix in FIXES.items() for seed in fix.seeds]
)
def test_a_fault_whose_fix_is_taken_out_is_found(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lived(seed).failures == []
    FIXES[name].take_out(monkeypatch)
    assert lived(seed).failures != []


@pytest.mark.seconds
def test_the_same_seeds_give_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    found = []
    for salt in ("1", "2"):
        file = tmp_path / salt
        ran = subprocess.run(
            [sys.executable, "-m", "streams", "simulate", "--seeds", "1-12", "--json", str(file)],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            check=True,
        )
        assert ran.stdout == file.read_bytes()
        found.append(ran.stdout)
    assert found[0] == found[1]
    assert set(msgspec.json.decode(found[0])) == {"seeds", "failures", "astray", "digest"}


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    simulate(1, 2, append=file)
    assert msgspec.json.decode(file.read_bytes(), type=SeedJournal).last == 2
    assert simulate(1, 4, append=file) == simulate(1, 4)
    with pytest.raises(SeedsError, match="holds seeds from 1 on"):
        simulate(2, 4, append=file)


def test_compaction_keeps_last_and_recent_records_with_offsets() -> None:
    now_s = 0.0
    broker = MemoryBroker({"t": 1}, lambda: now_s, began_ms=0)
    for now_s, key in ((1.0, b"a"), (2.0, b"b"), (3.0, b"a"), (9.0, b"b"), (9.0, b"b")):
        broker.append("t", key, b"%d" % now_s)
    broker.compact("t", before_ms=5000)
    assert [(r.offset, r.key) for r in broker.records("t")] == [(2, b"a"), (3, b"b"), (4, b"b")]
    found = broker.at("t", 0, 0)
    assert found is not None
    assert found[1].offset == 2
    assert broker.end("t", 0) == 5


def test_a_failure_keeps_only_the_faults_that_it_needs() -> None:
    faults = tuple(Fault(kind="die", service="decider", at=at) for at in range(6))
    failing = Lived(seed=7, failures=["it is wrong"], faults=faults)

    def live(only: Sequence[int]) -> Lived:
        return Lived(seed=7, failures=["it is wrong"] if {1, 4} <= set(only) else [])

    failure = shrunk(failing, live)
    assert failure.faults == (1, 4)
    assert failure.command == "python -m streams simulate --seeds 7-7 --only 1,4"
    assert "at=4" in failure.schedule[1]


def test_report_goes_to_stdout_and_progress_to_stderr() -> None:
    ran = CliRunner().invoke(main, ["simulate", "--seeds", "3", "--only", "none"])
    assert ran.exit_code == 0, ran.output
    assert msgspec.json.decode(ran.stdout)["seeds"] == "3-3"
    assert "1 histories, 0 failed" in ran.stderr
    refused = CliRunner().invoke(main, ["simulate", "--seeds", "9-3"])
    assert refused.exit_code == 1
    assert seeds_of("9") == (9, 9)
