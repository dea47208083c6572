"""Connections: the one place that turns the settings into arguments of kafka-python, aiokafka and faust."""

import contextlib
import heapq
import logging
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError as KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.api_key import ApiKey

from schemas.errors import UniscaleError
from schemas.query import Origin
from streams.log.base import UnknownTopic
from streams.log.partitioner import partition_for
from streams.settings import Settings, SettingsError

if TYPE_CHECKING:  # a command that only asks or sends must not pay for importing faust and aiokafka
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider

# Tokens for SASL OAUTHBEARER, read from a file that something else keeps fresh.
#
# A token expires, so a setting cannot hold it. Kubernetes projects service account tokens into files, and identity
# providers come with agents that write them. The file is read again for every connection. A broker ends a connection
# whose token has expired (KIP-368), and the client connects anew.

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


def asynchronous_token(file: TokenFile) -> "AsyncTokenProvider":
    """Return the same tokens for aiokafka and faust."""
    from aiokafka.abc import AbstractTokenProvider as Base

    class AsyncTokens(Base):  # type: ignore[misc]
        async def token(self) -> str:
            return file.token()

    return AsyncTokens()


# Connections: the one place that turns the settings into arguments of kafka-python, aiokafka and faust.
#
# Clients and commands use kafka-python to send, read and administer. A service uses aiokafka to read topics outside its
# consumer group, and to write in transactions.

# On a machine that is busy with models, a broker can take long to answer.
_REQUEST_MS = 90_000
_BOOTSTRAP_MS = 15_000

# The embedded broker does not wake a waiting fetch. It looks again after a fraction of the wait: a record is then late
# by 6 ms (median) at a wait of 20 ms, by 10 at 50, by 100 at 500 and by 200 at 1,500. But each look costs: a consumer
# of 32 partitions without work takes 5 to 12 % of a core at 20 ms, and 2 % at 100, which the models then lack.
EMBEDDED_WAIT_MS = 50

# What every Apache Kafka since 1.0 answers and the embedded broker does not. The versions of Fetch do not tell: it
# offers those that have sessions, but keeps none.
_NOT_EMBEDDED = frozenset({ApiKey.OffsetForLeaderEpoch, ApiKey.CreatePartitions})

_STALLED_S = 30.0

# By bootstrap address.
_embedded: dict[str, bool] = {}


class BrokerUnreachable(UniscaleError):
    """No broker answers at the address of `bootstrap`."""


class BrokerStalled(BrokerUnreachable):
    """A partition returned no more records before its end was reached."""


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context that the settings describe; None for plain text."""
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
    """Return the arguments that connections of kafka-python share, or those of aiokafka."""
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
    """Return faust's `broker_credentials`; None for plain text."""
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
    # Not `client.api_versions()`, which fails at a request that kafka-python does not know yet.
    offered = client._manager.broker_version_data.api_versions
    _embedded[settings.kafka.bootstrap] = _NOT_EMBEDDED.isdisjoint(offered)
    return client


def embedded(settings: Settings) -> bool:
    """Return whether the broker is the embedded one, known by the requests that it offers to answer.

    It differs for clients in three ways: of a batch with several records it stores the first offset only, so every
    record needs a batch of its own; its fetches must wait briefly; and it has no transactions.

    Raises:
        BrokerUnreachable: no broker answers, and none did before.
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
    """Return a consumer without a group. Assign it partitions; it commits nothing. Raises BrokerUnreachable."""
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
    """Return an asynchronous consumer without a group, not started. Assign it partitions; it commits nothing.

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
    """Return an asynchronous producer, not started, that waits for all replicas.

    Args:
        settings: The deployment.
        transactional_id: None for a producer without transactions.

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
    """Let aiokafka take a connection that has just closed for broken on uvloop, too: it is made anew.

    asyncio's transports ignore what is written to them after that; uvloop's raise RuntimeError. aiokafka expects
    nothing but OSError there, and what else its fetcher meets ends the consumer, and with it the process.
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


