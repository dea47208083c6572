"""The part of a running search that may already be shown: the steps shared by every path that can still win."""

from schemas.forest import Forest, first_stop


def settled(forest: Forest) -> str:
    """Return the text that any answer of this search will begin with.

    The answer will be a path that is still being drafted, the best completed one, or, as long as none is completed,
    one that was cut off. What all of these share cannot be taken back. A search of width 1 has one path, so it streams
    step by step. What may be the beginning of one of the client's stop texts is held back.

    Args:
        forest: The search as a SearchStep carries it, with the newest drafts pending.
    """
    ends = list(forest.pending or forest.live)
    if forest.best >= 0:
        ends.append(forest.best)
    else:
        ends += [at for at, draft in enumerate(forest.drafts) if draft.fate in ("cut", "stopped")]
    if not ends:
        return ""
    shared = forest.path(ends[0])
    for end in ends[1:]:
        other = forest.path(end)
        same = 0
        while same < min(len(shared), len(other)) and shared[same] == other[same]:
            same += 1
        shared = shared[:same]
    text = "".join(forest.drafts[at].text for at in shared)
    stops = forest.limits.stop
    if (found := first_stop(text, stops)) is not None:
        return text[: found[0]]
    held = max((len(s) for stop in stops for s in _beginnings(stop) if text.endswith(s)), default=0)
    return text[: len(text) - held]


def _beginnings(stop: str) -> list[str]:
    return [stop[:length] for length in range(1, len(stop))]
