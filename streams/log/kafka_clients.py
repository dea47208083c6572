"""Kafka connections. This module turns the settings into arguments for kafka-python, aiokafka and faust."""

import logging
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError as KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.api_key import ApiKey

from schemas.errors import UniscaleError
from streams.settings import Settings, SettingsError

if TYPE_CHECKING:  # importing faust and aiokafka would slow down commands that only read or send
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider

# Tokens for SASL OAUTHBEARER, read from a file that is refreshed externally.
#
# Tokens expire, so a setting cannot hold one. Kubernetes projects service account tokens into files, and identity
# providers have agents that write such files. The file is read again for every connection. A broker closes a connection
# whose token has expired (KIP-368), and the client reconnects.

log = logging.getLogger("streams.tokens")


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        SettingsError: the file cannot be read, or does not contain exactly one token.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"sasl_token_file: {path} cannot be read: {error}") from None
    if not token or not token.isprintable() or " " in token:
        raise SettingsError(f"sasl_token_file: {path} must hold one token and nothing else")
    return token


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens from a file, for kafka-python.

    Args:
        path: The file.

    Raises:
        SettingsError: the file cannot be read, or does not contain exactly one token.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._last = read_token(path)

    def token(self) -> str:
        """Return the current token; if the file is unreadable, the last one, which the broker may still accept."""
        try:
            self._last = read_token(self._path)
        except SettingsError as error:
            log.warning("%s; using the token read before", error)
        return self._last


def asynchronous_token(file: TokenFile) -> "AsyncTokenProvider":
    """Return a provider of the file's tokens for aiokafka and faust."""
    from aiokafka.abc import AbstractTokenProvider as Base

    class AsyncTokens(Base):  # type: ignore[misc]
        async def token(self) -> str:
            return file.token()

    return AsyncTokens()


# Clients and commands use kafka-python to send and read records and to administer topics. A service uses aiokafka to
# read topics outside its consumer group, and to write in transactions.

# A broker can be slow to respond on a machine busy running models.
_REQUEST_MS = 90_000
_BOOTSTRAP_MS = 15_000

# The embedded broker does not wake a waiting fetch but polls after a fraction of the wait. The median added latency is
# 6 ms at a wait of 20 ms, 10 ms at 50 ms, 100 ms at 500 ms and 200 ms at 1,500 ms. But polling takes CPU time that
# models need: an idle consumer of 32 partitions uses 5 to 12 % of a core at a wait of 20 ms, and 2 % at 100 ms.
EMBEDDED_WAIT_MS = 50

# Requests that every Apache Kafka since 1.0 supports and the embedded broker does not. Fetch versions do not tell the
# two apart: the embedded broker offers the versions with fetch sessions, but keeps no sessions.
_NOT_EMBEDDED = frozenset({ApiKey.OffsetForLeaderEpoch, ApiKey.CreatePartitions})

# Whether the broker at a bootstrap address is the embedded one.
_embedded: dict[str, bool] = {}


class BrokerUnreachable(UniscaleError):
    """No broker answers at the address of `bootstrap`."""


class BrokerStalled(BrokerUnreachable):
    """A partition stopped returning records before its end was reached."""


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the configured TLS context; None if connections are unencrypted."""
    if not settings.security.protocol.endswith("SSL"):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.security.ssl_cafile or None)
        if settings.security.ssl_certfile:
            context.load_cert_chain(settings.security.ssl_certfile, settings.security.ssl_keyfile or None)
    except OSError as error:
        raise SettingsError(f"ssl_cafile, ssl_certfile or ssl_keyfile: cannot be read: {error}") from None
    return context


def _shared(settings: Settings, *, asynchronous: bool = False) -> dict[str, Any]:
    """Return the arguments shared by all kafka-python connections or, if asynchronous, by all aiokafka connections."""
    kwargs: dict[str, Any] = {
        "bootstrap_servers": [part.strip() for part in settings.kafka.bootstrap.split(",")],
        "security_protocol": settings.security.protocol,
    }
    if context := ssl_context(settings):
        kwargs["ssl_context"] = context
    if settings.security.protocol.startswith("SASL"):
        kwargs["sasl_mechanism"] = settings.security.sasl_mechanism
        if settings.security.sasl_mechanism == "OAUTHBEARER":
            file = TokenFile(Path(settings.security.sasl_token_file))
            kwargs["sasl_oauth_token_provider"] = asynchronous_token(file) if asynchronous else file
        else:
            kwargs["sasl_plain_username"] = settings.security.sasl_username
            kwargs["sasl_plain_password"] = settings.security.sasl_password
    return kwargs


def faust_credentials(settings: Settings) -> Any:
    """Return faust's `broker_credentials`; None without TLS and SASL."""
    import faust
    from faust.auth import OAuthCredentials

    context = ssl_context(settings)
    if not settings.security.protocol.startswith("SASL"):
        return faust.SSLCredentials(context) if context else None
    if settings.security.sasl_mechanism == "OAUTHBEARER":
        file = TokenFile(Path(settings.security.sasl_token_file))
        return OAuthCredentials(oauth_cb=asynchronous_token(file), ssl_context=context)
    return faust.SASLCredentials(
        mechanism=settings.security.sasl_mechanism,
        username=settings.security.sasl_username,
        password=settings.security.sasl_password,
        ssl_context=context,
    )


