"""What the report of a soak makes of its samples."""

import random
from collections.abc import Callable

import pytest

from bench.soak import Sample, report
from bench.streams import BenchFailed


def samples(run: str, seed: int, memory_mb: Callable[[float], float], minutes: int = 100) -> list[Sample]:
    """Return the samples of a soak whose memory wanders about a line: what is allocated stays for a while."""
    rng, wander, found = random.Random(seed), 0.0, []
    for at in range(6 * minutes):
        wander = 0.9 * wander + rng.gauss(0.0, 0.05)
        found.append(
            Sample(
                run=run,
                at_s=10.0 * at,
                service="embedder",
                memory_mb=100.0 + memory_mb(at / 360) + wander,
                pss_mb=0.0,
                descriptors=20,
                loop_lag_ms=rng.expovariate(2.0),
                cpu_s=0.1 * at,
                queries=100 * at,
                restarts=0,
            )
        )
    return found


def told(*runs: str, **instead: object) -> list[dict[str, object]]:
    """Return how soaks began, and how they ended: with nothing lost."""
    ended = {"ended": {"200": 60_000}, "restarts": {}, "audit": "clean", "wrong": 0, "pending": 0, **instead}
    return [each for run in runs for each in ({"run": run, "rate": 10.0}, {"run": run, **ended})]


def test_what_wanders_does_not_grow_and_what_leaks_does() -> None:
    flat = samples("a", 1, lambda hours: 0.0) + samples("b", 2, lambda hours: 0.0)
    found = report(flat, told("a", "b"))
    assert found["well"]
    assert {row["measure"]: row["blocks"] for row in found["slopes_an_hour"]} == {
        "memory_mb": 16,
        "descriptors": 16,
        "loop_lag_ms": 16,
    }
    leaking = samples("a", 1, lambda hours: 0.0) + samples("b", 2, lambda hours: 3.0 * hours)
    assert not report(leaking, told("a", "b"))["well"]
    memory = next(r for r in report(leaking, told("a", "b"))["slopes_an_hour"] if r["measure"] == "memory_mb")
    assert memory["low"] < 1.5 < memory["high"]
    assert not memory["within"]


def test_what_fills_in_the_first_minutes_is_no_growth() -> None:
    assert report(samples("a", 1, lambda hours: 30 * min(hours, 1 / 3)), told("a"))["well"]


@pytest.mark.parametrize(
    "instead", [{"wrong": 1}, {"pending": 1}, {"restarts": {"decider": 1}}, {"ended": {"200": 9, "503": 1}}]
)
def test_a_soak_that_lost_something_is_not_well(instead: dict[str, object]) -> None:
    assert not report(samples("a", 1, lambda hours: 0.0), told("a", **instead))["well"]


def test_a_soak_that_has_not_ended_is_not_well() -> None:
    begun = [each for each in told("a") if "audit" not in each]
    assert not report(samples("a", 1, lambda hours: 0.0), begun)["well"]


def test_a_soak_that_is_too_short_has_no_slope() -> None:
    with pytest.raises(BenchFailed, match="no sample is older than 20 minutes"):
        report(samples("a", 1, lambda hours: 0.0, minutes=10), told("a"))
    with pytest.raises(BenchFailed, match="1 blocks of 10 minutes in 1 soaks"):
        report(samples("a", 1, lambda hours: 0.0, minutes=25), told("a"))
