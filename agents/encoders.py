"""Encoders other than MiniLM (any server, or hashed words), and the choice of an encoder from the settings."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import httpx
import msgspec
import numpy as np
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from agents.embedding import (
    EMPTY_TEXT,
    BadEmbedding,
    Encoder,
    EncoderError,
    EncoderRefused,
    EncoderUnavailable,
    TextUnanswered,
    Vectors,
    readable,
    unit_rows,
)

# An encoder on any OpenAI-compatible `/v1/embeddings` endpoint, for instance Qwen3-Embedding served by vLLM.

RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
ATTEMPTS = 4  # requests per batch
BATCH = 64  # texts per request
FIRST_WAIT_S = 0.2  # before the second attempt; doubled for each further attempt
SILENCE_S = 10.0  # maximum silence from the server within a request
REPLY_S = 30.0  # maximum time for one whole reply
# Maximum length of a text, in characters because the client does not have the tokenizer for the server's model.
MAX_CHARACTERS = 20_000
QUOTED_CHARACTERS = 200  # to quote from a server's error message


class _Failing(EncoderRefused):
    """The server answered each attempt with an internal error (500): it is down, or fails on this text."""


class _RateLimited(EncoderUnavailable):
    """The server is rate-limiting requests (429), for reasons independent of the text."""


class _Trouble(Exception):
    """A retryable failure of one attempt. If all attempts fail, the request fails with the last one's `kind`."""

    def __init__(self, why: str, kind: type[EncoderError] = EncoderUnavailable) -> None:
        super().__init__(why)
        self.kind = kind


_KINDS: dict[int, type[EncoderError]] = {429: _RateLimited, 500: _Failing}


class EmbeddedText(msgspec.Struct):
    """One text's embedding in a reply."""

    embedding: list[float]
    index: int | None = None


class EmbeddingReply(msgspec.Struct):
    """A reply from `/v1/embeddings`. Servers may return the texts in a different order."""

    data: list[EmbeddedText]


