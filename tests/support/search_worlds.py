"""Searches on worlds whose randomness is keyed to the path: whoever asks for a draft, it is the same one."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from agents.search.forest import ask, plant, tell_drafts, tell_scores
from agents.serving.engine import Drafted
from schemas.action import Action
from schemas.forest import Forest, Limits
from schemas.search import Scored

Path = tuple[int, ...]  # (tree, slot, slot, …)


@dataclass(frozen=True)
class World:
    """What would be drafted at each path: (score, whether it ends, tokens). The same for whoever asks."""

    seed: int
    ends: float
    grid: int  # scores are multiples of 1/grid: coarse grids make ties

    def at(self, path: Path) -> tuple[float, bool, int]:
        rng = random.Random(f"{self.seed}/{path}")
        return rng.randint(0, self.grid) / self.grid, rng.random() < self.ends, rng.randint(0, 9)


def place(forest: Forest, index: int) -> Path:
    nodes = [forest.drafts[at] for at in forest.path(index)]
    return (nodes[0].tree, *(node.slot for node in nodes))


def steps(world: World, action: Action, limits: Limits, forget: bool = True) -> Iterator[Forest]:
    """Yield the forest after every tell."""
    forest = plant(action, limits)
    while (request := ask(forest, "q")) is not None:
        drafted = []
        for expansion in request.expansions:
            above = place(forest, expansion.parent) if expansion.parent >= 0 else (expansion.tree,)
            for k in range(request.n):
                _, ends, tokens = world.at((*above, k))
                text = "/".join(map(str, (*above, k))) + ";"
                drafted.append(Drafted(text, tokens, "eos" if ends else "separator"))
        forest = tell_drafts(forest, request.step, drafted, prompt_tokens=7)
        yield forest
        scores = [Scored(score=world.at(place(forest, at))[0], tokens=at) for at in forest.pending]
        forest = tell_scores(forest, request.step, scores, forget=forget)
        yield forest
