"""Runs policies on seeds, or replays the recorded choices of networks, and summarises the runs.

A network trains for 1,000 iterations over the whole history after each of 210 observations, which takes minutes per
run. A file next to the outcomes therefore stores the arm of every round, which determines rewards, costs and regrets.
The file is valid for one table of outcomes, identified by its digest, and one version of the recipe.
"""

import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import orjson
from scipy import stats

from experiments.contenders import ALL, NETWORKS, Make
from experiments.hindsight import best_fixed
from experiments.loop import ROUNDS, SEEDS, Conditions, Stage, Step, follow, make_trial, play, steady
from experiments.outcomes import Array, BanditWorld

TERA = 1e12
DIGITS = 9  # significant digits in figures; the last bits of a sum depend on the machine
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Run:
    """One policy on one seed.

    Attributes:
        steps: Its rounds.
        fixed: The mean reward, after the warm-up, of the best fixed arm in hindsight.
    """

    seed: int
    steps: tuple[Step, ...]
    fixed: float

    @property
    def after(self) -> list[Step]:
        """Return the rounds after the warm-up."""
        return [step for step in self.steps if not step.warm_up]

    def regret(self, upto: int | None = None, *, over_all: bool = False) -> float:
        """Return the regret against the best realised outcome up to a round, including the warm-up."""
        return sum((s.best_of_all if over_all else s.best) - s.reward for s in self.steps[:upto])

    def measures(self, unit: float) -> dict[str, float]:
        """Return reward, accuracy in percent and cost over the policy's rounds, and regret over all rounds."""
        after = self.after
        return {
            "reward": float(np.mean([s.reward for s in after])),
            "accuracy": 100 * float(np.mean([s.correct for s in after])),
            "eflops": float(np.mean(np.exp([s.log_cost for s in after]))) / unit,
            "regret": self.regret(),
            "regret_fixed": sum(self.fixed - s.reward for s in after),
        }


def unit_of(world: BanditWorld) -> float:
    """Return the unit that a table's cost is shown in: 10¹² for eFLOPs, otherwise 1."""
    return TERA if world.outcomes.unit == "eFLOPs" else 1.0


def run_policy(
    make: Make,
    world: BanditWorld,
    stages: Mapping[int, Stage],
    seeds: Sequence[int],
    **conditions: Unpack[Conditions],
) -> list[Run]:
    """Run one policy on every seed; further arguments as for `make_trial`."""
    runs = []
    for seed in seeds:
        trial = make_trial(world, seed, stages, **conditions)
        steps = tuple(play(make(world, seed), trial))
        _, fixed = best_fixed(trial, trial.stage(len(trial.order)).objective)
        runs.append(Run(seed, steps, fixed))
    return runs


def run_oracle(world: BanditWorld, stages: Mapping[int, Stage], seeds: Sequence[int]) -> list[Run]:
    """Run the paper's Oracle after the shared warm-up; its reward in each round is the step's `best`."""
    runs = []
    for seed in seeds:
        trial = make_trial(world, seed, stages)
        steps = tuple(follow(trial, lambda _, rewards: int(np.nanargmax(rewards))))
        runs.append(Run(seed, steps, best_fixed(trial, trial.stage(len(trial.order)).objective)[1]))
    return runs


def run_fixed(world: BanditWorld, stages: Mapping[int, Stage], seeds: Sequence[int]) -> list[Run]:
    """Run the best fixed arm in hindsight after the shared warm-up."""
    runs = []
    for seed in seeds:
        trial = make_trial(world, seed, stages)
        arm, fixed = best_fixed(trial, trial.stage(len(trial.order)).objective)
        runs.append(Run(seed, tuple(follow(trial, lambda *_, arm=arm: arm)), fixed))
    return runs


def summed(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, the standard deviation over seeds, and the mean's 95 % interval (Student's t).

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
    """Return figures rounded to nine digits, with values below 10⁻¹² replaced by 0.

    >>> tidy({"a": 2 / 3, "b": 1e-15})
    {'a': 0.666666667, 'b': 0.0}
    """
    return {name: float(f"{round(float(value), 12):.{DIGITS}g}") + 0.0 for name, value in found.items()}


def figures_of(runs: Sequence[Run], world: BanditWorld) -> Figures:
    """Return every measure of a policy over its seeds."""
    measured = [run.measures(unit_of(world)) for run in runs]
    return {name: summed([each[name] for each in measured]) for name in measured[0]}


