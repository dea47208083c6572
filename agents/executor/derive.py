"""From a recorded search to the search that other limits, or fewer subtrees, would have given.

A draft's seed depends only on its path, so a wider search contains every draft of a narrower one. One run with 64 whole
paths contains best-of-N for every N, and a run without early exit nearly always contains the run with it.
"""

from agents.executor.engine import Drafted
from agents.executor.forest import SearchError, plant, tell_drafts, tell_scores
from agents.executor.next_step import ask
from schemas.action import Action
from schemas.forest import Draft, Forest, Limits
from schemas.search import Scored

_SAMPLING = (
    "step_tokens", "temperature", "top_p", "top_k", "delimiter", "thinking", "max_tokens", "stop", "seeded",
)  # fmt: skip

Place = tuple[int, ...]  # (tree, slot, slot, …)


def derive(recorded: Forest, *, action: Action | None = None, limits: Limits | None = None) -> Forest | None:
    """Return the search that would have been run on the same drafts; None if it needs a draft that was not recorded.

    None is rare but does happen. In the recording, descendants of a path that is pruned here can have taken the place
    of a path that survives here, because H_max has risen in the meantime. Such a search has to be run.

    Args:
        recorded: A whole search, recorded with `forget=False` if texts matter.
        action: Other widths; the default is its own.
        limits: Other limits; the default is its own. A token budget can be derived only if it is not reached; a price
            or a deadline cannot be derived.

    Raises:
        SearchError: the limits need other sampling than the recording's.
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
                # A draft longer than the rest of the budget would have been cut.
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
    """Return the identity of a draft in any search: its subtree, then its slot at each step."""
    path = [forest.drafts[at] for at in forest.path(index)]
    return (path[0].tree, *(draft.slot for draft in path))
