"""The paper's scenarios as arms and stages: TTS, Routing, UIS, BEST-Route*, and the four drifts."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from agents.space.action_space import PAIRS
from experiments.outcomes import best_route
from experiments.outcomes.table import Arm
from experiments.outcomes.world import World
from experiments.trials.loop import WARM_UP, Stage

COST_SENSITIVE, QUALITY_PRIORITY = "cost-sensitive", "quality-priority"
MODES = (COST_SENSITIVE, QUALITY_PRIORITY)
DRIFTING = 2  # how many of the smallest models come or go: 0.6B and 1.7B in the paper


def spaces(world: World) -> dict[str, World]:
    """Return the scenarios' worlds: `tts`, `routing`, `uis` of our recordings, or `all` for other tables.

    Bounds of the cost are those of the whole UIS table for each of them.
    """
    arms = world.outcomes.arms
    uis = [i for i, arm in enumerate(arms) if (arm.qp, arm.cp) in PAIRS]
    if not any(arm.qp * arm.cp > 1 for arm in arms):
        return {"all": world}
    models = models_of(world)
    whole = world.restrict(uis, "uis")
    low_high = whole.outcomes.bounds()
    found = {
        "tts": [i for i in uis if arms[i].model == models[0]],
        "routing": [i for i in uis if arms[i].qp * arms[i].cp == 1],
        "uis": uis,
        "best_route": _best_route(arms),
    }
    worlds = {name: world.restrict(index, name) for name, index in found.items() if index}
    return {name: replace(w, bounds=low_high) for name, w in worlds.items()}


def models_of(world: World) -> list[str]:
    """Return the models, smallest first by the mean cost of a single path."""
    arms, cost = world.outcomes.arms, world.outcomes.log_cost.mean(axis=(0, 1))
    single = {arm.model: cost[i] for i, arm in enumerate(arms) if arm.qp * arm.cp == 1}
    return sorted(single, key=lambda model: float(single[model]))


def steady(world: World, mode: str, *, dense: bool = True) -> dict[int, Stage]:
    """Return the one stage of a scenario without drift."""
    return {1: Stage(tuple(range(len(world.vectors))), world.objective(mode, dense=dense))}


def _best_route(arms: tuple[Arm, ...]) -> list[int]:
    found = [i for i, arm in enumerate(arms) if arm.cp == 1 and arm.qp <= best_route.SAMPLES]
    models = {arm.model for arm in arms}
    return found if len(found) == best_route.SAMPLES * len(models) else []


def drift_add(world: World) -> dict[int, Stage]:
    """Return Add: without the two smallest models at first, with them from round 51; Cost-Sensitive."""
    whole, without = _with_and_without(world)
    objective = world.objective(COST_SENSITIVE)
    return {1: Stage(without, objective), WARM_UP + 1: Stage(whole, objective)}


def drift_remove(world: World) -> dict[int, Stage]:
    """Return Remove: the two smallest models go at round 51; Cost-Sensitive."""
    whole, without = _with_and_without(world)
    objective = world.objective(COST_SENSITIVE)
    return {1: Stage(whole, objective), WARM_UP + 1: Stage(without, objective)}


def drift_objective(world: World, before: str, after: str) -> dict[int, Stage]:
    """Return a change of reward mode at round 51."""
    arms = tuple(range(len(world.vectors)))
    return {1: Stage(arms, world.objective(before)), WARM_UP + 1: Stage(arms, world.objective(after))}


DRIFTS: Mapping[str, Callable[[World], dict[int, Stage]]] = {
    "add": drift_add,
    "remove": drift_remove,
    "q_to_c": lambda world: drift_objective(world, QUALITY_PRIORITY, COST_SENSITIVE),
    "c_to_q": lambda world: drift_objective(world, COST_SENSITIVE, QUALITY_PRIORITY),
}


def _with_and_without(world: World) -> tuple[tuple[int, ...], tuple[int, ...]]:
    small = set(models_of(world)[:DRIFTING])
    whole = tuple(range(len(world.vectors)))
    return whole, tuple(i for i in whole if world.outcomes.arms[i].model not in small)
