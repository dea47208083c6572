"""Encoders whose server does not do what it should."""

from collections.abc import Sequence

from agents.embedding import EncoderRefused, EncoderUnavailable, Vectors
from streams.services.embedder import HashedEncoder


class DownFor(HashedEncoder):
    """An encoder whose server is away for the first calls."""

    def __init__(self, calls: int) -> None:
        super().__init__(8)
        self.left = calls

    def encode(self, texts: Sequence[str]) -> Vectors:
        if self.left:
            self.left -= 1
            raise EncoderUnavailable("http://encoder: no connection")
        return super().encode(texts)


class Refusing(HashedEncoder):
    """An encoder whose server does not take the descriptions of the model `mid`."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        if any("Model: mid" in text for text in texts):
            raise EncoderRefused("http://encoder: HTTP 413: the batch is too large")
        return super().encode(texts)
