"""What a user sets of the contextual policy, and how it is built from that."""

from agents.decider.features import FeatureSettings
from agents.decider.policies.contextual.design import Design
from agents.decider.policies.contextual.policy import Contextual, ContextualSettings
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, Options, policy
from agents.decider.surface import COUNTS


class ContextualOptions(Options, frozen=True, kw_only=True):
    """Options of the contextual policy.

    Attributes:
        alpha, ridge, query_ridge, detail_ridge, caution: see ContextualSettings.
        query_rank: Length of z_q without its constant: the surface counts, and two more directions.
    """

    alpha: float = 0.05
    ridge: float = 3.0
    query_ridge: float = 30.0
    detail_ridge: float = 300.0
    caution: float = 0.1
    query_rank: int = 11

    def __post_init__(self) -> None:
        """Refuse numbers it cannot run with."""
        super().__post_init__()
        self.not_negative("alpha", "caution")
        self.positive("ridge", "query_ridge", "detail_ridge")
        for name in ("action_features", "interactions"):
            if getattr(self, name) != Options.__struct_defaults__[Options.__struct_fields__.index(name)]:
                raise ValueError(f"{name} does not apply to the contextual policy; leave it out")


@policy("contextual", ContextualOptions)
def _contextual(options: ContextualOptions, on: Inputs) -> Policy:
    features = FeatureSettings(
        query_dim=on.query_dim + len(COUNTS),
        action_dim=on.action_dim,
        query_rank=options.query_rank,
        interaction_scale=options.interaction_scale,
        basis_seed=options.basis_seed,
    )
    settings = ContextualSettings(
        alpha=options.alpha,
        ridge=options.ridge,
        query_ridge=options.query_ridge,
        detail_ridge=options.detail_ridge,
        caution=options.caution,
        encoder=on.encoder,
    )
    return Contextual(Design(features), settings)
