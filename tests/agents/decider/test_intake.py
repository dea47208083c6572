"""Nothing that is not a number, out of range, of the wrong length or too long gets into the learner or its log."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from agents.bandit.linucb import LinUCB
from agents.decider.rows import GROWTH, Row, decode_row, encode_row
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.query import MAX_TEXT
from schemas.record import MAX_VALUE
from tests.support.shard import Shard

NUMBERS = st.one_of(
    st.floats(width=64), st.sampled_from([0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e308, -1e-9])
)
EMBEDDINGS = st.one_of(
    arrays.arrays("<f4", st.integers(0, 20), elements=st.floats(width=32)),
    arrays.arrays("<f4", 12, elements=st.floats(-1.0, 1.0, width=32)),
    st.sampled_from([np.zeros(12, "<f4"), np.full(12, np.nan, "<f4"), np.full(12, 1e38, "<f4")]),
)


@settings(max_examples=30, deadline=None)
@given(
    embeddings=st.lists(EMBEDDINGS, min_size=1, max_size=4),
    terms=st.lists(st.tuples(*[NUMBERS] * 3), max_size=4),
)
def test_only_valid_input_enters_the_learner(
    embeddings: list[Any], terms: list[tuple[float, float, float]]
) -> None:
    shard = Shard(LinUCB)
    contexts, accepted = [], []
    for row in embeddings:
        context, origin = shard.context()
        try:
            contexts.append((msgspec.structs.replace(context, embedding=row.tobytes()), origin))
        except UniscaleError:
            accepted.append(False)  # refused at the edge: such a record cannot be decoded
        else:
            accepted.append(True)
    made = shard.ask(*contexts)
    verdicts = iter(made)
    accepted = [known and next(verdicts).error is None for known in accepted]
    sound = [len(r) == 12 and bool(np.isfinite(r).all()) and 1e-12 <= float(r.astype(float) @ r) < 1e6
             for r in embeddings]  # fmt: skip
    assert accepted == sound
    decided = [d for d in made if d.error is None] or shard.ask(shard.context())
    entered = []
    for of, (correct, score, log_cost) in zip(decided, terms, strict=False):
        try:
            told = shard.tell(shard.reward(of, correct=correct, score=score, log_cost=log_cost))[0]
        except UniscaleError:
            continue
        if told.error is None:
            entered.append(of.query_id)
            assert 0.0 <= correct <= 1.0
            assert 0.0 <= score <= 1.0
            assert abs(log_cost) <= 200.0
    gram = shard.linucb.gram
    assert shard.decider.policy.version == len(entered)
    a = np.eye(gram.dim)
    for query_id in entered:
        x, _ = shard.linucb.rows([shard.entry(query_id).observation("reward")])
        a = a + x.T @ x
    gram.flush()
    assert np.allclose(np.tril(gram.a), np.tril(a), rtol=1e-12, atol=1e-12)
    assert np.isfinite(gram.theta).all()


def test_row_without_room_for_rewards_is_refused_undecided() -> None:
    shard = Shard(LinUCB, limit=40_000)
    decided = []
    for size in range(19_000, 25_000, 60):
        context, origin = shard.context(metadata={"x": "a" * 15_000})
        query = msgspec.structs.replace(context.query, text="q" * size)
        before = shard.decider.seq
        made = shard.ask((msgspec.structs.replace(context, query=query), origin))[0]
        if made.error is not None:
            assert isinstance(made.error, RecordTooLarge)
            assert "shorten the query" in str(made.error)
            assert shard.decider.seq == before
        else:
            decided.append(made)
    assert 0 < len(decided) < 100
    long = 10**18
    for made in decided[-2:]:
        shard.decider.seq = long
        for kind in ("provisional", "correction"):
            reward, _ = shard.reward(made, kind, score=1 / 3, log_cost=-200 / 3)
            assert shard.tell((reward, long))[0].error is None
    assert max(len(value) for value in shard.table.values()) <= 40_000


def test_rewards_add_less_to_a_row_than_is_kept_free() -> None:
    shard = Shard(LinUCB)
    made = shard.ask(shard.context())[0]
    row = decode_row(b"", shard.row(made.query_id))
    assert isinstance(row, Row)
    worst = 10**19
    full = msgspec.structs.replace(
        row, stage="abandoned", learned_seq=worst, corrected_seq=worst, ended_seq=worst, reward_offset=worst,
        kinds=("provisional", "final", "correction", "default"), entered=-1 / 3e-300, correct=-1 / 3e-300,
        score=-1 / 3e-300, log_cost=-1 / 3e-300, imputed=-1 / 3e-300,
    )  # fmt: skip
    assert len(encode_row(full)) - len(encode_row(row)) <= GROWTH


@pytest.mark.parametrize("spare", [0, 1])
def test_a_row_over_the_record_limit_cannot_be_encoded(spare: int) -> None:
    shard = Shard(LinUCB)
    made = shard.ask(shard.context())[0]
    row = decode_row(b"", shard.row(made.query_id))
    assert isinstance(row, Row)
    service = MAX_VALUE - len(encode_row(row))
    padded = msgspec.structs.replace(row, action=row.action + "x" * (service + 1 - spare))
    if spare:
        assert len(encode_row(padded)) == MAX_VALUE
    else:
        with pytest.raises(RecordTooLarge, match="Row"):
            encode_row(padded)


def test_the_longest_query_fits_the_default_limit() -> None:
    assert 2 * MAX_TEXT < MAX_VALUE