def paired(runs: Sequence[Run], others: Sequence[Run]) -> dict[str, float]:
    """Return the difference in mean reward between two policies on the same seeds."""
    left = [float(np.mean([s.reward for s in run.after])) for run in runs]
    right = [float(np.mean([s.reward for s in run.after])) for run in others]
    return summed([a - b for a, b in zip(left, right, strict=True)])


def rounds_to_learn(run: Run, within: float = 0.05) -> int | None:
    """Return the round at which the policy's mean reward comes within 5 % of the best fixed arm's and stays there.

    The mean is over its rounds so far, excluding the warm-up. The result is None if there is no such round.
    """
    after = run.after
    means = np.cumsum([s.reward for s in after]) / np.arange(1, len(after) + 1)
    short = np.flatnonzero(means < run.fixed - within * abs(run.fixed))
    first = 0 if not len(short) else int(short[-1]) + 1
    return after[first].round if first < len(after) else None


def learning(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return how many seeds come within 5 % of the best fixed arm, and the median round at which they do."""
    rounds = [found for run in runs if (found := rounds_to_learn(run)) is not None]
    return {"seeds": len(rounds), "of": len(runs), "median": float(np.median(rounds)) if rounds else None}


RECIPE = 1
"""Version of the networks' training, including their history and the loop. Increase it whenever a change alters the
networks' choices. A slow test retrains recorded runs."""
Name = tuple[str, str, str, int]  # scenario, mode, policy, seed


@dataclass
class NetworkRecord:
    """Recorded choices of trained networks.

    Attributes:
        path: The file; None for no file.
        outcomes: Digest of the outcomes that the networks were trained on.
        chosen: The arms chosen after the warm-up, keyed by run, as indices into the scenario's arms.
        refused: Why the file is not used; empty if it is.
    """

    path: Path | None = None
    outcomes: str = ""
    chosen: dict[Name, list[int]] = field(default_factory=dict)
    refused: str = ""

    @classmethod
    def load(cls, path: Path, world: BanditWorld) -> "NetworkRecord":
        """Return the record in a file; empty if the file is missing or has different outcomes or a different recipe."""
        record = cls(path, outcomes_digest(world))
        if not path.is_file():
            record.refused = f"{path} is not there"
            return record
        told = orjson.loads(path.read_bytes())
        if told["outcomes"] != record.outcomes:
            record.refused = f"{path} is of other outcomes"
        elif told["recipe"] != RECIPE:
            record.refused = f"{path} is of recipe {told['recipe']}, not {RECIPE}"
        else:
            record.chosen = {
                (run["scenario"], run["mode"], run["policy"], run["seed"]): run["arms"]
                for run in told["runs"]
            }
        return record

    def save(self) -> None:
        """Write the file atomically."""
        assert self.path is not None
        runs = [
            {"scenario": n[0], "mode": n[1], "policy": n[2], "seed": n[3], "arms": arms}
            for n, arms in sorted(self.chosen.items())
        ]
        lines = b",\n".join(orjson.dumps(run) for run in runs)
        head = f'{{"outcomes": "{self.outcomes}", "recipe": {RECIPE}, "runs": [\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_bytes(head.encode() + lines + b"\n]}\n")
        partial.replace(self.path)


def outcomes_digest(world: BanditWorld) -> str:
    """Return a digest of the questions' and arms' texts and of every outcome."""
    o = world.outcomes
    digest = hashlib.sha256(world.texts.encode())
    for array in (o.correct, o.score, o.log_cost):
        # Twelve digits, because the last bits of a logarithm depend on the machine.
        digest.update(np.char.mod("%.12g", array).tobytes())
    return digest.hexdigest()[:16]


def run_recorded(
    record: NetworkRecord,
    world: BanditWorld,
    space: str,
    mode: str,
    policy: str,
    stages: Mapping[int, Stage],
    seeds: Sequence[int],
) -> list[Run] | None:
    """Return a network's recorded runs, or None if a seed is missing."""
    runs = []
    for seed in seeds:
        arms = record.chosen.get((space, mode, policy, seed))
        if arms is None:
            return None
        trial = make_trial(world, seed, stages)
        first = trial.warm_up + 1
        steps = tuple(follow(trial, lambda at, _, arms=arms, first=first: arms[at - first]))  # type: ignore[misc]
        runs.append(Run(seed, steps, best_fixed(trial, trial.stage(len(trial.order)).objective)[1]))
    return runs


def rebuild(
    record: NetworkRecord,
    worlds: Mapping[str, BanditWorld],
    names: Sequence[Name],
    *,
    jobs: int | None = None,
    done: Callable[[Name], Any] = lambda name: None,
) -> None:
    """Train the runs missing from the record. The record is saved after each, so that a killed process can resume.

    Args:
        record: The record, with a path.
        worlds: Worlds, keyed by scenario.
        names: The required runs.
        jobs: Number of processes, each with one thread; by default one per core.
        done: Called after each run.
    """
    record.refused = ""
    with one_thread_each(jobs) as pool:
        missing = [name for name in names if name not in record.chosen]
        running = {
            pool.submit(train, worlds[name[0]], steady(worlds[name[0]], name[1]), name[2], name[3]): name
            for name in missing
        }
        for future in as_completed(running):
            record.chosen[running[future]] = future.result()
            record.save()
            done(running[future])


def one_thread_each(jobs: int | None = None) -> ProcessPoolExecutor:
    """Return a pool of processes, by default one per core. Each has one thread; more would change the last bits."""
    fresh = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=fresh, initializer=_one_thread)


