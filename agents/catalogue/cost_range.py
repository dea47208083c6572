"""The unit of a catalogue's costs, and the cost range of one that gives none, from what its models charge.

C̃ is never clipped, so the bounds need not be exact: they must be of the right size, and stay (`streams.control` freezes
them).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from agents.catalogue.endpoints import MAX_ANSWERS
from agents.catalogue.models import CatalogueError, Hardware, Model
from agents.catalogue.search_cost import search_cost
from schemas.objective import CostRange, CostUnit
from schemas.prices import Billed

SHORT: Final = (100, 50)
"""Tokens of prompt and answer of a cheap query: the low bound is what the cheapest model charges for it."""

LONG: Final = (1000, 2000)
"""Those of a dear one: the high bound is what the dearest model charges for as many answers as it may give."""


class _Draft(NamedTuple):
    tokens: int
    parent: int = -1
    score: float | None = None


def unit_of(models: Sequence[Model]) -> CostUnit:
    """Return the unit of a catalogue that does not state it: USD where its models have prices.

    Raises:
        CatalogueError: some have a price and some have none; it names one of each.
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
    """Return the cost range that models imply; None if something is missing that their costs follow from.

    Args:
        models: The models.
        hardware: For eFLOPs.
        unit: What to count in.
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
