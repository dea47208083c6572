"""Any OpenAI-compatible `/v1/embeddings`: for production, for instance a Qwen3-Embedding served by vLLM."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import httpx
import numpy as np
import numpy.typing as npt
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from agents.embedder.encoder import Vectors, readable, unit_rows
from agents.embedder.errors import BadEmbedding, EncoderRefused, EncoderUnavailable

RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
MOST_WAIT_S = 5.0
QUOTED_CHARACTERS = 200  # of a server's complaint


class _Trouble(Exception):
    """An attempt failed in a way that another may not."""


class HttpEncoder:
    """An encoder behind HTTP. Safe to call from several threads; `close` it, or use it in a `with`.

    Texts over `max_characters` are cut from the end and counted in `truncated`: the client has no tokenizer
    of the server's model, so the limit is in characters. Keep it below what the model takes.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        dimension: int,
        version: str = "unversioned",
        api_key: str | None = None,
        max_characters: int = 20_000,
        batch: int = 64,
        attempts: int = 4,
        timeout_s: float = 10.0,
        backoff_s: float = 0.2,
        reply_s: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        trust_environment: bool = False,
    ) -> None:
        """Set up the client; nothing is sent yet.

        Args:
            url: Base of the server, with or without /v1.
            model: The model's name there; it becomes the encoder's name.
            dimension: The length its vectors must have.
            version: What to record as provenance: the server cannot be trusted to tell.
            api_key: Sent as a bearer token when given.
            max_characters: Longest text sent.
            batch: Most texts a request.
            attempts: Most requests for one batch.
            timeout_s: Longest silence of the server within a request, in seconds.
            backoff_s: Wait before the second attempt, in seconds; doubled for each further one, at most 5 s.
            reply_s: Longest time one reply may take in all, in seconds.
            sleep: How to wait.
            clock: Seconds, monotonic.
            trust_environment: Take proxies and certificates from the environment's variables.

        Raises:
            ValueError: naming the argument that is out of range.
        """
        if not _is_http(url):
            raise ValueError(f"url is {url!r}: give one such as http://host:8000")
        least = {
            "dimension": dimension,
            "max_characters": max_characters,
            "batch": batch,
            "attempts": attempts,
        }
        for name, value in least.items():
            if value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
        self.name, self.version, self.dimension, self.truncated = model, version, dimension, 0
        self._path = url.rstrip("/").removesuffix("/v1") + "/v1/embeddings"
        self._max_characters, self._batch, self._attempts = max_characters, batch, attempts
        self._backoff_s, self._sleep = backoff_s, sleep
        self._reply_s, self._clock = reply_s, clock
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(timeout=timeout_s, headers=headers, trust_env=trust_environment)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row a text, shape (len(texts), dimension), float32.

        Raises:
            EncoderRefused: the server will not take the request.
            EncoderUnavailable: no usable answer within the attempts.
            BadEmbedding: the answer holds no embedding for each text.
        """
        self.truncated += sum(len(text) > self._max_characters for text in texts)
        cut = [readable(text[: self._max_characters]) for text in texts]
        rows = [
            self._read(self._request(some), len(some))
            for some in (cut[at : at + self._batch] for at in range(0, len(cut), self._batch))
        ]
        return np.concatenate([np.zeros((0, self.dimension), np.float32), *rows])

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def __enter__(self) -> Self:
        """Return the encoder."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the encoder."""
        self.close()

    def _request(self, texts: list[str]) -> Any:
        body = {"model": self.name, "input": texts, "encoding_format": "float"}
        policy = Retrying(
            retry=retry_if_exception_type(_Trouble),
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential(multiplier=self._backoff_s, max=MOST_WAIT_S),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return policy(self._attempt, body)
        except _Trouble as trouble:
            raise EncoderUnavailable(
                f"{self._path}: {self._attempts} attempts failed, the last with {trouble}; "
                "check that the server is up"
            ) from trouble

    def _attempt(self, body: dict[str, Any]) -> Any:
        try:
            response = self._whole(body)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise _Trouble(f"{type(error).__name__}: {error}") from error
        if response.is_success:
            return _decoded(response)
        trouble = f"HTTP {response.status_code}: {response.text[:QUOTED_CHARACTERS]}"
        if response.status_code in RETRIED_STATUS:
            raise _Trouble(trouble)
        raise EncoderRefused(
            f"{self._path}: {trouble}; check the model's name, the key and the text's length"
        )

    def _whole(self, body: dict[str, Any]) -> httpx.Response:
        """Return a reply, read to its end within `reply_s`: httpx limits each silence only, not their sum."""
        until = self._clock() + self._reply_s
        with self._client.stream("POST", self._path, json=body) as response:
            parts = []
            for part in response.iter_bytes():
                parts.append(part)
                if self._clock() > until:
                    raise _Trouble(f"no complete reply in {self._reply_s:g} s")
            # Decoded already: without the header, so that it is not done twice.
            headers = {k: v for k, v in response.headers.items() if k != "content-encoding"}
            return httpx.Response(
                response.status_code, headers=headers, content=b"".join(parts), request=response.request
            )

    def _read(self, answer: Any, count: int) -> Vectors:
        """Return the rows of an answer in the order of the texts: servers may send them in another."""
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or len(data) != count:
            got = f"{len(data)} embeddings" if isinstance(data, list) else "no list `data`"
            raise BadEmbedding(f"{self._path}: {got} for {count} texts; check that the server embeds")
        found = dict(_indexed(each, at) for at, each in enumerate(data))
        if sorted(found) != list(range(count)):
            raise BadEmbedding(
                f"{self._path}: `index` runs over {sorted(found)} for {count} texts; check the server"
            )
        return unit_rows(self._rows([found[at] for at in range(count)]), count, self.dimension)

    def _rows(self, lists: list[Any]) -> npt.NDArray[np.float64]:
        lengths = {len(each) if isinstance(each, list) else None for each in lists}
        if lengths != {self.dimension}:
            raise BadEmbedding(
                f"{self._path}: vectors of length {sorted(map(str, lengths))}, expected {self.dimension}; "
                "set the encoder's dimension to the model's"
            )
        try:
            return np.array(lists, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise BadEmbedding(
                f"{self._path}: an embedding holds something that is not a number; check the server"
            ) from error


def _is_http(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def _decoded(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        quoted = response.text[:QUOTED_CHARACTERS]
        raise BadEmbedding(
            f"{response.url}: answered {quoted!r}, which is not JSON; check the url"
        ) from error


def _indexed(item: Any, at: int) -> tuple[int, Any]:
    if not isinstance(item, Mapping) or not isinstance(item.get("index", at), int):
        raise BadEmbedding(f"embedding {at}: is not an object with an index; check that the server embeds")
    return item.get("index", at), item.get("embedding")
