"""Feedback as production has it: late, out of order, seldom, censored, twice, wrong; and no warm-up at all."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.outcomes.world import World
from experiments.trials.loop import WARM_UP, Feedback
from experiments.trials.runs import Run, figures_of, paired, summed
from experiments.trials.scenarios import MODES, steady
from experiments.trials.scope import Scope, key_of

CONDITIONS: Mapping[str, Feedback] = {
    "prompt (1 in flight)": Feedback(),
    "16 in flight": Feedback(in_flight=16),
    "64 in flight": Feedback(in_flight=64),
    "late and out of order (31 rounds on average)": Feedback(in_flight=32, shuffled=True),
    "sparse: 25 % rewarded": Feedback(kept=0.25),
    "sparse, score and cost at once": Feedback(kept=0.25, two_stage=True),
    "late by 63, score and cost at once": Feedback(in_flight=64, two_stage=True),
    "censored: half of the wrong unrewarded": Feedback(censored=0.5),
    "duplicated: half twice": Feedback(duplicated=0.5),
    "poisoned: 10 % the opposite": Feedback(poisoned=0.1),
    "poisoned: 30 % the opposite": Feedback(poisoned=0.3),
}
POLICIES = ("uniscale", "terms", "decided", "coordinates", "knn")
STARTS = (0, 10, WARM_UP)
LAST = 60


def conditions(world: World, scope: Scope) -> dict[str, Any]:
    """Return each policy under each condition, and what it lost by it, paired by seed."""
    table: dict[str, Any] = {}
    for mode in MODES if scope.whole else MODES[:1]:
        prompt: dict[str, list[Run]] = {}
        rows: dict[str, Any] = {}
        for name, feedback in CONDITIONS.items():
            scope.say(f"feedback, {mode}: {name}")
            rows[name] = {}
            for policy in POLICIES if scope.whole else POLICIES[:2]:
                runs = scope.more(policy, world, steady(world, mode), feedback=feedback)
                prompt.setdefault(policy, runs)
                figures = figures_of(runs, world)
                rows[name][policy] = {
                    "reward": figures["reward"],
                    "regret": figures["regret"],
                    "reward_lost": paired(prompt[policy], runs),
                }
        table[key_of(mode)] = rows
    return table


def cold_start(world: World, scope: Scope) -> dict[str, Any]:
    """Return rewards over all 210 rounds, and over the last 60, by rounds of uniform choice before the policy."""
    table: dict[str, Any] = {}
    for mode in MODES if scope.whole else MODES[:1]:
        scope.say(f"cold start, {mode}")
        table[key_of(mode)] = {
            policy: {
                f"{start} rounds of warm-up": _all_and_last(policy, world, mode, scope, start)
                for start in STARTS
            }
            for policy in (POLICIES if scope.whole else POLICIES[:2])
        }
    return table


def _all_and_last(policy: str, world: World, mode: str, scope: Scope, start: int) -> dict[str, Any]:
    runs = scope.live(policy, world, steady(world, mode), scope.more_seeds, warm_up=start)
    return {
        "reward_of_all_rounds": summed([float(np.mean([s.reward for s in run.steps])) for run in runs]),
        "reward_of_last_60": summed([float(np.mean([s.reward for s in run.steps[-LAST:]])) for run in runs]),
        "regret": summed([run.regret() for run in runs]),
    }
