"""Estimates of variances: sums by action are those of the rows, and an arrowhead matrix is solved as any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agents.bandit import variances
from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.features import FeatureSettings
from agents.bandit.history import History
from agents.bandit.policy import Matrix
from agents.bandit.posterior import marginal
from agents.bandit.variances import Evidence, Posterior, estimated_with_last, evidence_of
from tests.support.traffic import DIM, MODELS, actions, single

QUESTIONS = 90
AGAIN = (0, 0, 1, 2, 2, 2)
"""Questions that are asked again, some of them several times, and so of some model more than once."""


def traffic(models: int, again: Sequence[int] = ()) -> tuple[ContextualFeatures, History, Matrix, Matrix]:
    """Return features, a history of questions of two categories, [z; c] of these, and targets of its rows."""
    policy = Contextual(ContextualFeatures(FeatureSettings(DIM, 4, query_rank=5)))
    on, rng = policy.features, np.random.default_rng(models)
    policy.offer(actions(MODELS[:models]))
    on.enter(("route=a", "route=b"))
    question = np.array([*range(QUESTIONS), *again])
    rows = len(question)
    correct, score, log_cost = rng.random((3, rows))
    categories = [(f"route={'abc'[rng.integers(3)]}",) for _ in range(QUESTIONS)]
    queries = np.array([single(rng.normal(size=DIM)) for _ in range(QUESTIONS)])
    history = History(
        queries, question, rng.integers(len(on.ids), size=rows), correct, score, log_cost,
        rng.uniform(0.2, 1.0, size=rows), categories=categories,
    )  # fmt: skip
    z = on.with_categories(np.array([on.transform.of(query) for query in queries]), categories)
    return on, history, z, rng.normal(size=(rows, 2))


@pytest.mark.parametrize("models", [1, 3])
def test_sums_by_action_are_those_of_the_rows(models: int) -> None:
    on, history, z, targets = traffic(models)
    (found,) = evidence_of(on, history, z, targets)
    weights = history.weights[:, None]
    x = on.rows(z[history.question], history.action)
    assert found.gram == pytest.approx(x.T @ (weights * x))
    assert found.moment == pytest.approx(x.T @ (weights * targets))
    assert found.square == pytest.approx(float(weights[:, 0] @ targets[:, 0] ** 2))
    assert found.count == QUESTIONS


def test_no_row_is_in_two_leaves() -> None:
    on, history, z, _ = traffic(3)
    x = on.rows(z[history.question], history.action)
    own = np.abs(x[:, on.leaves]).sum(axis=2) > 0
    assert own.any(axis=0).all()
    assert own.sum(axis=1).max() == 1
    plain = Evidence(np.eye(on.dim), np.zeros((on.dim, 1)), 1.0, 1, 1.0, on.leaves).of(on.plain_dim)
    assert plain.leaves.shape == (3, on.rank)


@pytest.mark.parametrize("noise", [0.2, 1e-7])
@pytest.mark.parametrize("models", [1, 3])
def test_an_arrowhead_matrix_is_solved_like_any_other(models: int, noise: float) -> None:
    on, history, z, targets = traffic(models)
    (whole,) = evidence_of(on, history, z, targets)
    for evidence in (whole, whole.of(on.plain_dim)):
        penalties = np.random.default_rng(1).uniform(1.0, 1e3, size=len(evidence.gram))
        found = Posterior([evidence]).given([noise], penalties)
        wanted = Posterior([replace(evidence, leaves=evidence.leaves[:0])]).given([noise], penalties)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-8)


def levels_of(
    models: int, again: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[ContextualFeatures, list[Evidence], list[Evidence]]:
    """Return the evidence of traffic with repeated questions, as an arrowhead matrix with these rows, and without."""
    on, history, z, targets = traffic(models, again)
    found = evidence_of(on, history, z, targets)
    with monkeypatch.context() as patch:
        patch.setattr(variances, "MIXED", 0.0)
        dense = evidence_of(on, history, z, targets)
    return on, found, dense


@pytest.mark.parametrize("again", [AGAIN[:1], AGAIN])
@pytest.mark.parametrize("models", [1, 3])
def test_sums_with_repeated_questions_are_those_of_all_rows(
    models: int, again: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    on, found, dense = levels_of(models, again, monkeypatch)
    assert [each.count for each in found] == [each.count for each in dense]
    assert sum(each.count for each in found) == QUESTIONS + len(again)
    for mine, theirs in zip(found, dense, strict=True):
        assert mine.gram == pytest.approx(theirs.gram)
        assert mine.moment == pytest.approx(theirs.moment)
        assert (mine.square, mine.noise) == pytest.approx((theirs.square, theirs.noise))
    assert found[-1].leaves.shape == on.leaves.shape
    assert not dense[-1].leaves.size
    rest = found[-1].gram - found[-1].mixed.T @ found[-1].mixed
    for one in range(models):
        for other in set(range(models)) - {one}:
            assert rest[np.ix_(on.leaves[one], on.leaves[other])] == pytest.approx(0.0)


@pytest.mark.parametrize("noise", [0.2, 1e-7])
@pytest.mark.parametrize("models", [1, 3])
def test_repeated_questions_are_solved_like_any_other_matrix(
    models: int, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    on, found, dense = levels_of(models, AGAIN, monkeypatch)
    noises = [noise, 0.3, 0.1][-len(found) :]
    for columns in (on.dim, on.plain_dim):
        penalties = np.random.default_rng(1).uniform(1.0, 1e3, size=columns)
        mine = Posterior([each.of(columns) for each in found]).given(noises, penalties)
        theirs = Posterior([each.of(columns) for each in dense]).given(noises, penalties)
        for each, wanted in zip(mine, theirs, strict=True):
            assert each == pytest.approx(wanted, rel=1e-6, abs=1e-8)


def test_repeated_questions_change_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    on, *both = levels_of(3, AGAIN, monkeypatch)
    found, dense = (estimated_with_last(each, on.column_blocks, on.plain_dim, 0) for each in both)
    assert found[0].keys() >= {"one × category", "model × category"}
    assert found[0] == pytest.approx(dense[0], rel=1e-6)
    assert found[1] == pytest.approx(dense[1], rel=1e-6)


def test_history_of_repeated_questions_alone_has_no_leaves() -> None:
    on, history, z, targets = traffic(3, range(QUESTIONS))
    assert not evidence_of(on, history, z, targets)[-1].leaves.size


def test_marginal_is_what_the_inverse_keeps() -> None:
    rng = np.random.default_rng(0)
    root, b = rng.normal(size=(9, 9)), rng.normal(size=9)
    a = root @ root.T
    gram, moment = marginal(np.tril(a), b, 4)
    inverse = np.linalg.inv(np.tril(gram) + np.tril(gram, -1).T)
    assert inverse == pytest.approx(np.linalg.inv(a)[4:, 4:])
    assert inverse @ moment == pytest.approx(np.linalg.solve(a, b)[4:])


def test_a_full_table_has_as_many_rows_of_every_action() -> None:
    def history(*pairs: tuple[int, int]) -> History:
        question, action = np.array(pairs).T
        ones = np.ones(len(pairs))
        return History(np.zeros((3, DIM)), question, action, ones, ones, ones, ones)

    table = [(question, action) for question in range(3) for action in range(2)]
    assert history(*table).full
    assert history(*table, *table).full
    assert not history(*table[:-1]).full
    assert not history(*table, table[0]).full
    assert not history((0, 0), (1, 0), (2, 0)).full
