"""The circuit breaker: what opens it, what closes it, and how long it waits."""

from hypothesis import given
from hypothesis import strategies as st

from agents.serving.circuit_breaker import FAILURES, LONGEST_PAUSE_S, Breaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        assert breaker.state == "closed"
        breaker.failed("no connection")
    assert breaker.state == "open"
    return breaker


def test_success_resets_the_count_of_failures() -> None:
    breaker = Breaker(Clock())
    for _ in range(10):
        for _ in range(FAILURES - 1):
            breaker.failed("x")
        breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.why == ""


def test_it_is_half_open_after_its_pause_and_a_success_closes_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert (breaker.wait_s, breaker.why) == (10.0, "no connection")
    clock.now_s = 9.9
    assert breaker.state == "open"
    clock.now_s = 10.0
    assert (breaker.state, breaker.wait_s) == ("half-open", 0.0)
    breaker.succeeded()
    assert breaker.state == "closed"
    breaker.failed("x")
    assert breaker.state == "closed"


def test_each_pause_is_twice_the_one_before_up_to_a_limit() -> None:
    clock = Clock()
    breaker = opened(clock)
    pauses = []
    for _ in range(7):
        clock.now_s += breaker.wait_s
        assert breaker.state == "half-open"
        breaker.failed("still down")
        # What was sent before it opened fails too, and does not make the pause longer.
        breaker.failed("still down")
        pauses.append(breaker.wait_s)
    assert pauses == [20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]


def test_an_answer_to_an_earlier_request_ends_no_rest() -> None:
    """As `Retry-After` does: of eight requests in flight, one is told to wait, and the others are answered."""
    clock = Clock()
    breaker = Breaker(clock)
    breaker.rest(60.0, "HTTP 429")
    breaker.succeeded()
    assert (breaker.state, breaker.wait_s, breaker.why) == ("open", 60.0, "HTTP 429")
    clock.now_s = 60.0
    assert breaker.state == "half-open"
    breaker.succeeded()
    assert (breaker.state, breaker.why) == ("closed", "")


@given(st.lists(st.tuples(st.sampled_from(["ok", "no", "wait"]), st.floats(0, 400)), max_size=60))
def test_it_never_stays_open_for_ever(events: list[tuple[str, float]]) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for what, seconds in events:
        clock.now_s += seconds
        if breaker.state != "open":
            breaker.succeeded() if what == "ok" else breaker.failed("x") if what == "no" else None
        assert breaker.wait_s <= LONGEST_PAUSE_S
        assert (breaker.state == "open") == (breaker.wait_s > 0)
    clock.now_s += LONGEST_PAUSE_S + 1
    assert breaker.state != "open"
    breaker.succeeded()
    assert breaker.state == "closed"
