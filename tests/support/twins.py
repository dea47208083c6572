"""A learner and its twin, restored from its snapshot: do both go on alike, to the byte, whatever computes?

    OPENBLAS_CORETYPE=Haswell .venv/bin/python -m tests.support.twins linucb contextual

OpenBLAS chooses its kernels when it is loaded, so each kernel needs a process of its own. It prints as JSON what it
computes with, and where the twins of each policy part.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.linalg  # noqa: F401  (NumPy and SciPy have a library each, and both must be loaded to be named)
from threadpoolctl import threadpool_info

from agents.bandit.features import COUNTS
from agents.bandit.history import History
from agents.bandit.policy import ActionVector, Observation
from agents.bandit.prior import teach
from agents.bandit.registry import build_policy
from agents.catalogue.action_space import uis_space
from agents.decider.decisions import DecisionResult
from schemas.objective import Weights
from schemas.query import Origin, QueryContext
from schemas.reward import Kind, Reward
from tests.support.shard import Log, Shard


class Case(NamedTuple):
    """A policy with its options, and for how many decisions the twins are compared."""

    policy: str
    options: dict[str, Any]
    rounds: int = 2_000
    prior: bool = False


# A few iterations keep the networks fast; a state is restored alike after any number of them.
_NETWORK: Final = {"hidden": 8, "iterations": 5}
CASES: Final = {
    "contextual": Case("contextual", {"query_rank": 11}),
    "discounted": Case("discounted", {"gamma": 0.99}),
    "greedy": Case("greedy", {}),
    "knn": Case("knn", {}),
    "linucb": Case("linucb", {"warm_up": 50, "floor": 0.05}),
    "mlp": Case("mlp", _NETWORK, 200),
    "neural-ucb": Case("neural-ucb", _NETWORK, 200),
    "random": Case("random", {}),
    "sliding-window": Case("sliding-window", {"window": 200}),
    "thompson": Case("thompson", {"propensity_draws": 16}),
    "contextual, from a prior": Case("contextual", {"query_rank": 11}, prior=True),
    "contextual, all directions": Case("contextual", {}, 100),
    "linucb, bilinear": Case("linucb", {"interactions": "bilinear", "action_features": "centred"}, 300),
    "linucb, decided": Case("linucb", {"widths": "decided"}, 300),
    "linucb, one-hot": Case("linucb", {"interactions": "model", "action_features": "one-hot"}, 300),
    "sliding-window, scalar": Case("sliding-window", {"window": 50, "reward": "scalar"}, 300),
}
"""Every deployable policy, then options that change what is computed."""

PAIRS: Final = ((1, 1), (4, 1))
EACH: Final = (1, 5, 2, 8, 4)
"""Decisions made together, in turn: products of other shapes add in other orders."""

FIRST: Final[Sequence[Kind]] = ("final", "final", "final", "final", "final", "provisional", "default")
"""The first reward of a decision is one of these at random."""

WEIGHTS: Final = ((0.7, 0.2, 0.1), (0.1, 0.1, 0.8), (1.0, 0.0, 0.0))
"""The first add up to a little less than 1 in floating point."""


def kernels() -> list[str]:
    """Return what each OpenBLAS of this process computes with, sorted."""
    return sorted(each["architecture"] for each in threadpool_info() if each["internal_api"] == "openblas")


def parted(case: Case, before: int = 400) -> str:
    """Return where a learner and its twin part; nothing where they never do.

    Args:
        case: What to compare.
        before: Decisions before the snapshot.
    """
    shard = born(case)
    for _ in life([shard], before):
        pass
    shard.apply(shard.snapshot())
    twin = copy.copy(shard)
    twin.table = copy.deepcopy(shard.table)
    if twin.crash().snapshot_version != shard.decider.seq - 1:
        return "the snapshot, from which alone the twin must come"
    here, there = (layout(each.decider.policy) for each in (shard, twin))
    if differ := sorted(path for path in here.keys() & there.keys() if here[path] != there[path]):
        return f"the order in memory of {', '.join(differ)}"
    for at, (one, two) in enumerate(life([shard, twin], case.rounds)):
        if one != two:
            return f"what is written in round {at}"
    return "" if shard.decider.policy.state() == twin.decider.policy.state() else "the state in the end"


def born(case: Case) -> Shard:
    """Return a shard that has decided nothing."""

    def policy(_: Any = None) -> Any:
        return build_policy(case.policy, case.options, query_dim=12, action_dim=10)

    shard = Shard(policy, seed=3, models=4, pairs=PAIRS)
    if case.prior:
        actions, taught = list(shard.vectors.values()), policy()
        taught.offer(actions)
        shard.table, shard.decider = Log(), shard.fresh()
        shard.table |= dict(shard.decider.begin(teach(taught, history(actions)), actions))
        shard.offer()
    return shard


def history(actions: Sequence[ActionVector]) -> History:
    """Return outcomes of every action for sixty questions."""
    rng, questions = np.random.default_rng(0), 60
    rows = questions * len(actions)
    return History(
        queries=rng.normal(size=(questions, 12 + len(COUNTS))) * 0.3,
        question=np.repeat(np.arange(questions), len(actions)),
        action=np.tile(np.arange(len(actions)), questions),
        correct=(rng.random(rows) < 0.6).astype(float),
        score=rng.random(rows),
        log_cost=np.tile(np.log([1e4 * action.size for action in actions]), questions),
        propensity=np.ones(rows),
    )


def layout(of: Any, path: str = "policy") -> dict[str, tuple[str, bool, bool]]:
    """Return the type and the order in memory of every array in an object: BLAS adds rows otherwise than columns."""
    match of:
        case np.ndarray():
            return {path: (of.dtype.str, of.flags.c_contiguous, of.flags.f_contiguous)}
        case None | str() | bytes() | int() | float() | Observation():
            parts: list[tuple[Any, Any]] = []
        case dict():
            parts = list(of.items())
        case list() | tuple() | deque():
            parts = list(enumerate(of))
        case _:
            parts = list(getattr(of, "__dict__", {}).items())
    found: dict[str, tuple[str, bool, bool]] = {}
    for name, part in parts:
        found |= layout(part, f"{path}.{name}")
    return found


def life(shards: Sequence[Shard], rounds: int) -> Iterator[tuple[Any, Any]]:
    """Let shards decide and learn the same; yield what the first and the last have written in each round.

    Outcomes come late and in another order, some without correctness at first, some as a cost alone, some never. One
    model joins and another leaves, and a third has another price for a while.
    """
    first = shards[0]
    whole = uis_space(first.catalogue, PAIRS)
    waiting: list[tuple[Any, Kind]] = []
    made = at = 0
    while made < rounds:
        for shard in shards:
            if at % 50 == 10:
                shard.reprice(2.5 if at % 100 == 10 else 1.0)
            if at == rounds // 8:
                shard.use(whole.restrict({action.model for action in shard.space} ^ set(whole.models[3:5])))
        contexts = [asked(first) for _ in range(min(EACH[at % len(EACH)], rounds - made))]
        decided = [shard.ask(*contexts) for shard in shards]
        waiting += [(each, FIRST[int(first.rng.integers(len(FIRST)))]) for each in decided[0]]
        first.rng.shuffle(waiting)
        due, waiting = waiting[6:], waiting[:6]
        rewards = [outcome(first, *each) for each in due]
        learned = [shard.tell(*rewards) for shard in shards]
        waiting += [(each, "correction") for each, kind in due if kind == "provisional"]
        made, at = made + len(contexts), at + 1
        yield (decided[0], learned[0]), (decided[-1], learned[-1])


def asked(shard: Shard) -> tuple[QueryContext, Origin]:
    """Return a new question, under weights or, where they are served, under a target."""
    correct, score, cost = WEIGHTS[int(shard.rng.integers(len(WEIGHTS)))]
    goal: dict[str, Any] = {"weights": Weights(correct=correct, score=score, cost=cost)}
    if shard.decider.policy.pacer is not None and shard.rng.random() < 0.5:
        goal = {"accuracy": 0.95} if shard.rng.random() < 0.5 else {"mean_cost": 1e14}
    numbers = shard.rng.integers(1000, size=int(shard.rng.integers(1, 6))).tolist()
    return shard.context(text=f"How much is {' and '.join(map(str, numbers))}?", **goal)


def outcome(shard: Shard, decided: DecisionResult, kind: Kind) -> tuple[Reward, int]:
    """Return what came of a decision; of one by default, what it cost."""
    return shard.reward(decided, kind, bounded=kind == "default")


def main() -> None:
    """Print, as JSON, what computes here, and where the twins of each policy part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    found = {name: parted(CASES[name]) for name in parser.parse_args().cases}
    print(json.dumps({"kernels": kernels(), "parted": found}))


if __name__ == "__main__":
    main()
