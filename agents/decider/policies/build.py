"""A policy by name, from one frozen setting: what deployments and the lab both construct from.

Defaults are the paper's, but for `reward`: one column of b per reward term lets objectives change without relearning.
The neural baselines import torch, so they are imported when asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from agents.decider.features import FeatureMap, FeatureSettings, QueryBasis
from agents.decider.policies.base import Policy
from agents.decider.policies.exploration import Explored
from agents.decider.policies.forgetting import Discounted, SlidingWindow
from agents.decider.policies.knn import KNN
from agents.decider.policies.linucb import LinUCB, LinUCBSettings, greedy
from agents.decider.policies.thompson import Thompson
from agents.decider.policies.uniform import Uniform

Name = Literal[
    "linucb", "greedy", "thompson", "uniform", "knn", "mlp", "neural-ucb", "sliding-window", "discounted"
]


class PolicySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which policy, and how it is set up.

    Attributes:
        name: The policy.
        alpha: Exploration factor (App. B.3).
        ridge: λ (App. B.3).
        reward: `scalar` is the paper's b; `terms` keeps one column per reward term.
        widths: `decided` lets outstanding decisions count in the width.
        propensity_draws: Monte Carlo draws behind Thompson's logged propensity.
        neighbours: k of k-NN.
        hidden, learning_rate, iterations, network_seed: The networks'.
        per_width: Whether NeuralUCB divides gradients by √hidden, which the paper does not print.
        window: Rows kept by `sliding-window`.
        gamma: Discount per decision of `discounted`.
        floor: ε of the recorded exploration floor.
        warm_up: Uniform rounds at the start; 50 in the paper's experiments.
        action_features, interactions, query_rank, action_rank, interaction_scale, basis_seed: see FeatureSettings.
    """

    name: Name = "linucb"
    alpha: float = 1.0
    ridge: float = 1.0
    reward: Literal["terms", "scalar"] = "terms"
    widths: Literal["rewarded", "decided"] = "rewarded"
    propensity_draws: int = 256
    neighbours: int = 5
    hidden: int = 100
    learning_rate: float = 1e-3
    iterations: int = 1000
    network_seed: int = 0
    per_width: bool = False
    window: int = 10_000
    gamma: float = 0.999
    floor: float = 0.0
    warm_up: int = 0
    action_features: Literal["raw", "centred", "one-hot"] = "raw"
    interactions: Literal["none", "bilinear", "model"] = "none"
    query_rank: int = 8
    action_rank: int = 6
    interaction_scale: float = 1.0
    basis_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers no policy can run with, naming the field."""
        for name in (
            "ridge",
            "neighbours",
            "hidden",
            "learning_rate",
            "iterations",
            "query_rank",
            "action_rank",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a number above zero")
        for name in ("alpha", "propensity_draws", "interaction_scale"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give zero or more")


def build_policy(
    settings: PolicySettings, *, query_dim: int, action_dim: int, query_basis: QueryBasis | None = None
) -> Policy:
    """Return the policy of a setting, with no action added yet.

    Args:
        settings: Which one, and how.
        query_dim: Length of s_q.
        action_dim: Length of s_a; with one-hot features, the room for actions ever added.
        query_basis: Projection of queries for interactions, fitted on queries that are not evaluated; by default a
            random one.

    Raises:
        ValueError: A value is out of range; the message names the field.
    """
    s = settings
    features = FeatureMap(
        FeatureSettings(
            query_dim=query_dim,
            action_dim=action_dim,
            action_features=s.action_features,
            interactions=s.interactions,
            query_rank=s.query_rank,
            action_rank=s.action_rank,
            interaction_scale=s.interaction_scale,
            basis_seed=s.basis_seed,
        ),
        query_basis,
    )
    linear = LinUCBSettings(alpha=s.alpha, ridge=s.ridge, reward=s.reward, widths=s.widths)
    makers: dict[str, Callable[[], Policy]] = {
        "linucb": lambda: LinUCB(features, linear),
        "greedy": lambda: greedy(features, linear),
        "thompson": lambda: Thompson(features, linear, propensity_draws=s.propensity_draws),
        "uniform": lambda: Uniform(features),
        "knn": lambda: KNN(features, s.neighbours),
        "sliding-window": lambda: SlidingWindow(features, linear, window=s.window),
        "discounted": lambda: Discounted(features, linear, gamma=s.gamma),
        "mlp": lambda: _neural(s, features),
        "neural-ucb": lambda: _neural(s, features),
    }
    policy = makers[s.name]()
    if s.floor or s.warm_up:
        return Explored(policy, floor=s.floor, warm_up=s.warm_up)
    return policy


def _neural(s: PolicySettings, features: FeatureMap) -> Policy:
    from agents.decider.policies.mlp import MLP
    from agents.decider.policies.network import NetworkSettings
    from agents.decider.policies.neural_ucb import NeuralUCB

    if features.settings.interactions != "none":
        raise ValueError(
            f"interactions is {features.settings.interactions!r}; a network learns its own, set 'none'"
        )
    network = NetworkSettings(s.hidden, s.learning_rate, s.iterations, s.network_seed)
    if s.name == "mlp":
        return MLP(features, network)
    return NeuralUCB(features, network, alpha=s.alpha, ridge=s.ridge, per_width=s.per_width)
