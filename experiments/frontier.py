"""Who pays what for an accuracy, on the live questions of a world; and the paper's Figure 1 in figures.

Figure 1: what the joint space of model and search gains over either alone. Each space may mix its configurations at
random; which are mixed is chosen on history and judged on the live questions: the best of 168 on the questions
themselves would be a lucky draw, of six much less of one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agents.bandit.policy import Objective
from experiments.ceiling import ceiling
from experiments.contenders import ALL, with_prior
from experiments.loop import WARM_UP, FeedbackChannel, Stage, Trial, play
from experiments.outcomes import BanditWorld
from experiments.runs import Scope, tidy
from experiments.yardstick import SHARES, Points, Yardstick, area, hull, split

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)  # w₃
PRICES = (
    0.0,
    *(2.0**k for k in range(-8, 9)),
)  # λ: accuracy (1 = all) for the cost of the best arm on history
LEARNT = 2_000  # rounds on history, not counted
FEWEST = 10  # questions on either side


@dataclass(frozen=True)
class Player:
    """One row.

    Attributes:
        policy: Of `contenders`.
        warm_up: Rounds of uniform choice.
        after_history: Whether it has learnt on history from its own choices.
        prior: Whether it begins from a prior made of history.
        linear: Whether it is asked by prices of linear cost, with surface counts beside the embedding.
    """

    policy: str
    warm_up: int = WARM_UP
    after_history: bool = False
    prior: bool = False
    linear: bool = False


PLAYERS: Mapping[str, Player] = {
    "random": Player("random"),
    "greedy": Player("greedy"),
    "knn": Player("knn"),
    "ts": Player("ts"),
    "uniscale": Player("uniscale"),
    "uniscale_no_warm_up": Player("uniscale", warm_up=0),
    "default": Player("default", linear=True),
    "default_with_prior": Player("default", warm_up=0, linear=True, prior=True),
}
AFTER_HISTORY: Mapping[str, Player] = {
    "uniscale_after_history": Player("uniscale", after_history=True),
    "default_after_history": Player("default", linear=True, after_history=True),
}


@dataclass(frozen=True)
class Frontier:
    """Tables, and the points that the figure draws: (accuracy, cost) of each row and of the arms."""

    tables: dict[str, Any] = field(default_factory=dict)
    points: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)


def frontier(world: BanditWorld, scope: Scope, players: Mapping[str, Player] | None = None) -> Frontier:
    """Return cost at equal accuracy of every policy; nothing where a world has too few questions to split.

    Args:
        world: All arms are on offer.
        scope: `more_seeds` are the orders; boosted trees compete for the ceiling in the whole run only.
        players: The rows beside the fixed mix and the ceilings; by default all that learn on the live questions, and
            in the whole run those too that learn on history beforehand.
    """
    o = world.outcomes
    history, live = split([each.question_id for each in o.questions])
    if len(history) < FEWEST or len(live) < FEWEST:
        return Frontier()
    past = Points(o.correct[:, history].mean(axis=0).T, o.cost[:, history].mean(axis=0).T)
    arms = Points(o.correct[:, live].mean(axis=0).T, o.cost[:, live].mean(axis=0).T)
    best = most_accurate(past)
    yardstick = Yardstick(arms, best)
    corners = corners_of(past)
    points = {"fixed_mix_from_history": arms.of(corners)}
    rows = {"fixed_mix_from_history": yardstick.judge(points["fixed_mix_from_history"])}
    if players is None:
        players = {**PLAYERS, **AFTER_HISTORY} if scope.whole else PLAYERS
    for name, player in players.items():
        scope.say(f"frontier of {o.name}: {name}")
        orders = _orders(world, player, history, live, scope, float(past.cost[best].mean()))
        points[name] = Points(
            np.mean([each.accuracy for each in orders], axis=0),
            np.mean([each.cost for each in orders], axis=0),
        )
        rows[name] = yardstick.judge(points[name], orders)
    kinds: dict[str, str] = {}
    for name, told in {"ceiling": None, **_known(world)}.items():
        scope.say(f"frontier of {o.name}: {name}")
        found = ceiling(world, history, live, yardstick, told=told, trees=scope.whole)
        points[name], kinds[name] = found.points, found.kind
        rows[name] = yardstick.judge(found.points)
    about = {
        "history": len(history),
        "live": len(live),
        "orders": len(scope.more_seeds),
        "best_on_history": o.arms[best].arm_id,
        "its_accuracy": float(yardstick.aims[0]),
        "its_cost": float(arms.cost[best].mean()),
        "dropped_targets": ", ".join(f"{q:g}" for q in SHARES if q not in yardstick.shares) or "none",
        **{f"kind_of_{name}": kind for name, kind in kinds.items()},
    }
    tables = {
        "frontier": rows,
        "aiq": {name: row["aiq"] for name, row in rows.items()},
        "frontier_of": about,
    }
    means = {
        name: (p.accuracy.mean(axis=1).tolist(), p.cost.mean(axis=1).tolist()) for name, p in points.items()
    }
    means["arms"] = (arms.accuracy.mean(axis=1).tolist(), arms.cost.mean(axis=1).tolist())
    return Frontier({name: tidied(table) for name, table in tables.items()}, means)


def priced(world: BanditWorld, weight: float) -> Objective:
    """Return the paper's objective at a weight of cost; correctness and score share the rest."""
    return Objective((1 - weight) / 2, (1 - weight) / 2, weight, *world.bounds)


def tidied(value: Any) -> Any:
    """Return nested figures at nine digits: the last bits of a sum are the machine's."""
    if isinstance(value, Mapping):
        return {name: tidied(each) for name, each in value.items()}
    return tidy({"": value})[""] if isinstance(value, float) else value


