"""A request's categories: its properties besides the text, as `key=value` pairs with values from closed lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.errors import UniscaleError
from schemas.query import GATEWAY, Query
from schemas.record import MAX_NAME

MOST_VALUES: Final = 64
"""Maximum number of values across all keys. Each value adds at least one coefficient per model."""

OWN: Final = "request."
"""Prefix of categories derived from the request itself; no metadata key may start with it."""


class ContextKeysRefused(UniscaleError, ValueError):
    """The configured keys cannot be used. The message names the key and says what to write instead."""


@dataclass(frozen=True)
class ContextKeys:
    """The Query metadata keys that the policy learns from, with the possible values of each.

    Attributes:
        values: The possible values of each key. Any other value is ignored, so traffic cannot extend the lists.
    """

    values: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ContextKeys:
        """Validate the configured keys and return them.

        Raises:
            ContextKeysRefused: A key or value is unsuitable, or there are too many values.

        >>> ContextKeys.of({"route": ["chat", "code"]}).of_metadata({"route": "code", "user": "Ann"})
        ('route=code',)
        """
        for key, values in given.items():
            _check_key(key)
            _check_values(key, values)
        if (count := sum(map(len, given.values()))) > MOST_VALUES:
            raise ContextKeysRefused(
                f"lists {count} values; list at most {MOST_VALUES} in all, those that say most about a request"
            )
        return cls({key: tuple(values) for key, values in given.items()})

    def of_metadata(self, metadata: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the categories found in a query's metadata."""
        return tuple(
            f"{key}={metadata[key]}" for key, values in self.values.items() if metadata.get(key) in values
        )


NO_KEYS: Final = ContextKeys({})


def categories_of(query: Query, keys: ContextKeys) -> tuple[str, ...]:
    """Return a query's categories: those from the request itself, then those from its metadata. Most have none."""
    needs = query.required
    turns = 1 if query.messages is None else sum(message.role == "user" for message in query.messages)
    tools = 0 if query.options is None else len(query.options.tools)
    own = (
        ("tools", _range(tools, ((1, 1), (2, 4), (5, None)))),
        ("format", "yes" if "json" in needs else ""),
        ("turns", _range(turns, ((2, 4), (5, None)))),
        *((kind, "yes" if kind in needs else "") for kind in ("images", "audio")),
    )
    return tuple(f"{OWN}{name}={shown}" for name, shown in own if shown) + keys.of_metadata(query.metadata)


def _range(count: int, ranges: tuple[tuple[int, int | None], ...]) -> str:
    """Return the range that contains a count, such as `2-4` or `5+`; empty if none does."""
    for low, high in ranges:
        if low <= count and (high is None or count <= high):
            return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
    return ""


def _check_key(key: Any) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_NAME:
        raise ContextKeysRefused(
            f"{key!r} is not a key; name a key of metadata, of 1 to {MAX_NAME} characters"
        )
    if key == GATEWAY:
        raise ContextKeysRefused(
            f"{key} is where the gateway keeps its own data; name another key of metadata"
        )
    if key.startswith(OWN) or "=" in key:
        raise ContextKeysRefused(
            f"{key} may not start with {OWN!r} or contain '='; rename the key of metadata"
        )


def _check_values(key: str, values: Any) -> None:
    if not isinstance(values, list | tuple) or not values:
        raise ContextKeysRefused(f"{key}: is not a list of values; list them, such as [chat, code]")
    for value in values:
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME:
            raise ContextKeysRefused(
                f"{key}: {value!r} is not a text of 1 to {MAX_NAME} characters; put it in quotes, or shorten it"
            )
    if len(set(values)) < len(values):
        raise ContextKeysRefused(f"{key}: a value is listed twice; list each once")
