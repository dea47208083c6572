"""The policy that the settings name, and the actions of a catalogue as the policy sees them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from agents.decider.errors import PolicyRefused
from agents.decider.policies.base import ActionVector, Policy
from agents.decider.policies.build import build_policy
from agents.decider.policies.exploration import Explored
from agents.embedder.actions import embed_actions
from agents.embedder.encoder import Encoder, encoder_id
from agents.space.action_space import uis_space
from agents.space.catalogue import Catalogue
from agents.space.describe import describe_actions
from agents.space.errors import ActionError
from schemas.action import Action
from streams.settings import Settings, SettingsError


def policy_of(settings: Settings, encoder: Encoder) -> Policy:
    """Return the policy of the settings, without actions yet.

    `policy_options` is a JSON object of the policy's options; docs/policies.md lists them.

    Raises:
        SettingsError: an unknown policy or option, or a value out of range.
    """
    try:
        options: Any = orjson.loads(settings.policy_options)
    except orjson.JSONDecodeError as error:
        raise SettingsError(f"policy_options: not a JSON object ({error})") from None
    if not isinstance(options, dict):
        raise SettingsError(f"policy_options: is a JSON {type(options).__name__}; write an object of options")
    try:
        return build_policy(
            settings.policy,
            {"warm_up": settings.warm_up, **options},
            query_dim=encoder.dimension,
            action_dim=encoder.dimension,
            encoder=encoder_id(encoder),
        )
    except PolicyRefused as error:
        raise SettingsError(str(error)) from None


def action_vectors(
    catalogue: Catalogue, encoder: Encoder, cache: Path | None = None
) -> Sequence[ActionVector]:
    """Return every action of a catalogue with the embedding of its description."""
    actions = list(uis_space(catalogue))
    sizes = {model.name: float(model.architecture.parameters) for model in catalogue.models}
    rows = embed_actions(encoder, describe_actions(actions, catalogue), cache)
    return [
        ActionVector(action.id, action.model, row.astype("float64"), sizes[action.model])
        for action, row in zip(actions, rows, strict=True)
    ]


def prior_of(settings: Settings) -> bytes:
    """Return the prior of the settings.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        return Path(settings.prior).read_bytes()
    except OSError as error:
        raise SettingsError(
            f"prior: {settings.prior} cannot be read ({error.strerror}); make it with `python -m experiments prior`"
        ) from None


def check_control_group(policy: Policy, catalogue: Catalogue) -> None:
    """Refuse a control group whose action is not on offer.

    Raises:
        SettingsError: naming what is.
    """
    control = policy.control if isinstance(policy, Explored) else None
    if control is None:
        return
    space = uis_space(catalogue)
    try:
        space.index(Action.parse(control.action_id))
    except ActionError as error:
        raise SettingsError(f"policy_options: control_action: {error}") from None