def faust_brokers(settings: Settings) -> list[str]:
    """Return the bootstrap addresses in faust's form."""
    return [f"kafka://{part.strip()}" for part in settings.kafka.bootstrap.split(",")]


def admin(settings: Settings) -> KafkaAdminClient:
    """Return an admin client. Raises BrokerUnreachable."""
    try:
        client = KafkaAdminClient(
            client_id="uniscale-admin",
            request_timeout_ms=_REQUEST_MS,
            bootstrap_timeout_ms=_BOOTSTRAP_MS,
            **_shared(settings),
        )
    except (KafkaError, OSError) as error:
        raise unreachable(settings, error) from None
    # `client.api_versions()` would fail on requests that kafka-python does not know yet.
    offered = client._manager.broker_version_data.api_versions
    _embedded[settings.kafka.bootstrap] = _NOT_EMBEDDED.isdisjoint(offered)
    return client


def embedded(settings: Settings) -> bool:
    """Return whether the broker is the embedded one, which is identified by the requests it supports.

    The embedded broker differs from Kafka in three ways: it stores only the first offset of a batch, so every record
    needs its own batch; fetches must use a short wait; and it has no transactions.

    Raises:
        BrokerUnreachable: no broker answers, and none has answered before.
    """
    if settings.kafka.bootstrap not in _embedded:
        admin(settings).close()
    return _embedded[settings.kafka.bootstrap]


def producer(settings: Settings, **kwargs: Any) -> KafkaProducer:
    """Return an idempotent producer that waits for all replicas. Raises BrokerUnreachable."""
    alone = {"batch_size": 0} if embedded(settings) else {}
    try:
        return KafkaProducer(
            acks="all",
            max_request_size=settings.kafka.max_record_bytes,
            bootstrap_timeout_ms=_BOOTSTRAP_MS,
            **{**_shared(settings), **kwargs, **alone},
        )
    except (KafkaError, OSError) as error:
        raise unreachable(settings, error) from None


def consumer(settings: Settings, **kwargs: Any) -> KafkaConsumer:
    """Return a consumer without a group, which commits nothing. Assign it partitions. Raises BrokerUnreachable."""
    wait = _brief_wait(settings)
    try:
        return KafkaConsumer(
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=settings.kafka.max_record_bytes + 65_536,
            bootstrap_timeout_ms=_BOOTSTRAP_MS,
            **{**_shared(settings), **wait, **kwargs},
        )
    except (KafkaError, OSError) as error:
        raise unreachable(settings, error) from None


def _brief_wait(settings: Settings) -> dict[str, int]:
    return {"fetch_max_wait_ms": EMBEDDED_WAIT_MS} if embedded(settings) else {}


def follower(settings: Settings, **kwargs: Any) -> "AIOKafkaConsumer":
    """Return an asynchronous consumer without a group, which commits nothing. Start it and assign it partitions.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=settings.kafka.max_record_bytes + 65_536,
        **{
            "isolation_level": "read_committed",
            **_shared(settings, asynchronous=True),
            **_brief_wait(settings),
            **kwargs,
        },
    )


def writer(settings: Settings, transactional_id: str | None) -> "AIOKafkaProducer":
    """Return an asynchronous producer, not yet started, that waits for all replicas.

    Args:
        settings: The deployment.
        transactional_id: The producer's transactional id; None for a producer without transactions.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    from aiokafka import AIOKafkaProducer

    alone = {"max_batch_size": 1} if embedded(settings) else {}
    return AIOKafkaProducer(
        acks="all",
        transactional_id=transactional_id,
        max_request_size=settings.kafka.max_record_bytes,
        **_shared(settings, asynchronous=True),
        **alone,
    )


def expect_uvloop() -> None:
    """Make aiokafka also reconnect on uvloop when it writes to a connection that has just closed.

    asyncio's transports ignore writes after a close, but uvloop's raise RuntimeError. aiokafka expects only OSError
    there; any other error in its fetcher ends the consumer, and with it the process.
    """
    from aiokafka.conn import AIOKafkaConnection, CloseReason
    from aiokafka.errors import KafkaConnectionError

    send = AIOKafkaConnection.send

    def sent(self: Any, request: Any, expect_response: bool = True) -> Any:
        try:
            return send(self, request, expect_response)
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error

    AIOKafkaConnection.send = sent


def unreachable(settings: Settings, error: object) -> BrokerUnreachable:
    """Return an error that says whether the address is not responding or refuses this client, and what to do."""
    host, _, port = settings.kafka.bootstrap.split(",")[0].strip().rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2.0).close()
    except (OSError, ValueError):
        return BrokerUnreachable(
            f"no broker answers at bootstrap={settings.kafka.bootstrap}. Start one (`python -m streams broker`, or "
            "`up --broker auto`), or name yours with --bootstrap HOST:PORT"
        )
    names = ["security_protocol"]
    if settings.security.protocol.endswith("SSL"):
        names += ["ssl_cafile", "ssl_certfile", "ssl_keyfile"]
    if settings.security.protocol.startswith("SASL"):
        oauth = settings.security.sasl_mechanism == "OAUTHBEARER"
        names += ["sasl_mechanism", *(["sasl_token_file"] if oauth else ["sasl_username", "sasl_password"])]
    return BrokerUnreachable(
        f"bootstrap={settings.kafka.bootstrap} accepts connections, but not ours as {settings.security.protocol} "
        f"({error or 'closed'}). Check {', '.join(names)} (`python -m streams settings` shows them), and whether the "
        "broker is overloaded"
    )
