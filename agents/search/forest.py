"""The path-aware search forest (UniScale §3.3) as an ask/tell state machine without I/O."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from agents.search.pruning import PrunedStep, prune_step
from agents.serving.engine import Drafted
from schemas.action import Action
from schemas.errors import UniscaleError
from schemas.forest import Draft, Finish, Forest, Limits, Stop, completes, first_stop
from schemas.search import Scored

# Path-aware search forest (UniScale §3.3): `ask` returns the drafts to make, `tell_drafts` and `tell_scores` add the
# drafts and their scores, and `prune_step` decides which paths are kept and which are pruned.
#
# These are pure functions on `schemas.forest.Forest`. A forest can be stored after any call and resumed elsewhere.
# Adding a step a second time, even with different content, returns the forest unchanged. Ties between path scores go to
# the draft that was made first, so everything is deterministic.
#
# Departures from the paper: a path that is cut off unfinished does not count towards V_max, D_best and the argmax. It
# is returned, flagged, only if no path finished (`cut_completes` follows the literal reading). H_max never exceeds the
# initial depth limit. A draft cut off by its token limit is neither dropped nor finished: it is scored as a step, and
# its path continues mid-step. A client may set bounds on each path: a draft that contains one of the client's stop
# texts finishes its path, and a path that reaches the client's maximum number of tokens is cut off.


class SearchError(UniscaleError):
    """Drafts or scores do not match the request. The engine or the verifier is at fault, not the query."""


@dataclass(frozen=True)
class Outcome:
    """How a search ended. `index` is the chosen path's last draft; -1 if nothing was drafted."""

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
    """Return the forest with a step's drafts added, awaiting their scores.

    Args:
        forest: The search.
        step: The step that the drafts belong to. Repeating a step changes nothing.
        drafts: All requested drafts, expansion by expansion.
        prompt_tokens: L_in; required with the first step.

    Raises:
        SearchError: The step has not been requested yet, or the number of drafts is wrong.
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
                parent=parent,
                depth=step,
                tokens=draft.tokens,
                finish=finish,
                tree=tree,
                slot=index % n,
                text=text,
            )
        )
    known = prompt_tokens if step == 1 and prompt_tokens else forest.prompt_tokens
    return msgspec.structs.replace(forest, drafts=(*forest.drafts, *new), step=step, prompt_tokens=known)


def tell_scores(forest: Forest, step: int, scores: Sequence[Scored], *, forget: bool = True) -> Forest:
    """Return the forest after search control has processed a scored step (§3.3, steps 3 and 4).

    Args:
        forest: The search.
        step: The step that the scores belong to. Repeating a step changes nothing.
        scores: One score per pending draft, in order.
        forget: Whether to drop texts that no live or best path needs. Recordings keep them.

    Raises:
        SearchError: The step has not been drafted, a score is missing or outside [0, 1], or the search has no verifier.
    """
    if step <= forest.scored:
        return forest
    if not forest.limits.verified:
        raise SearchError(f"scores of step {step} came to a search without a verifier")
    pending = forest.pending
    if step != forest.step:
        raise SearchError(f"scores of step {step} came at step {forest.step}; tell its drafts first")
    if len(scores) != len(pending):
        raise SearchError(
            f"step {step} has {len(scores)} scores for {len(pending)} drafts; score each draft once"
        )
    if bad := [v.score for v in scores if not 0.0 <= v.score <= 1.0]:
        raise SearchError(f"step {step} has a score of {bad[0]}; give a number from 0 to 1")
    values, completed = _path_scores(forest, pending, scores), _completed(forest)
    pruned = prune_step(forest, values, completed)
    needed = _needed(forest, pruned, values, completed) if forget else set(range(len(forest.drafts)))
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
                fate=pruned.fates[at],
                bound=pruned.bounds.get(at),
            )
        )
    return msgspec.structs.replace(forest, drafts=tuple(drafts), scored=step, best=pruned.best)


def stop(forest: Forest, why: Stop) -> Forest:
    """Return the forest with its live paths stopped by a budget. A finished search is unchanged.

    Raises:
        SearchError: A step is awaiting its scores. Its drafts have been paid for, so add the scores first.
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
    """Return y*, the best completed path, or else the best unfinished one, flagged as such (§3.3, step 4).

    Raises:
        SearchError: The search is not over.
    """
    if not forest.over:
        raise SearchError("the search is not over; keep asking and telling")
    completed = sum(draft.fate == "finished" for draft in forest.drafts)
    index = forest.best if forest.best >= 0 else _best_unfinished(forest)
    score = forest.value(index) if index >= 0 else None
    complete = index >= 0 and forest.drafts[index].fate == "finished"
    if forest.stopped is not None:
        return Outcome("budget", index, complete, score, completed)
    return Outcome("ok" if complete else "unfinished", index, complete, score, completed)


