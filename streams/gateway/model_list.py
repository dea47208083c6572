"""The entries of `GET /v1/models`, with the details that clients of other gateways read, under OpenRouter's names."""

from collections.abc import Iterable
from typing import Any, Final, Literal

from agents.catalogue.models import Catalogue, Model
from schemas.action import Action
from schemas.chat import FIELDS, Requirement
from schemas.prices import MILLION, Prices
from streams.gateway.request import AUTO

_PARAMETERS: Final = ("max_tokens", "stop", "seed")
"""Parameters that every model honours."""

_OF: Final[dict[Requirement, tuple[str, ...]]] = {
    "sampling": FIELDS["sampling"],
    "penalties": FIELDS["penalties"],
    "tools": ("tools", "tool_choice", "parallel_tool_calls"),
    "json": ("response_format", "structured_outputs"),
    "logprobs": ("logprobs", "top_logprobs"),
}
"""Parameters of models that have what they require."""


def listing(
    catalogue: Catalogue, objectives: Iterable[str], actions: Iterable[str], created: int
) -> list[dict[str, Any]]:
    """Return an entry for each name that a request may ask for: virtual ones, models, configurations.

    A virtual name has the longest context and all parameters of the models, and no price of its own.

    Args:
        catalogue: The current catalogue.
        objectives: Names of the current objectives.
        actions: Ids of the offered configurations.
        created: Seconds since the epoch.
    """
    by_name = {model.name: _details(model) for model in catalogue.models}
    anyone = {
        "context_length": max((each["context_length"] for each in by_name.values()), default=0),
        "pricing": None,
        "supported_parameters": list(
            dict.fromkeys(name for each in by_name.values() for name in each["supported_parameters"])
        ),
    }
    virtual = [AUTO, *(f"{AUTO}:{name}" for name in sorted(objectives))]
    return [
        *(_entry(name, "virtual", created, anyone) for name in virtual),
        *(_entry(name, "concrete", created, details) for name, details in by_name.items()),
        *(_entry(name, "concrete", created, by_name[Action.parse(name).model]) for name in actions),
    ]


def _entry(
    name: str, routing: Literal["virtual", "concrete"], created: int, details: dict[str, Any]
) -> dict[str, Any]:
    made = {"id": name, "object": "model", "created": created, "owned_by": "uniscale", "routing": routing}
    return {**made, **details}


def _details(model: Model) -> dict[str, Any]:
    """Return a model's context, its prices in USD per token as text, and the parameters that it honours."""
    parameters = [*_PARAMETERS, *(name for need in _OF if model.honours((need,)) for name in _OF[need])]
    if model.effort:
        parameters.append("reasoning_effort")
    pricing = None
    if isinstance(model.rate, Prices):
        rates = {"prompt": model.rate.input, "completion": model.rate.output}
        if model.rate.cached_input is not None:
            rates["input_cache_read"] = model.rate.cached_input
        pricing = {name: f"{usd / MILLION:.12f}".rstrip("0").rstrip(".") for name, usd in rates.items()}
    return {
        "context_length": model.engine.context_tokens,
        "pricing": pricing,
        "supported_parameters": parameters,
    }
