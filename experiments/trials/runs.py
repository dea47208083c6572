"""Runs of the loop summed up: means over seeds with standard deviation and 95 % interval, and paired differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from scipy import stats

from experiments.outcomes.world import Array, World
from experiments.trials.contenders import Make
from experiments.trials.loop import ROUNDS, Conditions, Stage, Step, follow, make_trial, play
from experiments.trials.oracle import best_fixed

TERA = 1e12
DIGITS = 9  # significant ones: the last bits of a sum are the machine's
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Run:
    """One policy on one seed.

    Attributes:
        steps: Its rounds.
        fixed: Mean reward after the warm-up of the best fixed arm in hindsight.
    """

    seed: int
    steps: tuple[Step, ...]
    fixed: float

    @property
    def after(self) -> list[Step]:
        """Return the rounds of the policy."""
        return [step for step in self.steps if not step.warm_up]

    def regret(self, upto: int | None = None, *, over_all: bool = False) -> float:
        """Return the regret against the best realised outcome, from the first round."""
        return sum((s.best_of_all if over_all else s.best) - s.reward for s in self.steps[:upto])

    def measures(self, unit: float) -> dict[str, float]:
        """Return reward, accuracy in percent and cost over the policy's rounds, regret over all."""
        after = self.after
        return {
            "reward": float(np.mean([s.reward for s in after])),
            "accuracy": 100 * float(np.mean([s.correct for s in after])),
            "eflops": float(np.mean(np.exp([s.log_cost for s in after]))) / unit,
            "regret": self.regret(),
            "regret_fixed": sum(self.fixed - s.reward for s in after),
        }


def unit_of(world: World) -> float:
    """Return what a table's cost is counted in: tera for eFLOPs, else the source's own unit."""
    return TERA if world.outcomes.unit == "eFLOPs" else 1.0


def run_policy(
    make: Make,
    world: World,
    stages: Mapping[int, Stage],
    seeds: Sequence[int],
    **conditions: Unpack[Conditions],
) -> list[Run]:
    """Run one policy on every seed; arguments as `make_trial`."""
    runs = []
    for seed in seeds:
        trial = make_trial(world, seed, stages, **conditions)
        steps = tuple(play(make(world, seed), trial))
        _, fixed = best_fixed(trial, trial.stage(len(trial.order)).objective)
        runs.append(Run(seed, steps, fixed))
    return runs


def run_oracle(
    world: World, stages: Mapping[int, Stage], seeds: Sequence[int], rounds: int = ROUNDS
) -> list[Run]:
    """Return the paper's Oracle after the shared warm-up: its reward is `best` in every round of its own."""
    runs = []
    for seed in seeds:
        trial = make_trial(world, seed, stages, rounds=rounds)
        steps = tuple(follow(trial, lambda _, rewards: int(np.nanargmax(rewards))))
        runs.append(Run(seed, steps, best_fixed(trial, trial.stage(rounds).objective)[1]))
    return runs


def run_fixed(world: World, stages: Mapping[int, Stage], seeds: Sequence[int]) -> list[Run]:
    """Return, after the shared warm-up, the one arm that would have earned most of all fixed ones in hindsight."""
    runs = []
    for seed in seeds:
        trial = make_trial(world, seed, stages)
        arm, fixed = best_fixed(trial, trial.stage(len(trial.order)).objective)
        runs.append(Run(seed, tuple(follow(trial, lambda *_, arm=arm: arm)), fixed))
    return runs


def summed(values: Sequence[float]) -> dict[str, float]:
    """Return mean, standard deviation over seeds and the 95 % interval of the mean (Student's t).

    >>> summed([1.0, 2.0, 3.0])
    {'mean': 2.0, 'std': 1.0, 'low': -0.484137712, 'high': 4.48413771}
    """
    array: Array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    std = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    half = float(stats.t.ppf(0.975, len(array) - 1)) * std / len(array) ** 0.5 if len(array) > 1 else 0.0
    found = {"mean": mean, "std": std, "low": mean - half, "high": mean + half}
    return tidy(found)


def tidy(found: Mapping[str, float]) -> dict[str, float]:
    """Return figures at nine digits, none of them below 10⁻¹².

    >>> tidy({"a": 2 / 3, "b": 1e-15})
    {'a': 0.666666667, 'b': 0.0}
    """
    return {name: float(f"{round(float(value), 12):.{DIGITS}g}") + 0.0 for name, value in found.items()}


def figures_of(runs: Sequence[Run], world: World) -> Figures:
    """Return every measure of a policy over its seeds."""
    measured = [run.measures(unit_of(world)) for run in runs]
    return {name: summed([each[name] for each in measured]) for name in measured[0]}


def paired(runs: Sequence[Run], others: Sequence[Run]) -> dict[str, float]:
    """Return the difference in mean reward of two policies on the same seeds."""
    left = [float(np.mean([s.reward for s in run.after])) for run in runs]
    right = [float(np.mean([s.reward for s in run.after])) for run in others]
    return summed([a - b for a, b in zip(left, right, strict=True)])


def rounds_to_learn(run: Run, within: float = 0.05) -> int | None:
    """Return the first round from which the policy's mean reward stays within 5 % of the best fixed arm's.

    The mean is over its own rounds so far, the warm-up left out; None where it does not get there.
    """
    after = run.after
    means = np.cumsum([s.reward for s in after]) / np.arange(1, len(after) + 1)
    short = np.flatnonzero(means < run.fixed - within * abs(run.fixed))
    first = 0 if not len(short) else int(short[-1]) + 1
    return after[first].round if first < len(after) else None


def learning(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return how many seeds came within 5 % of the best fixed arm, and the median round of those."""
    rounds = [found for run in runs if (found := rounds_to_learn(run)) is not None]
    return {"seeds": len(rounds), "of": len(runs), "median": float(np.median(rounds)) if rounds else None}