def partitions(reader: KafkaConsumer, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of those topics that exist.

    Raises:
        UnknownTopic: none of them does.
    """
    topics = list(topics)
    parts = [TopicPartition(t, p) for t in topics for p in sorted(reader.partitions_for_topic(t) or ())]
    if not parts:
        raise UnknownTopic(f"{topics[0]}: the topic does not exist; run `python -m streams topics create`")
    return parts


def require_topics(settings: Settings, topics: Iterable[str]) -> None:
    """Refuse topics that do not exist: a producer would wait a minute for one, without saying why.

    Raises:
        UnknownTopic: it names the first topic that is missing.
    """
    with contextlib.closing(consumer(settings)) as reader:
        for topic in topics:
            partitions(reader, [topic])


def at_end(settings: Settings, topics: Iterable[str]) -> KafkaConsumer:
    """Return a consumer that reads from the present ends of topics.

    Raises:
        UnknownTopic: none of the topics exists.
    """
    reader = consumer(settings)
    parts = partitions(reader, topics)
    reader.assign(parts)
    reader.seek_to_end(*parts)
    for tp in parts:
        reader.position(tp)  # the seek takes effect only when the position is read
    return reader


def seek_to_time(reader: KafkaConsumer, since_ms: int) -> None:
    """Move a consumer to the first records appended at a time or later; where there are none, it stays.

    Args:
        reader: With its partitions assigned.
        since_ms: The time, in ms since the epoch.
    """
    for tp, first in reader.offsets_for_times(dict.fromkeys(reader.assignment(), since_ms)).items():
        if first is not None:
            reader.seek(tp, first.offset)


def read_all(
    settings: Settings, topics: Iterable[str], *, timeout_ms: int = 1000, begin: int = 0
) -> Iterator[Any]:
    """Yield every record now on the topics, partition by partition, up to the ends seen at the start.

    Raises:
        UnknownTopic: none of the topics exists.
    """
    with contextlib.closing(consumer(settings)) as reader:
        parts = partitions(reader, topics)
        ends, begins = reader.end_offsets(parts), reader.beginning_offsets(parts)
        spans = {tp: (max(begin, begins[tp]), ends[tp]) for tp in parts}
        yield from read(reader, spans, timeout_ms=timeout_ms)


def read_in_time(settings: Settings, topic: str, since_ms: int, until_ms: int) -> Iterator[Any]:
    """Yield the records of a topic that were appended in a span of time, in its order, in constant memory.

    Each partition has a connection of its own, and the earliest of their next records comes next.

    Args:
        settings: The deployment.
        topic: The topic.
        since_ms: First append time, ms since the epoch.
        until_ms: First append time that is left out.

    Raises:
        UnknownTopic: the topic does not exist.
    """

    def of(part: TopicPartition) -> Iterator[Any]:
        with contextlib.closing(consumer(settings)) as reader:
            begin, end = reader.beginning_offsets([part])[part], reader.end_offsets([part])[part]
            first = reader.offsets_for_times({part: since_ms})[part]
            for record in read(reader, {part: (begin if first is None else first.offset, end)}):
                if since_ms <= record.timestamp < until_ms:
                    yield record

    with contextlib.closing(consumer(settings)) as reader:
        parts = partitions(reader, [topic])
    yield from heapq.merge(*map(of, parts), key=lambda record: record.timestamp)


def read(
    reader: KafkaConsumer, spans: Mapping[TopicPartition, tuple[int, int]], *, timeout_ms: int = 500
) -> Iterator[Any]:
    """Yield the records of partitions from an offset up to, but excluding, another; compaction may have left gaps.

    Raises:
        BrokerStalled: no record arrived for half a minute.
    """
    left = {tp for tp, (begin, end) in spans.items() if begin < end}
    if not left:
        return
    reader.assign(list(left))
    for tp in left:
        reader.seek(tp, spans[tp][0])
    at, since_s = {tp: spans[tp][0] for tp in left}, time.monotonic()
    while left:
        for tp, records in reader.poll(timeout_ms=timeout_ms).items():
            yield from (r for r in records if r.offset < spans[tp][1])
        now_at = {tp: reader.position(tp) for tp in left}
        if now_at != at:
            at, since_s = now_at, time.monotonic()
        elif time.monotonic() - since_s > _STALLED_S:
            tp, offset = next(iter(at.items()))
            where = f"{tp.topic}/{tp.partition}: no record after offset {offset} of {spans[tp][1]}"
            raise BrokerStalled(f"{where}; try again")
        left = {tp for tp in left if at[tp] < spans[tp][1]}
        at = {tp: at[tp] for tp in left}


def find(settings: Settings, topic: str, key: bytes, since_ms: int, until_ms: int) -> Any:
    """Return the first record of a key that was appended in a span of time, ms since the epoch; None if there is none.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: the topic does not exist.
    """
    with contextlib.closing(consumer(settings)) as reader:
        parts = partitions(reader, [topic])
        tp = parts[partition_for(key, len(parts))]
        if (begin := reader.offsets_for_times({tp: since_ms})[tp]) is None:
            return None
        for record in read(reader, {tp: (begin.offset, reader.end_offsets([tp])[tp])}):
            if record.timestamp > until_ms:
                return None
            # The embedded broker may begin before the time.
            if record.key == key and record.timestamp >= since_ms:
                return record
        return None


def latest(settings: Settings, topics: Iterable[str], begin: int = 0) -> dict[bytes, bytes]:
    """Return the newest value of each key of compacted topics.

    Raises:
        UnknownTopic: none of the topics exists.
    """
    found: dict[bytes, bytes] = {}
    apply(found, read_all(settings, topics, timeout_ms=200, begin=begin))
    return found


def apply(rows: MutableMapping[bytes, bytes], records: Iterable[Any]) -> None:
    """Update rows by key from records of a compacted topic; the row that was written last comes last."""
    for record in records:
        key = record.key or b""
        rows.pop(key, None)
        if record.value is not None:
            rows[key] = record.value


def unreachable(settings: Settings, error: object) -> BrokerUnreachable:
    """Return an error that says whether the address does not answer or refuses us, and what to do."""
    host, _, port = settings.kafka.bootstrap.split(",")[0].strip().rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2.0).close()
    except (OSError, ValueError):
        return BrokerUnreachable(
            f"no broker answers at bootstrap={settings.kafka.bootstrap} ({error or 'no connection'}). "
            "Start one (`python -m streams broker`), or name yours with --bootstrap HOST:PORT"
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


# Read single records by topic, partition and offset, and send them again unchanged.

_SEND_S = 30.0


def send_again(settings: Settings, origins: Iterable[Origin]) -> Iterator[bool]:
    """Send the records at some origins again, one after the other, and wait for the delivery of each.

    Yields:
        For each whether its topic still held it.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    with contextlib.closing(consumer(settings)) as reader, contextlib.closing(producer(settings)) as sender:
        for origin in origins:
            tp = TopicPartition(origin.topic, origin.partition)
            reader.assign([tp])
            held = reader.beginning_offsets([tp])[tp] <= origin.offset < reader.end_offsets([tp])[tp]
            record = next(read(reader, {tp: (origin.offset, origin.offset + 1)}), None) if held else None
            if record is not None:
                sender.send(record.topic, key=record.key, value=record.value).get(timeout=_SEND_S)
            yield record is not None
