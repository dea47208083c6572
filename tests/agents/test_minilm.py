"""The default encoder, the real one: what every encoder promises, and what this one adds."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import minilm
from agents.embedding import (
    EMPTY_TEXT,
    BadEmbedding,
    Encoder,
    EncoderFilesError,
    encoder_id,
    readable,
    unit_rows,
)
from agents.minilm import MAX_TOKENS, MiniLM

CAT = "A cat sits on the mat."
KITTEN = "A kitten is resting on a rug."
INTEGRAL = "Compute the integral of x^2 from 0 to 1."
APPLES = "Tom has 12 apples and buys 7 more. How many apples does he have now?"
PEARS = "Anna owns 5 pears and gets 9 more. How many pears has she?"


@pytest.fixture(scope="module")
def encoder() -> MiniLM:
    return MiniLM()


def test_it_is_an_encoder(encoder: MiniLM) -> None:
    assert isinstance(encoder, Encoder)
    assert encoder_id(encoder) == "all-MiniLM-L6-v2-int8@8199be6f-be50c362-256/384"


def test_rows_are_float32_of_unit_length(encoder: MiniLM) -> None:
    rows = encoder.encode([CAT, INTEGRAL, "", "x"])
    assert rows.shape == (4, 384)
    assert rows.dtype == np.float32
    assert np.abs(np.linalg.norm(rows.astype(np.float64), axis=1) - 1).max() < 1e-6


def test_no_texts_give_no_rows(encoder: MiniLM) -> None:
    assert encoder.encode([]).shape == (0, 384)


def test_similar_sentences_are_closer_than_others(encoder: MiniLM) -> None:
    cat, kitten, integral, apples, pears = encoder.encode([CAT, KITTEN, INTEGRAL, APPLES, PEARS])
    assert cat @ kitten > max(cat @ integral, kitten @ integral, cat @ apples) + 0.4
    assert apples @ pears > max(apples @ cat, pears @ integral, apples @ integral) + 0.4


@pytest.mark.parametrize(
    ("one", "other", "cosine"),
    # From the float32 weights of sentence-transformers/all-MiniLM-L6-v2 by transformers, mean of the last
    # states.
    [(CAT, KITTEN, 0.6553), (APPLES, PEARS, 0.6210), (CAT, INTEGRAL, 0.0067), (INTEGRAL, PEARS, -0.0794)],
)
def test_cosines_are_those_of_the_float32_model(encoder: MiniLM, one: str, other: str, cosine: float) -> None:
    a, b = encoder.encode([one, other])
    assert a @ b == pytest.approx(cosine, abs=0.01)


def test_a_text_has_the_same_vector_alone_as_among_others(encoder: MiniLM) -> None:
    texts = [CAT, "short", INTEGRAL * 20, "", APPLES, CAT]
    together = encoder.encode(texts)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    assert np.abs(together - alone).max() <= 1e-6
    assert np.abs(encoder.encode(texts[::-1])[::-1] - together).max() <= 1e-6


def test_empty_text_has_the_defined_vector(encoder: MiniLM) -> None:
    rows = encoder.encode(["", " \n\t", EMPTY_TEXT])
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_long_text_is_cut_at_the_end(encoder: MiniLM) -> None:
    words = ["apple"] * (MAX_TOKENS - 2)  # beside [CLS] and [SEP]
    long, longer, shorter = " ".join(words), " ".join([*words, "entirely different"]), " ".join(words[1:])
    rows = encoder.encode([long, longer, shorter])
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


def test_longest_query_text_is_encoded(encoder: MiniLM) -> None:
    rows = encoder.encode(["word " * 400_000, "x" * 2_000_000, " " * 40_000 + "the end"])
    assert np.isfinite(rows).all()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200))
def test_any_text_becomes_a_unit_vector_the_same_twice(encoder: MiniLM, text: str) -> None:
    once, again = encoder.encode([text]), encoder.encode([text])
    assert np.array_equal(once, again)
    assert abs(float(np.linalg.norm(once.astype(np.float64))) - 1) < 1e-6


def test_a_lone_surrogate_is_replaced() -> None:
    assert readable("a\ud800b") == "a?b"


@pytest.mark.parametrize("file", ["MODEL", "TOKENIZER"])
@pytest.mark.parametrize(
    ("of", "value", "why"),
    [
        ("SHA256", "0" * 64, r"sha256 is .*, pinned is 0+; install the pinned version"),
        ("FILE", "absent", "cannot be read"),
        ("PACKAGE", "absent", "package absent is not installed"),
    ],
)
def test_a_file_that_is_not_the_pinned_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, file: str, of: str, value: str, why: str
) -> None:
    monkeypatch.setattr(minilm, f"{file}_{of}", value)
    with pytest.raises(EncoderFilesError, match=why):
        MiniLM()


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (np.ones((2, 3)), "shape"),
        (np.array([[1.0, np.nan], [1.0, 1.0]]), "text 0: holds NaN"),
        (np.array([[1.0, 1.0], [np.inf, 1.0]]), "text 1: holds NaN or infinity"),
        (np.array([[1.0, 1.0], [0.0, 0.0]]), "text 1: length 0.0e\\+00 has no direction"),
    ],
)
def test_what_is_no_embedding_is_refused(rows: np.ndarray, complaint: str) -> None:
    with pytest.raises(BadEmbedding, match=complaint):
        unit_rows(rows, 2, 2)
