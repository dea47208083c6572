"""The neural baselines (App. B.3): policies that retrain a small network on the whole history.

mlp         MLP router: greedy in the network's prediction
neural_ucb  the same prediction and a bonus from its gradients
network     the two-layer network itself; the one file that imports torch
"""

from agents.decider.policies.neural import mlp, neural_ucb  # each registers its policy

__all__ = ["mlp", "neural_ucb"]
