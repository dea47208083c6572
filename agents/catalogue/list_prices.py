"""List prices of hosted models, for `price: auto`, from the package genai-prices.

Its data have no date of their own, so they have the date of the pinned release. Prices that depend on the date or the
hour are those of noon UTC on that day, so every process reads the same prices whenever it starts.
"""

from datetime import UTC, datetime
from typing import Any, Final

from schemas.errors import InvalidField
from schemas.prices import Prices

RELEASE: Final = "0.2.3"
AS_OF: Final = datetime(2026, 11, 10, 12, tzinfo=UTC)
"""When the pinned release was published."""

SOURCE: Final = f"genai-prices {RELEASE} of {AS_OF:%Y-%m-%d}"


def list_price(url: str, model: str) -> Prices:
    """Return the list price of a hosted model. If longer prompts cost more, it is the price for the shortest ones.

    Args:
        url: The address of the model's server, which identifies the provider.
        model: The model's name on that server. Behind a proxy, it begins with the provider, as in `openai/gpt-4o`.

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
    """Return a price from the package, or its base if it has tiers by the length of the prompt."""
    found = getattr(price, "base", price)
    return float(found) if found else None


def _unknown(why: str) -> InvalidField:
    return InvalidField(
        "Model",
        "price",
        f"is auto, but {why}; give USD per million tokens, such as {{input: 0.15, output: 0.6}}",
    )
