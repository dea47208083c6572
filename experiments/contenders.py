"""Who competes: the paper's policies in their faithful form, its ablations, and our own."""

from collections.abc import Callable, Mapping

from agents.decider.features import FeatureMap, FeatureSettings
from agents.decider.policies.base import Policy
from agents.decider.policies.knn import KNN
from agents.decider.policies.linucb import LinUCB, LinUCBSettings, greedy
from agents.decider.policies.thompson import Thompson
from agents.decider.policies.uniform import Uniform
from experiments.world import World

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
    "centred_cautious": lambda world, seed: LinUCB(
        _features(world, action_features="centred"), LinUCBSettings(alpha=0.25), name="centred-cautious"
    ),
}

ALL: Mapping[str, Make] = {**PAPER, **ABLATIONS, **OWN}
