"""The experiment's loop (Alg. 1): uniform warm-up, then the policy; one row a round.

What is random belongs to the trial and not to the policy: the order of questions, the warm-up choices and
which recorded sample each (question, arm) realises hang on the seed alone, so all policies of a seed meet the
same world and their differences are paired.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agents.decider.policies.base import Context, Objective, Observation, Pending, Policy
from experiments.world import Array, World

WARM_UP, ROUNDS = 50, 210
SEEDS = (3, 23, 42, 50, 57)


@dataclass(frozen=True)
class Stage:
    """What holds from a round on: the arms on offer and the objective in force."""

    arms: tuple[int, ...]
    objective: Objective


@dataclass(frozen=True)
class Feedback:
    """How feedback comes back.

    Attributes:
        in_flight: Decisions made before the first of them is rewarded; 1 is none but its own.
        kept: Probability that a reward ever comes.
        duplicated: Probability that it comes twice; the second is dropped by its identity, as in production.
        poisoned: Probability that its correctness is the opposite.
    """

    in_flight: int = 1
    kept: float = 1.0
    duplicated: float = 0.0
    poisoned: float = 0.0


@dataclass(frozen=True)
class Trial:
    """One seed's world.

    Attributes:
        world: Questions, arms, outcomes.
        seed: Of everything below.
        order: Index of the question of each round.
        sample: Which recorded sample each (question, arm) realises, shape (Q, A).
        stages: By the first round (from 1) they hold in; the first begins at 1.
        feedback: How rewards come back.
        warm_up: Rounds of uniform choice.
    """

    world: World
    seed: int
    order: tuple[int, ...]
    sample: np.ndarray
    stages: Mapping[int, Stage]
    feedback: Feedback = field(default_factory=Feedback)
    warm_up: int = WARM_UP

    def stage(self, round_number: int) -> Stage:
        """Return what holds in a round."""
        return self.stages[max(start for start in self.stages if start <= round_number)]

    def realised(self, array: Array) -> Array:
        """Return the realised sample of an array of shape (samples, Q, A): shape (Q, A)."""
        q, a = np.indices(self.sample.shape)
        return np.asarray(array[self.sample, q, a])


@dataclass(frozen=True)
class Step:
    """One round.

    Attributes:
        best: The reward of the best realised outcome of its question among the arms on offer, and
        best_of_all: among all arms of the world.
    """

    round: int
    question: int
    arm: int
    warm_up: bool
    correct: float
    score: float
    log_cost: float
    reward: float
    best: float
    best_of_all: float


def make_trial(
    world: World,
    seed: int,
    stages: Mapping[int, Stage],
    *,
    rounds: int = ROUNDS,
    warm_up: int = WARM_UP,
    feedback: Feedback | None = None,
) -> Trial:
    """Return a seed's trial: questions shuffled, each once as long as they last, then shuffled again."""
    count = len(world.outcomes.questions)
    rng = np.random.default_rng([seed, 0])
    order: list[int] = []
    while len(order) < rounds:
        order += rng.permutation(count).tolist()
    shape = (count, len(world.outcomes.arms))
    sample = np.random.default_rng([seed, 1]).integers(world.outcomes.samples, size=shape)
    return Trial(world, seed, tuple(order[:rounds]), sample, stages, feedback or Feedback(), warm_up)


def play(policy: Policy, trial: Trial) -> Iterator[Step]:
    """Yield one row a round. The policy arrives without actions and without experience.

    Args:
        policy: Fresh.
        trial: Its seed's world.
    """
    world, outcomes = trial.world, trial.world.outcomes
    terms = [trial.realised(array) for array in (outcomes.correct, outcomes.score, outcomes.log_cost)]
    chance = np.random.default_rng([trial.seed, 2])
    offered: tuple[int, ...] = ()
    waiting: deque[Observation] = deque()
    learnt: set[str] = set()
    index = {vector.action_id: i for i, vector in enumerate(world.vectors)}
    for at, question in enumerate(trial.order, 1):
        stage = trial.stage(at)
        offered = _offer(policy, world, offered, stage.arms)
        warm = at <= trial.warm_up
        # Drawn in every round, so that the warm-up is the same whatever the policy does.
        drawn = stage.arms[int(np.random.default_rng([trial.seed, 3, at]).integers(len(stage.arms)))]
        query_id = f"{trial.seed}/{at}"
        embedding = world.queries[question]
        arm = drawn
        if not warm:
            (choice,) = policy.select([Context(query_id, embedding)], [stage.objective], trial.seed)
            arm = index[choice.action_id]
        correct, score, log_cost = (float(term[question, arm]) for term in terms)
        rewards = _rewards(stage.objective, [term[question] for term in terms])
        pending = Pending(query_id, embedding, world.vectors[arm].action_id)
        policy.expect([pending])
        seen = _seen(trial.feedback, correct, chance)
        if seen is None:
            policy.abandon([pending])
        else:
            told = Observation(
                observation_id=query_id,
                embedding=embedding,
                action_id=pending.action_id,
                correct=seen,
                score=score,
                log_cost=log_cost,
                imputed=seen,
                objective=stage.objective,
                clock=at,
            )
            waiting.extend([told, told] if chance.random() < trial.feedback.duplicated else [told])
        while waiting and at - waiting[0].clock >= trial.feedback.in_flight - 1:
            due = waiting.popleft()
            if due.observation_id not in learnt:
                learnt.add(due.observation_id)
                policy.update([due])
        yield Step(
            at,
            question,
            arm,
            warm,
            correct,
            score,
            log_cost,
            float(rewards[arm]),
            float(rewards[list(stage.arms)].max()),
            float(rewards.max()),
        )


def _rewards(objective: Objective, terms: Sequence[Array]) -> Array:
    c = objective.coefficients
    return np.asarray(c[0] * terms[0] + c[1] * terms[1] + c[2] * terms[2] + c[3])


def _offer(policy: Policy, world: World, before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    if now != before:
        gone = [world.vectors[i].action_id for i in before if i not in set(now)]
        if gone:
            policy.remove_actions(gone)
        policy.add_actions([world.vectors[i] for i in now if i not in set(before)])
    return now


def _seen(feedback: Feedback, correct: float, chance: np.random.Generator) -> float | None:
    """Return the correctness that comes back, or None when nothing does."""
    lost, turned = chance.random(2)
    if lost >= feedback.kept:
        return None
    return 1.0 - correct if turned < feedback.poisoned else correct
