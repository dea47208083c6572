"""A⁻¹ stays the inverse of A: long sequences, downdates, collinear rows, widening."""

from __future__ import annotations

import numpy as np
import pytest

from agents.bandit.posterior import BLOCK, DRIFT, Gram


def made(rng: np.random.Generator, q: int, e: int, n: int) -> tuple[Gram, np.ndarray]:
    gram = Gram(q, e, 2, ridge=1.0)
    actions = rng.normal(size=(n, e)) / np.sqrt(e)
    gram.attach(actions)
    return gram, actions


def rows(rng: np.random.Generator, gram: Gram, actions: np.ndarray, m: int) -> np.ndarray:
    queries = rng.normal(size=(m, gram.q)) / np.sqrt(gram.q)
    return np.concatenate([queries, actions[rng.integers(len(actions), size=m)]], axis=1)


def check(gram: Gram, a: np.ndarray, b: np.ndarray, tolerance: float = 1e-9) -> None:
    inverse = np.linalg.inv(a)
    unit = np.eye(gram.dim)
    assert np.abs(gram.solve(unit) - inverse).max() <= tolerance * np.abs(inverse).max()
    theta = inverse @ b
    assert np.abs(gram.theta - theta).max() <= tolerance * max(1.0, np.abs(theta).max())


@pytest.mark.parametrize("sizes", [[1] * 90, [7, 1, 33, 64, 1, 5] * 4, [200, 1, 1, 300], [BLOCK - 1, 64, 1]])
def test_any_split_into_batches_gives_the_inverse(sizes: list[int]) -> None:
    rng = np.random.default_rng(1)
    gram, actions = made(rng, 20, 9, 6)
    a, b = np.eye(29), np.zeros((29, 2))
    for m in sizes:
        x, targets = rows(rng, gram, actions, m), rng.normal(size=(m, 2))
        gram.add(x, targets)
        a, b = a + x.T @ x, b + x.T @ targets
        check(gram, a, b)


def test_rows_taken_out_leave_no_trace() -> None:
    rng = np.random.default_rng(2)
    gram, actions = made(rng, 20, 9, 6)
    keep, gone = rows(rng, gram, actions, 30), rows(rng, gram, actions, 45)
    ones = np.ones((45, 2))
    gram.add(keep, np.zeros((30, 2)))
    gram.add(gone, ones)
    for i in range(45):
        gram.add(gone[i : i + 1], ones[:1], sign=-1.0)
    check(gram, np.eye(29) + keep.T @ keep, np.zeros((29, 2)))


def test_downdate_of_a_dominant_row_stays_exact() -> None:
    """1 - xᵀA⁻¹x is thin when one direction holds nearly all the weight of A."""
    rng = np.random.default_rng(3)
    gram, actions = made(rng, 4, 3, 2)
    x = rows(rng, gram, actions, 1) * 2000.0
    gram.add(x, np.ones((1, 2)))
    before = gram.factorisations
    gram.add(x, np.ones((1, 2)), sign=-1.0)
    assert gram.factorisations > before
    check(gram, np.eye(7), np.zeros((7, 2)), tolerance=1e-8)


def test_collinear_rows_stay_sane() -> None:
    rng = np.random.default_rng(4)
    gram, actions = made(rng, 12, 5, 4)
    x = rows(rng, gram, actions, 1)
    a = np.eye(17)
    for _ in range(600):
        gram.add(x, np.zeros((1, 2)))
        a = a + x.T @ x
    check(gram, a, np.zeros((17, 2)))


def test_widening_starts_new_columns_at_the_ridge() -> None:
    rng = np.random.default_rng(5)
    gram, actions = made(rng, 6, 4, 5)
    x = rows(rng, gram, actions, 20)
    gram.add(x, np.ones((20, 2)))
    gram.widen(6, [0, 1, 3, 4])  # columns 2 and 5 are new
    places = [*range(6), 6, 7, 9, 10]
    a, b = np.eye(12), np.zeros((12, 2))
    a[np.ix_(places, places)] += x.T @ x
    b[places] += x.T @ np.ones((20, 2))
    check(gram, a, b)


def test_a_corrupted_inverse_is_noticed_and_repaired() -> None:
    """The residual is watched: damage to the kept inverse does not outlive the next flush."""
    rng = np.random.default_rng(6)
    gram, actions = made(rng, 12, 5, 4)
    a = np.eye(17)
    for _ in range(40):
        x = rows(rng, gram, actions, 1)
        gram.add(x, np.zeros((1, 2)))
        a = a + x.T @ x
    gram.flush()
    gram._p[np.diag_indices(12)] += 1e-4
    for _ in range(2 * BLOCK):
        x = rows(rng, gram, actions, 1)
        gram.add(x, np.zeros((1, 2)))
        a = a + x.T @ x
    gram.flush()
    check(gram, a, np.zeros((17, 2)))


@pytest.mark.parametrize(
    "updates", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)], ids=["50k", "million"]
)
def test_many_updates_at_64_dimensions_stay_sane(updates: int) -> None:
    rng = np.random.default_rng(7)
    gram, actions = made(rng, 40, 24, 12)
    a, b = np.eye(64), np.zeros((64, 2))
    batch = 8  # below the rank-k limit, so that every row goes through Sherman-Morrison
    for _ in range(updates // batch):
        x = rows(rng, gram, actions, batch)
        targets = x[:, :2] + 0.5
        gram.add(x, targets)
        a += x.T @ x
        b += x.T @ targets
    assert gram.residual(x[0]) < DRIFT * 10
    check(gram, a, b, tolerance=1e-8)
    widths = gram.widths(x[:, :40])
    assert np.all(np.isfinite(widths))
    assert np.all(widths > 0)
