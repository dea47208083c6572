"""Derives the unit and the range of a catalogue's costs from its models, for a catalogue that does not state them.

C̃ is never clipped, so bounds of the right order of magnitude are good enough. They must not change later, even if
prices do, so the command that starts a deployment writes them to `control`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from agents.catalogue.endpoints import MAX_ANSWERS
from agents.catalogue.models import CatalogueError, Hardware, Model
from agents.catalogue.search_cost import search_cost
from schemas.objective import CostRange, CostUnit
from schemas.prices import Billed

SHORT: Final = (100, 50)
"""Prompt and answer tokens of a typical cheap query. The lower bound is what it costs on the cheapest model."""

LONG: Final = (1000, 2000)
"""Prompt and answer tokens of a typical expensive query. The upper bound is what it costs on the most expensive model,
when each model returns the largest number of answers that it can."""


class _Draft(NamedTuple):
    tokens: int
    parent: int = -1
    score: float | None = None


def unit_of(models: Sequence[Model]) -> CostUnit:
    """Return the unit for a catalogue that does not state one: USD if its models have prices, otherwise eFLOPs.

    Raises:
        CatalogueError: Only some models have a price. The message names one with a price and one without.
    """
    priced = [each.name for each in models if each.price is not None]
    bare = [each.name for each in models if each.price is None]
    if priced and bare:
        raise CatalogueError(
            f"model {bare[0]!r}, field price: is missing, but model {priced[0]!r} has one: a deployment counts in one "
            "unit; give every model a price, in USD per million tokens, or none"
        )
    return "usd" if priced else "eflops"


def derived(models: Sequence[Model], hardware: Hardware | None, unit: CostUnit) -> CostRange | None:
    """Derive the cost range from the models; None if a price, an architecture or the hardware is missing.

    Args:
        models: The models.
        hardware: The hardware, needed for eFLOPs.
        unit: Unit of the costs.
    """
    low = [cost for each in models if (cost := _cost(each, hardware, unit, SHORT, 1)) is not None]
    high = [cost for each in models if (cost := _cost(each, hardware, unit, LONG, _most(each))) is not None]
    if not models or len(low) < len(models):
        return None
    return CostRange(low=_rounded(min(low)), high=_rounded(max(high)), unit=unit)


def _most(model: Model) -> int:
    return max(model.endpoint.n) if model.endpoint.kind == "chat" else MAX_ANSWERS


def _rounded(cost: float) -> float:
    return float(f"{cost:.2g}")


def _cost(
    model: Model, hardware: Hardware | None, unit: CostUnit, tokens: tuple[int, int], answers: int
) -> float | None:
    prompt, new = tokens
    if unit == "usd":
        if model.price is None:
            return None
        return model.price.usd(Billed(input=prompt * answers, output=new * answers))
    shape = model.architecture
    if shape is None or hardware is None:
        return None
    cost = search_cost(prompt, [_Draft(new)] * answers, shape, shape, hardware.intensity)
    return cost.eflops * model.price_factor
