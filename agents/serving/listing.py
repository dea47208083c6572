"""Asks a server which models it serves, with their names, context lengths and prices."""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from agents.serving.errors import EngineReplyError, ServingError
from agents.serving.http import JsonServer
from schemas.errors import UniscaleError
from schemas.prices import MILLION, Prices

T = TypeVar("T")

Tokens = Annotated[int, Meta(ge=1)]

MODELS = "/v1/models"
MODEL_INFO = "/model/info"
"""LiteLLM's own list, with contexts and prices."""


class Listed(Struct, frozen=True, kw_only=True):
    """A model that a server lists.

    Attributes:
        id: Its name on the server.
        root: Where vLLM loaded it from: a folder or a name on the Hugging Face hub. Empty if unknown.
        context_tokens: Maximum tokens of prompt and answer together; None if unknown.
        max_output_tokens: Maximum tokens of an answer; None if unknown.
        price: Its token prices; None if unknown.
        priced_by: Source of the price.
    """

    id: str
    root: str = ""
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    price: Prices | None = None
    priced_by: str = ""


class _Entry(Struct):
    """A listed model: vLLM gives `root` and `max_model_len`, llama.cpp gives `meta`, other servers give less."""

    id: str
    root: str | None = None
    max_model_len: Tokens | None = None
    meta: Any = None

    @property
    def context_tokens(self) -> int | None:
        """Return the maximum tokens of prompt and answer together; None if the server does not say."""
        slot = self.meta.get("n_ctx") if isinstance(self.meta, dict) else None
        return self.max_model_len or (slot if isinstance(slot, int) and slot > 0 else None)


class _List(Struct):
    data: list[_Entry]


class _Info(Struct, frozen=True):
    mode: str | None = None
    max_input_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None

    @property
    def price(self) -> Prices | None:
        """Return the prices per million tokens; None if the proxy does not know them or says that tokens are free."""
        if not self.input_cost_per_token or not self.output_cost_per_token:
            return None
        costs = (self.input_cost_per_token, self.output_cost_per_token, self.cache_read_input_token_cost)
        million = [float(f"{each * MILLION:.6g}") if each else None for each in costs]
        try:
            return Prices(input=million[0] or 0.0, output=million[1] or 0.0, cached_input=million[2])
        except UniscaleError:
            return None


class _Deployed(Struct):
    model_name: str
    model_info: _Info = _Info()


class _Proxied(Struct):
    data: list[_Deployed]


async def listed(server: JsonServer) -> list[Listed]:
    """Return the models that a server lists at `/v1/models`, in its order.

    Raises:
        ServingError: The server does not answer, refuses the request, or its reply is not a list of models.
    """
    found = _read(await server.get(MODELS), _List, MODELS)
    return [
        Listed(id=each.id, root=each.root or "", context_tokens=each.context_tokens) for each in found.data
    ]


async def proxied(server: JsonServer) -> list[Listed]:
    """Return the chat models that LiteLLM's proxy lists at `/model/info`, with contexts and prices.

    If several deployments serve a model, it gets the shortest of their contexts and the highest of their prices.

    Raises:
        ServingError: The server does not answer, refuses the request, or is not such a proxy.
    """
    reply = _read(await server.get(MODEL_INFO), _Proxied, MODEL_INFO)
    found: dict[str, Listed] = {}
    for each in reply.data:
        info = each.model_info
        if info.mode not in (None, "chat", "responses"):
            continue
        one = Listed(
            id=each.model_name,
            context_tokens=info.max_input_tokens or info.max_tokens,
            max_output_tokens=info.max_output_tokens,
            price=info.price,
            priced_by="the proxy",
        )
        found[one.id] = _both(found.get(one.id, one), one)
    return list(found.values())


async def prices_of(server: JsonServer) -> dict[str, Prices]:
    """Return the prices that a server states, by its model names; empty if it states none."""
    try:
        return {each.id: each.price for each in await proxied(server) if each.price is not None}
    except ServingError:
        return {}


def _both(one: Listed, other: Listed) -> Listed:
    def least(*counts: int | None) -> int | None:
        return min((each for each in counts if each is not None), default=None)

    prices = [each for each in (one.price, other.price) if each is not None]
    return Listed(
        id=one.id,
        context_tokens=least(one.context_tokens, other.context_tokens),
        max_output_tokens=least(one.max_output_tokens, other.max_output_tokens),
        price=max(prices, key=lambda each: each.output, default=None),
        priced_by=one.priced_by,
    )


def _read(reply: dict[str, Any], kind: type[T], path: str) -> T:
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise EngineReplyError(f"{path}: unexpected reply: {error}") from error
