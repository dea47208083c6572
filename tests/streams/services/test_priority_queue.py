"""A priority queue with removals: the same order as sorting what is left, and a heap that never outgrows it."""

from hypothesis import given
from hypothesis import strategies as st

from streams.services.priority_queue import PriorityQueue

STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 9), st.integers(0, 200)),
    st.tuples(st.just("remove"), st.just(0), st.integers(0, 200)),
    st.tuples(st.just("pop"), st.just(0), st.just(0)),
)


@given(st.lists(STEPS, max_size=400))
def test_items_come_in_order_without_those_removed(steps: list[tuple[str, int, int]]) -> None:
    queue, model = PriorityQueue[int](), dict[int, int]()
    for what, number, item in steps:
        if what == "push":
            queue.push(number, item)
            model[item] = number
        elif what == "remove":
            queue.remove(item)
            model.pop(item, None)
        elif model:
            first = min((n, i) for i, n in model.items())
            assert queue.first() == queue.pop() == first
            del model[first[1]]
        assert len(queue) == len(model)
    assert [queue.pop() for _ in range(len(queue))] == sorted((n, i) for i, n in model.items())
    assert queue.first() is None


def test_what_was_removed_leaves_the_heap() -> None:
    queue = PriorityQueue[int]()
    for item in range(10_000):
        queue.push(item, item)
    for item in range(9_990):
        queue.remove(item)
    assert len(queue._heap) < 100
