"""Text to unit vector: what an encoder promises, encoders over HTTP, and Query to Context (§3.1)."""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import httpx
import msgspec
import numpy as np
import numpy.typing as npt
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from schemas.errors import UniscaleError
from schemas.query import Origin, Query, QueryContext

# What can go wrong between a text and its vector.
#
# UniscaleError
# └── EncoderError
#     ├── EncoderFilesError     a model or tokenizer file that is missing or not the pinned one
#     ├── EncoderRefused        the server will not take this text (4xx, or 500 each time) but takes others: final
#     ├── EncoderUnavailable    it embeds no text at present, or limits the rate: the same request may pass later
#     │   └── TextUnanswered    no usable answer to this text, while it embeds another: final after a few times
#     └── BadEmbedding          for this text, an answer that is no embedding: count, dimension, NaN, zero length


class EncoderError(UniscaleError):
    """A text did not become a vector."""

    instead = (
        "the encoder gives this text no vector; shorten or change it, or ask the operator, whose log says why"
    )


class EncoderFilesError(EncoderError):
    """A file the encoder needs is missing, or is not the pinned one."""


class EncoderRefused(EncoderError):
    """The server refused the request for good."""


class EncoderUnavailable(EncoderError):
    """The server gave no usable answer within the attempts allowed."""

    instead = "the encoder does not answer at present; try again later"


class TextUnanswered(EncoderUnavailable):
    """The server gave no usable answer to this text, and embedded another: a load balancer or the text is at fault."""

    instead = "the encoder does not answer to this text; shorten or change it, or try again later"


class BadEmbedding(EncoderError):
    """What came back is not a unit-scalable vector of the expected dimension for every text."""


# Text to unit vector: what an encoder promises, whichever it is.
#
# `minilm.py` runs one here; `HttpEncoder` asks a server. Both keep these promises, and the policy relies on
# them: rows have unit length (their norm sets the scale of α), none is zero or not finite, and a text has the
# same vector alone as among others.

Vectors = npt.NDArray[np.float32]

# Stands for a text without a single visible character, which some servers refuse. Any fixed text would do.
EMPTY_TEXT = "(empty)"
# A sentence encoder's vectors have lengths around 1 to 10 before they are scaled; below this, direction is
# noise.
LEAST_NORM = 1e-6


@runtime_checkable
class Encoder(Protocol):
    """A Transformer encoder with its identity."""

    @property
    def name(self) -> str:
        """Return which model this is."""
        ...

    @property
    def version(self) -> str:
        """Return which files or server stand behind the name, as far as it is known."""
        ...

    @property
    def dimension(self) -> int:
        """Return the length of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row a text, shape (len(texts), dimension), float32.

        Raises:
            EncoderError: which of its kinds says what to do.
        """
        ...


def encoder_id(encoder: Encoder) -> str:
    """Return name, version and dimension as one word: what a vector's provenance is recorded as."""
    return f"{encoder.name}@{encoder.version}/{encoder.dimension}"


def readable(text: str) -> str:
    r"""Return the text an encoder is given: never empty, and always encodable as UTF-8.

    >>> readable(" \n"), readable("a\ud800b")
    ('(empty)', 'a?b')
    """
    return text.encode("utf-8", "replace").decode() if text.strip() else EMPTY_TEXT


def unit_rows(rows: npt.NDArray[np.floating], count: int, dimension: int) -> Vectors:
    """Return rows scaled to length one.

    Args:
        rows: What an encoder computed, shape (count, dimension).
        count: How many texts were asked for.
        dimension: The length every vector must have.

    Raises:
        BadEmbedding: on another shape, a number that is not finite, or a row without direction.
    """
    if rows.shape != (count, dimension):
        raise BadEmbedding(
            f"embedding: shape {rows.shape}, expected {(count, dimension)}; set the encoder's dimension"
        )
    wide = rows.astype(np.float64)
    if not np.isfinite(wide).all():
        at = int(np.flatnonzero(~np.isfinite(wide).all(axis=1))[0])
        raise BadEmbedding(f"embedding of text {at}: holds NaN or infinity; check the encoder's precision")
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    if count and norms.min() < LEAST_NORM:
        at = int(norms.argmin())
        raise BadEmbedding(
            f"embedding of text {at}: length {norms.min():.1e} has no direction; check the encoder"
        )
    rows_32: Vectors = (wide / norms).astype(np.float32)
    return rows_32


