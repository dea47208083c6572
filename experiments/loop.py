"""The experiment's loop (Alg. 1) and its scenarios. A uniform warm-up precedes the policy; each round yields a row.

Randomness belongs to the trial, not to the policy: the order of questions, the warm-up choices and the recorded sample
that each (question, arm) realises depend only on the seed. With the same seed, all policies therefore see the same
world, and their differences are paired.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np

from agents.bandit.learner import choose
from agents.bandit.policy import Context, Objective, Observation, Pending, Policy
from agents.catalogue.action_space import PAIRS, ActionSpace
from agents.catalogue.models import Catalogue
from experiments.outcomes import Arm, Array, BanditWorld
from schemas.action import Action

WARM_UP, ROUNDS = 50, 210
SEEDS = (3, 23, 42, 50, 57)


@dataclass(frozen=True)
class Stage:
    """The available arms and the objective, in force from a given round onwards."""

    arms: tuple[int, ...]
    objective: Objective


@dataclass(frozen=True)
class FeedbackChannel:
    """How feedback is delayed, lost or corrupted.

    Attributes:
        in_flight: Number of decisions made before the first one's reward arrives; 1 for no delay.
        shuffled: Whether delays are uniform from zero to twice the usual delay, so that rewards arrive out of order.
        kept: Probability that a reward arrives at all.
        censored: Probability that the reward of a wrong answer never arrives, which biases the rewards that do arrive.
        duplicated: Probability that a reward arrives twice; the duplicate is recognised by its id and dropped, as in
            production.
        poisoned: Probability that a reward's correctness is inverted.
        two_stage: Whether the score and cost arrive immediately, with correctness imputed from the score, so that only
            the correction can be late or lost.
    """

    in_flight: int = 1
    shuffled: bool = False
    kept: float = 1.0
    censored: float = 0.0
    duplicated: float = 0.0
    poisoned: float = 0.0
    two_stage: bool = False


@dataclass(frozen=True)
class Trial:
    """One seed's random world.

    Attributes:
        world: Questions, arms and outcomes.
        seed: Seed for all of its randomness.
        order: Index of each round's question.
        sample: The recorded sample realised by each (question, arm), shape (Q, A).
        stages: Stages by their first round; the first stage starts at round 1.
        feedback: The feedback channel.
        warm_up: Number of warm-up rounds.
    """

    world: BanditWorld
    seed: int
    order: tuple[int, ...]
    sample: np.ndarray
    stages: Mapping[int, Stage]
    feedback: FeedbackChannel = field(default_factory=FeedbackChannel)
    warm_up: int = WARM_UP

    def stage(self, round_number: int) -> Stage:
        """Return a round's stage."""
        return self.stages[max(start for start in self.stages if start <= round_number)]

    def realised(self, array: Array) -> Array:
        """Return the realised samples, of shape (Q, A), from an array of shape (samples, Q, A)."""
        q, a = np.indices(self.sample.shape)
        return np.asarray(array[self.sample, q, a])

    def earned(self, objective: Objective) -> Array:
        """Return the realised reward of each arm on each question."""
        return self.realised(self.world.rewards(objective))

    def terms(self) -> Callable[[int], list[Array]]:
        """Return a function from a question to its realised correctness, scores and log costs, each of shape (A,)."""
        o = self.world.outcomes
        columns = [self.realised(array) for array in (o.correct, o.score, o.log_cost)]
        return lambda question: [column[question] for column in columns]


