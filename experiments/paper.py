"""Everything the paper measures, and what it did not ask, on one table of outcomes: a nested dict of figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import roc_auc_score

from experiments import early_exit
from experiments.contenders import ALL, NETWORKS, OWN, PAPER
from experiments.loop import SEEDS, Feedback
from experiments.oracle import best_contextual
from experiments.outcomes import Outcomes
from experiments.scenarios import DRIFTS, MODES, spaces, steady
from experiments.tables import Run, figures_of, paired, rounds_to_learn, run_oracle, run_policy, summed
from experiments.world import World

PARETO_MODES = ("cost-sensitive", "cost-leaning", "quality-leaning", "quality-priority")
CONDITIONS: Mapping[str, Feedback] = {
    "prompt": Feedback(),
    "in_flight_16": Feedback(in_flight=16),
    "in_flight_64": Feedback(in_flight=64),
    "sparse_25_percent": Feedback(kept=0.25),
    "duplicated": Feedback(duplicated=0.5),
    "poisoned_10_percent": Feedback(poisoned=0.1),
}


@dataclass(frozen=True)
class Scope:
    """How much is run.

    Attributes:
        seeds: Of the paper's tables.
        more_seeds: Of what the field asks for.
        networks: Whether MLP and NeuralUCB compete, at their full training.
        long: Whether feedback conditions, longer streams and boosted trees are run.
        say: Told what is being run.
    """

    seeds: Sequence[int] = SEEDS
    more_seeds: Sequence[int] = tuple(range(20))
    networks: bool = False
    long: bool = True
    say: Callable[[str], Any] = field(default=lambda text: None)

    @property
    def policies(self) -> list[str]:
        """Return the paper's policies that are run."""
        return [name for name in PAPER if self.networks or name not in NETWORKS]


@dataclass(frozen=True)
class Results:
    """Tables, and the runs behind the figures."""

    tables: dict[str, Any]
    runs: dict[tuple[str, str, str], list[Run]]


def run_paper(
    world: World, scope: Scope, *, without_exit: Outcomes | None = None, other_verifier: World | None = None
) -> Results:
    """Run every table that a world's outcomes can carry.

    Args:
        world: With early exit, under the verifier in use.
        scope: How much.
        without_exit: The same searches without early exit.
        other_verifier: The same under the other verifier.
    """
    o = world.outcomes
    worlds = spaces(world)
    joint = worlds.get("uis", worlds.get("all", world))
    runs: dict[tuple[str, str, str], list[Run]] = {}
    tables: dict[str, Any] = {
        "outcomes": {
            "name": o.name,
            "questions": len(o.questions),
            "actions": len(joint.outcomes.arms),
            "samples": o.samples,
            "seeds": list(scope.seeds),
            "unit": o.unit,
            "not_run": [] if scope.networks else list(NETWORKS),
        },
        "main": {},
    }
    for name, part in worlds.items():
        table = {_key(mode): _compete(part, name, mode, scope, runs) for mode in MODES}
        if name == "best_route":
            tables["best_route"] = table
        else:
            tables["main"][name] = table
    tables |= _ablations(joint, scope, runs)
    tables["drifts"] = _drifts(joint, scope)
    tables["pareto"] = _pareto(joint, scope)
    tables["contextual"] = _contextual(joint, scope, runs)
    tables["shared_objective"] = _shared_objective(joint, scope)
    if o.dense:
        tables["verifier_scores"] = verifier_scores(joint.outcomes)
    if without_exit is not None:
        tables["early_exit"] = early_exit.compare(o, without_exit)
    if other_verifier is not None:
        second = spaces(other_verifier)["uis"]
        tables["verifiers"] = {
            label: {
                _key(mode): {
                    policy: figures_of(run_policy(ALL[policy], w, steady(w, mode), scope.seeds), w)
                    for policy in ("knn", "uniscale")
                }
                for mode in MODES
            }
            for label, w in (("in_use", joint), ("other", second))
        }
    if scope.long:
        tables["feedback"] = _feedback(joint, scope)
    return Results(tables, runs)


def verifier_scores(o: Outcomes) -> dict[str, float | None]:
    """Return how well path scores tell right answers from wrong: AUROC pooled and within questions, r_pb."""
    right, score = o.correct.ravel() > 0.5, o.score.ravel()
    if right.all() or not right.any():
        return {"auroc_pooled": None, "auroc_within_question": None, "point_biserial": None}
    within = []
    for q in range(len(o.questions)):
        labels = o.correct[:, q].ravel() > 0.5
        if labels.any() and not labels.all():
            within.append(float(roc_auc_score(labels, o.score[:, q].ravel())))
    return {
        "auroc_pooled": round(float(roc_auc_score(right, score)), 6),
        "auroc_within_question": round(float(np.mean(within)), 6) if within else None,
        "point_biserial": round(float(stats.pointbiserialr(right, score).statistic), 6),
    }


def _key(mode: str) -> str:
    return mode.replace("-", "_")


def _compete(
    world: World, name: str, mode: str, scope: Scope, runs: dict[tuple[str, str, str], list[Run]]
) -> dict[str, Any]:
    stages = steady(world, mode)
    table = {}
    for policy in scope.policies:
        scope.say(f"{name}, {mode}: {policy}")
        runs[name, mode, policy] = run_policy(PAPER[policy], world, stages, scope.seeds)
        table[policy] = figures_of(runs[name, mode, policy], world)
    runs[name, mode, "oracle"] = run_oracle(world, stages, scope.seeds)
    table["oracle"] = figures_of(runs[name, mode, "oracle"], world)
    return table


