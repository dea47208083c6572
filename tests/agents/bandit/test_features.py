"""The joint vector: bases, centring, interactions, and objectives that are no convex combination."""

from __future__ import annotations

import re
import string
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.bandit.errors import InvalidObjective
from agents.bandit.features import FeatureMap, FeatureSettings, QueryBasis, counts
from agents.bandit.policy import ActionVector, Objective
from tests.support.worlds import World


def test_coordinates_keep_every_inner_product(world: World) -> None:
    features = world.features()
    features.offer(world.actions(4))
    features.offer(world.actions(9, prefix="n"))  # 13 vectors in 10 dimensions
    assert features.coordinates.shape == (13, 10)
    gram = features.coordinates @ features.coordinates.T
    assert np.allclose(gram, features.vectors @ features.vectors.T, atol=1e-12)


def test_nearly_dependent_vectors_keep_basis_orthonormal() -> None:
    rng = np.random.default_rng(0)
    features = FeatureMap(FeatureSettings(4, 40))
    base = rng.normal(size=40)
    rows = [base + 10.0**-k * rng.normal(size=40) for k in range(1, 16)]
    features.offer([ActionVector(f"a{i}", "m", row) for i, row in enumerate(rows)])
    assert np.allclose(features.basis @ features.basis.T, np.eye(len(features.basis)), atol=1e-10)
    gram = features.coordinates @ features.coordinates.T
    assert np.allclose(gram, features.vectors @ features.vectors.T, atol=1e-12)


def test_centred_vectors_have_zero_mean_and_unit_rms(world: World) -> None:
    features = world.features(action_features="centred")
    features.offer(world.actions())
    assert np.allclose(features.vectors.mean(axis=0), 0.0, atol=1e-12)
    assert np.mean(np.sum(features.vectors**2, axis=1)) == pytest.approx(1.0)


def test_the_centre_stays_that_of_the_first_catalogue(world: World) -> None:
    features = world.features(action_features="centred")
    features.offer(world.actions())
    before = features.vectors.copy()
    features.offer(world.actions(5, prefix="n"))
    assert np.array_equal(features.vectors[:7], before)


def test_one_hot_features_share_nothing(world: World) -> None:
    features = world.features(action_features="one-hot")
    features.offer(world.actions())
    assert np.array_equal(features.coordinates, np.eye(7))


def test_model_interactions_touch_only_their_own_model(world: World) -> None:
    features = world.features(interactions="model")
    features.offer(world.actions())
    blocks = features.blocks(world.query()[None])
    rank = features.coordinates.shape[1]
    for i, model in enumerate(features.models):
        parts = blocks[0, i, rank:].reshape(3, 3)
        assert [bool(np.any(part)) for part in parts] == [m == model for m in ("m0", "m1", "m2")]


def test_blocks_and_joint_rows_agree(world: World) -> None:
    features = world.features(interactions="bilinear")
    features.offer(world.actions())
    query = world.query()
    blocks = features.blocks(query[None])[0]
    joint = features.joint(np.repeat(query[None], 7, axis=0), range(7))
    assert np.allclose(joint[:, features.settings.query_dim :], blocks, atol=1e-15)


def test_a_query_basis_has_unit_rms() -> None:
    basis = QueryBasis.random(dim=12, rank=4, seed=0)
    z = (np.eye(12) - basis.offset) @ basis.directions.T
    assert np.mean(np.sum(z**2, axis=1)) == pytest.approx(1.0)


def test_old_columns_are_told_where_they_stand_after_growth(world: World) -> None:
    features = world.features(interactions="model")
    features.offer(world.actions(3))
    before = features.blocks(np.eye(12)[:1])[0]
    kept = features.offer(world.actions(4, prefix="new"))
    after = features.blocks(np.eye(12)[:1])[0]
    assert np.allclose(after[:3][:, kept], before, atol=1e-12)
    others = sorted(set(range(after.shape[1])) - set(kept))
    assert np.allclose(after[:3][:, others], 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((-0.1, 0.5, 0.6, 0.0, 1.0), "correct"),
        ((float("nan"), 0.5, 0.6, 0.0, 1.0), "correct"),
        ((0.0, 0.0, 0.0, 0.0, 1.0), "weights"),
        ((1.0, 1.0, 1.0, 2.0, 2.0), "log_cost bounds"),
        ((1.0, 1.0, 1.0, 0.0, float("inf")), "log_cost bounds"),
    ],
)
def test_an_objective_that_is_no_convex_combination_is_refused(values: tuple[float, ...], field: str) -> None:
    with pytest.raises(InvalidObjective, match=field):
        Objective(*values)


def test_the_cost_term_is_not_clipped() -> None:
    objective = Objective(0.0, 0.0, 1.0, 10.0, 20.0)
    assert objective.reward(0, 0, 25.0) == pytest.approx(-0.5)
    assert objective.reward(0, 0, 5.0) == pytest.approx(1.5)


@given(
    st.text(st.sampled_from("aÉß5٣., .!?\n\t-+\\$[]") | st.characters(), max_size=60)
    | st.text(string.printable)
)
def test_surface_counts_are_what_their_names_say(text: str) -> None:
    numbers = re.findall(r"\d+(?:[.,]\d+)*", text)
    plain = (
        len(numbers),
        sum(map(str.isdigit, text)),
        len(text.split()),
        sum(map(str.isalpha, text)),
        len(re.findall(r"[.!?]+(?:\s|$)", text)),
        text.count("\n") + 1,
        sum(character in r"-+*/=^<>%$\{}()[]" for character in text),
        sum(map(str.isupper, text)),
        max(map(len, numbers), default=0),
    )
    assert counts(text).tolist() == np.log1p(plain).astype(np.float32).tolist()


def test_surface_counts_take_linear_time() -> None:
    began_s = time.process_time()
    counts("." * 200_000 + "x")  # two minutes, were every rest of the row tried
    assert time.process_time() - began_s < 5.0
