"""The policy that the settings name, and the actions of a catalogue as the policy sees them."""

from collections.abc import Sequence
from pathlib import Path

from agents.decider.errors import PolicyRefused
from agents.decider.policies.base import ActionVector
from agents.decider.policies.build import build_policy
from agents.decider.policies.exploration import Explored
from agents.decider.policies.policy import Policy
from agents.embedder.actions import embed_actions
from agents.embedder.encoder import Encoder, encoder_id
from agents.space.action_space import PAIRS, ActionSpace, uis_space
from agents.space.catalogue import Catalogue
from agents.space.catalogue_file import prior_of_catalogue
from agents.space.describe import describe_actions
from agents.space.errors import ActionError
from schemas.action import Action
from streams.settings import Settings, SettingsError, variable


def policy_of(settings: Settings, encoder: Encoder) -> Policy:
    """Return the policy of the settings, without actions yet.

    Raises:
        SettingsError: an unknown policy or option, or a value out of range.
    """
    try:
        return build_policy(
            settings.policy.name,
            {"warm_up": settings.policy.warm_up, **settings.policy.options},
            query_dim=encoder.dimension,
            action_dim=encoder.dimension,
            encoder=encoder_id(encoder),
        )
    except PolicyRefused as error:
        raise SettingsError(str(error)) from None


def action_vectors(
    catalogue: Catalogue,
    encoder: Encoder,
    cache: Path | None = None,
    *,
    pairs: Sequence[tuple[int, int]] = PAIRS,
) -> Sequence[ActionVector]:
    """Return every action of a catalogue with these (QP, CP), each with the embedding of its description."""
    actions = list(uis_space(catalogue, pairs))
    sizes = {model.name: float(model.architecture.parameters) for model in catalogue.models}
    rows = embed_actions(encoder, describe_actions(actions, catalogue), cache)
    return [
        ActionVector(action.id, action.model, row.astype("float64"), sizes[action.model])
        for action, row in zip(actions, rows, strict=True)
    ]


def prior_of(settings: Settings) -> Path | None:
    """Return the file of the prior that the settings name or else the catalogue; None if there is none."""
    if settings.policy.prior == "none":
        return None
    return (
        Path(settings.policy.prior) if settings.policy.prior else prior_of_catalogue(Path(settings.catalogue))
    )


def read_prior(path: Path) -> bytes:
    """Return a prior's bytes.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{variable('prior')}: {path} cannot be read ({error.strerror}); make it with `python -m experiments prior`"
        ) from None


def check_control_group(policy: Policy, space: ActionSpace) -> None:
    """Refuse a control group whose action is not on offer.

    Raises:
        SettingsError: naming what is.
    """
    control = policy.control if isinstance(policy, Explored) else None
    if control is None:
        return
    try:
        space.index(Action.parse(control.action_id))
    except ActionError as error:
        raise SettingsError(f"{variable('policy_options')}: control_action: {error}") from None
