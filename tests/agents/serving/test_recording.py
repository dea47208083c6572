"""Recordings: paths join into a tree, drafts come with the recorded frequencies, gaps are errors."""

from pathlib import Path

import pytest

from agents.serving.recorded import (
    RecordedPath,
    RecordedStep,
    Recording,
    RecordingError,
    read_paths,
    write_paths,
)


def path(model: str, number: int, *steps: tuple[str, float], question: str = "2+3?") -> RecordedPath:
    recorded = [RecordedStep(text=text, tokens=len(text), score=score) for text, score in steps]
    last = RecordedStep(text=steps[-1][0], tokens=len(steps[-1][0]), score=steps[-1][1], finish="eos")
    return RecordedPath(
        question=question, model=model, path=number, prompt_tokens=9, steps=(*recorded[:-1], last)
    )


PATHS = [
    path("small", 0, ("a\n\n", 0.5), ("b", 0.9)),
    path("small", 1, ("a\n\n", 0.5), ("c", 0.1)),
    path("small", 2, ("d", 0.2)),
    path("large", 0, ("e", 0.7)),
]


def test_a_file_of_paths_reads_back_as_written(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    write_paths(file, PATHS)
    assert read_paths(file) == PATHS


def test_seeds_draw_first_steps_with_their_recorded_frequency() -> None:
    recording = Recording(PATHS)
    drawn = [recording.draw("2+3?", "small", (), seed).step.text for seed in range(300)]
    assert drawn.count("a\n\n") == 200
    assert drawn.count("d") == 100


def test_a_draft_follows_its_own_prefix() -> None:
    recording = Recording(PATHS)
    assert {recording.draw("2+3?", "small", ("a\n\n",), seed).step.text for seed in range(9)} == {"b", "c"}
    node = recording.draw("2+3?", "small", ("a\n\n",), 0)
    assert (node.step.finish, node.prompt_tokens) == ("eos", 9 + 3)


def test_a_score_is_found_whoever_wrote_the_path() -> None:
    recording = Recording(PATHS)
    assert recording.scored("2+3?", ("a\n\n", "b")).step.score == 0.9
    assert recording.scored("2+3?", ("e",)).step.score == 0.7


@pytest.mark.parametrize(
    ("question", "model", "steps", "said"),
    [
        ("2+3?", "huge", (), "recorded are small, large"),
        ("2+3?", "small", ("z",), "step 1 of a path of '2\\+3\\?' was not recorded"),
        ("2+3?", "small", ("d",), "nothing was recorded after step 1"),
    ],
)
def test_what_was_not_recorded_is_an_error(
    question: str, model: str, steps: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RecordingError, match=said):
        Recording(PATHS).draw(question, model, steps, 0)


def test_any_question_can_stand_for_an_unknown_one() -> None:
    recording = Recording(PATHS)
    first = recording.draw("never asked", "small", (), 1)
    assert first is recording.draw("never asked", "small", (), 1)
    assert recording.scored("never asked", (first.step.text,)).step == first.step


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    file.write_text(
        '{"question": "q", "model": "m", "path": 0, "steps": [{"text": "a", "tokens": 1, "score": 2}]}\n'
    )
    with pytest.raises(RecordingError, match=r"outcomes.jsonl, line 1: Expected `float` <= 1"):
        Recording.load(file)
    with pytest.raises(RecordingError, match="cannot be read"):
        Recording.load(tmp_path / "none.jsonl")
    file.write_text("\n")
    with pytest.raises(RecordingError, match="holds no path"):
        Recording.load(file)
