"""The loop, the oracles and off-policy evaluation on worlds whose truth is known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from agents.bandit.policy import Observation
from experiments.beyond import share
from experiments.contenders import ALL
from experiments.hindsight import best_contextual, best_fixed
from experiments.loop import DRIFTS, FeedbackChannel, Stage, Step, make_trial, play, spaces, steady
from experiments.outcomes import Arm, BanditWorld, OutcomeError, QuestionInfo
from experiments.runs import Run, figures_of, paired, rounds_to_learn, run_oracle, run_policy
from tests.support.lab import made_world

PAIRS = ((1, 1), (1, 4), (4, 1))
MODELS = ("s", "m", "l", "xl")
COST = {"s": 1.0, "m": 3.0, "l": 9.0, "xl": 27.0}


def make_world(samples: int = 2, questions: int = 60, contextual: bool = False) -> BanditWorld:
    """Four models: the larger the better and dearer; with `contextual`, half the questions want the smallest."""
    rng = np.random.default_rng(7)
    arms = [Arm(f"{m}/{qp}/{cp}/1", m, qp, cp) for m in MODELS for qp, cp in PAIRS]
    level = np.arange(questions) % 2
    queries = rng.normal(size=(questions, 12)) * 0.2
    queries[:, 0] += 2.0 * level - 1.0
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    chance = np.array([[0.2 + 0.18 * MODELS.index(a.model) + 0.03 * a.qp * a.cp for a in arms]] * questions)
    if contextual:
        chance[level == 1] = chance[level == 1][:, ::-1]
    shape = (samples, questions, len(arms))
    correct = (rng.random(shape) < chance).astype(float)
    score = np.clip(0.3 + 0.4 * correct + 0.1 * rng.normal(size=shape), 0, 1)
    log_cost = np.log([COST[a.model] * a.qp * a.cp for a in arms]) + 0.1 * rng.normal(size=shape)
    asked = [QuestionInfo(str(i), "", str(level[i])) for i in range(questions)]
    vectors = np.eye(16)[: len(arms)] + 0.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return made_world(arms, correct, log_cost, queries, score=score, asked=asked, vectors=vectors)


def played(
    name: str,
    world: BanditWorld,
    stages: Mapping[int, Stage],
    feedback: FeedbackChannel | None = None,
    seed: int = 3,
) -> list[Step]:
    """Return every round of a policy, by its name, on a world whose offer and objective change by stages."""
    trial = make_trial(world, seed, stages, feedback=feedback or FeedbackChannel())
    return list(play(ALL[name](world, seed), trial))


def test_policies_of_a_seed_share_order_warm_up_and_world() -> None:
    world = make_world()
    stages = steady(world, "cost-sensitive")
    one, other = (played(name, world, stages) for name in ("uniscale", "knn"))
    assert [s.question for s in one] == [s.question for s in other]
    assert [s.arm for s in one[:50]] == [s.arm for s in other[:50]]
    assert [s.best for s in one] == [s.best for s in other]
    assert all(s.warm_up for s in one[:50])
    assert not any(s.warm_up for s in one[50:])
    assert len(one) == 210
    assert all(s.reward <= s.best <= s.best_of_all for s in one)


def test_the_loop_is_the_same_twice() -> None:
    world = make_world()
    stages = steady(world, "quality-priority")
    for name in ("uniscale", "ts", "knn"):
        assert played(name, world, stages, seed=23) == played(name, world, stages, seed=23), name


@pytest.mark.parametrize("name", ["uniscale", "greedy", "knn", "terms"])
def test_a_learner_chooses_the_same_in_the_span_of_the_questions(name: str) -> None:
    world = make_world()
    wide = replace(world, queries=np.pad(world.queries, ((0, 0), (0, 90))))
    narrow = wide.spanned()
    assert narrow.queries.shape == (60, 60)
    one, other = (played(name, each, steady(each, "quality-priority")) for each in (wide, narrow))
    assert [s.arm for s in one] == [s.arm for s in other]


def test_the_oracle_has_no_regret_and_is_not_beaten() -> None:
    world = make_world()
    stages = steady(world, "cost-sensitive")
    (oracle,) = run_oracle(world, stages, [3])
    (own,) = run_policy(ALL["uniscale"], world, stages, [3])
    assert sum(s.best - s.reward for s in oracle.after) == pytest.approx(0)
    assert oracle.regret(50) == pytest.approx(own.regret(50))
    assert own.regret() > oracle.regret()


def test_uniscale_learns_more_than_chance() -> None:
    world = make_world()
    stages = steady(world, "cost-sensitive")
    own, chance = (run_policy(ALL[n], world, stages, (3, 23, 42, 50, 57)) for n in ("uniscale", "random"))
    assert paired(own, chance)["low"] > 0
    table = figures_of(own, world)
    assert set(table) == {"reward", "accuracy", "eflops", "regret", "regret_fixed"}
    assert all(set(cell) == {"mean", "std", "low", "high"} for cell in table.values())


def test_drifts_change_what_is_on_offer_after_the_warm_up() -> None:
    world = make_world()
    small = {i for i, arm in enumerate(world.outcomes.arms) if arm.model in ("s", "m")}
    for name, early, late in (("add", False, True), ("remove", True, False)):
        steps = played("uniscale", world, DRIFTS[name](world))
        assert any(s.arm in small for s in steps[:50]) is early
        if not late:
            assert not any(s.arm in small for s in steps[50:])
        else:
            assert all(s.best == s.best_of_all for s in steps[50:])


def test_a_learner_by_terms_needs_no_relearning() -> None:
    """Its choices after a change are those of one that had the objective all along, seed by seed."""
    world = make_world()
    changed = played("terms", world, DRIFTS["q_to_c"](world))
    always = played("terms", world, steady(world, "cost-sensitive"))
    assert [s.arm for s in changed] == [s.arm for s in always]
    scalar = played("uniscale", world, DRIFTS["q_to_c"](world))
    assert [s.arm for s in scalar] != [s.arm for s in always]


def test_duplicated_feedback_changes_nothing_unlike_lost() -> None:
    world = make_world()
    stages = steady(world, "cost-sensitive")
    channels = FeedbackChannel(), FeedbackChannel(duplicated=1.0), FeedbackChannel(kept=0.1)
    plain, twice, none = (played("uniscale", world, stages, each) for each in channels)
    assert plain == twice
    assert [s.arm for s in plain] != [s.arm for s in none]


def test_delay_postpones_learning() -> None:
    world = make_world()
    stages = steady(world, "cost-sensitive")
    late = ALL["uniscale"](world, 3)
    list(play(late, make_trial(world, 3, stages, feedback=FeedbackChannel(in_flight=64))))
    assert late.version == 210 - 63


def test_scenarios_are_cut_from_one_table_under_its_bounds() -> None:
    world = make_world()
    cut = spaces(world)
    assert [len(cut[name].vectors) for name in ("tts", "routing", "uis")] == [3, 4, 12]
    assert {w.bounds for w in cut.values()} == {world.outcomes.bounds()}
    assert {arm.model for arm in cut["tts"].outcomes.arms} == {"s"}


def test_best_contextual_finds_context_where_it_exists() -> None:
    deaf = make_world(samples=1, questions=200)
    rich = make_world(samples=1, questions=200, contextual=True)
    objective = rich.objective("quality-priority")
    found = best_contextual(rich, objective)
    assert found.kind == "ridge"
    assert found.gap()[1] > 0
    assert best_contextual(deaf, deaf.objective("quality-priority")).gap()[1] <= 0


def test_best_fixed_arm_is_that_of_brute_force() -> None:
    world = make_world()
    trial = make_trial(world, 3, steady(world, "quality-priority"))
    objective = world.objective("quality-priority")
    rewards = trial.realised(world.rewards(objective))
    means = [np.mean([rewards[q, a] for q in trial.order[50:]]) for a in range(len(world.vectors))]
    arm, value = best_fixed(trial, objective)
    assert arm == int(np.argmax(means))
    assert value == pytest.approx(max(means))


def test_a_table_with_a_hole_is_refused_by_question_and_arm() -> None:
    outcomes = make_world().outcomes
    hole = outcomes.score.copy()
    hole[1, 4, 2] = np.nan
    with pytest.raises(OutcomeError, match=r"no score for question '4', arm 's/4/1/1', sample 1"):
        replace(outcomes, score=hole)


def test_rounds_to_learn_count_from_the_last_shortfall() -> None:
    world = make_world()
    (own,) = run_policy(ALL["uniscale"], world, steady(world, "cost-sensitive"), [3])
    steps = [replace(s, reward=1.0 if s.round > 60 else 0.0) for s in own.steps]
    # Ten rounds of nothing: after n more of 1.0 the mean is n / (n + 10), which is 0.95 · 0.8 from n = 32 on.
    assert rounds_to_learn(Run(3, tuple(steps), 0.8)) == 92
    assert rounds_to_learn(Run(3, tuple(steps), 1.0)) is None
    assert rounds_to_learn(Run(3, tuple(steps), 0.0)) == 51


def test_rewards_that_overtake_each_other_all_arrive_once() -> None:
    world = make_world()
    policy = ALL["uniscale"](world, 3)
    told = FeedbackChannel(in_flight=8, shuffled=True, duplicated=0.5)
    order: list[int] = []
    inner = policy.learn

    def learn(outcomes: Sequence[Observation]) -> None:
        order.extend(o.clock for o in outcomes)
        inner(outcomes)

    policy.learn = learn  # type: ignore[method-assign]
    list(play(policy, make_trial(world, 3, steady(world, "cost-sensitive"), feedback=told)))
    assert len(set(order)) == len(order) == policy.version
    assert order != sorted(order)
    assert set(range(1, 210 - 14 + 1)) <= set(order)


def test_censored_feedback_hides_wrong_answers_only() -> None:
    world = make_world()
    policy = ALL["uniscale"](world, 3)
    told = FeedbackChannel(censored=1.0)
    steps = list(play(policy, make_trial(world, 3, steady(world, "cost-sensitive"), feedback=told)))
    assert policy.version == sum(s.correct for s in steps)


def test_corrections_make_a_two_stage_learner_whole() -> None:
    """Score and cost at once and correctness at once too: by terms that is prompt feedback."""
    world = make_world()
    stages = steady(world, "quality-priority")
    prompt = played("terms", world, stages)
    staged = played("terms", world, stages, FeedbackChannel(two_stage=True))
    assert [s.arm for s in staged] == [s.arm for s in prompt]
    blind = played("terms", world, stages, FeedbackChannel(two_stage=True, kept=0.0))
    assert [s.arm for s in blind] != [s.arm for s in prompt]


def test_a_share_of_no_gap_is_not_given() -> None:
    rng = np.random.default_rng(0)
    assert share([0.1] * 20, rng.normal(size=20).tolist()) is None
    found = share((0.5 + 0.1 * rng.normal(size=20)).tolist(), (1 + 0.1 * rng.normal(size=20)).tolist())
    assert found is not None
    assert found["low"] < 0.5 < found["high"]
