"""Question files of the usual shapes become queries; a wrong line is named."""

import re
from pathlib import Path

import pytest

from schemas.errors import InvalidField
from schemas.grader import Grader
from schemas.query import Query
from streams.client.questions import QuestionError, query_from, query_of, read_questions, renamed


def test_the_usual_shapes_become_queries(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(
        '{"question": "2+2?", "answer": "work\\n#### 4", "level": "easy"}\n\n'
        '{"problem": "x?", "answer": "\\\\frac12", "id": 60}\n'
        '{"query_id": "own", "text": "y?", "reference": 7, "timeout_s": 5}\n'
        '{"prompt": "z?"}\n'
    )
    first, second, third, fourth = read_questions(file)
    assert (first.query_id, first.question, first.reference) == ("set-1", "2+2?", "4")
    assert first.metadata == {"level": "easy"}
    assert (second.query_id, second.reference, second.metadata) == ("set-3", "\\frac12", {"id": 60})
    assert (third.query_id, third.reference, third.timeout_s) == ("own", 7, 5.0)
    assert fourth.reference is None


def test_line_may_name_a_grader_and_several_answers(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(
        '{"text": "a?", "answer": ["Paris", "Lyon"], "grader": "contains"}\n'
        '{"text": "b?", "reference": {"sum": 7}, "grader": {"name": "json", "fields": ["sum"]}}\n'
        '{"text": "c?", "grader": "{\\"name\\": \\"json\\", \\"schema\\": {}}"}\n'
    )
    several, by_field, as_text = read_questions(file)
    assert (several.reference, several.grader) == (["Paris", "Lyon"], "contains")
    assert by_field.graded_with == Grader(name="json", fields=("sum",))
    assert as_text.graded_with == Grader(name="json", schema={})


def test_any_file_name_gives_ids_and_bom_is_skipped(tmp_path: Path) -> None:
    names = ("fragen für anna", "fragen-f-r-anna"), ("x" * 250, "x" * 140), ("вопросы", "-"), ("тест", "-")
    seen = set()
    for name, begins in names:
        file = tmp_path / f"{name}.json"
        file.write_text('\n{"text": "2+2?"}\n', encoding="utf-8-sig")
        (query,) = read_questions(file)
        assert re.fullmatch(f"{begins}-[0-9a-f]{{8}}-2", query.query_id)
        seen.add(query.query_id)
    assert len(seen) == len(names)
    file.write_text('{"text": "2+2?"}\n', encoding="utf-8-sig")
    assert [query.question for query in read_questions(file)] == ["2+2?"]


@pytest.mark.parametrize(
    ("line", "words"),
    [("{", "line 1: not JSON"), ("[1]", "line 1: a list"), ('{"answer": "4"}', "no question"),
     ('{"text": "x", "weights": {"cost": -1}}', "weights"),
     ('{"text": "x", "reference": "4", "grader": "exakt"}', "line 1: .*grader: is 'exakt'; did you mean 'exact'"),
     ('{"text": "x", "grader": "regex"}', "line 1: .*reference: is missing, and grader regex compares with it"),
     ('{"text": "x", "grader": "{1"}', "line 1: grader: .*; write a name, or an object"),
     ('{"text": "x", "answer": []}', "line 1: .*reference: holds 0 accepted answers; give at least one"),
     ('{"text": "x", "id": 1, "metadata": 5}', "line 1: .*metadata")],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(line)
    with pytest.raises(QuestionError, match=words):
        list(read_questions(file))


def test_a_replay_has_ids_of_its_own_and_says_whose_it_is() -> None:
    long = "x" * 200
    first, second = renamed([Query(query_id="q", text="a"), Query(query_id=long, text="a")], "run")
    assert first.query_id == "run:q"
    assert first.metadata == {"replay_of": "q"}
    assert len(second.query_id) <= 200
    assert second.metadata["replay_of"] == long


def test_a_replay_is_not_charged_to_the_key_that_asked_first() -> None:
    asked = Query(query_id="q", text="a", metadata={"level": "easy", "gateway": {"key": "k", "digest": "d"}})
    (again,) = renamed([asked], "run")
    assert again.metadata == {"level": "easy", "replay_of": "q"}


def test_replay_of_full_metadata_keeps_replay_of_alone() -> None:
    full = Query(query_id="q", text="a", metadata={"a": "x" * (16 * 1024 - len('{"a":""}'))})
    (again,) = renamed([full], "run")
    assert again.metadata == {"replay_of": "q"}


def test_messages_stand_for_the_text() -> None:
    query = query_of({"messages": [{"role": "user", "content": "hi"}]}, where="here", default_id="d")
    assert query.question == "hi"


def test_a_grader_with_options_is_given_as_a_mapping() -> None:
    made = query_from("a", reference={"sum": 7}, grader={"name": "json", "fields": ["sum"]})
    assert made.grader == Grader(name="json", fields=("sum",))
    for grader, why in (
        ({"name": "exact", "fields": ["a"]}, "grader.fields: is an option of grader json"),
        ({"name": "json", "field": ["a"]}, "grader.field: is unknown"),
        ({"fields": ["a"]}, "grader.name: is missing"),
        ("exakt", "grader: is 'exakt'; did you mean 'exact'"),
    ):
        with pytest.raises(InvalidField, match=why):
            query_from("a", reference="7", grader=grader)
