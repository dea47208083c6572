"""Recent ids: the latest half of `most` are always known, and never more than `most`."""

from hypothesis import given
from hypothesis import strategies as st

from streams.recent_ids import RecentIds


@given(st.lists(st.integers(0, 30).map(str), min_size=1), st.integers(1, 12))
def test_the_latest_half_is_known_and_no_more_than_most(names: list[str], most: int) -> None:
    recent = RecentIds(most)
    for name in names:
        recent.add(name)
    latest = list(dict.fromkeys(reversed(names)))
    assert all(name in recent for name in latest[: max(1, most // 2)])
    assert sum(name in recent for name in latest) <= max(2, most)
