"""What an operator asks: against the best fixed arm, against the best contextual policy, how soon, how surely.

Twenty seeds, none of them the paper's. What is picked among our own policies is picked on the paper's seeds and
judged on these.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.outcomes.world import World
from experiments.trials.contenders import NETWORKS, OWN, PAPER
from experiments.trials.loop import make_trial
from experiments.trials.oracle import Contextual, best_fixed, followed
from experiments.trials.runs import (
    Run,
    figures_of,
    learning,
    paired,
    summed,
    tidy,
    unit_of,
)
from experiments.trials.scenarios import DRIFTS, MODES, steady
from experiments.trials.scope import Scope, key_of

DRAWS = 2_000


def versus_best(world: World, scope: Scope, best: Mapping[str, Contextual]) -> dict[str, Any]:
    """Return every live policy of the paper against the best fixed arm and the best contextual policy.

    Args:
        world: The joint space.
        scope: How much.
        best: The best contextual policy, by mode.
    """
    table: dict[str, Any] = {}
    for mode in MODES:
        stages = steady(world, mode)
        found = {policy: scope.more(policy, world, stages) for policy in PAPER if policy not in NETWORKS}
        uniscale = found["uniscale"]
        table[key_of(mode)] = {
            "best_fixed": _fixed(world, mode, scope),
            "best_contextual": contextual_figures(best[mode]),
            "policies": {
                policy: {
                    **figures_of(runs, world),
                    "regret_contextual": summed(_behind(runs, world, mode, best[mode])),
                    "uniscale_leads_by": paired(uniscale, runs),
                    "rounds_to_learn": learning(runs),
                }
                for policy, runs in found.items()
            },
        }
    return table


def own_policies(world: World, scope: Scope, best: Mapping[str, Contextual]) -> dict[str, Any]:
    """Return our own policies: lead over the faithful one, and share of its gap to the best contextual one.

    The gap is the best contextual policy's mean reward less the faithful one's, over the same rounds; the best
    contextual policy knows the other questions' outcomes from the start. The share's interval is by bootstrap
    over seeds.
    """
    table: dict[str, Any] = {}
    for mode in MODES:
        stages = steady(world, mode)
        faithful = scope.more("uniscale", world, stages)
        gap = [
            each / len(run.after)
            for run, each in zip(faithful, _behind(faithful, world, mode, best[mode]), strict=True)
        ]
        rows: dict[str, Any] = {}
        picks: dict[str, float] = {}
        for policy in OWN:
            scope.say(f"own policies, {mode}: {policy}")
            runs = scope.more(policy, world, stages)
            picks[policy] = float(
                np.mean([_earned(r) for r in scope.live(policy, world, stages, scope.seeds)])
            )
            lead = [_earned(own) - _earned(other) for own, other in zip(runs, faithful, strict=True)]
            rows[policy] = {
                **figures_of(runs, world),
                "lead_over_uniscale": paired(runs, faithful),
                "share_of_gap_closed": share(lead, gap),
                "rounds_to_learn": learning(runs),
            }
        picked = max(picks, key=lambda policy: picks[policy])
        closed = rows[picked]["share_of_gap_closed"]
        table[key_of(mode)] = {
            "gap_of_uniscale": summed(gap),
            "best_contextual": contextual_figures(best[mode]),
            "picked": picked,
            "half_of_gap_closed": closed is not None and closed["low"] >= 0.5,
            "policies": {"uniscale": figures_of(faithful, world), **rows},
        }
    return table


def share(lead: Sequence[float], gap: Sequence[float]) -> dict[str, float] | None:
    """Return the share of a gap that a lead closes, with its 95 % interval by bootstrap over pairs.

    None where the gap is not above zero in every draw: a share of nothing says nothing.

    >>> share([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    {'mean': 0.5, 'low': 0.5, 'high': 0.5}
    """
    leads, gaps = np.asarray(lead), np.asarray(gap)
    chosen = np.random.default_rng(0).integers(len(leads), size=(DRAWS, len(leads)))
    drawn = gaps[chosen].mean(axis=1)
    if drawn.min() <= 0:
        return None
    low, high = np.quantile(leads[chosen].mean(axis=1) / drawn, [0.025, 0.975])
    return tidy({"mean": leads.mean() / gaps.mean(), "low": low, "high": high})


def shared_objective(world: World, scope: Scope) -> dict[str, Any]:
    """Return what a change of objective at round 51 costs, against a learner that had the new one all along.

    Both meet the same warm-up choices; the first learnt them under the other objective. Paired by seed: regret
    over the rounds after the change, of our learner by terms and of the paper's scalar one.
    """
    table: dict[str, Any] = {}
    for name, after in (("q_to_c", MODES[0]), ("c_to_q", MODES[1])):
        scope.say(f"change of objective: {name}")
        rows = {}
        for policy in ("terms", "uniscale"):
            changed = scope.more(policy, world, DRIFTS[name](world))
            always = scope.more(policy, world, steady(world, after))
            rows[policy] = {
                "regret_changed": summed([_after(run) for run in changed]),
                "regret_always": summed([_after(run) for run in always]),
                "regret_added": summed([_after(a) - _after(b) for a, b in zip(changed, always, strict=True)]),
                "reward_lost": paired(always, changed),
            }
        table[name] = rows
    return table


def contextual_figures(best: Contextual) -> dict[str, Any]:
    """Return which contextual policy is best, what each kind earns, and its lead over the best fixed arm."""
    mean, low, high = best.gap()
    return {
        "kind": best.kind,
        "values": tidy({str(kind): value for kind, value in best.values.items()}),
        "lead_over_fixed": tidy({"mean": mean, "low": low, "high": high}),
    }


def _earned(run: Run) -> float:
    return float(np.mean([s.reward for s in run.after]))


def _after(run: Run) -> float:
    return sum(s.best - s.reward for s in run.after)


def _behind(runs: Sequence[Run], world: World, mode: str, best: Contextual) -> list[float]:
    """Return by how much each run earned less than the best contextual policy, over its own rounds."""
    objective, stages = world.objective(mode), steady(world, mode)
    return [
        len(run.after)
        * (followed(make_trial(world, run.seed, stages), best.choices, objective) - _earned(run))
        for run in runs
    ]


def _fixed(world: World, mode: str, scope: Scope) -> dict[str, Any]:
    """Return the best fixed arm of each seed in hindsight: what it earned, and which arms they are."""
    objective, stages, o = world.objective(mode), steady(world, mode), world.outcomes
    found: dict[str, list[float]] = {"reward": [], "accuracy": [], "eflops": []}
    arms: dict[str, int] = {}
    for seed in scope.more_seeds:
        trial = make_trial(world, seed, stages)
        arm, value = best_fixed(trial, objective)
        played = list(trial.order[trial.warm_up :])
        found["reward"].append(value)
        found["accuracy"].append(100 * float(trial.realised(o.correct)[played, arm].mean()))
        found["eflops"].append(float(trial.realised(o.cost)[played, arm].mean()) / unit_of(world))
        name = o.arms[arm].arm_id
        arms[name] = arms.get(name, 0) + 1
    return {**{name: summed(values) for name, values in found.items()}, "arms": arms}
