"""Tests how well the pacer controls mean cost while models are added and removed and prices rise.

A learner with a prior from history serves a mean-cost objective over six phases of questions drawn with replacement
from the live ones. The target is the cost of the cheapest fixed mix that reaches 95 % of the best arm's accuracy on
history.

As in the service, the policy is notified of the available arms and their prices. It is not notified when the favourite
model's searches become three times as long, or when the traffic changes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.bandit.learner import choose
from agents.bandit.policy import Context, Objective, Observation, Pending, Policy, Target
from agents.bandit.prior import begin
from experiments.contenders import SERVICE, with_prior
from experiments.frontier import FEWEST, most_accurate, points_of, tidied
from experiments.outcomes import Array, BanditWorld
from experiments.runs import Scope, summed
from experiments.yardstick import hull, least_cost, split

TILT = 1.0  # change in a question's log odds per standard deviation in difficulty
PHASES = ("steady", "model added", "model removed", "price × 3", "searches × 3 longer", "harder traffic")
STEADY, LATER = 1_000, 500  # rounds of the first phase, and of each later phase
SHARE = 0.95
DEARER, LONGER = 3.0, 3.0
RECENT = 200  # number of most recent rounds that determine the favourite model
WITHIN = 0.05


@dataclass(frozen=True)
class Round:
    """One query: its phase, arm and outcome, and whether λ was zero."""

    phase: int
    arm: int
    cost: float
    correct: float
    free: bool


@dataclass
class Market:
    """The conditions that change between phases: the arms available, their prices and search lengths, and traffic."""

    arms: set[int]
    price: Array
    length: Array
    chances: Array


def pacer(world: BanditWorld, scope: Scope) -> dict[str, Any]:
    """Return, by phase, spend relative to the target and accuracy relative to the fixed mix of the same cost.

    `cumulative_spend` is the mean cost since the target was set, divided by the target, at the end of the phase.
    `furthest` is its largest deviation from 1 within the phase, from round 1,000 onwards. `accuracy_gain_points` is the
    accuracy minus that of the best fixed mix of available arms with the same cost, computed from the arms' true means,
    which the learner does not know. `free_percent` is the share of queries at λ = 0. For these, the arm predicted to
    be most accurate costs less than the target.

    Args:
        world: The world with all arms.
        scope: How much to run; each of its `more_seeds` is one run.
    """
    history, live = split([each.question_id for each in world.outcomes.questions])
    models = list(dict.fromkeys(arm.model for arm in world.outcomes.arms))
    if len(history) < FEWEST or len(live) < FEWEST or len(models) < 4:
        return {}
    lean = world.lean().with_counts()
    past = points_of(world, history)
    means = past.accuracy.mean(axis=1), past.cost.mean(axis=1)
    wanted = SHARE * float(means[0][most_accurate(past)])
    target = float(least_cost(hull(*means), np.array([wanted]))[0])
    prior = with_prior(lean, history)
    tasks = [(lean, tuple(live), prior, target, seed, at == 0) for at, seed in enumerate(scope.more_seeds)]
    scope.say(f"pacer on {world.outcomes.name}")
    runs = list(map(_one, tasks) if scope.pool is None else scope.pool.map(_one, tasks))
    table: dict[str, Any] = {
        "target": {"mean_cost": target, "runs": len(runs), "recovered_alike": runs[0][1]}
    }
    for at, phase in enumerate(PHASES):
        rows = [run[0][at] for run in runs]
        table[phase] = {
            "cumulative_spend": summed([row["spend"] for row in rows]),
            "furthest": summed([row["furthest"] for row in rows]),
            f"runs_within_{100 * WITHIN:.0f}_percent": sum(row["furthest"] <= WITHIN for row in rows),
            "accuracy": summed([100 * row["accuracy"] for row in rows]),
            "accuracy_gain_points": summed([100 * row["gain"] for row in rows]),
            "free_percent": summed([100 * row["free"] for row in rows]),
            "standard_error_points": summed([100 * row["error"] for row in rows]),
        }
    found: dict[str, Any] = tidied(table)
    return found


def _one(
    task: tuple[BanditWorld, tuple[int, ...], bytes, float, int, bool],
) -> tuple[list[dict[str, float]], bool]:
    """Return a run's phases, and whether a learner restored midway through each phase made the same choices."""
    world, live, prior, target, seed, again = task
    rounds = _play(world, live, prior, target, seed, restored=False)
    alike = True
    if again:
        other = _play(world, live, prior, target, seed, restored=True)
        alike = [each for each, _ in rounds] == [each for each, _ in other]
    spent, found = np.cumsum([each.cost for each, _ in rounds]), []
    over = spent / np.arange(1, len(rounds) + 1) / target
    for at in range(len(PHASES)):
        mine = [i for i, (each, _) in enumerate(rounds) if each.phase == at]
        market = rounds[mine[0]][1]
        right = np.array([rounds[i][0].correct for i in mine])
        cost = float(np.mean([rounds[i][0].cost for i in mine]))
        off = np.abs(over[[i for i in mine if i >= STEADY - 1]] - 1)
        found.append(
            {
                "spend": float(over[mine[-1]]),
                "furthest": float(off.max()),
                "accuracy": float(right.mean()),
                "gain": float(right.mean()) - _mix_of_cost(world, live, market, cost),
                "free": float(np.mean([rounds[i][0].free for i in mine])),
                "error": float(right.std() / len(right) ** 0.5),
            }
        )
    return found, alike


