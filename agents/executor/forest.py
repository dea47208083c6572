"""Path-aware search forest (UniScale §3.3): two `tell`s take the drafts that were asked for, and their scores.

These are pure functions on `schemas.forest.Forest`; a forest can be stored after any call and resumed elsewhere. A step
is told once: telling it again, with whatever content, returns the forest unchanged. `next_step.py` says what to draft,
`early_exit.py` what is kept and what is pruned. If path scores are equal, the draft that was made first wins, so
everything is deterministic.

Departures from the paper: a path that is cut off unfinished does not count for V_max, D_best and the argmax. It is
returned, flagged, only if nothing finished (`cut_completes` gives the literal reading). H_max never exceeds the first
depth limit. A draft cut by its token limit is neither dropped nor finished: it is scored as a step, and its path
continues in the middle of it. A client may bound each path itself: the draft in which one of its stop texts occurs
finishes its path, and a path that reaches its most tokens is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from agents.executor.early_exit import Judgement, judge
from agents.executor.engine import Drafted
from agents.executor.next_step import prefixes
from schemas.action import Action
from schemas.errors import UniscaleError
from schemas.forest import Draft, Finish, Forest, Limits, Stop, completes, first_stop
from schemas.search import Scored


class SearchError(UniscaleError):
    """Drafts or scores do not match what was asked for: an engine or verifier made a mistake, not the query."""


@dataclass(frozen=True)
class Outcome:
    """How a search ended. `index` is the chosen path's last draft; -1 when nothing was drafted."""

    status: Literal["ok", "unfinished", "budget"]
    index: int
    complete: bool
    score: float | None
    completed: int


def plant(action: Action, limits: Limits) -> Forest:
    """Return the forest before its first step."""
    return Forest(action=action, limits=limits)