# Any OpenAI-compatible `/v1/embeddings`: for production, for instance a Qwen3-Embedding served by vLLM.

RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
MOST_WAIT_S = 5.0
QUOTED_CHARACTERS = 200  # of a server's complaint


class _Failing(EncoderRefused):
    """The server answered each attempt with an error of its own (500): it is down, or fails at this text."""


class _RateLimited(EncoderUnavailable):
    """The server takes no more requests for now (429), which no text is to blame for."""


class _Trouble(Exception):
    """An attempt failed in a way that another may not; the last one's `kind` is what the request ends with."""

    def __init__(self, why: str, kind: type[EncoderError] = EncoderUnavailable) -> None:
        super().__init__(why)
        self.kind = kind


_KINDS: dict[int, type[EncoderError]] = {429: _RateLimited, 500: _Failing}


class EmbeddedText(msgspec.Struct):
    """One text of a reply."""

    embedding: list[float]
    index: int | None = None


class EmbeddingReply(msgspec.Struct):
    """A reply of `/v1/embeddings`; servers may send the texts in another order."""

    data: list[EmbeddedText]


class HttpEncoder:
    """An encoder behind HTTP. Safe to call from several threads; `close` it, or use it in a `with`.

    Texts over `max_characters` are cut from the end: the client has no tokenizer of the server's model, so the limit is
    in characters. Keep it below what the model takes.
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
        transport: httpx.BaseTransport | None = None,
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
            transport: What carries the requests; None opens connections.
        """
        self.name, self.version, self.dimension = model, version, dimension
        self._path = url.rstrip("/").removesuffix("/v1") + "/v1/embeddings"
        self._max_characters, self._batch, self._attempts = max_characters, batch, attempts
        self._backoff_s, self._sleep = backoff_s, sleep
        self._reply_s, self._clock = reply_s, clock
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy from the environment must not sit between us and the server unasked.
        self._client = httpx.Client(timeout=timeout_s, headers=headers, trust_env=False, transport=transport)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row a text, shape (len(texts), dimension), float32.

        Raises:
            EncoderRefused: the server will not take the texts, but others.
            TextUnanswered: no usable answer to the texts within the attempts, but to another.
            EncoderUnavailable: no usable answer within the attempts, to any text.
            BadEmbedding: the answer holds no embedding for each text; to others it does.
        """
        cut = [readable(text[: self._max_characters]) for text in texts]
        try:
            return self._rows(cut)
        except _Failing as error:
            self._blame(error)
            return self._rows(cut, attempts=1)  # the server may have come back in between
        except (EncoderRefused, BadEmbedding) as error:
            self._blame(error)
            raise
        except _RateLimited:
            raise
        except EncoderUnavailable as error:
            self._blame(error)
            raise TextUnanswered(f"{error}; it embeds another text") from error

    def _rows(self, texts: list[str], attempts: int | None = None) -> Vectors:
        rows = [
            self._read(self._request(some, attempts or self._attempts), len(some))
            for some in (texts[at : at + self._batch] for at in range(0, len(texts), self._batch))
        ]
        return np.concatenate([np.zeros((0, self.dimension), np.float32), *rows])

    def _blame(self, error: EncoderError) -> None:
        """Return if the server embeds another text: then the one that it did not embed is at fault.

        An expired key, an unknown model, a page in place of an answer, another dimension are the same for every text.
        One attempt: a server that fails now and then is to be seen failing.

        Raises:
            EncoderUnavailable: it embeds no text.
        """
        try:
            self._read(self._request([EMPTY_TEXT], attempts=1), 1)
        except EncoderError:
            raise EncoderUnavailable(f"{error}; it embeds no other text either") from error

    def close(self) -> None:
        """Give the connections back."""
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
            wait=wait_exponential(multiplier=self._backoff_s, max=MOST_WAIT_S),
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

    def _read(self, content: bytes, count: int) -> Vectors:
        """Return the rows of a reply in the order of the texts."""
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


# Actions as vectors: their descriptions through the encoder that queries go through, once per text.
#
# The optional cache is one file a text, named by encoder and text, so that a change of either is another file
# and two processes can share a folder. A file that is not what it should be is computed again.


def embed_actions(encoder: Encoder, descriptions: Sequence[str], cache: Path | None = None) -> Vectors:
    """Return one unit row a description, shape (len(descriptions), dimension), float32.

    Args:
        encoder: The one that embeds the queries.
        descriptions: Texts of actions, App. B.2.
        cache: A folder to keep vectors in; None computes them all. What it has no room for is computed again.

    Raises:
        EncoderError: when the encoder gives no vector.
    """
    if cache is None:
        return encoder.encode(descriptions)
    files = [cache / _file_name(encoder, text) for text in descriptions]
    known = {file: row for file in set(files) if (row := _read(file, encoder.dimension)) is not None}
    missing = {file: text for file, text in zip(files, descriptions, strict=True) if file not in known}
    for file, row in zip(missing, encoder.encode(list(missing.values())), strict=True):
        _write(file, row)
        known[file] = row
    return np.stack([known[file] for file in files]) if files else encoder.encode([])


def _file_name(encoder: Encoder, text: str) -> str:
    return hashlib.sha256(f"{encoder_id(encoder)}\n{text}".encode()).hexdigest() + ".f32"


def _read(file: Path, dimension: int) -> Vectors | None:
    try:
        row = np.frombuffer(file.read_bytes(), dtype="<f4")
    except (OSError, ValueError):
        return None
    whole = (
        row.shape == (dimension,) and abs(float(np.linalg.norm(row.astype(np.float64))) - 1) < LEAST_NORM * 10
    )
    return row.astype(np.float32) if whole else None


def _write(file: Path, row: Vectors) -> None:
    """Write under another name first: a reader sees the whole vector or none. A full disk keeps nothing."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(row.astype("<f4").tobytes())
            Path(name).replace(file)
        except OSError:
            Path(name).unlink(missing_ok=True)