@dataclass(frozen=True)
class Step:
    """One round.

    Attributes:
        best: The highest realised reward on its question among the available arms.
        best_of_all: The highest realised reward on its question among all arms in the world.
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


class Conditions(TypedDict, total=False):
    """Optional arguments of `make_trial`, which documents them."""

    warm_up: int
    feedback: FeedbackChannel | None


def make_trial(
    world: BanditWorld,
    seed: int,
    stages: Mapping[int, Stage],
    *,
    rounds: int = ROUNDS,
    warm_up: int = WARM_UP,
    feedback: FeedbackChannel | None = None,
) -> Trial:
    """Return a seed's trial. Its questions are in random order and are reshuffled each time all have been asked.

    Args:
        world: Questions, arms and outcomes.
        seed: Seed for all randomness.
        stages: The available arms and objective, by first round.
        rounds: Number of rounds.
        warm_up: How many of these rounds are warm-up.
        feedback: The feedback channel.
    """
    count = len(world.outcomes.questions)
    rng = np.random.default_rng([seed, 0])
    order: list[int] = []
    while len(order) < rounds:
        order += rng.permutation(count).tolist()
    shape = (count, len(world.outcomes.arms))
    sample = np.random.default_rng([seed, 1]).integers(world.outcomes.samples, size=shape)
    told = feedback or FeedbackChannel()
    return Trial(world, seed, tuple(order[:rounds]), sample, stages, told, warm_up)


def play(policy: Policy, trial: Trial) -> Iterator[Step]:
    """Yield one row per round.

    Args:
        policy: A new policy, without actions or experience.
        trial: The trial.
    """
    world, realised = trial.world, trial.terms()
    chance = np.random.default_rng([trial.seed, 2])
    offered: tuple[int, ...] = ()
    post = _Post(policy, trial.feedback)
    index = {vector.action_id: i for i, vector in enumerate(world.vectors)}
    for at, question in enumerate(trial.order, 1):
        stage = trial.stage(at)
        offered = _offer(policy, world, offered, stage.arms)
        warm = at <= trial.warm_up
        arm = warm_up_arm(trial, at)
        query_id = f"{trial.seed}/{at}"
        embedding = world.queries[question]
        if not warm:
            asked = Context(query_id, embedding, categories=world.shown(question))
            (choice,) = choose(policy, [asked], [stage.objective], trial.seed)
            arm = index[choice.action_id]
        step = _settle(trial, at, arm, realised(question))
        shown = world.shown(question)
        pending = Pending(query_id, embedding, world.vectors[arm].action_id, categories=shown)
        policy.decided([pending])
        known = Observation(
            observation_id=query_id,
            embedding=embedding,
            action_id=pending.action_id,
            correct=step.correct,
            score=step.score,
            log_cost=step.log_cost,
            imputed=step.correct,
            objective=stage.objective,
            clock=at,
            categories=shown,
        )
        post.send(at, pending, known, chance)
        post.deliver(at)
        yield step


def stream(policy: Policy, trial: Trial, batch: int = 1, worse: tuple[int, Array] | None = None) -> list[int]:
    """Return the arm chosen in every round. The policy decides and learns in batches, as in the service.

    Args:
        policy: A new policy, possibly started from a prior.
        trial: The trial. Every outcome arrives right after the decisions in its batch.
        batch: Number of queries per batch of decisions; with 1, the choices are the same as with `play`.
        worse: A round, and the correctness of each question and arm from that round onwards, shape (Q, A). The policy
            is not notified.
    """
    world, outcomes = trial.world, trial.world.outcomes
    correct, score, log_cost = (
        trial.realised(array) for array in (outcomes.correct, outcomes.score, outcomes.log_cost)
    )
    index = {vector.action_id: i for i, vector in enumerate(world.vectors)}
    # A new batch starts wherever the stage or the outcomes change.
    begins = sorted({*trial.stages, trial.warm_up + 1, len(trial.order) + 1, *(worse or ())[:1]})
    taken: list[int] = []
    offered: tuple[int, ...] = ()
    while len(taken) < len(trial.order):
        first = len(taken) + 1
        stage = trial.stage(first)
        offered = _offer(policy, world, offered, stage.arms)
        if worse is not None and first == worse[0]:
            correct = worse[1]
        rounds = range(first, min(first + batch, next(at for at in begins if at > first)))
        asked = [trial.order[at - 1] for at in rounds]
        contexts = [
            Context(f"{trial.seed}/{at}", world.queries[question], categories=world.shown(question))
            for at, question in zip(rounds, asked, strict=True)
        ]
        if first <= trial.warm_up:
            arms = [warm_up_arm(trial, at) for at in rounds]
        else:
            choices = choose(policy, contexts, [stage.objective] * len(contexts), trial.seed)
            arms = [index[choice.action_id] for choice in choices]
        pending = [
            Pending(
                context.query_id,
                context.embedding,
                world.vectors[arm].action_id,
                categories=context.categories,
            )
            for context, arm in zip(contexts, arms, strict=True)
        ]
        policy.decided(pending)
        policy.learn(
            [
                Observation(
                    observation_id=made.observation_id,
                    embedding=made.embedding,
                    action_id=made.action_id,
                    correct=float(correct[question, arm]),
                    score=float(score[question, arm]),
                    log_cost=float(log_cost[question, arm]),
                    imputed=float(correct[question, arm]),
                    objective=stage.objective,
                    clock=at,
                    categories=made.categories,
                )
                for at, question, made, arm in zip(rounds, asked, pending, arms, strict=True)
            ]
        )
        taken += arms
    return taken


def follow(trial: Trial, choose: Callable[[int, Array], int]) -> Iterator[Step]:
    """Yield the rounds for a player that does not learn, such as an oracle or a policy's recorded choices.

    Args:
        trial: The trial; its warm-up is the same as for policies.
        choose: Returns an arm, given a round and all arms' rewards in that round, with NaN for unavailable arms.
    """
    realised = trial.terms()
    for at, question in enumerate(trial.order, 1):
        stage, terms = trial.stage(at), realised(question)
        arm = warm_up_arm(trial, at)
        if at > trial.warm_up:
            offered = np.full(len(terms[0]), np.nan)
            arms = list(stage.arms)
            offered[arms] = _rewards(stage.objective, terms)[arms]
            arm = choose(at, offered)
        yield _settle(trial, at, arm, terms)


def warm_up_arm(trial: Trial, at: int) -> int:
    """Return a round's warm-up arm, which is the same for every policy."""
    arms = trial.stage(at).arms
    return arms[int(np.random.default_rng([trial.seed, 3, at]).integers(len(arms)))]


