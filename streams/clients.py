"""Connections: one place turns the settings into arguments of kafka-python, aiokafka and faust.

kafka-python produces, administers and replays; aiokafka follows topics beside faust (assign mode).
"""

import ssl
from collections.abc import Iterable, Iterator
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from streams.settings import Settings, SettingsError

# A broker on a machine that is busy with models answers late, not never.
_REQUEST_MS = 90_000


class BrokerUnreachable(RuntimeError):
    """No broker answers at the address of `bootstrap`."""


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the settings, None for plain text."""
    if not settings.security_protocol.endswith("SSL"):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ssl_cafile or None)
        if settings.ssl_certfile:
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile or None)
    except OSError as error:
        raise SettingsError(f"ssl_cafile, ssl_certfile or ssl_keyfile: cannot be read: {error}") from None
    return context


def _shared(settings: Settings) -> dict[str, Any]:
    kwargs: dict[str, Any] = {
        "bootstrap_servers": [part.strip() for part in settings.bootstrap.split(",")],
        "security_protocol": settings.security_protocol,
    }
    if context := ssl_context(settings):
        kwargs["ssl_context"] = context
    if settings.security_protocol.startswith("SASL"):
        kwargs |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password,
        }
    return kwargs


def faust_credentials(settings: Settings) -> Any:
    """Return what faust calls broker_credentials, None for plain text."""
    context = ssl_context(settings)
    if settings.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            mechanism=settings.sasl_mechanism,
            username=settings.sasl_username,
            password=settings.sasl_password,
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context else None


def faust_brokers(settings: Settings) -> list[str]:
    """Return the bootstrap addresses as faust takes them."""
    return [f"kafka://{part.strip()}" for part in settings.bootstrap.split(",")]


def admin(settings: Settings) -> KafkaAdminClient:
    """Return an admin client. Raises BrokerUnreachable."""
    try:
        return KafkaAdminClient(
            client_id="uniscale-admin", request_timeout_ms=_REQUEST_MS, **_shared(settings)
        )
    except (KafkaError, OSError) as error:
        raise unreachable(settings, error) from None


def producer(settings: Settings, **kwargs: Any) -> KafkaProducer:
    """Return an idempotent producer that waits for all replicas. Raises BrokerUnreachable."""
    try:
        return KafkaProducer(
            acks="all",
            max_request_size=settings.max_record_bytes,
            **{**_shared(settings), **kwargs},
        )
    except (KafkaError, OSError) as error:
        raise unreachable(settings, error) from None


def consumer(settings: Settings, **kwargs: Any) -> KafkaConsumer:
    """Return a consumer without a group: it is assigned partitions and commits nothing."""
    try:
        return KafkaConsumer(
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=settings.max_record_bytes + 65_536,
            **{**_shared(settings), **kwargs},
        )
    except (KafkaError, OSError) as error:
        raise unreachable(settings, error) from None


def follower(settings: Settings) -> AIOKafkaConsumer:
    """Return an asynchronous consumer without a group, to be assigned partitions."""
    return AIOKafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=settings.max_record_bytes + 65_536,
        **_shared(settings),
    )


def async_producer(settings: Settings) -> AIOKafkaProducer:
    """Return an asynchronous producer that waits for all replicas."""
    return AIOKafkaProducer(acks="all", max_request_size=settings.max_record_bytes, **_shared(settings))


def read_all(settings: Settings, topics: Iterable[str], *, timeout_ms: int = 1000) -> Iterator[Any]:
    """Yield every record now on the topics, partition by partition, up to the ends seen at the start."""
    reader = consumer(settings)
    try:
        parts = [TopicPartition(t, p) for t in topics for p in sorted(reader.partitions_for_topic(t) or ())]
        if not parts:
            return
        ends = reader.end_offsets(parts)
        reader.assign(parts)
        reader.seek_to_beginning(*parts)
        left = {tp for tp in parts if ends[tp] > reader.position(tp)}
        while left:
            for tp, records in reader.poll(timeout_ms=timeout_ms).items():
                yield from (r for r in records if r.offset < ends[tp])
            left = {tp for tp in left if reader.position(tp) < ends[tp]}
    finally:
        reader.close()


def unreachable(settings: Settings, error: object) -> BrokerUnreachable:
    """Return the error that says which address does not answer, and what to do."""
    return BrokerUnreachable(
        f"no broker answers at bootstrap={settings.bootstrap} ({error or 'no connection'}). "
        "Start one (`python -m streams broker`), or name yours by --bootstrap HOST:PORT"
    )
