"""API keys by host: an endpoint is sent its own key and no other."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import httpx

from schemas.errors import UniscaleError


class KeysError(UniscaleError, ValueError):
    """Keys cannot be read. Write `host=key` or `host:port=key`, several separated by commas."""


@dataclass(frozen=True)
class Keys:
    """Which key goes to which host. Never shown: neither by repr nor in an error.

    Attributes:
        by_host: Keys by `host` or `host:port`; the latter goes first.
    """

    by_host: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, text: str, shared: str = "", urls: Iterable[str] = ()) -> "Keys":
        """Return the keys that the settings name.

        Args:
            text: `host=key,host:port=key`.
            shared: A key for the endpoints at `urls`.
            urls: The endpoints the operator wrote into the catalogue file. A model that a control record adds
                may carry any address, so the shared key does not go there.

        Raises:
            KeysError: a part is not `host=key`.

        >>> keys = Keys.read("a:8000=k1, b=k2", shared="k3", urls=["https://c.example/v1"])
        >>> [keys.of(url) for url in ("http://a:8000", "http://b:9", "https://c.example", "http://a:9")]
        ['k1', 'k2', 'k3', '']
        """
        found = {host: shared for url in urls if (host := _host(url))} if shared else {}
        for number, part in enumerate(filter(None, map(str.strip, text.split(","))), 1):
            host, _, key = part.partition("=")
            if not (host.strip() and key.strip()):
                raise KeysError(f"part {number} is not host=key; write host=key or host:port=key")
            found[host.strip().lower()] = key.strip()
        return cls(found)

    def of(self, url: str) -> str:
        """Return the key of an endpoint; empty when it has none."""
        host = _host(url)
        return self.by_host.get(host) or self.by_host.get(host.partition(":")[0], "")


def _host(url: str) -> str:
    """Return `host:port` of an address, or `host` when it names no port; empty for what is not an address."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return ""
    return f"{parsed.host}:{parsed.port}" if parsed.port is not None else parsed.host