def _settle(trial: Trial, at: int, arm: int, terms: Sequence[Array]) -> Step:
    stage = trial.stage(at)
    rewards = _rewards(stage.objective, terms)
    correct, score, log_cost = (float(term[arm]) for term in terms)
    return Step(
        at,
        trial.order[at - 1],
        arm,
        at <= trial.warm_up,
        correct,
        score,
        log_cost,
        float(rewards[arm]),
        float(rewards[list(stage.arms)].max()),
        float(rewards.max()),
    )


class _Post:
    """Rewards in transit, which may be lost, late, duplicated or wrong, according to `FeedbackChannel`."""

    def __init__(self, policy: Policy, feedback: FeedbackChannel) -> None:
        self.policy, self.feedback = policy, feedback
        self.waiting: list[tuple[int, int, Observation]] = []
        self.learnt: set[str] = set()
        self.sent = 0

    def send(self, at: int, pending: Pending, known: Observation, chance: np.random.Generator) -> None:
        """Send a round's reward, unless it is lost."""
        f = self.feedback
        if f.two_stage:
            self.policy.learn([replace(known, correct=None, imputed=known.score)])
        seen = _seen(f, known.entered, chance)
        if seen is None:
            if not f.two_stage:
                self.policy.decided([replace(pending, abandoned=True)])
            return
        told = replace(known, correct=seen, imputed=known.score if f.two_stage else seen)
        late = f.in_flight - 1
        due = at + (int(chance.integers(2 * late + 1)) if f.shuffled else late)
        for _ in range(2 if chance.random() < f.duplicated else 1):
            self.sent += 1
            heapq.heappush(self.waiting, (due, self.sent, told))

    def deliver(self, at: int) -> None:
        """Let the policy learn from the rewards that are due, but only once from each."""
        while self.waiting and self.waiting[0][0] <= at:
            _, _, told = heapq.heappop(self.waiting)
            if told.observation_id in self.learnt:
                continue
            self.learnt.add(told.observation_id)
            if self.feedback.two_stage:
                self.policy.learn([replace(told, kind="correction")])
            else:
                self.policy.learn([told])


def _rewards(objective: Objective, terms: Sequence[Array]) -> Array:
    c = objective.coefficients
    earned = np.asarray(c[0] * terms[0] + c[1] * terms[1] + c[2] * terms[2] + c[3])
    return earned - objective.shadow_price * np.exp(terms[2]) if objective.shadow_price else earned


