"""SearchStep to Verification: every draft of a step scored, in its order."""

from collections.abc import Callable

from agents.serving.retry import within
from agents.verifier.prm import Verifier
from schemas.search import SearchStep, Verification


async def verify(
    search: SearchStep, *, verifier: Verifier, clock: Callable[[], float], now_ms: int | None = None
) -> Verification:
    """Score the pending drafts of a step.

    The reply depends on the step alone, so a redelivered step is scored again to no effect: the first
    Verification of a step is the one that counts.

    Args:
        search: The step.
        verifier: Who scores.
        clock: Seconds, monotonic.
        now_ms: Time since the epoch, for the query's deadline; None for no deadline.

    Raises:
        DeadlinePassedError: the query expired first.
        ServingError: As `Verifier.score`; the subclass says whether to try again.
    """
    began = clock()
    paths = [search.forest.steps(index) for index in search.forest.pending]
    until_ms = search.forest.limits.expires_ms
    left_s = None if now_ms is None or until_ms is None else (until_ms - now_ms) / 1000
    what = f"{search.query_id}/{search.step}"
    scores = await within(left_s, verifier.score(search.question, paths), what)
    return Verification(
        search=search, scores=tuple(scores), verifier=verifier.served, verify_s=max(0.0, clock() - began)
    )
