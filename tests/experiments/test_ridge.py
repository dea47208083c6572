"""The lab's one ridge regression against scikit-learn's, and against the normal equations."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from experiments.ridge import STRENGTHS, by_leaving_one_out, predictions


@pytest.mark.parametrize(("n", "d", "arms"), [(60, 16, 5), (10, 16, 3), (40, 3, 1)])
def test_it_is_the_ridge_regression_everyone_knows(n: int, d: int, arms: int) -> None:
    rng = np.random.default_rng(n)
    x, new = rng.normal(size=(n, d)), rng.normal(size=(7, d))
    y = x[:, :1] * rng.normal(size=arms) + rng.normal(size=(n, arms))
    known = RidgeCV(alphas=STRENGTHS).fit(x, y)
    assert by_leaving_one_out(x, y, new) == pytest.approx(known.predict(new).reshape(7, -1))
    (found,) = predictions(x, y, new, np.array([2.0]), centred=False)
    assert found == pytest.approx(new @ np.linalg.solve(x.T @ x + 2 * np.eye(d), x.T @ y))


def test_arms_with_features_share_what_is_learnt() -> None:
    """W of y = X W Zᵀ by least squares on Kronecker products, which nobody would do for 168 arms."""
    rng = np.random.default_rng(0)
    x, z, y = rng.normal(size=(12, 3)), rng.normal(size=(4, 2)), rng.normal(size=(12, 4))
    whole, centred = np.kron(x - x.mean(axis=0), z), (y - y.mean(axis=0)).ravel()
    w = np.linalg.solve(whole.T @ whole + 0.5 * np.eye(6), whole.T @ centred).reshape(3, 2)
    (found,) = predictions(x, y, x, np.array([0.5]), arms=z)
    assert found == pytest.approx(y.mean(axis=0) + (x - x.mean(axis=0)) @ w @ z.T)
