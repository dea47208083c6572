"""Long streams: thousands of questions drawn again and again, while the mix of easy and hard ones drifts.

Three phases of equal length: easy questions are more frequent at first, then all alike, then hard ones; the odds
change by a factor e for one standard deviation of difficulty. Outcomes are drawn anew each time from the recorded
samples. Networks and k-NN stay out: both grow with every round.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.outcomes.world import Array, World
from experiments.trials.oracle import Contextual
from experiments.trials.runs import Run, learning, summed, tidy
from experiments.trials.scenarios import MODES, steady
from experiments.trials.scope import Scope, key_of

POLICIES = ("random", "greedy", "uniscale", "terms", "centred_bilinear", "coordinates")
PHASES = ("easier", "even", "harder")
TILT = 1.0  # of the logarithm of a question's odds, for one standard deviation of difficulty
LAST = 1_000


def traffic(world: World) -> list[Array]:
    """Return the questions' probabilities in each phase; a question is as hard as its arms are wrong on it."""
    hard = 1 - world.outcomes.correct.mean(axis=(0, 2))
    hard = (hard - hard.mean()) / max(float(hard.std()), 1e-12)
    found = []
    for tilt in (-TILT, 0.0, TILT):
        odds = np.exp(tilt * hard)
        found.append(np.asarray(odds / odds.sum()))
    return found


def streams(world: World, scope: Scope, best: Mapping[str, Contextual]) -> dict[str, Any]:
    """Return mean reward by phase and at the end, beside the best fixed arm and contextual policy of each phase."""
    mixes, rounds = traffic(world), scope.stream_rounds
    table: dict[str, Any] = {}
    for mode in MODES:
        stages, objective = steady(world, mode), world.objective(mode)
        means = world.rewards(objective).mean(axis=0)
        chosen = means[np.arange(len(means)), list(best[mode].choices)]
        rows: dict[str, Any] = {
            "best_fixed_arm_of_the_phase": _known([float((mix @ means).max()) for mix in mixes]),
            "best_contextual_policy": _known([float(mix @ chosen) for mix in mixes]),
        }
        for policy in POLICIES:
            scope.say(f"streams of {rounds}, {mode}: {policy}")
            found = scope.live(policy, world, stages, scope.more_seeds, rounds=rounds, traffic=mixes)
            easy = float((mixes[0] @ means).max())
            runs = [Run(run.seed, run.steps, easy) for run in found]
            rows[policy] = _phases(runs, rounds)
        table[key_of(mode)] = rows
    return table


def _phases(runs: Sequence[Run], rounds: int) -> dict[str, Any]:
    cuts = [rounds * at // len(PHASES) for at in range(len(PHASES) + 1)]
    found: dict[str, Any] = {
        f"reward_{name}": summed([_mean(run, a, b) for run in runs])
        for name, a, b in zip(PHASES, cuts, cuts[1:], strict=False)
    }
    last = min(LAST, rounds)
    found["reward_at_the_end"] = summed([_mean(run, rounds - last, rounds) for run in runs])
    # Only the first phase has one best fixed arm to come near to.
    first = [Run(run.seed, run.steps[: cuts[1]], run.fixed) for run in runs]
    return {**found, "rounds_to_learn": learning(first)}


def _mean(run: Run, first: int, last: int) -> float:
    return float(np.mean([step.reward for step in run.steps[first:last]]))


def _known(values: Sequence[float]) -> dict[str, Any]:
    """Return expectations as figures without spread."""
    named = zip((*PHASES, "at_the_end"), (*values, values[-1]), strict=True)
    return {f"reward_{name}": tidy({"mean": value}) for name, value in named}
