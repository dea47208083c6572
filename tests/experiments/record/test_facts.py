"""The questions of everyday facts: well-formed, each once, and no answer on both sides."""

from pathlib import Path

from agents.grading.grade import Verdict, grade
from experiments.record.table import facts
from experiments.yardstick import is_history
from streams.client.questions import read_questions


def asked_by_none(grader: str, request: object) -> Verdict:
    raise AssertionError(f"{grader} needs a process")


FACTS = list(read_questions(Path("experiments/data/facts.jsonl")))


def test_there_are_enough_on_both_sides() -> None:
    history = sum(is_history(query.metadata["id"]) for query in FACTS)
    assert history >= 170
    assert len(FACTS) - history >= 330
    assert len(FACTS) >= 640


def test_each_is_asked_once() -> None:
    assert len({query.text for query in FACTS}) == len(FACTS)
    assert len({query.metadata["id"] for query in FACTS}) == len(FACTS)


def test_no_accepted_answer_is_on_both_sides() -> None:
    sides: dict[bool, set[str]] = {True: set(), False: set()}
    for query in FACTS:
        assert isinstance(query.reference, list)
        sides[is_history(query.metadata["id"])] |= {str(each).lower() for each in query.reference}
    assert not sides[True] & sides[False]


def test_no_question_contains_its_answer() -> None:
    for query in FACTS:
        found = grade(query.text or "", query.reference, ask=asked_by_none, grader=query.graded_with)
        assert not found.correct, query.text


def test_the_first_of_each_side_are_recorded() -> None:
    recorded = facts()
    for side, count in ((True, 170), (False, 330)):
        of_file = [query for query in FACTS if is_history(query.metadata["id"]) is side][:count]
        asked = [question for question in recorded if is_history(question.question_id) is side]
        assert [(q.question_id, q.text, q.reference, q.grader, q.family) for q in asked] == [
            (query.metadata["id"], query.text, query.reference, "contains", "facts") for query in of_file
        ]
    assert len(recorded) == 500
    assert set(few := [q.question_id for q in facts(0.1)]) < {q.question_id for q in recorded}
    assert len(few) == 50
