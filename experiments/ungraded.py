"""What answers without a grade teach: many queries that nobody grades, then some that are graded.

If one verifier scores all models, an ungraded answer's score stands in for Correct. If the catalogue is mixed, only its
cost is learned (docs/rewards.md). The fleet with a model that no verifier scores is compared with the same fleet
without that model, each from its own prior, and each with the ungraded queries left out.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from agents.bandit.policy import Observation, Policy, Target
from agents.bandit.prior import begin
from experiments.contenders import SERVICE, with_prior
from experiments.frontier import tidied
from experiments.outcomes import Array, BanditWorld, OutcomeError
from experiments.pacer import paced
from experiments.runs import Scope, summed
from experiments.yardstick import split

UNGRADED, GRADED = 1_000, 330
TARGET = Target("lab", accuracy=0.98)


def ungraded(world: BanditWorld, scope: Scope, model: str) -> dict[str, Any]:
    """Return accuracy in percent and mean cost in eFLOPs of the graded queries, after the ungraded ones and without.

    Args:
        world: The world, with all its arms available.
        scope: How much to run; each of its `more_seeds` shuffles the live questions.
        model: The model that no verifier scores.

    Returns:
        By fleet (`mixed`, and `scored`, which lacks the model): `after` the ungraded queries and `without` them, each
        the graded queries' `accuracy` and `cost`, means with intervals over orders; and the differences between the
        two, paired by order: `points` and `cost_ratio`.

    Raises:
        OutcomeError: The model has no arms, or there are too few live questions.
    """
    o = world.outcomes
    own = [i for i, arm in enumerate(o.arms) if arm.model == model]
    history, live = split([each.question_id for each in o.questions])
    if not own:
        raise OutcomeError(f"{o.name}: no arm is of model {model!r}")
    if len(live) < UNGRADED + GRADED:
        raise OutcomeError(f"{o.name}: has {len(live)} live questions; needs {UNGRADED + GRADED}")
    others = [i for i in range(len(o.arms)) if i not in own]
    worlds = {"mixed": world, "scored": world.restrict(others, o.name)}
    found: dict[str, Any] = {"ungraded": UNGRADED, "graded": GRADED, "orders": len(scope.more_seeds)}
    for name, each in worlds.items():
        counted = each.lean().with_counts()
        prior = with_prior(counted, history)
        one = partial(_one, counted, live, prior, scored=name == "scored")
        runs = list((map if scope.pool is None else scope.pool.map)(one, scope.more_seeds))
        after, without = (np.array([run[part] for run in runs]) for part in (0, 1))
        found[name] = {
            "after": _told(after),
            "without": _told(without),
            "points": summed(list(100 * (after[:, 0] - without[:, 0]))),
            "cost_ratio": summed(list(after[:, 1] / without[:, 1])),
        }
    result: dict[str, Any] = tidied(found)
    return result


def _told(rows: Array) -> dict[str, Any]:
    return {"accuracy": summed(list(100 * rows[:, 0])), "cost": summed(list(rows[:, 1]))}


def _one(
    world: BanditWorld, live: Sequence[int], prior: bytes, seed: int, *, scored: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the graded queries' accuracy and mean cost, after the ungraded ones and without them."""
    asked = np.random.default_rng([seed, 0]).permutation(live).tolist()
    last = asked[UNGRADED : UNGRADED + GRADED]
    policies = [SERVICE["default"](world, seed) for _ in range(2)]
    for policy in policies:
        begin(policy, prior, world.vectors)
        policy.offer(world.vectors)
    _ask(world, policies[0], asked[:UNGRADED], seed, "ungraded", grade=False, scored=scored)
    after, without = (
        _ask(world, policy, last, seed, "graded", grade=True, scored=scored) for policy in policies
    )
    return after, without


def _ask(
    world: BanditWorld,
    policy: Policy,
    questions: Sequence[int],
    seed: int,
    name: str,
    *,
    grade: bool,
    scored: bool,
) -> tuple[float, float]:
    o = world.outcomes
    right, paid = [], []
    for at, question in enumerate(questions, 1):
        query_id = f"{seed}/{name}/{at}"
        arm, objective = paced(policy, world, TARGET, query_id, question, seed)
        correct, score, log_cost = (float(a[0, question, arm]) for a in (o.correct, o.score, o.log_cost))
        outcome = Observation(
            query_id,
            world.queries[question],
            world.vectors[arm].action_id,
            correct if grade else None,
            score,
            log_cost,
            correct if grade else score,
            objective,
            at,
            kind="reward" if grade or scored else "cost",
            tried=not (grade or scored),
        )
        policy.learn([outcome])
        right.append(correct)
        paid.append(float(np.exp(log_cost)))
    return float(np.mean(right)), float(np.mean(paid))
