"""Mini-math and mini-code: the splits are disjoint, the references are right, the levels grow."""

import hashlib
from itertools import islice

import pytest

from agents.aggregator.program import run
from experiments.mini.corpus import MIXTURE, make_pool, problems_of
from experiments.mini.labels import is_right, split_steps, step_labels
from experiments.mini.problems import DELIMITER, DIFFICULTY, LEVELS, SPLITS, split_of
from experiments.mini.programs import inputs_for
from experiments.mini.stories import STORIES
from experiments.mini.tokenizer import make_tokenizer

EACH = 150


@pytest.mark.parametrize("level", MIXTURE)
def test_reference_solutions_are_right_and_every_step_is_labelled_right(level: str) -> None:
    for problem in islice(problems_of(level, "test", 3), EACH):
        assert is_right(problem, problem.solution)
        assert all(step_labels(problem, problem.solution))
        assert len(problem.steps) <= 8
        assert all(step.endswith(DELIMITER) for step in problem.steps[:-1])
        assert problem.steps[-1].startswith("\\boxed{")


def test_no_question_is_in_two_splits_for_any_seed() -> None:
    hashes: dict[str, set[bytes]] = {}
    for split in SPLITS:
        hashes[split] = {
            hashlib.sha256(problem.question.encode()).digest()
            for seed in (0, 1, 77)
            for level in MIXTURE
            for problem in islice(problems_of(level, split, seed), EACH)
        }
    for one in SPLITS:
        for other in SPLITS:
            if one != other:
                assert not hashes[one] & hashes[other], f"{one} and {other} share questions"


def test_the_corpus_holds_only_the_train_split() -> None:
    pool = make_pool(600, 5)
    tokenizer = make_tokenizer()
    for row in range(len(pool)):
        start = pool.starts[row]
        prompt = tokenizer.decode(pool.tokens[start : start + int(pool.prompts[row])])
        question = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        assert split_of(question) == "train"


def test_the_same_seed_gives_the_same_problems_and_another_gives_others() -> None:
    def drawn(seed: int) -> list[str]:
        return [p.question for p in islice(problems_of("level_4", "test", seed), 20)]

    assert drawn(1) == drawn(1)
    assert not set(drawn(1)) & set(drawn(2))


def test_levels_grow_in_steps_and_in_size_of_numbers() -> None:
    steps = [
        sum(len(p.steps) for p in islice(problems_of(level, "test", 0), EACH)) / EACH
        for level in (*LEVELS, "contest")
    ]
    assert steps == sorted(steps)
    limits = [DIFFICULTY[level].limit for level in (*LEVELS, "contest")]
    assert limits == sorted(limits)


def test_there_are_at_least_ten_story_families_with_two_wordings_each() -> None:
    assert len(STORIES) >= 10
    for story in STORIES:
        for event in (*story.plus, *story.minus, *story.times, *story.share, *story.packs):
            assert len(set(event.wordings)) >= 2, (story.name, event.label)


def test_a_wrong_sum_and_all_after_it_are_labelled_wrong() -> None:
    problem = next(p for p in problems_of("level_2", "test", 0) if len(p.steps) == 4)
    steps = split_steps(problem.solution)
    steps[1] = steps[1].rsplit("=", 1)[0] + "=1"
    assert step_labels(problem, DELIMITER.join(steps)) == [True, False, False, False]


def test_a_program_that_does_the_same_in_other_words_is_right() -> None:
    problem = next(
        p
        for p in problems_of("code_2", "test", 0)
        if p.answer.startswith("sort |") and "numbers" in p.question
    )
    other = problem.answer.replace("sort", "sort down | reverse", 1)
    assert is_right(problem, f"\\boxed{{{other}}}")
    for value in inputs_for(problem):
        assert run(other, value) == run(problem.answer, value)


def test_unknown_level_or_split_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="level_9"):
        next(problems_of("level_9", "test", 0))
    with pytest.raises(ValueError, match="holiday"):
        next(problems_of("level_1", "holiday", 0))
