"""Records how each policy behaved when the results were made: its choices on a small fixed stream of queries.

Results outlive the code that made them. tables.json therefore contains the arm that every policy chose for each query,
one letter per arm. If the current code chooses differently, a test requires the page to say so.

Arms are played in turn, whatever the policy chose, so that one different choice does not change later ones. Arms whose
scores agree to within `TIE` are treated as equal, because the last bits of a score differ between processors.
"""

import string
from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np

from agents.bandit.policy import ActionVector, Context, Objective, Observation, Pending, Policy, Target
from agents.bandit.prior import begin
from experiments.contenders import ALL, NETWORKS, SERVICE, with_prior
from experiments.outcomes import Arm, Array, BanditWorld, Outcomes, QuestionInfo

TIE = 1e-6
"""Tolerance for comparing scores. They are rewards, mostly between 0 and 1."""

QUERIES, HISTORY = 100, 24
"""The number of decisions, and of questions in the prior. The policy refits at 10, 20, 40 and 80 outcomes."""

WITH_PRIOR = "default_with_prior"
WORDS = ("sum", "story", "list", "program")
ACCURACY = Target("behaviour", accuracy=0.95)

Behaviour = Mapping[str, str]
"""The letters of the chosen arms, by policy."""


POLICIES = (*(name for name in ALL if name not in (*NETWORKS, "random")), WITH_PRIOR)


def behaviour(of: Iterable[str] = POLICIES) -> Behaviour:
    """Return the current choices of the lab's policies, except for networks, which are versioned by `runs.RECIPE`."""
    return {name: "".join(string.ascii_letters[np.argmax(each)] for each in _scores(name)) for name in of}


def changed(made_with: Behaviour, of: Iterable[str] = POLICIES) -> list[str]:
    """Return the policies whose choices stored with the results are missing, or differ from the current ones."""
    return [name for name in of if name not in made_with or not _alike(made_with[name], _scores(name))]


def _alike(letters: str, scores: Array) -> bool:
    known = [string.ascii_letters.index(letter) for letter in letters]
    return len(known) == len(scores) and all(
        row[arm] >= row.max() - TIE for row, arm in zip(scores, known, strict=True)
    )


@cache
def _scores(name: str) -> Array:
    """Return the scores that a policy ranks the arms by for each query, shape (queries, arms)."""
    plain = _world()
    counted = plain.with_counts()
    world = counted if name in (*SERVICE, WITH_PRIOR) else plain
    policy = ALL["default" if name == WITH_PRIOR else name](world, 0)
    if name == WITH_PRIOR:
        begin(policy, with_prior(world, range(HISTORY)), world.vectors)
    policy.offer(world.vectors)
    return np.array([_told(policy, world, at) for at in range(QUERIES)])


def _told(policy: Policy, world: BanditWorld, at: int) -> Array:
    """Let a policy decide one query in the stream and learn from an outcome; return its scores for the arms."""
    o, question = world.outcomes, HISTORY + at
    objective, target = _objective(policy, world, at)
    query_id, embedding = f"b/{at}", world.queries[question]
    (prediction,) = policy.predict([Context(query_id, embedding)], [objective], 0)
    arm = at * 5 % len(o.arms)
    taken = world.vectors[arm].action_id
    policy.decided([Pending(query_id, embedding, taken, target)])
    right, score, log_cost = (float(each[0, question, arm]) for each in (o.correct, o.score, o.log_cost))
    policy.learn(
        [Observation(query_id, embedding, taken, right, score, log_cost, right, objective, clock=at + 1)]
    )
    return prediction.score


def _objective(policy: Policy, world: BanditWorld, at: int) -> tuple[Objective, Target | None]:
    """Return a query's objective, in turn: the paper's two modes and, if there is a pacer, a price and a target."""
    turn = at % (2 if policy.pacer is None else 4)
    if turn < 2:
        return world.objective(("cost-sensitive", "quality-priority")[turn]), None
    target = None if turn == 2 else ACCURACY
    price = 0.05 if target is None or policy.pacer is None else policy.pacer.shadow_price(target)
    return Objective(1.0, 0.0, 0.0, *world.bounds, shadow_price=price), target


def _world() -> BanditWorld:
    """Return a world of three models with four searches each, where larger and wider ones do better but cost more."""
    rng = np.random.default_rng(7)
    arms = [
        Arm(f"m{size}/{qp}/{cp}/{min(cp, 2)}", f"m{size}", qp, cp, min(cp, 2))
        for size in range(3)
        for qp, cp in ((1, 1), (4, 1), (1, 4), (4, 4))
    ]
    count, kinds = HISTORY + QUERIES, rng.integers(len(WORDS), size=HISTORY + QUERIES)
    questions = tuple(
        QuestionInfo(f"q{n}", f"{WORDS[kind]} {n} " * (1 + kind), WORDS[kind], str(kind))
        for n, kind in enumerate(kinds)
    )
    width = np.array([np.log2(arm.qp * arm.cp) for arm in arms])
    size = np.array([int(arm.model[1]) for arm in arms])
    ability = 0.2 + 0.25 * size + 0.05 * width - 0.12 * kinds[:, None] * (size < 2)
    shape = (1, count, len(arms))
    correct = (rng.random(shape) < ability).astype(float)
    queries = rng.normal(size=(count, 6)) + 3 * np.eye(len(WORDS), 6)[kinds]
    outcomes = Outcomes(
        "behaviour", questions, tuple(arms), correct,
        score=np.clip(0.3 + 0.4 * correct + rng.normal(0, 0.1, shape), 0, 1),
        log_cost=np.broadcast_to(0.9 * size + 0.35 * width, shape) + rng.normal(0, 0.1, shape),
    )  # fmt: skip
    vectors = tuple(
        ActionVector(arm.arm_id, arm.model, each / np.linalg.norm(each), 10.0 ** (6 + int(arm.model[1])))
        for arm, each in zip(arms, rng.normal(size=(len(arms), 5)), strict=True)
    )
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return BanditWorld(outcomes, queries, vectors, outcomes.bounds(), "behaviour")
