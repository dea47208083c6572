"""The paper's open questions that have a switch, run both ways: which Oracle, whose bounds, 1/m, which sample."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.outcomes.table import Outcomes
from experiments.outcomes.world import World
from experiments.trials.contenders import PAPER
from experiments.trials.loop import make_trial
from experiments.trials.oracle import Contextual, followed
from experiments.trials.runs import Run, figures_of, summed
from experiments.trials.scenarios import COST_SENSITIVE, MODES, steady
from experiments.trials.scope import Scope, key_of


def readings(
    joint: World,
    name: str,
    worlds: Mapping[str, World],
    scope: Scope,
    runs: Mapping[tuple[str, str, str], Sequence[Run]],
    best: Mapping[str, Contextual],
) -> dict[str, Any]:
    """Return what each reading changes.

    Args:
        joint: The joint space, called
        name: in `runs`.
        worlds: By scenario.
        scope: How much.
        runs: Of the main tables.
        best: The best contextual policy, by mode.
    """
    table: dict[str, Any] = {"which_oracle": {}, "neural_ucb_width": {}, "samples": {}, "cost_bounds": {}}
    for mode in MODES:
        key = key_of(mode)
        table["which_oracle"][key] = which_oracle(
            joint, mode, best[mode], {p: runs[name, mode, p] for p in PAPER if (name, mode, p) in runs}
        )
        narrow = scope.run("neural_ucb_per_width", joint, name, mode, steady(joint, mode))
        if narrow is not None:
            table["neural_ucb_width"][key] = {
                "as_written": figures_of(runs[name, mode, "neural_ucb"], joint),
                "divided_by_width": figures_of(narrow, joint),
            }
        if joint.outcomes.samples > 1:
            averaged = replace(joint, outcomes=_averaged(joint.outcomes))
            table["samples"][key] = {
                "one_realised": figures_of(runs[name, mode, "uniscale"], joint),
                "mean_of_samples": figures_of(
                    scope.live("uniscale", averaged, steady(averaged, mode), scope.seeds), averaged
                ),
            }
    for part in ("tts", "routing"):
        if part in worlds:
            own = replace(worlds[part], bounds=worlds[part].outcomes.bounds())
            table["cost_bounds"][part] = {
                "of_the_whole_table": figures_of(runs[part, COST_SENSITIVE, "uniscale"], worlds[part]),
                "of_the_scenario": figures_of(
                    scope.live("uniscale", own, steady(own, COST_SENSITIVE), scope.seeds), own
                ),
            }
    return {reading: found for reading, found in table.items() if found}


def which_oracle(
    world: World, mode: str, contextual: Contextual, runs: Mapping[str, Sequence[Run]]
) -> dict[str, Any]:
    """Return each policy's regret over its own rounds against four optima, per round.

    `realised` is the paper's: the best realised outcome of each question. `mean` is the arm with the best mean over
    samples, `contextual` the best cross-fitted policy, `fixed` the best single arm in hindsight.
    """
    objective, stages = world.objective(mode), steady(world, mode)
    means = world.rewards(objective).mean(axis=0)
    table = {}
    for policy, of_policy in runs.items():
        found: dict[str, list[float]] = {"realised": [], "mean": [], "contextual": [], "fixed": []}
        for run in of_policy:
            earned = float(np.mean([s.reward for s in run.after]))
            trial = make_trial(world, run.seed, stages)
            optima = {
                "realised": float(np.mean([s.best for s in run.after])),
                "mean": float(means.max(axis=1)[[s.question for s in run.after]].mean()),
                "contextual": followed(trial, contextual.choices, objective),
                "fixed": run.fixed,
            }
            for kind, value in optima.items():
                found[kind].append(value - earned)
        table[policy] = {f"regret_{kind}": summed(values) for kind, values in found.items()}
    return table


def _averaged(o: Outcomes) -> Outcomes:
    """Return outcomes whose only sample is the mean of all; of the cost, the mean of its logarithm."""
    means = {name: getattr(o, name).mean(axis=0, keepdims=True) for name in ("correct", "score", "log_cost")}
    return replace(o, **means, extra={})
