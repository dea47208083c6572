"""The tokenizer takes any text; what the task can say comes back as it was."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.mini.corpus import MIXTURE, problems_of
from experiments.mini.tokenizer import UNKNOWN, make_tokenizer, prompt_of


@given(st.text(max_size=300))
def test_any_text_becomes_tokens_and_back_without_failing(text: str) -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert all(0 <= i < len(tokenizer) for i in ids)
    assert isinstance(tokenizer.decode(ids), str)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=200))
def test_printable_ascii_comes_back_as_it_was(text: str) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("text", ["", "x" * 10_000, "漢字" * 5_000, "\x00\ud7ff\U0010ffff", "\r\n\t"])
def test_odd_text_passes(text: str) -> None:
    assert make_tokenizer().encode(prompt_of(text), add_special_tokens=False)


@pytest.mark.parametrize("level", MIXTURE)
def test_the_task_needs_no_characters_and_no_unknowns(level: str) -> None:
    tokenizer = make_tokenizer()
    for problem in islice(problems_of(level, "test", 1), 100):
        tokens = tokenizer.tokenize(problem.question + problem.solution)
        assert UNKNOWN not in tokens
        spelled = [t for t in tokens if len(t) == 1 and t.isalpha() and t != "A"]
        assert not spelled, (problem.question, spelled)
        assert tokenizer.decode(tokenizer.encode(problem.solution)) == problem.solution


def test_a_step_is_about_fifteen_tokens() -> None:
    lengths = [
        len(make_tokenizer().encode(step, add_special_tokens=False))
        for level in MIXTURE
        for problem in islice(problems_of(level, "test", 1), 100)
        for step in problem.steps
    ]
    assert max(lengths) <= 24
    assert sum(lengths) / len(lengths) <= 15


def test_the_chat_template_ends_where_the_first_step_begins() -> None:
    assert prompt_of("Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
