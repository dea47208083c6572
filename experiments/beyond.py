"""Experiments beyond the paper: the best possible policies, our own policies, realistic feedback, and cold starts.

They use twenty seeds that are not the paper's. Choices among our own policies are made on the paper's seeds and judged
on these.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.contenders import NETWORKS, OWN, PAPER
from experiments.hindsight import ContextualOracle, best_fixed, followed
from experiments.loop import DRIFTS, MODES, WARM_UP, FeedbackChannel, make_trial, steady
from experiments.outcomes import BanditWorld
from experiments.runs import Run, Scope, figures_of, key_of, learning, paired, summed, tidy, unit_of

DRAWS = 2_000


def versus_best(world: BanditWorld, scope: Scope, best: Mapping[str, ContextualOracle]) -> dict[str, Any]:
    """Compare each of the paper's policies, except networks, with the best fixed arm and the best contextual policy.

    Args:
        world: The joint space.
        scope: How much to run.
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


def own_policies(world: BanditWorld, scope: Scope, best: Mapping[str, ContextualOracle]) -> dict[str, Any]:
    """Return each of our own policies' lead over the faithful one, and the share of the gap that it closes.

    The gap is the best contextual policy's mean reward minus the faithful policy's over the same rounds. The best
    contextual policy is fitted beforehand on the outcomes of other questions. The share's interval is from a bootstrap
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
    """Return the share of a gap that a lead closes, with its 95 % interval from a bootstrap over pairs.

    The result is None unless the gap is above zero in every draw.

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


def shared_objective(world: BanditWorld, scope: Scope) -> dict[str, Any]:
    """Return the loss from changing the objective at round 51, relative to having the new one from the start.

    Both runs make the same warm-up choices, but the run with the change learns from them under the old objective. The
    regret after the change is paired by seed, for our learner, which has separate terms, and the paper's scalar one.
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


def contextual_figures(best: ContextualOracle) -> dict[str, Any]:
    """Return the best contextual policy's kind, every kind's mean reward, and the lead over the best fixed arm."""
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


def _behind(runs: Sequence[Run], world: BanditWorld, mode: str, best: ContextualOracle) -> list[float]:
    """Return how much less each run earned than the best contextual policy would have over the same rounds."""
    objective, stages = world.objective(mode), steady(world, mode)
    return [
        len(run.after)
        * (followed(make_trial(world, run.seed, stages), best.choices, objective) - _earned(run))
        for run in runs
    ]


def _fixed(world: BanditWorld, mode: str, scope: Scope) -> dict[str, Any]:
    """Return the best fixed arms in hindsight, one per seed, and their rewards."""
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


CONDITIONS: Mapping[str, FeedbackChannel] = {
    "prompt (1 in flight)": FeedbackChannel(),
    "16 in flight": FeedbackChannel(in_flight=16),
    "64 in flight": FeedbackChannel(in_flight=64),
    "late and out of order (31 rounds on average)": FeedbackChannel(in_flight=32, shuffled=True),
    "sparse: 25 % rewarded": FeedbackChannel(kept=0.25),
    "sparse, score and cost at once": FeedbackChannel(kept=0.25, two_stage=True),
    "late by 63, score and cost at once": FeedbackChannel(in_flight=64, two_stage=True),
    "censored: half of the wrong unrewarded": FeedbackChannel(censored=0.5),
    "duplicated: half twice": FeedbackChannel(duplicated=0.5),
    "poisoned: 10 % the opposite": FeedbackChannel(poisoned=0.1),
    "poisoned: 30 % the opposite": FeedbackChannel(poisoned=0.3),
}
FEEDBACK_POLICIES = ("uniscale", "terms", "decided", "coordinates", "knn")
STARTS = (0, 10, WARM_UP)
LAST = 60


def conditions(world: BanditWorld, scope: Scope) -> dict[str, Any]:
    """Return each policy's reward under each condition, and its loss relative to prompt feedback, paired by seed."""
    table: dict[str, Any] = {}
    for mode in MODES if scope.whole else MODES[:1]:
        prompt: dict[str, list[Run]] = {}
        rows: dict[str, Any] = {}
        for name, feedback in CONDITIONS.items():
            scope.say(f"feedback, {mode}: {name}")
            rows[name] = {}
            for policy in FEEDBACK_POLICIES if scope.whole else FEEDBACK_POLICIES[:2]:
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


def cold_start(world: BanditWorld, scope: Scope) -> dict[str, Any]:
    """Return rewards over all 210 rounds and over the last 60, by number of warm-up rounds."""
    table: dict[str, Any] = {}
    for mode in MODES if scope.whole else MODES[:1]:
        scope.say(f"cold start, {mode}")
        table[key_of(mode)] = {
            policy: {
                f"{start} rounds of warm-up": _all_and_last(policy, world, mode, scope, start)
                for start in STARTS
            }
            for policy in (FEEDBACK_POLICIES if scope.whole else FEEDBACK_POLICIES[:2])
        }
    return table


def _all_and_last(policy: str, world: BanditWorld, mode: str, scope: Scope, start: int) -> dict[str, Any]:
    runs = scope.live(policy, world, steady(world, mode), scope.more_seeds, warm_up=start)
    return {
        "reward_of_all_rounds": summed([float(np.mean([s.reward for s in run.steps])) for run in runs]),
        "reward_of_last_60": summed([float(np.mean([s.reward for s in run.steps[-LAST:]])) for run in runs]),
        "regret": summed([run.regret() for run in runs]),
    }
