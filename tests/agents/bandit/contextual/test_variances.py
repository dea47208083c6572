"""Estimates of variances: sums by action are those of the rows, and an arrowhead matrix is solved as any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.features import FeatureSettings
from agents.bandit.history import History
from agents.bandit.policy import Matrix
from agents.bandit.posterior import marginal
from agents.bandit.variances import Evidence, Posterior, estimated_with_last, evidence_of
from tests.support.traffic import DIM, MODELS, actions, single

QUESTIONS = 90


def traffic(models: int, repeated: bool = False) -> tuple[ContextualFeatures, History, Matrix, Matrix]:
    """Return features, a history of questions of two categories, [z; c] of these, and targets of its rows."""
    policy = Contextual(ContextualFeatures(FeatureSettings(DIM, 4, query_rank=5)))
    on, rng = policy.features, np.random.default_rng(models)
    policy.offer(actions(MODELS[:models]))
    on.enter(("route=a", "route=b"))
    question = np.append(np.arange(QUESTIONS), np.zeros(int(repeated), int))
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


def test_one_question_of_two_models_is_estimated_without_leaves() -> None:
    estimates = []
    for repeated in (False, True):
        on, history, z, targets = traffic(3, repeated)
        levels = evidence_of(on, history, z, targets)
        assert (len(levels) == 1) is not repeated
        variances, _ = estimated_with_last(levels, on.column_blocks, on.plain_dim, 0)
        estimates.append(variances)
    once, again = estimates
    assert again.keys() == once.keys() >= {"one × category", "model × category"}
    assert list(again.values()) == pytest.approx(list(once.values()), rel=0.3), "one row more"


def test_marginal_is_what_the_inverse_keeps() -> None:
    rng = np.random.default_rng(0)
    root, b = rng.normal(size=(9, 9)), rng.normal(size=9)
    a = root @ root.T
    gram, moment = marginal(np.tril(a), b, 4)
    inverse = np.linalg.inv(np.tril(gram) + np.tril(gram, -1).T)
    assert inverse == pytest.approx(np.linalg.inv(a)[4:, 4:])
    assert inverse @ moment == pytest.approx(np.linalg.solve(a, b)[4:])
