"""Everything the paper measures, and what it did not ask, on one table of outcomes: a nested dict of figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.outcomes.table import Outcomes
from experiments.outcomes.world import World
from experiments.rerun import latency
from experiments.rerun.depth_limit import DepthLimit
from experiments.tables import ablations, early_exit, feedback, field_questions, off_policy, readings, streams
from experiments.tables.frontier import frontier
from experiments.tables.joint_frontier import joint_frontier
from experiments.tables.pacer import pacer
from experiments.tables.verifier_scores import verifier_scores
from experiments.trials.contenders import PAPER
from experiments.trials.oracle import best_contextual
from experiments.trials.runs import Run, figures_of, run_oracle
from experiments.trials.scenarios import DRIFTS, MODES, models_of, spaces, steady
from experiments.trials.scope import Scope, key_of

Runs = dict[tuple[str, str, str], Sequence[Run]]
MAIN = ("tts", "routing", "uis", "all")
CODING_MODELS = slice(2, 4)  # the two middle ones (4B and 8B in the paper)


@dataclass(frozen=True)
class Results:
    """Tables, and what is behind the figures: runs by scenario or ablation, mode, policy; points of the frontier."""

    tables: dict[str, Any]
    runs: Runs = field(default_factory=dict)
    points: Mapping[str, tuple[list[float], list[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Beside:
    """What else was recorded.

    Attributes:
        without_exit: The same searches without early exit, under the same verifier.
        other_verifier: The same under the other verifier, or some of the questions.
        verifiers: Names of the one in use and the other.
        coding: Outcomes on the second task.
        depth_limit: What is known of searches that met it.
        latency: Seconds by component, as measured (experiments/rerun/latency.py).
    """

    without_exit: Outcomes | None = None
    other_verifier: World | None = None
    verifiers: tuple[str, str] = ("in_use", "other")
    coding: World | None = None
    depth_limit: DepthLimit | None = None
    latency: Mapping[str, Any] | None = None


def run_paper(world: World, scope: Scope, beside: Beside | None = None) -> Results:
    """Run every table that a world's outcomes can carry.

    Args:
        world: With early exit, under the verifier in use.
        scope: How much.
        beside: What else was recorded.
    """
    beside = beside or Beside()
    o, worlds = world.outcomes, spaces(world)
    joint_name = "uis" if "uis" in worlds else "all"
    joint = worlds[joint_name]
    runs: Runs = {}
    missing: list[str] = []
    tables: dict[str, Any] = {
        "outcomes": {
            "name": o.name,
            "questions": len(o.questions),
            "actions": len(joint.outcomes.arms),
            "samples": o.samples,
            "seeds": list(scope.seeds),
            "more_seeds": list(scope.more_seeds),
            "unit": o.unit,
            "not_run": missing,
            "not_run_because": scope.record.refused,
        },
        "main": {
            name: {key_of(mode): _compete(part, name, mode, scope, runs, missing) for mode in MODES}
            for name, part in worlds.items()
            if name in MAIN
        },
    }
    tables["joint_frontier"] = joint_frontier(worlds)
    found = frontier(joint, scope)
    tables |= found.tables
    tables["pacer"] = pacer(joint, scope)
    if "best_route" in worlds:
        tables["best_route"] = _best_route(worlds["best_route"], scope, runs)
    tables |= ablations.ablations(joint, joint_name, scope, runs)
    tables["drifts"] = _drifts(joint, scope, runs)
    tables["pareto"] = ablations.pareto(joint, scope)
    if beside.without_exit is not None:
        tables["early_exit"] = early_exit.compare(o, beside.without_exit)
    if beside.other_verifier is not None:
        compared = (_on_questions_of(beside.other_verifier, world), beside.other_verifier)
        named = zip(beside.verifiers, compared, strict=True)
        tables["outcomes"]["verifiers_compared_on"] = len(beside.other_verifier.outcomes.questions)
        tables["verifiers"] = {
            name: ablations.two_policies(spaces(w)["uis"], name, scope) for name, w in named
        }
    if beside.coding is not None:
        tables["second_task"] = _second_task(beside.coding, scope)
        if scope.whole:
            tables["second_task_frontier"] = frontier(spaces(beside.coding)["uis"], scope).tables.get(
                "frontier"
            )
    if o.dense:
        tables["verifier_scores"] = verifier_scores(joint.outcomes)
    scope.say("the best contextual policy")
    best = {mode: best_contextual(joint, joint.objective(mode), trees=scope.whole) for mode in MODES}
    tables["readings"] = readings.readings(joint, joint_name, worlds, scope, runs, best)
    if beside.depth_limit is not None:
        tables["readings"]["depth_limit"] = _both_limits(
            beside.depth_limit, joint.outcomes, beside.without_exit
        )
    if beside.latency is not None:
        tables["latency"] = latency.table(beside.latency)
        tables["latency_run"] = beside.latency["run"]
    tables["versus_best"] = field_questions.versus_best(joint, scope, best)
    tables["own_policies"] = field_questions.own_policies(joint, scope, best)
    tables["shared_objective"] = field_questions.shared_objective(joint, scope)
    tables["feedback"] = feedback.conditions(joint, scope)
    tables["cold_start"] = feedback.cold_start(joint, scope)
    if scope.stream_rounds:
        tables["streams"] = streams.streams(joint, scope, best)
    if scope.repetitions:
        tables["off_policy"] = off_policy.check(worlds, scope)
    return Results({name: table for name, table in tables.items() if table}, runs, found.points)


def _compete(
    world: World, name: str, mode: str, scope: Scope, runs: Runs, missing: list[str]
) -> dict[str, Any]:
    stages = steady(world, mode)
    table = {}
    for policy in PAPER:
        found = scope.run(policy, world, name, mode, stages)
        if found is None:
            missing.append(f"{name}/{key_of(mode)}/{policy}")
            continue
        runs[name, mode, policy] = found
        table[policy] = figures_of(found, world)
    runs[name, mode, "oracle"] = run_oracle(world, stages, scope.seeds)
    table["oracle"] = figures_of(runs[name, mode, "oracle"], world)
    return table


def _on_questions_of(other: World, world: World) -> World:
    """Return the world of the questions another has, under bounds of their own."""
    at = {each.question_id: i for i, each in enumerate(world.outcomes.questions)}
    part = world.of_questions([at[each.question_id] for each in other.outcomes.questions])
    return replace(part, bounds=part.outcomes.bounds())


def _best_route(world: World, scope: Scope, runs: Runs) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for mode in MODES:
        stages = steady(world, mode)
        for policy in ("random", "knn", "uniscale"):
            runs["best_route", mode, policy] = scope.run(policy, world, "best_route", mode, stages) or []
        runs["best_route", mode, "oracle"] = run_oracle(world, stages, scope.seeds)
        table[key_of(mode)] = {
            policy: figures_of(runs["best_route", mode, policy], world)
            for policy in ("random", "knn", "uniscale", "oracle")
        }
    return table


def _drifts(world: World, scope: Scope, runs: Runs) -> dict[str, Any]:
    if len({arm.model for arm in world.outcomes.arms}) < 4:
        return {}
    table: dict[str, Any] = {}
    for name, stages_of in DRIFTS.items():
        stages = stages_of(world)
        for policy in ("uniscale", "knn", "terms"):
            runs["drifts", name, policy] = scope.run(policy, world, "drift", name, stages) or []
        table[name] = {
            policy: ablations.regrets(runs["drifts", name, policy], world)
            for policy in ("uniscale", "knn", "terms")
        }
    return table


def _both_limits(known: DepthLimit, on: Outcomes, off: Outcomes | None) -> dict[str, Any]:
    found = {"with_early_exit": known.table(on, early_exit=True)}
    if off is not None:
        found["without_early_exit"] = known.table(off, early_exit=False)
    return found


def _second_task(world: World, scope: Scope) -> dict[str, Any]:
    """Return UniScale against k-NN on the coding questions: two middle models, Cost-Sensitive (READINGS 20)."""
    models = models_of(world)
    middle = set(models[CODING_MODELS] if len(models) > 2 else models)
    joint = spaces(world)["uis"]
    arms = [i for i, arm in enumerate(joint.outcomes.arms) if arm.model in middle]
    part = joint.restrict(arms, "uis")
    low_high = part.outcomes.bounds()
    part = World(part.outcomes, part.queries, part.vectors, low_high, part.texts)
    stages = steady(part, MODES[0])
    found = {
        policy: figures_of(scope.run(policy, part, "coding", MODES[0], stages) or [], part)
        for policy in ("random", "knn", "uniscale")
    }
    oracle = figures_of(run_oracle(part, stages, scope.seeds), part)
    return {key_of(MODES[0]): {**found, "oracle": oracle}}
