"""Token prices: a search's billed tokens, and its model's token prices in US dollars."""

import math
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from schemas.errors import InvalidField

MAX_COUNT: Final = 2**40
"""Far above any real count, yet sums over the largest search still fit in the 64-bit integers of databases and
clients."""

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]

MILLION: Final = 1e6
"""Number of tokens that a price is quoted for."""

MOST: Final = 1e6
"""Far above any real price, so a larger number is a mistake in the unit."""


class Billed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A search's token counts, summed over all its requests, as reported by an upstream or the engine.

    Attributes:
        input: Prompt tokens, counted once per request.
        cached_input: Prompt tokens served from the upstream's cache, also included in `input`.
        output: Generated tokens, including reasoning.
        reasoning: Generated tokens that are not part of an answer, also included in `output`.
    """

    input: Count = 0
    cached_input: Count = 0
    output: Count = 0
    reasoning: Count = 0

    def plus(self, other: "Billed") -> "Billed":
        """Return the sum of the two."""
        return Billed(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Prices(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's token prices, in USD per million tokens.

    Attributes:
        input: Price of prompt tokens.
        output: Price of generated tokens, including reasoning.
        cached_input: Price of prompt tokens served from a cache; None means the same price as `input`.

    >>> Prices(input=0.5, output=2.0).usd(Billed(input=1000, output=250))
    0.001
    """

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        """Reject a price that is not above 0, because the reward needs the logarithm of the cost."""
        for name in ("input", "output", "cached_input"):
            price = getattr(self, name)
            if price is not None and not 0.0 < price <= MOST:  # NaN fails every comparison
                why = f"is {price}; give USD per million tokens, above 0: give the least that you would pay"
                raise InvalidField("Prices", name, why)

    def usd(self, billed: Billed) -> float:
        """Return the cost of the billed tokens, in USD."""
        cached = min(billed.cached_input, billed.input)
        of_cached = self.input if self.cached_input is None else self.cached_input
        costs = (billed.input - cached) * self.input, cached * of_cached, billed.output * self.output
        return math.fsum(costs) / MILLION


Rate: TypeAlias = float | Prices
"""A model's price: a multiplier for its eFLOPs (the price factor), or its token prices in USD."""


def rate_in_words(rate: Rate) -> str:
    """Return a description of a model's price.

    >>> rate_in_words(1.5), rate_in_words(Prices(input=0.15, output=0.6))
    ('1.5 an eFLOP', '$0.15 a million tokens of input, $0.6 of output')
    """
    if not isinstance(rate, Prices):
        return f"{rate:g} an eFLOP"
    cached = "" if rate.cached_input is None else f", ${rate.cached_input:g} of those cached"
    return f"${rate.input:g} a million tokens of input{cached}, ${rate.output:g} of output"
