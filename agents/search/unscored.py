"""Search control without a verifier: every path continues until it ends, and the most frequent answer is chosen."""

from collections import Counter

import msgspec

from agents.grading.grade import extract_boxed
from agents.search.early_exit import h_max
from agents.search.forest import SearchError
from agents.search.pruning import ended
from schemas.forest import Fate, Forest, completes


def tell_unscored(forest: Forest, step: int) -> Forest:
    """Return the forest after search control has processed a step without scores.

    All paths tie, so a configuration that would need scores keeps the first BS paths in each subtree.

    Args:
        forest: The search.
        step: The step. Repeating a step changes nothing.

    Raises:
        SearchError: The step has not been drafted.
    """
    if step <= forest.scored:
        return forest
    if step != forest.step:
        raise SearchError(f"step {step} was told at step {forest.step}; tell its drafts first")
    drafts, grown = list(forest.drafts), Counter[int]()
    for at in forest.pending:
        draft, fate = drafts[at], ended(forest, at)
        if fate is None and step >= h_max(forest.limits, None):
            fate = "cut"
        if fate is None:
            fate = _kept(grown[draft.tree], forest)
            grown[draft.tree] += 1
        drafts[at] = msgspec.structs.replace(draft, fate=fate)
    told = msgspec.structs.replace(forest, drafts=tuple(drafts), scored=step)
    return msgspec.structs.replace(told, best=most_frequent(told))


def _kept(before: int, forest: Forest) -> Fate:
    return "kept" if before < forest.action.bs else "beam"


def most_frequent(forest: Forest) -> int:
    """Return the first completed path with the most frequent answer; -1 if no path has completed yet.

    Answers are compared as text, ignoring spaces. If no path contains an answer, the first path is returned.
    """
    done = [at for at, each in enumerate(forest.drafts) if completes(each.fate, each.finish, forest.limits)]
    answers = {at: extract_boxed(forest.answer(at)) for at in done}
    plain = {at: "".join(answer.split()) for at, answer in answers.items() if answer is not None}
    votes = Counter(plain.values())
    return min(done, key=lambda at: (-votes[plain[at]] if at in plain else 0, at), default=-1)
