"""Model names of the gateway: which of them are virtual, and what they ask of the decider.

auto                 the deployment's default objective
auto:<objective>     an objective of `control`, by name
<model>              that model, at whatever width the policy chooses
<model>/qp/cp/bs     exactly that configuration
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from schemas.action import Action
from schemas.errors import InvalidField
from streams.rooms.gateway.openai.errors import no_model

AUTO = "auto"


class Asked(Struct, frozen=True):
    """What a model name asks for.

    Attributes:
        objective: Name of an objective; None for the default.
        model: The only model allowed; None for all.
        pin: The configuration that must run, `model/qp/cp/bs`.
    """

    objective: str | None = None
    model: str | None = None
    pin: str | None = None


def asked(name: str, models: Iterable[str], objectives: Iterable[str], actions: Iterable[str]) -> Asked:
    """Return what a model name asks for.

    Args:
        name: The `model` of the request.
        models: Names of the catalogue in force.
        objectives: Names of the objectives in force.
        actions: Ids of the configurations on offer.

    Raises:
        ApiError: 404, saying which names there are.
    """
    known = set(models)
    if name == AUTO:
        return Asked()
    if name in known:
        return Asked(model=name)
    if name.startswith(f"{AUTO}:"):
        objective = name.removeprefix(f"{AUTO}:")
        if objective in set(objectives):
            return Asked(objective=objective)
        raise no_model(name)
    try:
        action = Action.parse(name)
    except InvalidField:
        raise no_model(name) from None
    if action.model not in known or action.id not in set(actions):
        raise no_model(name)
    return Asked(pin=action.id)


def listing(
    models: Iterable[str], objectives: Iterable[str], actions: Iterable[str], created: int
) -> list[dict[str, Any]]:
    """Return the entries of `/v1/models`, every name that `asked` knows: virtual ones, models, configurations."""
    virtual = [AUTO, *(f"{AUTO}:{name}" for name in sorted(objectives))]
    return [_entry(name, "virtual", created) for name in virtual] + [
        _entry(name, "concrete", created) for name in (*models, *actions)
    ]


def _entry(name: str, routing: Literal["virtual", "concrete"], created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "uniscale", "routing": routing}
