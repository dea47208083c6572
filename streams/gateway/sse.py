"""Server-sent events."""

from typing import Any, Final

import orjson

DONE: Final = b"data: [DONE]\n\n"

BEAT: Final = b":\n\n"
"""A comment, which readers of server-sent events ignore."""


def event(body: dict[str, Any]) -> bytes:
    """Return a server-sent event without id, name or retry, because some clients fail on these."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def named_event(name: str, body: Any) -> bytes:
    """Return a server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"
