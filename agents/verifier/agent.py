"""SearchStep to Verification: every draft of a step scored, in its order."""

from collections.abc import Callable

from agents.verifier.prm import Verifier
from schemas.search import SearchStep, Verification


async def verify(search: SearchStep, *, verifier: Verifier, clock: Callable[[], float]) -> Verification:
    """Score the pending drafts of a step.

    The reply depends on the step alone, so a redelivered step is scored again to no effect: the first
    Verification of a step is the one that counts.

    Args:
        search: The step.
        verifier: Who scores.
        clock: Seconds, monotonic.

    Raises:
        ServingError: As `Verifier.score`; the subclass says whether to try again.
    """
    began = clock()
    paths = [search.forest.steps(index) for index in search.forest.pending]
    scores = await verifier.score(search.question, paths)
    return Verification(
        search=search, scores=tuple(scores), verifier=verifier.served, verify_s=max(0.0, clock() - began)
    )
