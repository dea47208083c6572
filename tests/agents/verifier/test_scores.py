"""From rows of class probabilities to scores: strict about counts, never a silent zero."""

import numpy as np
import pytest

from agents.serving.errors import EngineReplyError
from agents.verifier.formats import Rendered
from agents.verifier.prm import ScoreCountError, ScoreRangeError, last_score, pooling_rows

PROMPT = Rendered(token_ids=(7, 8, 99, 7, 99, 5), positions=(2, 4))


def rows(*good: float) -> np.ndarray:
    return np.array([[1 - value, value] for value in good], dtype=np.float32)


def test_rows_of_step_tags_give_the_last_step() -> None:
    assert last_score(rows(0.1, 0.75), PROMPT, 1, "prm") == 0.75
    assert last_score(rows(0.1, 0.75), PROMPT, 0, "prm") == 0.25


def test_rows_of_every_token_give_the_place_of_the_last_step() -> None:
    assert last_score(rows(0, 0, 0.1, 0, 0.5, 0.9), PROMPT, 1, "prm") == 0.5


@pytest.mark.parametrize("count", [0, 1, 3, 5, 7])
def test_any_other_count_is_an_error(count: int) -> None:
    with pytest.raises(ScoreCountError, match=f"prm: {count} scores for 2 steps in 6 tokens"):
        last_score(np.zeros((count, 2), np.float32), PROMPT, 1, "prm")


def test_a_label_the_model_does_not_have_is_an_error() -> None:
    with pytest.raises(ScoreCountError, match="2 classes, but good_label is 2"):
        last_score(rows(0.1, 0.2), PROMPT, 2, "prm")


@pytest.mark.parametrize("score", [float("nan"), 1.5, -0.2])
def test_a_score_that_is_no_probability_is_an_error(score: float) -> None:
    with pytest.raises(ScoreRangeError, match="is not a probability"):
        last_score(rows(0.1, score), PROMPT, 1, "prm")


def test_rounding_beyond_one_is_one() -> None:
    assert last_score(rows(0.1, 1.0000001), PROMPT, 1, "prm") == 1.0


def test_a_pooling_reply_is_read_in_the_order_of_the_prompts() -> None:
    reply = {"data": [{"index": 1, "data": [[0.4, 0.6]]}, {"index": 0, "data": [[0.9, 0.1], [0.2, 0.8]]}]}
    first, second = pooling_rows(reply, 2)
    assert first == pytest.approx(np.array([[0.9, 0.1], [0.2, 0.8]], np.float32))
    assert second.shape == (1, 2)
    [column] = pooling_rows({"data": [{"index": 0, "data": [0.1, 0.2, 0.3]}]}, 1)
    assert column.shape == (3, 1)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({}, "missing required field `data`"),
        ({"data": [{"index": 0, "data": [[0.1]]}]}, "1 results for 2 prompts"),
        ({"data": [{"index": 0, "data": []}, {"index": 0, "data": []}]}, "2 results for 2 prompts"),
        ({"data": [{"index": 0, "data": "AAAA"}, {"index": 1, "data": []}]}, "unexpected reply"),
        ({"data": [{"index": 0, "data": [[0.1], [0.2, 0.3]]}, {"index": 1, "data": []}]}, "unequal length"),
    ],
)
def test_a_pooling_reply_that_is_none_is_named(reply: dict, said: str) -> None:
    with pytest.raises(EngineReplyError, match=said):
        pooling_rows(reply, 2)
