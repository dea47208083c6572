"""Pruning (UniScale §3.3): which of a step's paths are completed, cut, stopped by early exit, pruned or kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from agents.grading.grade import extract_boxed
from agents.search.early_exit import early_exit_bound, h_max, last_answer
from schemas.forest import Fate, Forest, completes

# First, finished paths enter P_done and set V_max, D_best and H_max. Then unfinished paths at the limit are cut, the
# early-exit bound prunes paths, and the best BS paths of each subtree are kept. Pruning only removes the worst paths,
# so it makes no difference whether it comes before or after the selection of the best BS. If a query wants n answers,
# the score of the n-th best completed path replaces V_max, and nothing is stopped before n paths are completed.


@dataclass(frozen=True)
class PrunedStep:
    """The fate of each draft in a step, the bounds of drafts stopped by early exit, and the new best path."""

    fates: dict[int, Fate]
    bounds: dict[int, float]
    best: int


def prune_step(forest: Forest, values: dict[int, float], completed: dict[int, float]) -> PrunedStep:
    """Decide the fate of each draft in a step.

    Args:
        forest: The search, with its last step pending.
        values: V(p) for each path that ends in a draft of that step, in order.
        completed: V(p) for the completed paths that count: only the best, or all if several answers are wanted.
    """
    limits, j, pending = forest.limits, forest.step, list(values)
    fates: dict[int, Fate] = {}
    for at in pending:
        if (fate := ended(forest, at)) is not None:
            fates[at] = fate
    done = [at for at in fates if completes(fates[at], forest.drafts[at].finish, limits)]
    known = completed | values
    best, v_max = _best(known, done, forest.best)
    bar = v_max
    if limits.answers > 1:  # the lowest score that can still be among the answers; None while any score can
        bar = last_answer([*completed.values(), *(values[at] for at in done)], limits.answers)
    limit = h_max(limits, forest.drafts[best].depth if bar is not None else None)
    bounds: dict[int, float] = {}
    trees: dict[int, list[int]] = {}
    for at in pending:
        if at in fates:
            continue
        if j >= limit:
            fates[at] = "cut"
        elif limits.early_exit and (bound := early_exit_bound(j, values[at], limit, bar)) is not None:
            fates[at], bounds[at] = "early_exit", bound
        else:
            trees.setdefault(forest.drafts[at].tree, []).append(at)
    for tree in trees.values():
        # The sort is stable, so equal paths stay in the order they were drafted.
        for rank, at in enumerate(sorted(tree, key=lambda at: -values[at])):
            fates[at] = "kept" if rank < forest.action.bs else "beam"
    if limits.cut_completes:
        cut = [at for at in pending if fates[at] == "cut" and forest.drafts[at].finish != "max_tokens"]
        best, _ = _best(known, cut, best)
    return PrunedStep(fates, bounds, best)


def ended(forest: Forest, at: int) -> Fate | None:
    """Return the fate of a draft that ends its path regardless of its score; None if the path continues."""
    finish = forest.drafts[at].finish
    boxes = forest.limits.box_completes
    if finish in ("eos", "stop") or (boxes and extract_boxed(forest.text(at)) is not None):
        return "finished"
    return "cut" if finish in ("context", "max_tokens") else None


def _best(known: dict[int, float], done: Sequence[int], best: int) -> tuple[int, float | None]:
    """Return the best completed path and V_max. Among equal paths, the first to be completed wins."""
    v_max = known[best] if best >= 0 else None
    for at in done:
        if v_max is None or known[at] > v_max:
            best, v_max = at, known[at]
    return best, v_max
