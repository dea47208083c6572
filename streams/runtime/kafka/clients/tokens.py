"""Tokens for SASL OAUTHBEARER, read from a file that something else keeps fresh.

A token expires, so a setting cannot hold it. Kubernetes projects service account tokens into files, and identity
providers come with agents that write them. The file is read again for every connection. A broker ends a connection
whose token has expired (KIP-368), and the client connects anew.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kafka.net.sasl.oauth import AbstractTokenProvider

from streams.settings import SettingsError

# As in connections.py: a command that only asks or sends must not pay for importing it.
if TYPE_CHECKING:
    from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider

log = logging.getLogger("streams.tokens")


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        SettingsError: the file cannot be read, or holds no token.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"sasl_token_file: {path} cannot be read: {error}") from None
    if not token or not token.isprintable() or " " in token:
        raise SettingsError(f"sasl_token_file: {path} must hold one token and nothing else")
    return token


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for kafka-python.

    Args:
        path: The file.

    Raises:
        SettingsError: the file cannot be read, or holds no token.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._last = read_token(path)

    def token(self) -> str:
        """Return the present token. If the file is gone meanwhile, the last one: the broker decides if it is valid."""
        try:
            self._last = read_token(self._path)
        except SettingsError as error:
            log.warning("%s; using the token read before", error)
        return self._last


def asynchronous(file: TokenFile) -> "AsyncTokenProvider":
    """Return the same tokens for aiokafka and faust."""
    from aiokafka.abc import AbstractTokenProvider as Base

    class AsyncTokens(Base):  # type: ignore[misc]
        async def token(self) -> str:
            return file.token()

    return AsyncTokens()
