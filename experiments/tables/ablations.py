"""The paper's ablations on one world: action semantics, α, dense feedback, the four modes, the verifier."""

from collections.abc import MutableMapping, Sequence
from typing import Any

from experiments.outcomes.world import World
from experiments.trials.runs import Run, figures_of, run_fixed, run_oracle, summed
from experiments.trials.scenarios import MODES, steady
from experiments.trials.scope import Scope, key_of

PARETO_MODES = ("cost-sensitive", "cost-leaning", "quality-leaning", "quality-priority")
PARETO_POLICIES = ("random", "greedy", "mlp", "knn", "neural_ucb", "ts", "uniscale")


def ablations(
    world: World, name: str, scope: Scope, runs: MutableMapping[tuple[str, str, str], Sequence[Run]]
) -> dict[str, Any]:
    """Return action semantics against one-hot, α, and dense feedback against binary.

    Args:
        world: The joint space, called
        name: in `runs`, which holds UniScale's own and takes the ablated ones.
        scope: How much.
        runs: See there.
    """
    semantics: dict[str, Any] = {}
    alpha: dict[str, Any] = {}
    dense: dict[str, Any] = {}
    for mode in MODES:
        stages, key = steady(world, mode), key_of(mode)
        own = runs[name, mode, "uniscale"]
        runs["semantics", mode, "uniscale"] = runs["alpha", mode, "1"] = own
        for table, label, policy in (
            ("semantics", "one_hot", "uniscale_one_hot"),
            ("alpha", "0", "uniscale_alpha_0"),
            ("alpha", "10", "uniscale_alpha_10"),
        ):
            runs[table, mode, label] = scope.run(policy, world, name, mode, stages) or []
        semantics[key] = {
            label: regrets(runs["semantics", mode, label], world) for label in ("uniscale", "one_hot")
        }
        alpha[key] = {label: regrets(runs["alpha", mode, label], world) for label in ("0", "1", "10")}
        for label in ("0", "1", "10"):  # the order they are drawn in
            runs["alpha", mode, label] = runs.pop(("alpha", mode, label))
        binary = scope.run("uniscale", world, name, mode, steady(world, mode, dense=False)) or []
        # Rewards of the two are not of one kind: only what the table of the paper compares.
        dense[key] = {
            label: {measure: figures[measure] for measure in ("accuracy", "eflops")}
            for label, figures in (("dense", figures_of(own, world)), ("binary", figures_of(binary, world)))
        }
    found: dict[str, Any] = {"semantics": semantics, "alpha": alpha}
    return {**found, "dense_feedback": dense} if world.outcomes.dense else found


def regrets(runs: Sequence[Run], world: World) -> dict[str, Any]:
    """Return regret at 130 and 210, the latter against all arms of the world too, and every measure."""
    return {
        "regret_130": summed([run.regret(130) for run in runs]),
        "regret_210": summed([run.regret(210) for run in runs]),
        "regret_210_over_all": summed([run.regret(210, over_all=True) for run in runs]),
        **figures_of(runs, world),
    }


def pareto(world: World, scope: Scope) -> dict[str, Any]:
    """Return every policy that can be run under each of four modes, the Oracle and the best fixed arm in hindsight."""
    table: dict[str, Any] = {}
    for mode in PARETO_MODES:
        stages = steady(world, mode)
        found = {
            policy: scope.run(policy, world, world.outcomes.name, mode, stages) for policy in PARETO_POLICIES
        }
        found["best_fixed_arm"] = run_fixed(world, stages, scope.seeds)
        found["oracle"] = run_oracle(world, stages, scope.seeds)
        table[key_of(mode)] = {
            policy: figures_of(runs, world) for policy, runs in found.items() if runs is not None
        }
    return table


def two_policies(world: World, name: str, scope: Scope) -> dict[str, Any]:
    """Return k-NN and UniScale in both modes, for worlds that differ in their verifier."""
    return {
        key_of(mode): {
            policy: figures_of(scope.run(policy, world, name, mode, steady(world, mode)) or [], world)
            for policy in ("knn", "uniscale")
        }
        for mode in MODES
    }
