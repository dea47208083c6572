"""Early exit (UniScale §3.3): a path stops when the best mean it can still reach is below the score to beat.

The score to beat is V_max or, if a query wants n answers, the score of the n-th best completed path. In addition, once
a path has completed, the depth limit falls to a multiple of that path's depth.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from schemas.forest import Limits

BEST_STEP = 1.0  # v_sup, the highest possible step score


def h_max(limits: Limits, best_depth: int | None) -> int:
    """Return the depth limit for paths: the initial limit, lowered to ⌈η·D_best⌉ once a path has completed.

    >>> (
    ...     h_max(Limits(depth_limit=40, step_tokens=100), 5),
    ...     h_max(Limits(depth_limit=40, step_tokens=100), None),
    ... )
    (6, 40)
    """
    if not limits.early_exit or best_depth is None:
        return limits.depth_limit
    # 1.1 · 10 is 11.000000000000002 in floating point, whose ceiling is 12.
    return min(limits.depth_limit, math.ceil(Fraction(str(limits.eta)) * best_depth))


def potential(depth: int, path_score: float, limit: int) -> float:
    """Return the best mean a path can still reach: (j·V + (H_max − j)·v_sup) / H_max (§3.3).

    >>> potential(2, 0.5, 4)
    0.75
    """
    return (depth * path_score + (limit - depth) * BEST_STEP) / limit


def early_exit_bound(depth: int, path_score: float, limit: int, bar: float | None) -> float | None:
    """Return the best mean that an early-exiting path could still have reached; None if the path continues.

    Args:
        depth: j, the number of steps in the path.
        path_score: V(p), the mean score of the path's steps.
        limit: H_max.
        bar: The score to beat; None if there is none yet.

    >>> early_exit_bound(2, 0.5, 4, 0.8), early_exit_bound(2, 0.5, 4, 0.7)
    (0.75, None)
    """
    bound = potential(depth, path_score, limit)
    return bound if bar is not None and bound < bar else None


def last_answer(scores: Sequence[float], answers: int) -> float | None:
    """Return the lowest score among the `answers` best paths; None if there are fewer paths."""
    return sorted(scores, reverse=True)[answers - 1] if len(scores) >= answers else None
