"""Where a query's time went, carried from its Context through the Decision and the search to its Answer."""

from typing import Annotated

from msgspec import Meta, Struct, structs

Seconds = Annotated[float, Meta(ge=0.0)]


class Spent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds a query has taken so far, by component. Search components are summed over the search's steps.

    The components add up to the time from the Query's append to the Answer's, except for transport between services
    other than `transit_s`: the broker, its clients and the write to the learner's log.

    `admission_s`, `embed_s`, `decide_s`, `verify_s` and `control_s` are each measured by one process on its monotonic
    clock, and `generate_s` by one process on its estimate of the broker's clock, in whole milliseconds. `queue_s` is
    the difference between times from two processes: the broker's append time for the Decision, and the executor's
    estimate of the broker's clock. The same is true of `transit_s` if two processes in a group share a search.

    A redelivered record may contain different times. Only one outcome depends on them: a search that produced no text
    is blamed on its model if `generate_s` used up the time allowed (`agents.search.search.used_up`).

    Attributes:
        admission_s: At the embedder, waiting for admission and then for the encoder.
        embed_s: In the encoder.
        decide_s: In the policy, which chooses for all queries in a batch at once.
        queue_s: From the Decision's append until the executor starts.
        generate_s: In the generator's engine.
        verify_s: In the verifier's engine.
        transit_s: From sending a SearchStep to receiving its Verification, excluding verify_s.
        control_s: In search control, which decides what to keep, prune and draft next.
    """

    admission_s: Seconds = 0.0
    embed_s: Seconds = 0.0
    decide_s: Seconds = 0.0
    queue_s: Seconds = 0.0
    generate_s: Seconds = 0.0
    verify_s: Seconds = 0.0
    transit_s: Seconds = 0.0
    control_s: Seconds = 0.0

    @property
    def total_s(self) -> float:
        """Return the sum of all components."""
        return float(sum(structs.astuple(self)))

    def plus(self, **seconds: float) -> "Spent":
        """Return a copy with seconds added to the named components, rounded to the microsecond."""
        summed = {name: round(getattr(self, name) + more, 6) for name, more in seconds.items()}
        return structs.replace(self, **summed)