def _ablations(world: World, scope: Scope, runs: dict[tuple[str, str, str], list[Run]]) -> dict[str, Any]:
    """Return action semantics against one-hot, α, and dense feedback against binary."""
    name = world.outcomes.name if world.outcomes.name in ("uis",) else "all"
    semantics: dict[str, Any] = {}
    alpha: dict[str, Any] = {}
    dense: dict[str, Any] = {}
    for mode in MODES:
        scope.say(f"ablations, {mode}")
        stages, key = steady(world, mode), _key(mode)
        own = runs[name, mode, "uniscale"]
        ablated = {
            each: run_policy(ALL[each], world, stages, scope.seeds)
            for each in ("uniscale_one_hot", "uniscale_alpha_0", "uniscale_alpha_10")
        }
        semantics[key] = {
            "uniscale": _regrets(own, world),
            "one_hot": _regrets(ablated["uniscale_one_hot"], world),
        }
        alpha[key] = {
            "0": _regrets(ablated["uniscale_alpha_0"], world),
            "1": _regrets(own, world),
            "10": _regrets(ablated["uniscale_alpha_10"], world),
        }
        binary = run_policy(PAPER["uniscale"], world, steady(world, mode, dense=False), scope.seeds)
        dense[key] = {"dense": figures_of(own, world), "binary": figures_of(binary, world)}
    return {"semantics": semantics, "alpha": alpha, "dense_feedback": dense}


def _regrets(runs: Sequence[Run], world: World) -> dict[str, Any]:
    return {
        "regret_130": summed([run.regret(130) for run in runs]),
        "regret_210": summed([run.regret(210) for run in runs]),
        "regret_210_over_all": summed([run.regret(210, over_all=True) for run in runs]),
        **figures_of(runs, world),
    }


def _drifts(world: World, scope: Scope) -> dict[str, Any]:
    if len({arm.model for arm in world.outcomes.arms}) < 4:
        return {}
    table: dict[str, Any] = {}
    for name, stages_of in DRIFTS.items():
        scope.say(f"drift: {name}")
        stages = stages_of(world)
        table[name] = {
            policy: _regrets(run_policy(ALL[policy], world, stages, scope.seeds), world)
            for policy in ("uniscale", "knn", "terms")
        }
    return table


def _pareto(world: World, scope: Scope) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for mode in PARETO_MODES:
        scope.say(f"Pareto: {mode}")
        table[_key(mode)] = {
            policy: figures_of(run_policy(PAPER[policy], world, steady(world, mode), scope.seeds), world)
            for policy in ("random", "greedy", "knn", "ts", "uniscale")
        }
    return table


def _contextual(world: World, scope: Scope, runs: dict[tuple[str, str, str], list[Run]]) -> dict[str, Any]:
    """Return the best contextual policy, and our own policies against the faithful one on the same seeds."""
    table: dict[str, Any] = {}
    for mode in MODES:
        objective, stages = world.objective(mode), steady(world, mode)
        scope.say(f"contextual policies, {mode}")
        best = best_contextual(world, objective, trees=scope.long)
        mean, low, high = best.gap()
        faithful = run_policy(PAPER["uniscale"], world, stages, scope.more_seeds)
        table[_key(mode)] = {
            "best_contextual": {
                "kind": best.kind,
                "values": {kind: round(value, 6) for kind, value in best.values.items()},
                "lead_over_fixed": {"mean": round(mean, 6), "low": round(low, 6), "high": round(high, 6)},
            },
            "uniscale": {**figures_of(faithful, world), "rounds_to_learn": _learning(faithful)},
            **{
                policy: {
                    **figures_of(own, world),
                    "lead_over_uniscale": paired(own, faithful),
                    "rounds_to_learn": _learning(own),
                }
                for policy, make in OWN.items()
                for own in [run_policy(make, world, stages, scope.more_seeds)]
            },
        }
    return table


def _learning(runs: Sequence[Run]) -> dict[str, Any]:
    """Return how many seeds came within 5 % of the best fixed arm, and the median round of those."""
    rounds = [found for run in runs if (found := rounds_to_learn(run)) is not None]
    return {"seeds": len(rounds), "of": len(runs), "median": float(np.median(rounds)) if rounds else None}


def _shared_objective(world: World, scope: Scope) -> dict[str, Any]:
    """Return mean rewards after a change of objective: of a learner by terms, and of one that had it all along.

    Both meet the same warm-up choices; the first learnt them under the other objective.
    """
    table: dict[str, Any] = {}
    for name, after in (("q_to_c", "cost-sensitive"), ("c_to_q", "quality-priority")):
        changed = run_policy(OWN["terms"], world, DRIFTS[name](world), scope.more_seeds)
        always = run_policy(OWN["terms"], world, steady(world, after), scope.more_seeds)
        scalar = run_policy(PAPER["uniscale"], world, DRIFTS[name](world), scope.more_seeds)
        table[name] = {
            "lead_over_always": paired(changed, always),
            "scalar_lead_over_always": paired(scalar, always),
        }
    return table


def _feedback(world: World, scope: Scope) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, feedback in CONDITIONS.items():
        scope.say(f"feedback: {name}")
        table[name] = {
            policy: figures_of(
                run_policy(ALL[policy], world, steady(world, MODES[0]), scope.more_seeds, feedback=feedback),
                world,
            )
            for policy in ("uniscale", "terms")
        }
    return table
