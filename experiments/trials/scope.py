"""How much is run, and one way to have a policy run: live, or from the record of an earlier training."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from experiments.outcomes.world import World
from experiments.trials.contenders import ALL, NETWORKS
from experiments.trials.loop import SEEDS, Conditions, Stage
from experiments.trials.networks import Record, run_recorded
from experiments.trials.runs import Run, run_policy

MORE_SEEDS = tuple(range(100, 120))  # others than the paper's: what is picked on those is judged on these


@dataclass(frozen=True)
class Scope:
    """How much is run.

    Attributes:
        seeds: Of the paper's tables.
        more_seeds: Of what the field asks for.
        whole: Whether every condition of feedback is run in every mode, and boosted trees compete.
        stream_rounds: Length of the long streams; 0 for none.
        repetitions: Of the check of off-policy estimates; 0 for none.
        record: What MLP and NeuralUCB chose when they were trained on these outcomes.
        say: Told what is being run.
        pool: Processes that share the seeds; none is this one.
    """

    seeds: Sequence[int] = SEEDS
    more_seeds: Sequence[int] = MORE_SEEDS
    whole: bool = True
    stream_rounds: int = 10_000
    repetitions: int = 50
    record: Record = field(default_factory=Record)
    say: Callable[[str], Any] = field(default=lambda text: None)
    pool: Executor | None = None

    def run(
        self, policy: str, world: World, space: str, mode: str, stages: Mapping[int, Stage]
    ) -> list[Run] | None:
        """Run a policy on the paper's seeds; None for a network that was not trained on these outcomes.

        Args:
            policy: Its name.
            world: Its arms.
            space: Name of the scenario, and
            mode: of the objective, under which a training is recorded.
            stages: One stage where the policy is a network.
        """
        self.say(f"{space}, {mode}: {policy}")
        if policy in NETWORKS:
            return run_recorded(self.record, world, space, mode, policy, stages, self.seeds)
        return self.live(policy, world, stages, self.seeds)

    def live(
        self,
        policy: str,
        world: World,
        stages: Mapping[int, Stage],
        seeds: Sequence[int],
        **conditions: Unpack[Conditions],
    ) -> list[Run]:
        """Run a policy on seeds; further arguments as `make_trial`."""
        lean = replace(world, outcomes=replace(world.outcomes, extra={}))
        tasks = [(policy, lean, stages, seed, conditions) for seed in seeds]
        done = map(_one, tasks) if self.pool is None else self.pool.map(_one, tasks)
        return list(done)

    def more(
        self, policy: str, world: World, stages: Mapping[int, Stage], **conditions: Unpack[Conditions]
    ) -> list[Run]:
        """Run a policy on the further seeds."""
        return self.live(policy, world, stages, self.more_seeds, **conditions)


def _one(task: tuple[str, World, Mapping[int, Stage], int, Conditions]) -> Run:
    policy, world, stages, seed, conditions = task
    (run,) = run_policy(ALL[policy], world, stages, [seed], **conditions)
    return run


def key_of(mode: str) -> str:
    """Return a mode's name in tables.

    >>> key_of("cost-sensitive")
    'cost_sensitive'
    """
    return mode.replace("-", "_")
