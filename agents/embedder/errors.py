"""What can go wrong between a text and its vector.

UniscaleError
└── EncoderError
    ├── EncoderFilesError     a model or tokenizer file that is missing or not the pinned one
    ├── EncoderRefused        the server will not take this request (4xx): repeating it is useless
    ├── EncoderUnavailable    no answer after the bounded retries: the same request may pass later
    └── BadEmbedding          an answer that is no embedding: count, dimension, NaN, zero length
"""

from schemas.errors import UniscaleError


class EncoderError(UniscaleError):
    """A text did not become a vector."""


class EncoderFilesError(EncoderError):
    """A file the encoder needs is missing, or is not the pinned one."""


class EncoderRefused(EncoderError):
    """The server refused the request for good."""


class EncoderUnavailable(EncoderError):
    """The server gave no usable answer within the attempts allowed."""


class BadEmbedding(EncoderError):
    """What came back is not a unit-scalable vector of the expected dimension for every text."""