def _one_thread() -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def train(
    world: BanditWorld, stages: Mapping[int, Stage], policy: str, seed: int, rounds: int = ROUNDS
) -> list[int]:
    """Train a network, and return the arms that it chooses after the warm-up."""
    trial = make_trial(world, seed, stages, rounds=rounds)
    return [step.arm for step in play(ALL[policy](world, seed), trial) if not step.warm_up]


MORE_SEEDS = tuple(range(100, 120))  # not the paper's; choices made on the paper's seeds are judged on these


@dataclass(frozen=True)
class Scope:
    """How much to run.

    Attributes:
        seeds: Seeds for the paper's tables.
        more_seeds: Seeds for the further experiments.
        whole: Whether to run every feedback condition in every mode, and rows that learn on history.
        record: Recorded choices of MLP and NeuralUCB on these outcomes.
        say: Called with a description of each part.
        pool: Processes to divide the seeds among; None runs them all in this process.
    """

    seeds: Sequence[int] = SEEDS
    more_seeds: Sequence[int] = MORE_SEEDS
    whole: bool = True
    record: NetworkRecord = field(default_factory=NetworkRecord)
    say: Callable[[str], Any] = field(default=lambda text: None)
    pool: Executor | None = None

    def run(
        self, policy: str, world: BanditWorld, space: str, mode: str, stages: Mapping[int, Stage]
    ) -> list[Run] | None:
        """Run a policy on the paper's seeds. Return None for a network that was not trained on these outcomes.

        Args:
            policy: The policy's name.
            world: The world.
            space: The scenario's name, which networks are recorded under.
            mode: The objective's name, which networks are recorded under.
            stages: The stages; only one for a network.
        """
        self.say(f"{space}, {mode}: {policy}")
        if policy in NETWORKS:
            return run_recorded(self.record, world, space, mode, policy, stages, self.seeds)
        return self.live(policy, world, stages, self.seeds)

    def live(
        self,
        policy: str,
        world: BanditWorld,
        stages: Mapping[int, Stage],
        seeds: Sequence[int],
        **conditions: Unpack[Conditions],
    ) -> list[Run]:
        """Run a policy on seeds; further arguments as for `make_trial`."""
        lean = world.lean()
        tasks = [(policy, lean, stages, seed, conditions) for seed in seeds]
        done = map(_one, tasks) if self.pool is None else self.pool.map(_one, tasks)
        return list(done)

    def more(
        self, policy: str, world: BanditWorld, stages: Mapping[int, Stage], **conditions: Unpack[Conditions]
    ) -> list[Run]:
        """Run a policy on `more_seeds`."""
        return self.live(policy, world, stages, self.more_seeds, **conditions)


def _one(task: tuple[str, BanditWorld, Mapping[int, Stage], int, Conditions]) -> Run:
    policy, world, stages, seed, conditions = task
    (run,) = run_policy(ALL[policy], world, stages, [seed], **conditions)
    return run


def key_of(mode: str) -> str:
    """Return a mode's name in tables.

    >>> key_of("cost-sensitive")
    'cost_sensitive'
    """
    return mode.replace("-", "_")
