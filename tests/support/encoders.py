"""Encoders whose server does not do what it should."""

from collections.abc import Sequence

from agents.embedding import EncoderError, EncoderRefused, EncoderUnavailable, TextUnanswered, Vectors
from agents.encoders import HashedEncoder


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
    """An encoder whose server does not take the descriptions of some models."""

    def __init__(self, *models: str) -> None:
        super().__init__(8)
        self.models = models
        self.error: EncoderError = EncoderRefused("http://encoder: HTTP 413: the batch is too large")

    def encode(self, texts: Sequence[str]) -> Vectors:
        if any(f"Model: {model}" in text for text in texts for model in self.models):
            raise self.error
        return super().encode(texts)


class Mute(HashedEncoder):
    """An encoder whose server gives some texts no answer, for the first calls with them."""

    def __init__(self, **calls: int) -> None:
        super().__init__(8)
        self.left = calls
        self.error: EncoderError = TextUnanswered("http://encoder: HTTP 503; it embeds another text")

    def encode(self, texts: Sequence[str]) -> Vectors:
        for text in texts:
            if self.left.get(text):
                self.left[text] -= 1
                raise self.error
        return super().encode(texts)
