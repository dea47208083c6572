"""Query in, Context out; and actions through the same encoder."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agents.catalogue.action_space import uis_space
from agents.catalogue.descriptions import describe_actions
from agents.catalogue.file import load_catalogue
from agents.embedding import ArrivedQuery, Vectors, embed, embed_actions, embedded_text, encoder_id
from agents.encoders import HashedEncoder
from agents.minilm import MiniLM
from schemas.query import Message, Origin, Query, QueryContext
from schemas.record import decode, encode


@pytest.fixture(scope="module")
def encoder() -> MiniLM:
    return MiniLM()


def arrival(query_id: str, text: str, offset: int = 0) -> ArrivedQuery:
    return ArrivedQuery(
        Query(query_id=query_id, text=text), Origin(topic="query", partition=0, offset=offset), 1_700
    )


def test_context_carries_query_vector_and_origin(encoder: MiniLM) -> None:
    arrivals = [arrival("a", "What is 2 + 2?", 7), arrival("b", "Name a river.", 8)]
    first, second = embed(arrivals, encoder=encoder)
    assert first.query == arrivals[0].query
    assert second.origin.offset == 8
    assert first.appended_ms == 1_700
    assert first.encoder == encoder_id(encoder)
    assert np.array_equal(np.array(first.vector(), np.float32), encoder.encode(["What is 2 + 2?"])[0])
    assert decode(encode(first), QueryContext) == first


def test_a_context_is_the_same_alone_as_among_others(encoder: MiniLM) -> None:
    arrivals = [
        arrival(str(n), text) for n, text in enumerate(("one", "a longer question, with more words", "three"))
    ]
    assert embed(arrivals, encoder=encoder) == tuple(embed([each], encoder=encoder)[0] for each in arrivals)


def test_no_arrivals_make_no_contexts(encoder: MiniLM) -> None:
    assert embed([], encoder=encoder) == ()


def test_the_newest_message_comes_first() -> None:
    said = (Message(role="system", content="Be brief."), Message(role="user", content="What is 2 + 2?"))
    assert embedded_text(Query(query_id="a", messages=said)) == "What is 2 + 2?\n\nBe brief."


def test_a_long_system_prompt_does_not_hide_the_question(encoder: MiniLM) -> None:
    def asked(question: str) -> ArrivedQuery:
        said = (Message(role="system", content="rule " * 2_000), Message(role="user", content=question))
        return ArrivedQuery(
            Query(query_id="q", messages=said), Origin(topic="query", partition=0, offset=0), 0
        )

    one, other = embed([asked("What is 2 + 2?"), asked("Name a river in France.")], encoder=encoder)
    assert one.embedding != other.embedding


def test_no_description_of_an_action_is_cut(encoder: MiniLM) -> None:
    catalogue = load_catalogue(Path(__file__).parents[2] / "infra" / "catalogue" / "qwen3.yaml")
    longest = sorted(describe_actions(uis_space(catalogue), catalogue), key=len)[-3:]
    vectors = embed_actions(encoder, longest)
    assert not any(encoder._tokenizer.encode(text).overflowing for text in longest)
    assert len({vector.tobytes() for vector in vectors}) == 3


def test_cached_actions_are_those_that_were_encoded(encoder: MiniLM, tmp_path: Path) -> None:
    texts = ["one action", "another action", "one action"]
    plain = embed_actions(encoder, texts)
    assert np.array_equal(embed_actions(encoder, texts, tmp_path / "new"), plain)
    assert len(list((tmp_path / "new").iterdir())) == 2
    assert np.array_equal(embed_actions(encoder, texts[::-1], tmp_path / "new"), plain[::-1])
    assert embed_actions(encoder, [], tmp_path / "new").shape == (0, 384)


class Counting:
    """The real encoder, and how many texts it was given."""

    def __init__(self, encoder: MiniLM, version: str = "1") -> None:
        self.name, self.version, self.dimension = "counting", version, encoder.dimension
        self._encoder, self.texts = encoder, 0

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.texts += len(texts)
        return self._encoder.encode(texts)


def test_the_cache_spares_the_encoder_and_knows_one_from_another(encoder: MiniLM, tmp_path: Path) -> None:
    first, second = Counting(encoder), Counting(encoder, version="2")
    embed_actions(first, ["a", "b"], tmp_path)
    embed_actions(first, ["b", "c"], tmp_path)
    assert first.texts == 3
    embed_actions(second, ["a"], tmp_path)
    assert second.texts == 1


# It writes no bytecode: what the limit cuts off would stay beside the module and break every later import of it.
FULL = """
import resource, sys
sys.dont_write_bytecode = True
from pathlib import Path
from agents.embedding import embed_actions
from agents.encoders import HashedEncoder
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # a vector takes 256 bytes
print(embed_actions(HashedEncoder(), ["an action"], Path("cache")).shape)
"""


def test_a_cache_that_has_no_room_is_done_without(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout == "(1, 64)\n", ran.stderr
    assert list((tmp_path / "cache").iterdir()) == [], "half a vector would stay for good"
    (tmp_path / "file").touch()
    encoder = HashedEncoder()
    assert embed_actions(encoder, ["an action"], tmp_path / "file" / "cache").shape == (1, 64)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 384 * 4, b"\xff" * 384 * 4, b"abc", b"\x00" * 10])
def test_a_damaged_file_is_computed_again(encoder: MiniLM, tmp_path: Path, damage: bytes) -> None:
    plain = embed_actions(encoder, ["an action"], tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert np.array_equal(embed_actions(encoder, ["an action"], tmp_path), plain)
    assert file.read_bytes() == plain.tobytes()
