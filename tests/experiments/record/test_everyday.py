"""The everyday questions, which only the shipped prior is made from: well-formed, and none like those that judge it."""

import json
from pathlib import Path

import numpy as np

from agents.grading.grade import grade
from agents.minilm import MiniLM
from experiments.record.table import everyday, facts
from streams.client.questions import read_questions
from tests.experiments.record.test_facts import asked_by_none

FILE = Path("experiments/data/everyday.jsonl")
JUDGES = ("models/demo-questions.jsonl", "tests/integration/stranger.jsonl")


def test_each_is_asked_once_and_can_be_produced() -> None:
    questions = list(read_questions(FILE))
    assert len({query.text for query in questions}) == len(questions) == len(everyday())
    assert not {query.text for query in questions} & {question.text for question in facts()}
    assert [query.metadata["id"] for query in questions] == [q.question_id for q in everyday()]
    assert everyday()[:96] == everyday(0.1)


def test_no_fact_contains_its_answer() -> None:
    for query in read_questions(FILE):
        if query.metadata["family"] == "facts":
            found = grade(query.text or "", query.reference, ask=asked_by_none, grader=query.graded_with)
            assert not found.correct, query.text


def test_none_is_like_a_question_of_the_demo_or_a_stranger() -> None:
    encoder = MiniLM()
    asked = encoder.encode([question.text for question in everyday()])
    judges = [json.loads(line)["text"] for path in JUDGES for line in Path(path).read_text().splitlines()]
    cosines = asked @ encoder.encode(judges).T  # the embeddings have length 1
    assert np.allclose(np.linalg.norm(asked, axis=1), 1.0)
    assert cosines.max() < 0.9
