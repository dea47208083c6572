"""Computes all of the paper's tables, and further ones, from one table of outcomes, as a nested dict of figures."""

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from scipy import stats
from sklearn.metrics import roc_auc_score

from agents.catalogue.models import Catalogue
from agents.minilm import MiniLM
from experiments import early_exit
from experiments.beyond import cold_start, conditions, own_policies, shared_objective, versus_best
from experiments.contenders import NETWORKS, PAPER
from experiments.frontier import frontier, joint_frontier
from experiments.hindsight import ContextualOracle, best_contextual, followed
from experiments.loop import COST_SENSITIVE, DRIFTS, MODES, SEEDS, make_trial, models_of, spaces, steady
from experiments.outcomes import BanditWorld, OutcomeError, Outcomes, beside_of, build_world, load_recording
from experiments.pacer import pacer
from experiments.record.table import settings_of
from experiments.rerun import DepthLimit, latency_table, load_limit
from experiments.runs import Name, Run, Scope, figures_of, key_of, run_fixed, run_oracle, summed, tidy

Runs = dict[tuple[str, str, str], Sequence[Run]]
MAIN = ("tts", "routing", "uis", "all")
CODING_MODELS = slice(2, 4)  # the two middle models (4B and 8B in the paper)


@dataclass(frozen=True)
class Results:
    """Tables, and data for figures: runs by (scenario or ablation, mode, policy), and the frontier's points."""

    tables: dict[str, Any]
    runs: Runs = field(default_factory=dict)
    points: Mapping[str, tuple[list[float], list[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Beside:
    """Recorded data that accompany a recording; None for each kind that is missing.

    Attributes:
        without_exit: The same searches without early exit, with the same verifier.
        other_verifier: The same searches with the other verifier, for some or all of the questions.
        verifiers: The names of the verifier in use and of the other one.
        coding: Outcomes on the second task.
        depth_limit: Data on searches that reached the depth limit.
        latency: Measured seconds by component (experiments/rerun.py).
    """

    without_exit: Outcomes | None = None
    other_verifier: BanditWorld | None = None
    verifiers: tuple[str, str] = ("in_use", "other")
    coding: BanditWorld | None = None
    depth_limit: DepthLimit | None = None
    latency: Mapping[str, Any] | None = None


def read_beside(source: Path, catalogue: Catalogue, cache: Path, verifier: str | None) -> Beside:
    """Return the data that accompany a recording.

    Args:
        source: The recording. The second task is `code.parquet` in the same folder, unless that is the recording.
        catalogue: The catalogue that describes the recording's actions.
        cache: The folder to cache vectors in.
        verifier: The main runs' verifier; by default, the one in use.

    Raises:
        OutcomeError: A file cannot be used.
    """

    def optional(**chosen: Any) -> Outcomes | None:
        with contextlib.suppress(OutcomeError):
            return load_recording(source, **chosen)
        return None

    def world_of(outcomes: Outcomes | None) -> BanditWorld | None:
        return None if outcomes is None else build_world(outcomes, MiniLM(), catalogue, cache)

    settings, coding = settings_of(source), source.with_name("code.parquet")
    first = verifier or settings["verifiers"][0]
    names = sorted(settings["verifiers"], key=lambda name: bool(name != first))
    second = load_recording(coding) if coding.is_file() and not coding.samefile(source) else None
    measured = beside_of(source, "latency")
    return Beside(
        without_exit=optional(verifier=names[0], early_exit=False),
        other_verifier=world_of(optional(verifier=names[1])) if len(names) > 1 else None,
        verifiers=(names[0], names[-1]),
        coding=world_of(second),
        depth_limit=load_limit(beside_of(source, "depth-limit"), source, settings),
        latency=orjson.loads(measured.read_bytes()) if measured.is_file() else None,
    )


def networks_wanted(world: BanditWorld) -> tuple[dict[str, BanditWorld], list[Name]]:
    """Return the scenarios' worlds, and the MLP and NeuralUCB runs that they need, with the joint space first.

    The Pareto table's modes between the paper's two are run only on the joint space, and come last.
    """
    worlds = {name: part for name, part in spaces(world).items() if name in MAIN}
    order = sorted(worlds, key=lambda name: (name not in ("uis", "all"), name))

    def runs() -> Iterator[Name]:
        for space in order:
            for policy in NETWORKS:
                if policy != "neural_ucb_per_width" or space == order[0]:
                    yield from ((space, mode, policy, seed) for mode in MODES for seed in SEEDS)
        between = [mode for mode in PARETO_MODES if mode not in MODES]
        for policy in NETWORKS:
            if policy != "neural_ucb_per_width":
                yield from ((order[0], mode, policy, seed) for mode in between for seed in SEEDS)

    return worlds, list(runs())


def run_paper(world: BanditWorld, scope: Scope, beside: Beside | None = None) -> Results:
    """Compute every table supported by a world's outcomes.

    Args:
        world: Outcomes with early exit and the verifier in use.
        scope: How much to run.
        beside: Further recorded data.
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
    tables |= ablations(joint, joint_name, scope, runs)
    tables["drifts"] = _drifts(joint, scope, runs)
    tables["pareto"] = pareto(joint, scope)
    if beside.without_exit is not None:
        tables["early_exit"] = early_exit.compare(o, beside.without_exit)
    if beside.other_verifier is not None:
        compared = (_on_questions_of(beside.other_verifier, world), beside.other_verifier)
        named = zip(beside.verifiers, compared, strict=True)
        tables["outcomes"]["verifiers_compared_on"] = len(beside.other_verifier.outcomes.questions)
        tables["verifiers"] = {name: two_policies(spaces(w)["uis"], name, scope) for name, w in named}
    if beside.coding is not None:
        tables["second_task"] = _second_task(beside.coding, scope)
        if scope.whole:
            tables["second_task_frontier"] = frontier(spaces(beside.coding)["uis"], scope).tables.get(
                "frontier"
            )
    if o.dense:
        tables["verifier_scores"] = verifier_scores(joint.outcomes)
    scope.say("the best contextual policy")
    best = {mode: best_contextual(joint, joint.objective(mode)) for mode in MODES}
    tables["readings"] = readings(joint, joint_name, worlds, scope, runs, best)
    if beside.depth_limit is not None:
        tables["readings"]["depth_limit"] = _both_limits(
            beside.depth_limit, joint.outcomes, beside.without_exit
        )
    if beside.latency is not None:
        tables["latency"] = latency_table(beside.latency)
        tables["latency_run"] = beside.latency["run"]
    tables["versus_best"] = versus_best(joint, scope, best)
    tables["own_policies"] = own_policies(joint, scope, best)
    tables["shared_objective"] = shared_objective(joint, scope)
    tables["feedback"] = conditions(joint, scope)
    tables["cold_start"] = cold_start(joint, scope)
    return Results({name: table for name, table in tables.items() if table}, runs, found.points)


def _compete(
    world: BanditWorld, name: str, mode: str, scope: Scope, runs: Runs, missing: list[str]
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


def _on_questions_of(other: BanditWorld, world: BanditWorld) -> BanditWorld:
    """Return a world restricted to another one's questions, with the cost bounds of these questions."""
    at = {each.question_id: i for i, each in enumerate(world.outcomes.questions)}
    part = world.of_questions([at[each.question_id] for each in other.outcomes.questions])
    return replace(part, bounds=part.outcomes.bounds())


def _best_route(world: BanditWorld, scope: Scope, runs: Runs) -> dict[str, Any]:
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


def _drifts(world: BanditWorld, scope: Scope, runs: Runs) -> dict[str, Any]:
    if len({arm.model for arm in world.outcomes.arms}) < 4:
        return {}
    table: dict[str, Any] = {}
    for name, stages_of in DRIFTS.items():
        stages = stages_of(world)
        for policy in ("uniscale", "knn", "terms"):
            runs["drifts", name, policy] = scope.run(policy, world, "drift", name, stages) or []
        table[name] = {
            policy: regrets(runs["drifts", name, policy], world) for policy in ("uniscale", "knn", "terms")
        }
    return table


def _both_limits(known: DepthLimit, on: Outcomes, off: Outcomes | None) -> dict[str, Any]:
    found = {"with_early_exit": known.table(on, early_exit=True)}
    if off is not None:
        found["without_early_exit"] = known.table(off, early_exit=False)
    return found


def _second_task(world: BanditWorld, scope: Scope) -> dict[str, Any]:
    """Return results on coding questions with the two middle models, under Cost-Sensitive (docs/readings.md)."""
    models = models_of(world)
    middle = set(models[CODING_MODELS] if len(models) > 2 else models)
    joint = spaces(world)["uis"]
    arms = [i for i, arm in enumerate(joint.outcomes.arms) if arm.model in middle]
    part = joint.restrict(arms, "uis")
    low_high = part.outcomes.bounds()
    part = BanditWorld(part.outcomes, part.queries, part.vectors, low_high, part.texts)
    stages = steady(part, MODES[0])
    found = {
        policy: figures_of(scope.run(policy, part, "coding", MODES[0], stages) or [], part)
        for policy in ("random", "knn", "uniscale")
    }
    oracle = figures_of(run_oracle(part, stages, scope.seeds), part)
    return {key_of(MODES[0]): {**found, "oracle": oracle}}


PARETO_MODES = ("cost-sensitive", "cost-leaning", "quality-leaning", "quality-priority")
PARETO_POLICIES = ("random", "greedy", "mlp", "knn", "neural_ucb", "ts", "uniscale")


def ablations(
    world: BanditWorld, name: str, scope: Scope, runs: MutableMapping[tuple[str, str, str], Sequence[Run]]
) -> dict[str, Any]:
    """Return the ablations: action semantics against one-hot features, values of α, and dense against binary feedback.

    Args:
        world: The joint space.
        name: Its name in `runs`.
        scope: How much to run.
        runs: Contains UniScale's own runs; the ablations' runs are added.
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
        for label in ("0", "1", "10"):  # drawing order
            runs["alpha", mode, label] = runs.pop(("alpha", mode, label))
        binary = scope.run("uniscale", world, name, mode, steady(world, mode, dense=False)) or []
        # The two kinds of feedback have different rewards, so only the measures of the paper's table are compared.
        dense[key] = {
            label: {measure: figures[measure] for measure in ("accuracy", "eflops")}
            for label, figures in (("dense", figures_of(own, world)), ("binary", figures_of(binary, world)))
        }
    found: dict[str, Any] = {"semantics": semantics, "alpha": alpha}
    return {**found, "dense_feedback": dense} if world.outcomes.dense else found


def regrets(runs: Sequence[Run], world: BanditWorld) -> dict[str, Any]:
    """Return every measure, and the regret at rounds 130 and 210; at 210, also against all arms in the world."""
    return {
        "regret_130": summed([run.regret(130) for run in runs]),
        "regret_210": summed([run.regret(210) for run in runs]),
        "regret_210_over_all": summed([run.regret(210, over_all=True) for run in runs]),
        **figures_of(runs, world),
    }


def pareto(world: BanditWorld, scope: Scope) -> dict[str, Any]:
    """Return all policies' figures in each of four modes, with the Oracle and the best fixed arm in hindsight."""
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


def two_policies(world: BanditWorld, name: str, scope: Scope) -> dict[str, Any]:
    """Return the figures for k-NN and UniScale in both modes, to compare worlds with different verifiers."""
    return {
        key_of(mode): {
            policy: figures_of(scope.run(policy, world, name, mode, steady(world, mode)) or [], world)
            for policy in ("knn", "uniscale")
        }
        for mode in MODES
    }


def readings(
    joint: BanditWorld,
    name: str,
    worlds: Mapping[str, BanditWorld],
    scope: Scope,
    runs: Mapping[tuple[str, str, str], Sequence[Run]],
    best: Mapping[str, ContextualOracle],
) -> dict[str, Any]:
    """Return the effect of each alternative reading of the paper.

    Args:
        joint: The joint space.
        name: Its name in `runs`.
        worlds: Worlds by scenario.
        scope: How much to run.
        runs: The main tables' runs.
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
    world: BanditWorld, mode: str, contextual: ContextualOracle, runs: Mapping[str, Sequence[Run]]
) -> dict[str, Any]:
    """Return each policy's regret per round, over its own rounds, against four optima.

    `realised` is the paper's optimum, the best realised outcome for each question. `mean` is the arm with the best mean
    over samples for each question, `contextual` the best cross-fitted policy, and `fixed` the best single arm in
    hindsight.
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
    """Return outcomes with a single sample, the mean of all samples. Costs are averaged as logarithms."""
    means = {name: getattr(o, name).mean(axis=0, keepdims=True) for name in ("correct", "score", "log_cost")}
    return replace(o, **means, extra={})


BINS = 20


def verifier_scores(o: Outcomes) -> dict[str, Any]:
    """Return the AUROC pooled and within questions, the point-biserial correlation, and both score distributions.

    The AUROC within questions is the mean over questions with both right and wrong answers. The pooled AUROC is high
    even for a score that only measures a question's difficulty. A wide search returns the path with the highest score,
    which raises the scores of right and wrong answers alike, so the AUROC within questions is also given for single
    paths.
    """
    right, score = o.correct.ravel() > 0.5, o.score.ravel()
    if right.all() or not right.any():
        return {}
    within = _within(o, range(len(o.arms)))
    single = _within(o, [i for i, arm in enumerate(o.arms) if arm.qp * arm.cp == 1])
    pooled = {
        "auroc_pooled": float(roc_auc_score(right, score)),
        "point_biserial": float(stats.pointbiserialr(right, score).statistic),
    }
    for name, values in (("", within), ("_one_path", single)):
        if values:
            pooled[f"auroc_within_question{name}"] = float(np.mean(values))
            pooled[f"questions_with_both{name}"] = len(values)
    return {
        "measures": tidy(pooled),
        "answers": {
            name: {
                "count": int(chosen.sum()),
                **tidy({"mean_score": score[chosen].mean(), "std_of_score": score[chosen].std()}),
            }
            for name, chosen in (("right", right), ("wrong", ~right))
        },
        "histogram": {
            name: np.histogram(score[chosen], BINS, (0.0, 1.0))[0].tolist()
            for name, chosen in (("right", right), ("wrong", ~right))
        },
    }


def _within(o: Outcomes, arms: Sequence[int]) -> list[float]:
    """Return the AUROC of each question that has both right and wrong answers among these arms."""
    found = []
    for q in range(len(o.questions)):
        labels, scores = o.correct[:, q][:, list(arms)].ravel() > 0.5, o.score[:, q][:, list(arms)].ravel()
        if labels.any() and not labels.all():
            found.append(float(roc_auc_score(labels, scores)))
    return found