class HttpEncoder:
    """An encoder on a server. Safe to call from several threads. Call `close`, or use it as a context manager.

    Texts are truncated to 20,000 characters.
    """

    version = "unversioned"  # servers do not report it reliably

    def __init__(
        self,
        *,
        url: str,
        model: str,
        dimension: int,
        api_key: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Set up the client without sending anything.

        Args:
            url: The server's base URL, with or without /v1.
            model: Name of the model on the server, which is also the encoder's name.
            dimension: Required number of components in each vector.
            api_key: API key; if set, it is sent as a bearer token.
            sleep: Function that waits for a number of seconds.
            clock: Monotonic clock, in seconds.
            transport: Transport for the requests; None opens connections.
        """
        self.name, self.dimension = model, dimension
        self._path = url.rstrip("/").removesuffix("/v1") + "/v1/embeddings"
        self._sleep, self._clock = sleep, clock
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # Do not use a proxy from the environment unless configured.
        self._client = httpx.Client(timeout=SILENCE_S, headers=headers, trust_env=False, transport=transport)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row per text, shape (len(texts), dimension), float32.

        Raises:
            EncoderRefused: The server rejects these texts but accepts others.
            TextUnanswered: All attempts at these texts failed, but the server embeds another text.
            EncoderUnavailable: All attempts failed, and the server does not embed any other text either.
            BadEmbedding: The reply lacks a valid embedding for some text, although other texts get one.
        """
        cut = [readable(text[:MAX_CHARACTERS]) for text in texts]
        try:
            return self._rows(cut)
        except _Failing as error:
            self._blame(error)
            return self._rows(cut, attempts=1)  # the server may have recovered in the meantime
        except (EncoderRefused, BadEmbedding) as error:
            self._blame(error)
            raise
        except _RateLimited:
            raise
        except EncoderUnavailable as error:
            self._blame(error)
            raise TextUnanswered(f"{error}; it embeds another text") from error

    def _rows(self, texts: list[str], attempts: int = ATTEMPTS) -> Vectors:
        rows = [
            self._read(self._request(some, attempts), len(some))
            for some in (texts[at : at + BATCH] for at in range(0, len(texts), BATCH))
        ]
        return np.concatenate([np.zeros((0, self.dimension), np.float32), *rows])

    def _blame(self, error: EncoderError) -> None:
        """Return if the server embeds another text, meaning that the failed text is at fault; raise otherwise.

        An expired key, an unknown model, a web page instead of an answer or a wrong dimension affects every text. There
        is only one attempt, so that a flaky server counts as failing.

        Raises:
            EncoderUnavailable: The server does not embed any text.
        """
        try:
            self._read(self._request([EMPTY_TEXT], attempts=1), 1)
        except EncoderError:
            raise EncoderUnavailable(f"{error}; it does not embed any other text either") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        """Return the encoder."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the encoder."""
        self.close()

    def _request(self, texts: list[str], attempts: int) -> bytes:
        body = {"model": self.name, "input": texts, "encoding_format": "float"}
        policy = Retrying(
            retry=retry_if_exception_type(_Trouble),
            stop=stop_after_attempt(attempts),
            wait=wait_exponential(multiplier=FIRST_WAIT_S),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return policy(self._attempt, body)
        except _Trouble as trouble:
            raise trouble.kind(
                f"{self._path}: {attempts} attempts failed, the last with {trouble}; "
                "check that the server is up and takes texts as long as this one"
            ) from trouble

    def _attempt(self, body: dict[str, Any]) -> bytes:
        try:
            response = self._whole(body)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise _Trouble(f"{type(error).__name__}: {error}") from error
        if response.is_success:
            return response.content
        said = response.content[: 4 * QUOTED_CHARACTERS].decode("utf-8", "replace")[:QUOTED_CHARACTERS]
        trouble = f"HTTP {response.status_code}: {said}"
        if response.status_code in RETRIED_STATUS:
            raise _Trouble(trouble, _KINDS.get(response.status_code, EncoderUnavailable))
        raise EncoderRefused(
            f"{self._path}: {trouble}; check the model's name, the key and the text's length"
        )

    def _whole(self, body: dict[str, Any]) -> httpx.Response:
        """Return a complete reply, read within `REPLY_S`. httpx limits only individual pauses, not their sum."""
        until = self._clock() + REPLY_S
        with self._client.stream("POST", self._path, json=body) as response:
            parts = []
            for part in response.iter_bytes():
                parts.append(part)
                if self._clock() > until:
                    raise _Trouble(f"no complete reply in {REPLY_S:g} s")
            # The content is already decoded, so drop the header to avoid decoding it twice.
            headers = {k: v for k, v in response.headers.items() if k != "content-encoding"}
            return httpx.Response(
                response.status_code, headers=headers, content=b"".join(parts), request=response.request
            )

    def _read(self, content: bytes, count: int) -> Vectors:
        """Return a reply's rows in the order of the texts."""
        try:
            data = msgspec.json.decode(content, type=EmbeddingReply).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            quoted = content[:QUOTED_CHARACTERS].decode(errors="replace")
            raise BadEmbedding(
                f"{self._path}: {quoted!r} holds no embeddings: {error}; check the url, and that the server embeds"
            ) from error
        places = [at if each.index is None else each.index for at, each in enumerate(data)]
        if sorted(places) != list(range(count)):
            raise BadEmbedding(
                f"{self._path}: embeddings {sorted(places)} for {count} texts; check that the server embeds"
            )
        lengths = {len(each.embedding) for each in data}
        if lengths - {self.dimension}:
            raise BadEmbedding(
                f"{self._path}: vectors of length {sorted(lengths)}, expected {self.dimension}; "
                "set the encoder's dimension to the model's"
            )
        rows = np.empty((count, self.dimension))
        rows[places] = [each.embedding for each in data]
        return unit_rows(rows, count, self.dimension)


class HashedEncoder:
    """Encoder that hashes words to signed coordinates. It needs no model and takes microseconds per text.

    It is intended for benchmarks of everything but the encoder, because it does not capture meaning: a policy can learn
    only from the words that occur.
    """

    name = "hashed-words"
    version = "1"

    def __init__(self, dimension: int = 64) -> None:
        self.dimension = dimension

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row per text."""
        rows = np.zeros((len(texts), self.dimension))
        for row, text in zip(rows, texts, strict=True):
            row[0] = 1e-3  # the words of a text must not cancel out
            for word in readable(text).lower().split():
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                at = int.from_bytes(digest[:4], "little") % self.dimension
                row[at] += 1.0 if digest[4] & 1 else -1.0
        return unit_rows(rows, len(texts), self.dimension)


# The encoder named in the settings.


class EncoderChoice(Protocol):
    """Settings for an encoder; see `streams.settings.EncoderSettings`."""

    @property
    def kind(self) -> str:
        """Return `minilm`, `http` or `hashed`."""

    @property
    def url(self) -> str:
        """Return the server's address, for `http`."""

    @property
    def model(self) -> str:
        """Return the model's name on the server."""

    @property
    def dimension(self) -> int:
        """Return the number of components in each vector; 0 for `hashed`'s default."""

    @property
    def key(self) -> str:
        """Return the API key; empty if there is none."""


def encoder_of(choice: EncoderChoice) -> Encoder:
    """Return the encoder named in the settings, which is used for both queries and actions.

    Raises:
        EncoderError: The encoder's files are missing.
    """
    if choice.kind == "hashed":
        return HashedEncoder(choice.dimension or 64)
    if choice.kind == "http":
        return HttpEncoder(
            url=choice.url, model=choice.model, dimension=choice.dimension, api_key=choice.key or None
        )
    from agents.minilm import MiniLM  # imported here because it loads onnxruntime

    return MiniLM()
