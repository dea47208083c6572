"""What the page's first view says."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from streams.rooms.gateway.index.statistics import now, uplift
from streams.rooms.gateway.index.tables import Listed

Row = tuple[str | None, str | None, float | None, float | None]


def listed(at: int, **known: object) -> Listed:
    plain = dict.fromkeys(
        (
            "family",
            "level",
            "question",
            "action",
            "objective",
            "cohort",
            "randomised",
            "status",
            "answered_ms",
            "eflops",
            "correct",
        )
    )
    return Listed(query_id=f"q-{at}", tenant=None, created_ms=at, **{**plain, **known})  # type: ignore[arg-type]


def answered(at: int, cohort: str, correct: float, eflops: float) -> Listed:
    return listed(
        at, cohort=cohort, randomised=True, status="ok", action="m/1/1/1", correct=correct, eflops=eflops
    )


def test_nothing_is_said_of_nothing() -> None:
    found = now([], 0)
    assert found["cohorts"]["policy"] == {"queries": 0, "accuracy": None, "eflops": None}
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
    pinned = [listed(2, cohort="policy", randomised=False, status="ok", correct=0.0, eflops=1e12)]
    assert uplift(queries + pinned) == uplift(queries)


def test_a_failed_query_is_a_wrong_answer_and_a_cancelled_one_is_none() -> None:
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
def test_whatever_is_known_the_numbers_can_be_sent(
    rows: list[tuple[str | None, str | None, float | None, float | None]],
) -> None:

    queries = [
        listed(
            at,
            cohort=c,
            randomised=bool(c) and at % 3 > 0,
            status=s,
            correct=r,
            eflops=e,
            action="m/1/1/1" if c else None,
        )
        for at, (c, s, r, e) in enumerate(rows)
    ]
    body = orjson.dumps({**now(queries, len(rows)), "uplift": uplift(queries)})
    assert now(queries, len(rows))["queries"] == len(rows)
    assert b"NaN" not in body


def test_what_is_chosen_for_whom() -> None:
    queries = [
        listed(at, action="big/1/1/1" if at % 3 else "small/1/1/1", family="algebra" if at < 9 else None,
               level="5", objective="thrift", status="ok", correct=1.0, eflops=2e9)
        for at in range(12)
    ]  # fmt: skip
    queries.append(listed(12, family="algebra"))  # not decided yet
    by = now(queries, 0)["by"]
    assert [(each["of"], each["queries"]) for each in by["family"]] == [("algebra", 9), (None, 3)]
    assert by["family"][0]["choices"] == [
        {"action": "big/1/1/1", "queries": 6},
        {"action": "small/1/1/1", "queries": 3},
    ]
    assert by["family"][0]["accuracy"]["mean"] == 1.0
    assert [each["of"] for each in by["level"]] == ["5"]
    assert [each["of"] for each in by["objective"]] == ["thrift"]
