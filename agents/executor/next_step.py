"""What a search drafts next (UniScale §3.3): the prefixes that grow, their seeds, and whether a budget has run out.

Pure functions on `schemas.forest.Forest`; `forest.py` takes the drafts and their scores.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.forest import Forest, Stop


@dataclass(frozen=True)
class Expansion:
    """One prefix to draft from: `parent` is its last draft, -1 for the bare prompt of subtree `tree`.

    `max_tokens` is what the client's bound on each path leaves for its drafts; None without a bound.
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
    """Return the drafts to make next; None if the search is over or waits for scores.

    The first step has CP drafts for each of QP subtrees; later ones have CP/BS for each kept path. The token budget is
    divided evenly, so that it cannot be exceeded.

    Args:
        forest: The search.
        query_id: The query's id. The seed of each draft derives from it (unless the client gave a seed), `seed`, the
            step and the path.
        seed: The query's seed; the same seed gives the same drafts, if the engine is reproducible.
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
    """Return the seeds of one prefix's drafts, from 0 to 2**63 - 1. They are stable hashes of their places only.

    Args:
        query_id: The query's id.
        seed: Its seed.
        step: The step to be drafted, from 1.
        tree: The subtree.
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
    """Return which budget has run out, if any; checked between steps.

    Args:
        forest: The search.
        eflops: Price of the search so far.
        now_ms: Time since the epoch; None ignores deadlines.
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
    """Return (parent, tree) of each prefix of the next step, and the number of drafts for each."""
    action = forest.action
    if forest.step == 0:
        return [(-1, tree) for tree in range(action.qp)], action.cp
    return [(at, forest.drafts[at].tree) for at in forest.live], max(1, action.cp // action.bs)


def _tokens_left(forest: Forest) -> int | None:
    budget = forest.limits.budget_tokens
    return None if budget is None else budget - forest.generated_tokens