# The embedder: Query in, Context out (§3.1, joint semantic representation).
#
# Pure but for the encoder that is handed in: admission, topics and offsets are the wiring's business.


class ArrivedQuery(NamedTuple):
    """A query with where it lies and when the broker appended it, in ms since the epoch."""

    query: Query
    origin: Origin
    appended_ms: int


def embedded_text(query: Query) -> str:
    """Return the text that stands for a query: its question, the newest message of a conversation first.

    An encoder reads a few hundred tokens from the beginning. Newest first, what is cut off is what was said
    longest ago, and not the question.
    """
    if query.messages is None:
        return query.question
    return "\n\n".join(message.text for message in reversed(query.messages))


def embed(arrivals: Sequence[ArrivedQuery], *, encoder: Encoder) -> tuple[QueryContext, ...]:
    """Return the context of each arrival, in their order.

    Args:
        arrivals: One or more; a vector is the same alone as among others.
        encoder: The same that embeds the actions: vectors of two encoders do not mix.

    Raises:
        EncoderError: when the encoder gives no vector; nothing is half done, so all may be tried again.
    """
    vectors = encoder.encode([embedded_text(arrival.query) for arrival in arrivals])
    return tuple(
        QueryContext(
            query=arrival.query,
            embedding=to_bytes(vectors[at : at + 1]),
            origin=arrival.origin,
            encoder=encoder_id(encoder),
            appended_ms=arrival.appended_ms,
        )
        for at, arrival in enumerate(arrivals)
    )


def to_bytes(vectors: Vectors) -> bytes:
    """Return vectors as the wire holds them: little-endian float32."""
    return vectors.astype("<f4").tobytes()
