"""List prices of hosted models, for `price: auto`, from the package genai-prices.

The package does not date its prices, so they count as those of the day when the pinned release was published. Prices
that vary by date or by hour are read for noon UTC of that day, so that every process gets the same prices whenever it
starts.
"""

from datetime import UTC, datetime
from typing import Any, Final

from schemas.errors import InvalidField
from schemas.prices import Prices

RELEASE: Final = "0.2.3"
AS_OF: Final = datetime(2026, 11, 10, 12, tzinfo=UTC)
"""Noon UTC of the day when the pinned release was published."""

SOURCE: Final = f"genai-prices {RELEASE} of {AS_OF:%Y-%m-%d}"


def list_price(url: str, model: str) -> Prices:
    """Return the list price of a hosted model. If long prompts cost more per token, this is the price for short ones.

    Args:
        url: The address of the model's server, by which the provider is identified.
        model: The model's name on that server. A proxy's names start with the provider, as in `openai/gpt-4o`.

    Raises:
        InvalidField: The package is not installed, or does not know the provider, the model or one of its prices.
    """
    provider, _, name = model.partition("/")
    for found in (_stated(model, url=url), _stated(name, provider=provider) if name else None):
        if found is None:
            continue
        costs = {kind: _base(getattr(found, f"{kind}_mtok")) for kind in ("input", "output", "cache_read")}
        if costs["input"] and costs["output"]:
            return Prices(input=costs["input"], output=costs["output"], cached_input=costs["cache_read"])
    raise _unknown(f"{SOURCE} does not know {model} at {url}")


def _stated(model: str, *, url: str | None = None, provider: str | None = None) -> Any:
    """Return the package's prices for a model; None if it does not know the model."""
    try:
        from genai_prices import Usage, calc_price  # takes 0.4 s, and not every deployment needs it
    except ModuleNotFoundError as error:
        if error.name != "genai_prices":
            raise
        raise _unknown("needs the package genai-prices, which is not installed here") from None
    usage = Usage(input_tokens=1)
    try:
        if provider is not None:
            calculation = calc_price(usage, model, provider_id=provider, genai_request_timestamp=AS_OF)
        else:
            calculation = calc_price(usage, model, provider_api_url=url, genai_request_timestamp=AS_OF)
    except LookupError:
        return None
    return calculation.model_price


def _base(price: Any) -> float | None:
    """Return a price as a number, that of the shortest prompts if it has tiers; None if it is unknown or 0."""
    found = getattr(price, "base", price)
    return float(found) if found else None


def _unknown(why: str) -> InvalidField:
    return InvalidField(
        "Model",
        "price",
        f"is auto, but {why}; give USD per million tokens, such as {{input: 0.15, output: 0.6}}",
    )