def _ended(forest: Forest, parent: int, draft: Drafted) -> tuple[str, Finish]:
    """Return a new draft's text and how it ended, after applying the client's own bounds on the path."""
    limits = forest.limits
    before = forest.text(parent) if limits.stop else ""
    if (found := first_stop(before + draft.text, limits.stop)) is not None:
        return draft.text[: found[1] - len(before)], "stop"
    bounded = limits.max_tokens is not None and forest.tokens(parent) + draft.tokens >= limits.max_tokens
    if bounded and draft.finish not in ("eos", "stop"):
        return draft.text, "max_tokens"
    # If an empty draft ended at its token limit, the context is full.
    return draft.text, "context" if draft.finish == "length" and not draft.tokens else draft.finish


def _path_scores(forest: Forest, pending: Sequence[int], scores: Sequence[Scored]) -> dict[int, float]:
    """Return V(p) for each pending path, as `Forest.path_score` would, but looking up each prefix only once."""
    prefixes: dict[int, list[float]] = {}
    values = {}
    for at, verified in zip(pending, scores, strict=True):
        parent = forest.drafts[at].parent
        if parent not in prefixes:
            prefixes[parent] = [forest.drafts[above].score or 0.0 for above in forest.path(parent)]
        values[at] = sum([*prefixes[parent], verified.score]) / forest.step
    return values


def _completed(forest: Forest) -> dict[int, float]:
    """Return V(p) for the completed paths that count: only the best, or all (best first) if several are wanted."""
    best = (forest.best,) if forest.best >= 0 else ()
    return {
        at: forest.path_score(at) for at in (best if forest.limits.answers == 1 else forest.completed_paths)
    }


def _needed(
    forest: Forest, pruned: PrunedStep, values: dict[int, float], completed: dict[int, float]
) -> set[int]:
    """Return the drafts whose texts are needed by a live path or by a path that may become an answer."""
    ends = [at for at in values if pruned.fates[at] == "kept"]
    if pruned.best >= 0:
        ends.append(pruned.best)
        if (wanted := forest.limits.answers) > 1:
            scores = completed | {
                at: value
                for at, value in values.items()
                if completes(pruned.fates[at], forest.drafts[at].finish, forest.limits)
            }
            ends += sorted(scores, key=lambda at: (at != pruned.best, -scores[at]))[:wanted]
    else:
        cut = [at for at in values if pruned.fates[at] == "cut"]
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
    return max(ends, key=lambda at: forest.value(at) or 0.0, default=-1)


# A search's next drafts (UniScale §3.3): the prefixes to extend, their seeds, and whether a budget has run out.
#
# Pure functions on `schemas.forest.Forest`.


@dataclass(frozen=True)
class Expansion:
    """One prefix to draft from, in subtree `tree`. `parent` is its last draft, or -1 for the prompt alone.

    `max_tokens` is how much of the client's token limit for the path remains; None if there is no limit.
    """

    parent: int
    tree: int
    seeds: tuple[int, ...]
    max_tokens: int | None = None


@dataclass(frozen=True)
class Ask:
    """The drafts of one step: `n` for each expansion, each at most `max_tokens` long."""

    step: int
    expansions: tuple[Expansion, ...]
    n: int
    max_tokens: int