def tell_drafts(
    forest: Forest, step: int, drafts: Sequence[Drafted], prompt_tokens: int | None = None
) -> Forest:
    """Return the forest with a step's drafts, waiting for their scores.

    Args:
        forest: The search.
        step: The step of the drafts. A step that was told already changes nothing.
        drafts: All drafts that were asked for, expansion by expansion.
        prompt_tokens: L_in; needed with the first step.

    Raises:
        SearchError: the step was not asked for yet, or the number of drafts is wrong.
    """
    if step <= forest.step:
        return forest
    if step != forest.step + 1 or forest.scored != forest.step or forest.over:
        raise SearchError(
            f"drafts of step {step} were not asked for at step {forest.step}; tell the steps in order"
        )
    starts, n = prefixes(forest)
    if len(drafts) != n * len(starts):
        raise SearchError(
            f"step {step} has {len(drafts)} drafts for {n * len(starts)} asked; draft each once"
        )
    if step == 1 and not prompt_tokens:
        raise SearchError("the first step has no prompt_tokens; give the length of the rendered prompt")
    new = []
    for index, draft in enumerate(drafts):
        parent, tree = starts[index // n]
        text, finish = _ended(forest, parent, draft)
        new.append(
            Draft(
                parent=parent, depth=step, tokens=draft.tokens, finish=finish, tree=tree, slot=index % n, text=text
            )
        )  # fmt: skip
    known = prompt_tokens if step == 1 and prompt_tokens else forest.prompt_tokens
    return msgspec.structs.replace(forest, drafts=(*forest.drafts, *new), step=step, prompt_tokens=known)


def tell_scores(forest: Forest, step: int, scores: Sequence[Scored], *, forget: bool = True) -> Forest:
    """Return the forest after search control on a scored step (§3.3, steps 3 and 4).

    Args:
        forest: The search.
        step: The step of the scores. A step that was told already changes nothing.
        scores: One for each pending draft, in order.
        forget: Whether to drop texts that no live or best path needs; recordings keep them.

    Raises:
        SearchError: the step has not been drafted, or a score is missing or outside [0, 1].
    """
    if step <= forest.scored:
        return forest
    pending = forest.pending
    if step != forest.step:
        raise SearchError(f"scores of step {step} came at step {forest.step}; tell its drafts first")
    if len(scores) != len(pending):
        raise SearchError(
            f"step {step} has {len(scores)} scores for {len(pending)} drafts; score each draft once"
        )
    if bad := [v.score for v in scores if not 0.0 <= v.score <= 1.0]:
        raise SearchError(f"step {step} has a score of {bad[0]}; give a number from 0 to 1")
    values = _path_scores(forest, pending, scores)
    verdict = judge(forest, values)
    needed = _needed(forest, verdict, values) if forget else set(range(len(forest.drafts)))
    drafts = [
        msgspec.structs.replace(draft, text="") if draft.text and at not in needed else draft
        for at, draft in enumerate(forest.drafts[: pending[0]])
    ]
    for at, verified in zip(pending, scores, strict=True):
        drafts.append(
            msgspec.structs.replace(
                forest.drafts[at],
                text=forest.drafts[at].text if at in needed else "",
                score=verified.score,
                verifier_tokens=verified.tokens,
                shortened=verified.shortened,
                fate=verdict.fates[at],
                bound=verdict.bounds.get(at),
            )
        )
    return msgspec.structs.replace(forest, drafts=tuple(drafts), scored=step, best=verdict.best)


def stop(forest: Forest, why: Stop) -> Forest:
    """Return the forest ended by a budget: its live paths are stopped. A search that is over does not change.

    Raises:
        SearchError: a step waits for its scores; they are paid for, so take them first.
    """
    if forest.over:
        return forest
    if forest.scored != forest.step:
        raise SearchError(f"step {forest.step} waits for its scores; tell them before stopping")
    drafts = list(forest.drafts)
    for at in forest.live:
        drafts[at] = msgspec.structs.replace(drafts[at], fate="stopped")
    return msgspec.structs.replace(forest, drafts=tuple(drafts), stopped=why)


def outcome(forest: Forest) -> Outcome:
    """Return y*, the best completed path, or the best unfinished one flagged as such (§3.3, step 4).

    Raises:
        SearchError: the search is not over.
    """
    if not forest.over:
        raise SearchError("the search is not over; keep asking and telling")
    completed = sum(draft.fate == "finished" for draft in forest.drafts)
    index = forest.best if forest.best >= 0 else _best_unfinished(forest)
    score = forest.path_score(index) if index >= 0 else None
    complete = index >= 0 and forest.drafts[index].fate == "finished"
    if forest.stopped is not None:
        return Outcome("budget", index, complete, score, completed)
    return Outcome("ok" if complete else "unfinished", index, complete, score, completed)


def _ended(forest: Forest, parent: int, draft: Drafted) -> tuple[str, Finish]:
    """Return the text of a new draft and how it ended, with the client's own bounds on its path."""
    limits = forest.limits
    before = forest.text(parent) if limits.stop else ""
    if (found := first_stop(before + draft.text, limits.stop)) is not None:
        return draft.text[: found[1] - len(before)], "stop"
    bounded = limits.max_tokens is not None and forest.tokens(parent) + draft.tokens >= limits.max_tokens
    if bounded and draft.finish not in ("eos", "stop"):
        return draft.text, "max_tokens"
    # An empty draft that ended by length means that the context is full.
    return draft.text, "context" if draft.finish == "length" and not draft.tokens else draft.finish


def _path_scores(forest: Forest, pending: Sequence[int], scores: Sequence[Scored]) -> dict[int, float]:
    """Return V(p) of each pending path: the same sum as `Forest.path_score`, looking up each prefix only once."""
    prefixes: dict[int, list[float]] = {}
    values = {}
    for at, verified in zip(pending, scores, strict=True):
        parent = forest.drafts[at].parent
        if parent not in prefixes:
            prefixes[parent] = [forest.drafts[above].score or 0.0 for above in forest.path(parent)]
        values[at] = sum([*prefixes[parent], verified.score]) / forest.step
    return values


def _needed(forest: Forest, verdict: Judgement, values: dict[int, float]) -> set[int]:
    """Return the drafts whose texts are needed by a live path, or by the path that would be the answer now."""
    ends = [at for at in values if verdict.fates[at] == "kept"]
    if verdict.best >= 0:
        ends.append(verdict.best)
        if (wanted := forest.limits.answers) > 1:
            scores = {at: forest.path_score(at) for at in forest.completed_paths}
            scores |= {
                at: value
                for at, value in values.items()
                if completes(verdict.fates[at], forest.drafts[at].finish, forest.limits)
            }
            ends += sorted(scores, key=lambda at: (at != verdict.best, -scores[at]))[:wanted]
    else:
        cut = [at for at in values if verdict.fates[at] == "cut"]
        before = _best_unfinished(forest)
        known = {before: forest.path_score(before)} if before >= 0 else {}
        ends += (
            [max([*known, *cut], key=lambda at: known[at] if at in known else values[at])]
            if known or cut
            else []
        )
    return {above for at in ends for above in forest.path(at)}


def _best_unfinished(forest: Forest) -> int:
    ends = [at for at, draft in enumerate(forest.drafts) if draft.fate in ("cut", "stopped")]
    return max(ends, key=forest.path_score, default=-1)
