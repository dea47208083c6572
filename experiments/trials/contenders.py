"""Who competes: the paper's policies in their faithful form, its ablations, and our own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from agents.decider.features import FeatureMap, FeatureSettings
from agents.decider.policies.base import ActionVector, Policy
from agents.decider.policies.knn import KNN
from agents.decider.policies.linucb import LinUCB, LinUCBSettings, greedy
from agents.decider.policies.thompson import Thompson
from agents.decider.policies.uniform import Uniform
from experiments.outcomes.world import Array, World

Make = Callable[[World, int], Policy]
"""From a world and a seed to a policy without experience."""

SCALAR = LinUCBSettings(reward="scalar")


def _features(world: World, **settings: object) -> FeatureMap:
    return FeatureMap(
        FeatureSettings(
            query_dim=world.queries.shape[1],
            action_dim=len(world.vectors[0].embedding),
            **settings,  # type: ignore[arg-type]
        )
    )


class Coordinates(LinUCB):
    """LinUCB whose action features are the description's embedding and, beside it, plain coordinates.

    How large the model is among its family, and the logarithms of how wide the search is: under a small encoder
    descriptions of neighbours hardly differ, though what they cost and achieve changes smoothly with these.
    """

    def __init__(self, world: World, alpha: float) -> None:
        self._plain = dict(
            zip((a.arm_id for a in world.outcomes.arms), plain_coordinates(world), strict=True)
        )
        sizes = FeatureSettings(
            query_dim=world.queries.shape[1], action_dim=len(world.vectors[0].embedding) + COORDINATES
        )
        super().__init__(FeatureMap(sizes), LinUCBSettings(alpha=alpha), name="coordinates")

    def add_actions(self, actions: Sequence[ActionVector]) -> None:
        """Make actions available, their coordinates appended to their embeddings."""
        super().add_actions(
            [
                replace(a, embedding=np.concatenate([a.embedding, SHARE * self._plain[a.action_id]]))
                for a in actions
            ]
        )


COORDINATES, SHARE = 7, 0.5  # their number, and their weight beside an embedding of unit length


def plain_coordinates(world: World) -> Array:
    """Return 1, size, size², width, width², drafts a step and size·width of every arm, each in [0, 1].

    Size is the model's place in its family, which the catalogue orders; width is log₂(QP·CP)/6. Where no arm
    searches there is no family, and all sizes are 0.
    """
    arms = world.outcomes.arms
    models = list(dict.fromkeys(arm.model for arm in arms))
    family = any(arm.qp * arm.cp > 1 for arm in arms)
    rows = []
    for arm in arms:
        x = models.index(arm.model) / max(len(models) - 1, 1) if family else 0.0
        c, n = np.log2(arm.cp) / 6, np.log2(arm.qp * arm.cp) / 6
        rows.append([1.0, x, x * x, n, n * n, c, x * n])
    return np.array(rows)


def _mlp(world: World, seed: int) -> Policy:
    from agents.decider.policies.mlp import MLP
    from agents.decider.policies.network import NetworkSettings

    return MLP(_features(world), NetworkSettings(seed=seed))


def _neural_ucb(world: World, seed: int, per_width: bool = False) -> Policy:
    from agents.decider.policies.network import NetworkSettings
    from agents.decider.policies.neural_ucb import NeuralUCB

    return NeuralUCB(_features(world), NetworkSettings(seed=seed), per_width=per_width)


PAPER: Mapping[str, Make] = {
    "random": lambda world, seed: Uniform(_features(world)),
    "greedy": lambda world, seed: greedy(_features(world), SCALAR),
    "mlp": _mlp,
    "knn": lambda world, seed: KNN(_features(world)),
    "neural_ucb": _neural_ucb,
    "ts": lambda world, seed: Thompson(_features(world), SCALAR, propensity_draws=0),
    "uniscale": lambda world, seed: LinUCB(_features(world), SCALAR, name="uniscale"),
}
NETWORKS = ("mlp", "neural_ucb", "neural_ucb_per_width")  # 1,000 iterations a round: minutes a run

ABLATIONS: Mapping[str, Make] = {
    "uniscale_one_hot": lambda world, seed: LinUCB(
        _features(world, action_features="one-hot"), SCALAR, name="one-hot"
    ),
    "uniscale_alpha_0": lambda world, seed: LinUCB(
        _features(world), LinUCBSettings(alpha=0.0, reward="scalar")
    ),
    "uniscale_alpha_10": lambda world, seed: LinUCB(
        _features(world), LinUCBSettings(alpha=10.0, reward="scalar")
    ),
    "neural_ucb_per_width": lambda world, seed: _neural_ucb(world, seed, per_width=True),
}

OWN: Mapping[str, Make] = {
    "terms": lambda world, seed: LinUCB(_features(world), name="terms"),
    "decided": lambda world, seed: LinUCB(_features(world), LinUCBSettings(widths="decided"), name="decided"),
    "centred": lambda world, seed: LinUCB(_features(world, action_features="centred"), name="centred"),
    "centred_model": lambda world, seed: LinUCB(
        _features(world, action_features="centred", interactions="model"), name="centred-model"
    ),
    "centred_bilinear": lambda world, seed: LinUCB(
        _features(world, action_features="centred", interactions="bilinear"), name="centred-bilinear"
    ),
    "coordinates": lambda world, seed: Coordinates(world, 1.0),
    "coordinates_cautious": lambda world, seed: Coordinates(world, 0.5),
    "centred_cautious": lambda world, seed: LinUCB(
        _features(world, action_features="centred"), LinUCBSettings(alpha=0.25), name="centred-cautious"
    ),
}

ALL: Mapping[str, Make] = {**PAPER, **ABLATIONS, **OWN}
