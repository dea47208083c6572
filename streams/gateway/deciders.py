"""Previews of decisions, from the read-only endpoint of a decider."""

from collections.abc import Sequence
from typing import Final

import httpx
import msgspec
import orjson

from agents.decider.preview import Preview
from schemas.query import Query
from schemas.record import encode
from streams.gateway.errors import NO_RETRY, ApiError
from streams.settings import Settings

_TIMEOUT_S: Final = 10.0


class Deciders:
    """Asks deciders in turn until one answers: of several, only the one that owns the learner can.

    Args:
        urls: Their addresses, for instance `http://decider:9101`.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)

    @classmethod
    def of(cls, settings: Settings) -> "Deciders":
        """Return the configured deciders."""
        asked = settings.previews
        return cls(asked.urls or ([f"http://127.0.0.1:{asked.port}"] if asked.port else []))

    async def preview(self, query: Query) -> Preview:
        """Return what would be chosen for a query. Nothing runs, and nothing is learned.

        Raises:
            ApiError: 400 if the query would be refused; 503, saying what to do, if no decider answers.
            RecordError: it does not fit into a record.
        """
        if not self.urls:
            raise _unavailable(
                "this gateway knows no decider. To fix this: set UNISCALE_DECIDER_PORT for the decider and "
                "UNISCALE_DECIDER_URL=http://HOST:PORT for the gateway (`up --gateway` does both)"
            )
        body, why = encode(query), []
        for url in self.urls:
            try:
                answered = await self._client.post(f"{url}/decide", content=body)
            except httpx.HTTPError as error:
                why.append(f"{url} does not answer ({type(error).__name__})")
                continue
            if answered.status_code == 200:
                return msgspec.json.decode(answered.content, type=Preview)
            field, message = _said(answered)
            if answered.status_code == 400:
                text = f"{field}: {message}" if field else message
                raise ApiError(400, text, param=field or None, code="invalid_value")
            why.append(f"{url}: {message}")
        fix = "To fix this: check that the service `decider` runs, with UNISCALE_DECIDER_PORT"
        raise _unavailable(f"no decider can say what would run: {'; '.join(why)}. {fix}")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _said(answered: httpx.Response) -> tuple[str, str]:
    try:
        said = orjson.loads(answered.content)
        return str(said.get("field", "")), str(said["message"])
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        return "", f"HTTP {answered.status_code}"


def _unavailable(why: str) -> ApiError:
    # The page retries at the next move of its slider; the official clients must not hammer a decider that is down.
    return ApiError(503, why, type="api_error", code="no_decider", headers={**NO_RETRY, "retry-after": "5"})