def most_accurate(points: Points) -> int:
    """Return the most accurate point, the cheaper one where two are level."""
    accuracy, cost = points.accuracy.mean(axis=1), points.cost.mean(axis=1)
    return int(np.lexsort((cost, -accuracy))[0])


def corners_of(points: Points) -> list[int]:
    """Return the arms that the cheapest mixes are made of."""
    accuracy, cost = points.accuracy.mean(axis=1), points.cost.mean(axis=1)
    kept = set(zip(*(each.tolist() for each in hull(accuracy, cost)), strict=True))
    return [i for i, pair in enumerate(zip(accuracy.tolist(), cost.tolist(), strict=True)) if pair in kept]


def _known(world: BanditWorld) -> dict[str, list[str]]:
    """Return what a ceiling may be told: family and level, where there is more than one and they differ."""
    asked = world.outcomes.questions
    families, levels = [each.family for each in asked], [each.level for each in asked]
    found = {
        "ceiling_knowing_family": families,
        "ceiling_knowing_level": levels if levels != families else [],
    }
    return {name: told for name, told in found.items() if len(set(told)) > 1}


def _orders(
    world: BanditWorld, player: Player, history: Sequence[int], live: Sequence[int], scope: Scope, unit: float
) -> list[Points]:
    """Return a player's points on each order of the live questions; `unit` is the cost that prices are per."""
    lean = replace(world, outcomes=replace(world.outcomes, extra={}))
    prior = b""
    if player.linear:
        lean = lean.with_counts()
    if player.prior:
        prior = with_prior(lean, history)
    if not player.after_history:
        lean, history, live = lean.of_questions(live), (), range(len(live))
    if not player.linear:
        lean = lean.spanned()
    tasks = [(lean, player, tuple(history), tuple(live), seed, unit, prior) for seed in scope.more_seeds]
    return list(map(_one, tasks) if scope.pool is None else scope.pool.map(_one, tasks))


def _one(task: tuple[BanditWorld, Player, tuple[int, ...], tuple[int, ...], int, float, bytes]) -> Points:
    world, player, history, live, seed, unit, prior = task
    rng = np.random.default_rng([seed, 7])
    before = rng.choice(history, size=LEARNT).tolist() if history else []
    order = (*before, *rng.permutation(live).tolist())
    shape = (len(world.outcomes.questions), len(world.outcomes.arms))
    sample = np.random.default_rng([seed, 1]).integers(world.outcomes.samples, size=shape)
    place = {question: at for at, question in enumerate(live)}
    objectives = _objectives(world, player, unit)
    accuracy, cost = np.empty((len(objectives), len(live))), np.empty((len(objectives), len(live)))
    for k, objective in enumerate(objectives):
        stages = {1: Stage(tuple(range(shape[1])), objective)}
        trial = Trial(world, seed, order, sample, stages, FeedbackChannel(), player.warm_up)
        policy = ALL[player.policy](world, seed)
        if prior:
            policy.begin(prior, world.vectors)
        for step in play(policy, trial):
            if step.round > len(before):
                accuracy[k, place[step.question]] = step.correct
                cost[k, place[step.question]] = np.exp(step.log_cost)
    return Points(accuracy, cost)


def _objectives(world: BanditWorld, player: Player, unit: float) -> list[Objective]:
    if player.policy == "random":
        return [priced(world, 0.0)]
    if player.linear:
        return [Objective(1.0, 0.0, 0.0, *world.bounds, price=price / unit) for price in PRICES]
    return [priced(world, weight) for weight in WEIGHTS]


SPACES = ("tts", "routing", "uis")


def joint_frontier(worlds: Mapping[str, BanditWorld]) -> dict[str, Any]:
    """Return, of each scenario, how far its mixes reach, and what the joint space gains over it.

    `accuracy`: of its configuration that was most accurate on history. `area`: mean accuracy of its cheapest mixes over
    the logarithm of the cost, in percent, from the cheapest configuration to the joint space's most accurate one.
    `uis_gains_points`: the joint space's area less its own, paired by question. `uis_cost_ratio`: what the joint
    space pays for 90, 95 and 98 % of its accuracy, against its own cheapest mix.

    Args:
        worlds: By scenario; `uis`, `routing` and `tts` are wanted.
    """
    if any(name not in worlds for name in SPACES):
        return {}
    history, live = split([each.question_id for each in worlds["uis"].outcomes.questions])
    if not history or not live:
        return {}
    past = {name: points_of(worlds[name], history) for name in SPACES}
    now = {name: points_of(worlds[name], live) for name in SPACES}
    mixes = {name: now[name].of(corners_of(past[name])) for name in SPACES}
    joint = Yardstick(now["uis"], most_accurate(past["uis"]))
    areas = {
        name: np.array(
            [100 * area(hull(a, c), *joint.span) for a, c in zip(*mix.means(joint.weights), strict=True)]
        )
        for name, mix in mixes.items()
    }
    table = {}
    for name in SPACES:
        own = Yardstick(now[name], most_accurate(past[name]))
        table[name] = {
            "configurations": len(now[name].accuracy),
            "accuracy": _interval(100 * own.aims),
            "area": _interval(areas[name]),
            "uis_gains_points": _interval(areas["uis"] - areas[name]) if name != "uis" else None,
            "uis_cost_ratio": own.judge(mixes["uis"])["mean_cost_ratio"] if name != "uis" else None,
        }
    found: dict[str, Any] = tidied(table)
    return found


def points_of(world: BanditWorld, questions: list[int]) -> Points:
    """Return accuracy and cost of every arm on some questions, means over samples."""
    o = world.outcomes
    return Points(o.correct[:, questions].mean(axis=0).T, o.cost[:, questions].mean(axis=0).T)


def _interval(values: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {"mean": float(values[0]), "low": float(low), "high": float(high)}
