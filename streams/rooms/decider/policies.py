"""Which policy the settings ask for, over the actions of a catalogue."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from agents.decider.features import FeatureMap, FeatureSettings
from agents.decider.policies.base import ActionVector, Policy
from agents.decider.policies.exploration import Explored
from agents.decider.policies.knn import KNN
from agents.decider.policies.linucb import LinUCB, LinUCBSettings
from agents.decider.policies.thompson import Thompson
from agents.decider.policies.uniform import Uniform
from agents.embedder.actions import embed_actions
from agents.embedder.encoder import Encoder
from agents.space.action_space import uis_space
from agents.space.catalogue import Catalogue
from agents.space.describe import describe_actions
from streams.settings import Settings, SettingsError

POLICIES = ("linucb", "greedy", "thompson", "random", "knn", "mlp", "neural-ucb")

_FEATURES = (
    "action_features",
    "interactions",
    "query_rank",
    "action_rank",
    "interaction_scale",
    "basis_seed",
)
_LINEAR = ("alpha", "ridge", "reward", "widths")


def policy_of(settings: Settings, encoder: Encoder) -> Policy:
    """Return the policy of the settings, without actions yet.

    `policy_options` is a JSON object: of the features (action_features, interactions, …), of the linear policies
    (alpha, ridge, reward, widths) and `floor`, the exploration floor.

    Raises:
        SettingsError: an unknown policy or option.
    """
    try:
        options: dict[str, Any] = orjson.loads(settings.policy_options)
    except orjson.JSONDecodeError as error:
        raise SettingsError(f"policy_options: not a JSON object ({error})") from None
    unknown = set(options) - {*_FEATURES, *_LINEAR, "floor", "k"}
    if unknown:
        raise SettingsError(
            f"policy_options: {sorted(unknown)[0]!r} is unknown; use of {_FEATURES + _LINEAR}, floor, k"
        )
    features = FeatureMap(
        FeatureSettings(
            query_dim=encoder.dimension,
            action_dim=encoder.dimension,
            **{name: options[name] for name in _FEATURES if name in options},
        )
    )
    linear = {name: options[name] for name in _LINEAR if name in options}
    if settings.policy == "greedy":
        linear["alpha"] = 0.0
    ucb = LinUCBSettings(**linear)
    made: Policy
    match settings.policy:
        case "linucb":
            made = LinUCB(features, ucb)
        case "greedy":
            made = LinUCB(features, ucb, name="greedy")
        case "thompson":
            made = Thompson(features, ucb)
        case "random":
            made = Uniform(features)
        case "knn":
            made = KNN(features, k=int(options.get("k", 5)))
        case "mlp":
            from agents.decider.policies.mlp import MLP  # with torch, which costs seconds at start

            made = MLP(features)
        case "neural-ucb":
            from agents.decider.policies.neural_ucb import NeuralUCB

            made = NeuralUCB(features, alpha=ucb.alpha, ridge=ucb.ridge)
        case _:
            raise SettingsError(f"policy: {settings.policy!r} is unknown; one of {', '.join(POLICIES)}")
    return Explored(made, floor=float(options.get("floor", 0.0)), warm_up=settings.warm_up)


def action_vectors(
    catalogue: Catalogue, encoder: Encoder, cache: Path | None = None
) -> Sequence[ActionVector]:
    """Return every action of a catalogue with the embedding of its description."""
    actions = list(uis_space(catalogue))
    rows = embed_actions(encoder, describe_actions(actions, catalogue), cache)
    return [
        ActionVector(action.id, action.model, row.astype("float64"))
        for action, row in zip(actions, rows, strict=True)
    ]
