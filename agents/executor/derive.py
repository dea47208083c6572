"""From a recorded search to the one that other limits, or fewer subtrees, would have been.

A draft's seed depends on its path and on nothing else, so a wider search holds every draft of a narrower one:
one run of 64 whole paths holds best-of-N for each N, and a run without early exit nearly always the run
with it.
"""

from agents.executor.engine import Drafted
from agents.executor.forest import (
    SearchError,
    ask,
    plant,
    tell_drafts,
    tell_scores,
)
from schemas.action import Action
from schemas.forest import Draft, Forest, Limits
from schemas.search import Scored

_SAMPLING = ("step_tokens", "temperature", "top_p", "top_k", "delimiter", "thinking")

Place = tuple[int, ...]  # (tree, slot, slot, …)


def derive(recorded: Forest, *, action: Action | None = None, limits: Limits | None = None) -> Forest | None:
    """Return the search that would have been run on the same drafts, or None where one was never recorded.

    None is rare, and real: a pruned path's descendants may have pushed out of the recorded beam a path that
    H_max, risen since, would let live. Such a search has to be run.

    Args:
        recorded: A whole search, told with `forget=False` where texts matter.
        action: Other widths; by default its own.
        limits: Other limits; by default its own. A budget can be derived only
            while it is not reached, a price or a deadline not at all.

    Raises:
        SearchError: when the limits sample otherwise than the recording.
    """
    wanted = limits or recorded.limits
    for name in _SAMPLING:
        if getattr(wanted, name) != getattr(recorded.limits, name):
            raise SearchError(
                f"limits.{name} differs from the recording's: other drafts would have been made"
            )
    known = {place_of(recorded, at): draft for at, draft in enumerate(recorded.drafts)}
    forest = plant(action or recorded.action, wanted)
    while (request := ask(forest, "")) is not None:
        found: list[Draft] = []
        for expansion in request.expansions:
            above = place_of(forest, expansion.parent) if expansion.parent >= 0 else (expansion.tree,)
            for k in range(request.n):
                draft = known.get((*above, k))
                # A draft longer than the budget leaves room for would have been cut.
                if draft is None or draft.score is None or draft.tokens > request.max_tokens:
                    return None
                found.append(draft)
        drafted = [Drafted(draft.text, draft.tokens, draft.finish) for draft in found]
        scores = [
            Scored(score=draft.score or 0.0, tokens=draft.verifier_tokens, shortened=draft.shortened)
            for draft in found
        ]
        forest = tell_drafts(forest, request.step, drafted, recorded.prompt_tokens)
        forest = tell_scores(forest, request.step, scores, forget=False)
    return forest if forest.over else None


def place_of(forest: Forest, index: int) -> Place:
    """Return what names a draft in any search: its subtree, then its slot at each step."""
    path = [forest.drafts[at] for at in forest.path(index)]
    return (path[0].tree, *(draft.slot for draft in path))
