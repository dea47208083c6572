"""What MLP and NeuralUCB chose, kept in a file: by the paper's recipe a run of them trains for minutes.

The recipe is 1,000 iterations over the whole history after each of 210 observations. A file beside the outcomes
holds the arm of every round; rewards, costs and regrets follow from the outcomes. It belongs to one table of
outcomes, by digest, and to one version of the recipe: with others it counts as nothing.
"""

import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from experiments.outcomes.world import World
from experiments.trials.contenders import ALL, NETWORKS
from experiments.trials.loop import ROUNDS, Stage, follow, make_trial, play
from experiments.trials.oracle import best_fixed
from experiments.trials.runs import Run

RECIPE = 1
"""Version of the training: of the networks, their history and the loop. Raise it with a change after which they choose
otherwise; a slow test begins recorded runs anew."""
Name = tuple[str, str, str, int]  # scenario, mode, policy, seed


@dataclass
class Record:
    """Arms by round, of trained runs.

    Attributes:
        path: Where it is kept; None for nowhere.
        outcomes: Digest of what it was trained on.
        chosen: By run: the arms after the warm-up, as indices into the scenario's.
        refused: Why a file that is there is not used; empty where it is.
    """

    path: Path | None = None
    outcomes: str = ""
    chosen: dict[Name, list[int]] = field(default_factory=dict)
    refused: str = ""

    @classmethod
    def load(cls, path: Path, world: World) -> "Record":
        """Return what the file holds of these outcomes and this recipe, which may be nothing."""
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
        """Write the file, whole or not at all."""
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


def outcomes_digest(world: World) -> str:
    """Return a digest of questions, arms, their texts and every outcome."""
    o = world.outcomes
    digest = hashlib.sha256(world.texts.encode())
    for array in (o.correct, o.score, o.log_cost):
        # Twelve digits: the logarithm's last bits are the machine's.
        digest.update(np.char.mod("%.12g", array).tobytes())
    return digest.hexdigest()[:16]


def run_recorded(
    record: Record,
    world: World,
    space: str,
    mode: str,
    policy: str,
    stages: Mapping[int, Stage],
    seeds: Sequence[int],
) -> list[Run] | None:
    """Return a network's runs as they were recorded; None where a seed is missing."""
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


def wanted(
    scenarios: Sequence[str], modes: Sequence[str], seeds: Sequence[int], between: Sequence[str] = ()
) -> Iterator[Name]:
    """Yield the runs of a whole record, the joint space first: that is where the question is.

    Args:
        scenarios: All of them.
        modes: That every scenario is run in.
        seeds: Of each.
        between: Further modes of the joint space alone (the Pareto table's), last.
    """
    spaces = sorted(scenarios, key=lambda name: (name not in ("uis", "all"), name))
    for space in spaces:
        for policy in NETWORKS:
            if policy != "neural_ucb_per_width" or space == spaces[0]:
                yield from ((space, mode, policy, seed) for mode in modes for seed in seeds)
    for policy in NETWORKS:
        if policy != "neural_ucb_per_width":
            yield from ((spaces[0], mode, policy, seed) for mode in between for seed in seeds)


def rebuild(
    record: Record,
    worlds: Mapping[str, World],
    stages: Callable[[World, str], Mapping[int, Stage]],
    names: Sequence[Name],
    *,
    jobs: int | None = None,
    done: Callable[[Name], Any] = lambda name: None,
) -> None:
    """Train what the record lacks, and save after every run: killed, the same call goes on where it was.

    Args:
        record: With a path.
        worlds: By scenario.
        stages: From a world and a mode.
        names: The runs wanted.
        jobs: Processes of one thread each; one a core by default.
        done: Told of each run.
    """
    with one_thread_each(jobs) as pool:
        missing = [name for name in names if name not in record.chosen]
        running = {
            pool.submit(train, worlds[name[0]], stages(worlds[name[0]], name[1]), name[2], name[3]): name
            for name in missing
        }
        for future in as_completed(running):
            record.chosen[running[future]] = future.result()
            record.save()
            done(running[future])


def one_thread_each(jobs: int | None = None) -> ProcessPoolExecutor:
    """Return processes of one thread each, one a core if not said: more threads would change the last bits."""
    fresh = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=fresh, initializer=_one_thread)


def _one_thread() -> None:
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    torch.set_num_threads(1)
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that began it is killed: left alone it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def train(
    world: World, stages: Mapping[int, Stage], policy: str, seed: int, rounds: int = ROUNDS
) -> list[int]:
    """Return the arms that a network chooses after the warm-up when it is trained."""
    trial = make_trial(world, seed, stages, rounds=rounds)
    return [step.arm for step in play(ALL[policy](world, seed), trial) if not step.warm_up]