def _offer(
    policy: Policy, world: BanditWorld, before: tuple[int, ...], now: tuple[int, ...]
) -> tuple[int, ...]:
    if now != before:
        added = {world.vectors[i].model for i in now} - {world.vectors[i].model for i in before}
        policy.offer([world.vectors[i] for i in now], newcomers=policy.untried(added))
    return now


def _seen(feedback: FeedbackChannel, correct: float, chance: np.random.Generator) -> float | None:
    """Return the correctness that arrives; None if the reward is lost."""
    lost, turned = chance.random(2)
    if lost >= feedback.kept or (feedback.censored and correct < 0.5 and chance.random() < feedback.censored):
        return None
    return 1.0 - correct if turned < feedback.poisoned else correct


BEST_OF = 20


def best_route_space(catalogue: Catalogue) -> ActionSpace:
    """Return the action space of BEST-Route*, which has 120 actions for six models."""
    counts = range(1, BEST_OF + 1)
    return ActionSpace(
        tuple(Action(model=m, qp=n, cp=1, bs=1) for m in catalogue.model_names for n in counts)
    )


COST_SENSITIVE, QUALITY_PRIORITY = "cost-sensitive", "quality-priority"
MODES = (COST_SENSITIVE, QUALITY_PRIORITY)
DRIFTING = 2  # how many of the smallest models are added or removed (0.6B and 1.7B in the paper)


def spaces(world: BanditWorld) -> dict[str, BanditWorld]:
    """Return the scenarios' worlds: `tts`, `routing`, `uis` and `best_route` for recordings, `all` for other tables.

    All of a recording's worlds use the cost bounds of the whole UIS table.
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


def models_of(world: BanditWorld) -> list[str]:
    """Return the models in ascending order of their mean cost for a single path."""
    arms, cost = world.outcomes.arms, world.outcomes.log_cost.mean(axis=(0, 1))
    single = {arm.model: cost[i] for i, arm in enumerate(arms) if arm.qp * arm.cp == 1}
    return sorted(single, key=lambda model: float(single[model]))


def steady(world: BanditWorld, mode: str, *, dense: bool = True) -> dict[int, Stage]:
    """Return the only stage of a scenario without drift."""
    return {1: Stage(tuple(range(len(world.vectors))), world.objective(mode, dense=dense))}


def _best_route(arms: tuple[Arm, ...]) -> list[int]:
    found = [i for i, arm in enumerate(arms) if arm.cp == 1 and arm.qp <= BEST_OF]
    models = {arm.model for arm in arms}
    return found if len(found) == BEST_OF * len(models) else []


def drift_add(world: BanditWorld) -> dict[int, Stage]:
    """Return the stages of Add, which adds the two smallest models at round 51, under Cost-Sensitive."""
    whole, without = _with_and_without(world)
    objective = world.objective(COST_SENSITIVE)
    return {1: Stage(without, objective), WARM_UP + 1: Stage(whole, objective)}


def drift_remove(world: BanditWorld) -> dict[int, Stage]:
    """Return the stages of Remove, which removes the two smallest models at round 51, under Cost-Sensitive."""
    whole, without = _with_and_without(world)
    objective = world.objective(COST_SENSITIVE)
    return {1: Stage(whole, objective), WARM_UP + 1: Stage(without, objective)}


def drift_objective(world: BanditWorld, before: str, after: str) -> dict[int, Stage]:
    """Return the stages for a change of reward mode at round 51."""
    arms = tuple(range(len(world.vectors)))
    return {1: Stage(arms, world.objective(before)), WARM_UP + 1: Stage(arms, world.objective(after))}


DRIFTS: Mapping[str, Callable[[BanditWorld], dict[int, Stage]]] = {
    "add": drift_add,
    "remove": drift_remove,
    "q_to_c": lambda world: drift_objective(world, QUALITY_PRIORITY, COST_SENSITIVE),
    "c_to_q": lambda world: drift_objective(world, COST_SENSITIVE, QUALITY_PRIORITY),
}


def _with_and_without(world: BanditWorld) -> tuple[tuple[int, ...], tuple[int, ...]]:
    small = set(models_of(world)[:DRIFTING])
    whole = tuple(range(len(world.vectors)))
    return whole, tuple(i for i in whole if world.outcomes.arms[i].model not in small)
