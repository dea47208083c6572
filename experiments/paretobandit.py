"""Runs ParetoBandit's own learner on our tables. PYTHON is an interpreter with its package (PyPI, Apache-2.0).

    PYTHON experiments/paretobandit.py GAMES.npz ARMS.npy

The learner is its disjoint LinUCB with the defaults of version 0.1.1: 25 whitened principal directions of the encoder's
vector and a constant, α 0.01, forgetting 0.997, and a prior from history that counts as 1,163.9 observations per arm.
From each arm's score it subtracts a penalty, the price times the arm's mean cost on history.
"""

import sys
from pathlib import Path

import numpy as np


def main(games: Path, arms: Path) -> None:
    """Play the games in one file and write the arm chosen in every round, shape (prices, rounds).

    Args:
        games: A file with the questions' `vectors` (Q, d), `history` (indices), `order` (the question of every round),
            `history_correct` and `history_cost` (n, A), the realised `correct` (Q, A), `prices` and `seed`.
        arms: The file to write.
    """
    # Imported here so that this file can be imported without the package.
    from pareto_bandit.config import BEST_K3_HPARAMS  # type: ignore[import-not-found]
    from pareto_bandit.policy import DisjointLinUCBPolicy  # type: ignore[import-not-found]

    told = np.load(games)
    history, order, correct = told["history"], told["order"], told["correct"]
    vectors = told["vectors"]
    centre = vectors[history].mean(axis=0)
    _, scale, directions = np.linalg.svd(vectors[history] - centre, full_matrices=False)
    kept = min(BEST_K3_HPARAMS["pca_components"], len(history) - 1)
    white = (vectors - centre) @ directions[:kept].T / (scale[:kept] / (len(history) - 1) ** 0.5)
    x = np.concatenate([white, np.ones((len(vectors), 1))], axis=1)
    seen = x[history]
    weight = BEST_K3_HPARAMS["prior_n_effective"] / len(history)
    names = [str(arm) for arm in range(correct.shape[1])]
    taken = []
    for price in told["prices"]:
        policy = DisjointLinUCBPolicy(
            names,
            dim=x.shape[1],
            alpha=BEST_K3_HPARAMS["alpha"],
            forgetting_factor=BEST_K3_HPARAMS["forgetting_factor"],
            seed=int(told["seed"]),
        )
        for arm, name in enumerate(names):
            policy.A[name] = policy.A[name] + weight * seen.T @ seen
            policy.b[name] = policy.b[name] + weight * seen.T @ told["history_correct"][:, arm]
        policy.refresh_inverse_cache()
        penalties = dict(zip(names, (price * told["history_cost"].mean(axis=0)).tolist(), strict=True))
        row = []
        for question in order:
            name, _ = policy.select_arm(x[question], cost_penalties=penalties)
            policy.mark_selected(name)
            policy.update(name, x[question], float(correct[question, int(name)]), advance_time=False)
            row.append(int(name))
        taken.append(row)
    np.save(arms, np.array(taken))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