def _play(
    world: BanditWorld, live: Sequence[int], prior: bytes, mean_cost: float, seed: int, *, restored: bool
) -> list[tuple[Round, Market]]:
    o, rng = world.outcomes, np.random.default_rng([seed, 9])
    target, policy = Target("lab", mean_cost=mean_cost), _fresh(world, seed, prior)
    held_back = _models(world)[len(_models(world)) // 2]
    market = Market(
        {i for i, arm in enumerate(o.arms) if arm.model != held_back},
        np.ones(len(o.arms)),
        np.ones(len(o.arms)),
        np.full(len(live), 1.0 / len(live)),
    )
    policy.offer([world.vectors[i] for i in sorted(market.arms)])
    done: list[tuple[Round, Market]] = []
    for phase in range(len(PHASES)):
        if phase:
            market = _changed(world, live, policy, market, phase, done)
        length = LATER if phase else STEADY
        for at in range(length):
            if restored and at == length // 2:
                saved, policy = policy.state(), SERVICE["default"](world, seed)
                policy.load(saved)
            question = live[int(rng.choice(len(live), p=market.chances))]
            sample = int(rng.integers(o.samples))
            query_id, embedding = f"{seed}/{len(done)}", world.queries[question]
            arm, objective = paced(policy, world, target, query_id, question, seed)
            right, score = float(o.correct[sample, question, arm]), float(o.score[sample, question, arm])
            factor = float(market.price[arm])
            log_cost = float(o.log_cost[sample, question, arm] + np.log(market.length[arm] * factor))
            policy.learn(
                [
                    Observation(
                        query_id,
                        embedding,
                        world.vectors[arm].action_id,
                        right,
                        score,
                        log_cost,
                        right,
                        objective,
                        len(done) + 1,
                        price_factor=factor,
                    )
                ]
            )
            done.append(
                (Round(phase, arm, float(np.exp(log_cost)), right, objective.shadow_price == 0), market)
            )
    return done


def paced(
    policy: Policy, world: BanditWorld, target: Target, query_id: str, question: int, seed: int
) -> tuple[int, Objective]:
    """Decide one query at the pacer's shadow price; return the index of its arm, and the objective it was chosen under.

    The policy counts the query as under way until its outcome is learned.
    """
    assert policy.pacer is not None
    embedding = world.queries[question]
    objective = Objective(1.0, 0.0, 0.0, *world.bounds, shadow_price=policy.pacer.shadow_price(target))
    (choice,) = choose(policy, [Context(query_id, embedding)], [objective], seed)
    policy.decided([Pending(query_id, embedding, choice.action_id, target)])
    arm = next(i for i, vector in enumerate(world.vectors) if vector.action_id == choice.action_id)
    return arm, objective


def _fresh(world: BanditWorld, seed: int, prior: bytes) -> Policy:
    policy = SERVICE["default"](world, seed)
    begin(policy, prior, world.vectors)
    return policy


def _changed(
    world: BanditWorld,
    live: Sequence[int],
    policy: Policy,
    before: Market,
    phase: int,
    done: Sequence[tuple[Round, Market]],
) -> Market:
    """Return the next phase's market, and notify the policy of its actions and prices."""
    arms, price, length = set(before.arms), before.price.copy(), before.length.copy()
    chances = before.chances
    of = [arm.model for arm in world.outcomes.arms]
    favourite = Counter(of[each.arm] for each, _ in done[-RECENT:]).most_common(1)[0][0]
    if PHASES[phase] == "model added":
        arms |= set(range(len(of)))
    elif PHASES[phase] == "model removed":
        arms -= {i for i in arms if of[i] == favourite}
    elif PHASES[phase] == "price × 3":
        price[[i for i in range(len(of)) if of[i] == favourite]] *= DEARER
    elif PHASES[phase] == "searches × 3 longer":
        length[[i for i in range(len(of)) if of[i] == favourite]] *= LONGER
    else:
        hard = 1 - world.outcomes.correct[:, list(live)].mean(axis=(0, 2))
        odds = np.exp(TILT * (hard - hard.mean()) / max(float(hard.std()), 1e-12))
        chances = odds / odds.sum()
    dearer = {of[i]: float(price[i]) for i in arms if price[i] != 1.0}
    added = policy.untried({of[i] for i in arms - before.arms})
    policy.offer([world.vectors[i] for i in sorted(arms)], dearer, added)
    return Market(arms, price, length, np.asarray(chances))


def _mix_of_cost(world: BanditWorld, live: Sequence[int], market: Market, cost: float) -> float:
    """Return the accuracy of a phase's best fixed mix that costs at most this much."""
    points, arms = points_of(world, list(live)), sorted(market.arms)
    accuracy = (points.accuracy @ market.chances)[arms]
    paid = ((points.cost @ market.chances) * market.price * market.length)[arms]
    right, of = hull(accuracy, paid)
    # No mix costs less than the cheapest arm. For lower costs, `interp` returns that arm's accuracy.
    return float(np.interp(cost, of, right))


def _models(world: BanditWorld) -> list[str]:
    """Return the models in ascending order of the cost of their cheapest arm."""
    cost = world.outcomes.cost.mean(axis=(0, 1))
    least: dict[str, float] = {}
    for arm, each in zip(world.outcomes.arms, cost.tolist(), strict=True):
        least[arm.model] = min(each, least.get(arm.model, np.inf))
    return sorted(least, key=lambda model: least[model])
