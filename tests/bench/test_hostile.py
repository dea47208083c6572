"""What a hostile tenant does to others, measured: a short form, and when a bound counts as met."""

from pathlib import Path

import msgspec
import pytest

from bench import hostile
from bench.hostile import ALONE, BUSY, UNTAUGHT, Observed, lived, markdown, measure, report
from streams.gateway.quotas import TARGETS


def made(setting: str, seed: int = 1, **figures: float) -> Observed:
    plain = {"accuracy": 0.6, "cost": 1e9, "regret": 0.1, "wait_s": 1.0, "decider_ms": 1.0}
    return Observed(
        setting=setting, prior="none", seed=seed, outcomes=100,
        resident=1000, disk=5000, sent=1000, refused=0, taught=0, **(plain | figures),
    )  # fmt: skip


def test_a_bound_is_met_where_the_whole_interval_lies_within_it() -> None:
    lives = [made(setting, seed) for setting in (*ALONE, *BUSY) for seed in (1, 2, 3)]
    lives += [made("hard questions", 1, cost=1.02e9), made("hard questions", 2, cost=1.04e9)]
    told = {row["figure"]: row for row in report(lives) if row["setting"] == "hard questions"}
    assert told["cost"]["mean"] == pytest.approx(1.03)
    assert told["cost"]["high"] > told["cost"]["bound"], "two seeds 2 % apart say little"
    assert not told["cost"]["met"]
    assert told["accuracy"]["met"]
    lives.append(made("hard questions", 3, cost=1.03e9))
    told = {row["figure"]: row for row in report(lives) if row["setting"] == "hard questions"}
    assert (told["cost"]["low"], told["cost"]["high"]) == pytest.approx((1.00516, 1.05484), abs=1e-5)
    assert "1.03× (1.01× to 1.05×): not met" in markdown(report(lives))
    one = report([made(setting) for setting in (*ALONE, *BUSY, "hard questions")])
    assert not any(row["met"] for row in one), "of one seed nothing is known"


def test_figures_are_compared_as_the_criterion_says() -> None:
    lives = [made(setting, seed, wait_s=0.01) for setting in ALONE for seed in (1, 2)]
    lives += [made(BUSY[0], seed) for seed in (1, 2)]
    worse = made("huge prompts", wait_s=0.15, accuracy=0.62)
    lives += [msgspec.structs.replace(worse, seed=seed, sent=9000, disk=13_000) for seed in (1, 2)]
    told = {row["figure"]: row for row in report(lives) if row["setting"] == "huge prompts"}
    assert told["wait_s"]["mean"] == pytest.approx(1.5), "a wait below a tenth of a second counts as that"
    assert told["accuracy"]["mean"] == pytest.approx(-0.02)
    assert told["disk"]["mean"] == pytest.approx(1.0), "without what the sixth sent"
    chance = [row["figure"] for row in report(lives) if row["setting"] == ALONE[1]]
    assert "cost" in chance, "one run alone against the other shows what chance does"


@pytest.mark.thorough
def test_a_short_form_lives_and_a_hostile_key_teaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hostile, "PLACES", 4
    )  # fewer than a tenant's questions of a round, as in the whole form
    asked, kinds = 30, ["hard questions", "targets of its own", UNTAUGHT]
    table = measure(kinds, ["none"], [1], asked, tmp_path, print)
    assert {row["setting"] for row in table} == {*ALONE, *BUSY, *kinds}
    lives = [
        msgspec.json.decode(line, type=Observed)
        for line in (tmp_path / "lives.jsonl").read_bytes().splitlines()
    ]
    taught = {each.setting: each.taught for each in lives if each.taught}
    assert taught == {BUSY[0]: asked, UNTAUGHT: asked}
    refused = {each.setting: each.refused for each in lives if each.refused}
    assert refused == {"targets of its own": asked - TARGETS}
    assert all(each.accuracy > 0 and each.cost > 0 for each in lives)
    assert measure(kinds, ["none"], [1], asked, tmp_path, pytest.fail) == table
    again = lived("hard questions", "none", 1, asked)
    same = {"accuracy", "cost", "regret", "wait_s", "sent", "refused", "taught"}
    before = next(each for each in lives if each.setting == "hard questions")
    assert {name: getattr(again, name) for name in same} == {name: getattr(before, name) for name in same}