def ask(forest: Forest, query_id: str, seed: int = 0) -> Ask | None:
    """Return the drafts to make next; None if the search is over, is awaiting scores or has run out of tokens.

    The first step has CP drafts for each of QP subtrees, and later steps have CP/BS for each kept path. The token
    budget is divided evenly, so that it cannot be exceeded.

    Args:
        forest: The search.
        query_id: The query's id. Each draft's seed is derived from this id (unless the client set a seed), `seed`, the
            step and the path.
        seed: The query's seed. The same seed yields the same drafts if the engine is reproducible.
    """
    if forest.over or forest.scored != forest.step or spent(forest) is not None:
        return None
    starts, n = prefixes(forest)
    most, expansions = forest.limits.max_tokens, []
    name = "" if forest.limits.seeded else query_id
    for parent, tree in starts:
        slots = [forest.drafts[at].slot for at in forest.path(parent)]
        seeds = draft_seeds(name, seed, forest.step + 1, tree, slots, n)
        left_of_path = None if most is None else most - forest.tokens(parent)
        expansions.append(Expansion(parent, tree, seeds, left_of_path))
    max_tokens = forest.limits.step_tokens
    if (left := _tokens_left(forest)) is not None:
        max_tokens = min(max_tokens, left // (n * len(starts)))
    return Ask(forest.step + 1, tuple(expansions), n, max_tokens)


def draft_seeds(
    query_id: str, seed: int, step: int, tree: int, above: Sequence[int], n: int
) -> tuple[int, ...]:
    """Return seeds for one prefix's drafts, from 0 to 2**63 - 1: stable hashes of the arguments and the draft index.

    Args:
        query_id: The query's id.
        seed: The query's seed.
        step: The step to draft, counted from 1.
        tree: Index of the subtree.
        above: Slots of the drafts above, root first.
        n: Number of drafts for the prefix.

    >>> draft_seeds("q-1", 0, 1, 0, [], 3)[:2] == draft_seeds("q-1", 0, 1, 0, [], 2)
    True
    """
    start = hashlib.blake2b(
        f"{query_id}\n{'/'.join(map(str, (seed, step, tree, *above)))}".encode(), digest_size=8
    )
    seeds = []
    for k in range(n):
        place = start.copy()
        place.update(f"/{k}".encode())
        seeds.append(int.from_bytes(place.digest(), "big") >> 1)
    return tuple(seeds)


def spent(forest: Forest, *, eflops: float = 0.0, now_ms: int | None = None) -> Stop | None:
    """Return the budget that has run out, or None. This is checked between steps.

    Args:
        forest: The search.
        eflops: Cost of the search so far.
        now_ms: Time since the epoch; None ignores the deadline.
    """
    limits = forest.limits
    if (left := _tokens_left(forest)) is not None:
        starts, n = prefixes(forest)
        if left < n * len(starts):
            return "tokens"
    if limits.budget_eflops is not None and eflops >= limits.budget_eflops:
        return "eflops"
    if now_ms is not None and limits.deadline_ms is not None and now_ms >= limits.deadline_ms:
        return "deadline"
    return None


def prefixes(forest: Forest) -> tuple[list[tuple[int, int]], int]:
    """Return the (parent, tree) pair of each prefix for the next step, and the number of drafts per prefix."""
    action = forest.action
    if forest.step == 0:
        return [(-1, tree) for tree in range(action.qp)], action.cp
    return [(at, forest.drafts[at].tree) for at in forest.live], max(1, action.cp // action.bs)


def _tokens_left(forest: Forest) -> int | None:
    budget = forest.limits.budget_tokens
    return None if budget is None else budget - forest.generated_tokens


def place_of(forest: Forest, index: int) -> tuple[int, ...]:
    """Return a draft's position in any search for its query: its subtree, then its slot at each step.

    A draft's seed depends on no other property of the search, so a wider search contains every draft of a narrower one.
    """
    path = [forest.drafts[at] for at in forest.path(index)]
    return (path[0].tree, *(draft.slot for draft in path))
