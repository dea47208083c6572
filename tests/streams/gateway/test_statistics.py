"""What the page's first view says."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from streams.gateway.index import Listed
from streams.gateway.statistics import now

Row = tuple[str | None, str | None, float | None, float | None]


def listed(at: int, **known: Any) -> Listed:
    plain: dict[str, Any] = dict.fromkeys(Listed.__struct_fields__) | {"groups": (None, None)}
    return Listed(**{**plain, "query_id": f"q-{at}", "created_ms": at, **known})


def answered(at: int, cohort: str, correct: float, eflops: float) -> Listed:
    return listed(
        at, cohort=cohort, randomised=True, status="ok", action="m/1/1/1", correct=correct, cost=eflops
    )


def uplift(queries: list[Listed], *, moves: bool = False, paired: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = now(queries, moves=moves, paired=paired)["uplift"]
    return found


def test_nothing_is_said_of_nothing() -> None:
    found = now([])
    assert found["cohorts"]["policy"] == {"queries": 0, "accuracy": None, "cost": None}
    assert uplift([])["accuracy_difference"] is None


def test_the_policy_beside_the_control_group() -> None:
    queries = [answered(at, "policy", 0.9, 1e9) for at in range(400)]
    queries += [answered(at, "control", 0.9, 4e9) for at in range(400, 500)]
    found = uplift(queries)
    ratio = found["cost_ratio"]
    assert ratio is not None
    assert abs(ratio["mean"] - 0.25) < 1e-9
    assert found["feedback_rate"] == {"policy": 1.0, "control": 1.0}
    assert "points" in found["sentence"]


def test_what_no_draw_gave_to_a_cohort_is_not_compared() -> None:
    """Pinned queries, for instance: they say nothing of the policy, and are no random sample either."""
    queries = [answered(0, "policy", 1.0, 1e9), answered(1, "control", 1.0, 1e9)]
    pinned = [listed(2, cohort="policy", randomised=False, status="ok", correct=0.0, cost=1e12)]
    assert uplift(queries + pinned) == uplift(queries)


def test_failed_query_counts_as_wrong_and_cancelled_not() -> None:
    failed, cancelled = (
        listed(at, cohort="policy", randomised=True, status=s)
        for at, s in enumerate(("failed", "cancelled"), 1)
    )
    queries = [answered(0, "policy", 1.0, 1e9), failed, cancelled, answered(3, "control", 1.0, 1e9)]
    difference = uplift(queries)["accuracy_difference"]
    assert difference is not None
    assert difference["mean"] == -0.5


@given(st.lists(st.tuples(st.sampled_from(["policy", "control", None]), st.sampled_from(["ok", "failed", None]),
                          st.none() | st.floats(0, 1), st.none() | st.floats(0, 1e15)), max_size=60))  # fmt: skip
def test_whatever_is_known_the_numbers_can_be_sent(rows: list[Row]) -> None:
    queries = [
        listed(
            at,
            cohort=c,
            randomised=bool(c) and at % 3 > 0,
            action=c and "m/1/1/1",
            status=s,
            correct=r,
            cost=e,
        )
        for at, (c, s, r, e) in enumerate(rows)
    ]
    body = orjson.dumps(now(queries))
    assert now(queries)["queries"] == len(rows)
    assert b"NaN" not in body


def test_what_is_chosen_for_whom() -> None:
    queries = [
        listed(at, action="big/1/1/1" if at % 3 else "small/1/1/1", groups=("algebra" if at < 9 else None, "5"),
               objective="thrift", status="ok", correct=1.0, cost=2e9)
        for at in range(12)
    ]  # fmt: skip
    queries.append(listed(12, groups=("algebra", None)))  # not decided yet
    by = now(queries, ["topic", "grade"])["by"]
    assert [(each["of"], each["queries"]) for each in by["topic"]] == [("algebra", 9), (None, 3)]
    assert by["topic"][0]["choices"] == [
        {"action": "big/1/1/1", "queries": 6},
        {"action": "small/1/1/1", "queries": 3},
    ]
    assert by["topic"][0]["accuracy"]["mean"] == 1.0
    assert [each["of"] for each in by["grade"]] == ["5"]
    assert [each["of"] for each in by["objective"]] == ["thrift"]


def test_what_the_client_pins_is_no_choice_of_the_policy() -> None:
    mine = [answered(at, "policy", 1.0, 1e9) for at in range(3)]
    pinned = [listed(9, cohort="policy", reason="pinned", status="ok", action="big/1/1/1", correct=0.0)]
    found = now(mine + pinned)
    assert (found["queries"], found["pinned"]) == (4, 1)
    assert found["cohorts"]["policy"]["accuracy"]["mean"] == 1.0
    assert [each["action"] for each in found["choices"]] == ["m/1/1/1"]


def test_paired_baselines_are_the_control_where_no_draw_made_one() -> None:
    def pair(at: int) -> list[Listed]:
        pinned = {"baseline_of": f"q-{at}", "action": "big/2/1/1", "reason": "pinned", "cohort": "policy"}
        return [
            listed(at, cohort="policy", status="ok", action="m/1/1/1", correct=0.5, cost=1e9),
            structs.replace(listed(at + 1, status="ok", correct=1.0, cost=2e9, **pinned), query_id=f"t-{at}"),
        ]

    queries = [each for at in range(0, 100, 2) for each in pair(at)]
    lonely = listed(999, cohort="policy", status="ok", action="m/1/1/1", correct=0.0, cost=9e9)
    found = uplift([lonely, *queries])
    assert found["accuracy_difference"]["mean"] == -0.5
    assert found["cost_ratio"]["mean"] == 0.5
    assert found["sentence"].startswith(
        "Against always asking big/2/1/1 the policy's accuracy is -50.0 points"
    )
    shown = now(queries)
    assert [shown["cohorts"][arm]["queries"] for arm in ("policy", "control")] == [50, 50]
    assert {arm: {point["accuracy"] for point in points} for arm, points in shown["series"].items()} == {
        "policy": {0.5}, "control": {1.0},
    }  # fmt: skip
    assert [each["action"] for each in shown["choices"]] == ["m/1/1/1"]
    second = [structs.replace(each, query_id=f"u-{each.query_id}") for each in queries if each.baseline_of]
    twice = uplift([*queries, *second])
    assert twice["queries"] == {"policy": 50, "control": 100}, "a query with two baselines counts once"


def test_moving_window_says_intervals_hold_for_one_look() -> None:
    queries = [answered(at, "policy", 0.9, 1e9) for at in range(400)]
    queries += [answered(at, "control", 0.9, 4e9) for at in range(400, 500)]
    whole, moving = uplift(queries), uplift(queries, moves=True)
    window = "Only the latest 500 queries count, so the intervals hold for one look, not for all of them."
    assert moving["sentence"] == f"{whole['sentence']} {window}"
    assert (whole["moves"], moving["moves"]) == (False, True)


def test_no_number_disagrees_with_another() -> None:
    """Whatever the page adds up from one part of the statistics is what another part says."""
    queries = [
        listed(
            at, cohort="control" if at % 5 == 0 else "policy", randomised=at % 7 > 0, groups=(f"f{at % 15}", None),
            session=f"s{at % 4}" if at % 2 else None, objective="thrift", action=f"m{at % 3}/1/1/1",
            status=("failed", "cancelled", None, *["ok"] * 9)[at % 12], correct=None if at % 11 == 0 else at % 2,
            cost=1e9 + at,
        )
        for at in range(400, 0, -1)
    ]  # fmt: skip
    found = now(queries, ["topic", "grade"])
    policy, control = (found["cohorts"][arm] for arm in ("policy", "control"))
    gain = found["uplift"]
    assert gain["queries"] == {"policy": policy["queries"], "control": control["queries"]}
    assert gain["cost_ratio"]["mean"] == pytest.approx(policy["cost"]["mean"] / control["cost"]["mean"])
    assert gain["accuracy_difference"]["mean"] == pytest.approx(
        policy["accuracy"]["mean"] - control["accuracy"]["mean"]
    )
    last = gain["over_time"][-1]
    assert {name: gain[name] for name in ("cost_ratio", "accuracy_difference")} | {"at": last["at"]} == last
    for arm in ("policy", "control"):
        assert sum(point["queries"] for point in found["series"][arm]) == found["cohorts"][arm]["queries"]
    chosen = sum(each["queries"] for each in found["choices"])
    assert chosen == sum(each["queries"] for each in found["by"]["objective"])
    for kind in found["by"].values():
        for group in kind:
            assert sum(each["queries"] for each in group["choices"]) == group["queries"]
    assert len(found["by"]["topic"]) == 12
    assert {each["of"] for each in found["by"]["session"]} == {None, "s1", "s3"}
    assert sum(found["statuses"].values()) == found["queries"] == len(queries)


def test_a_filter_by_model_compares_pairs_only() -> None:
    """The control group is no random sample of the queries for which the policy chose a model."""
    drawn = [answered(at, "policy", 0.9, 1e9) for at in range(40)] + [
        answered(at, "control", 0.9, 4e9) for at in range(40, 80)
    ]
    assert uplift(drawn)["cost_ratio"] is not None
    assert uplift(drawn, paired=True)["cost_ratio"] is None
