"""An audit's time and memory. A history is written to a broker or to files, and a new process audits it.

With files, only the audit is measured; with a broker, so is reading from the broker. The audit runs in a new process so
that its peak memory includes nothing else.
"""

import multiprocessing
import struct
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from agents.catalogue.file import load_catalogue
from bench.history import SyntheticHistory, Written
from streams.audit.reading import BrokerLog, Raw, Span
from streams.audit.run import audit
from streams.log import kafka_admin, kafka_clients
from streams.settings import Settings
from streams.topics import Topics

_HEAD: Final = struct.Struct("<qii")
_IN_FLIGHT: Final = 2_000


class FileLog:
    """Topics with one partition each, in files written from a `SyntheticHistory`. Implements the audit's `Log`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spans(self, topics: Iterable[str]) -> dict[tuple[str, int], Span]:
        """Return each partition's range of offsets."""
        found = {}
        for topic in topics:
            if (path := self.folder / topic).is_file():
                with path.open("rb") as file:
                    found[topic, 0] = Span(0, sum(1 for _ in _raws(file)))
        return found

    def read(self, part: tuple[str, int], span: Span) -> Iterator[Raw]:
        """Yield the records in a span."""
        with (self.folder / part[0]).open("rb") as file:
            yield from (raw for raw in _raws(file) if span.begin <= raw.offset < span.end)


def measure(
    settings: Settings, queries: int, half: int, on_broker: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return an audit's result, time and memory.

    Args:
        settings: The deployment's settings; only the broker's address matters.
        queries: Number of queries in the history.
        half: The length of s_q and of s_a; d is twice that.
        on_broker: Whether to write to the broker instead of files.
        say: Called with progress messages.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    with tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder:
        settings = settings.replace(
            prefix=f"audit-{uuid.uuid4().hex[:6]}.",
            catalogue="infra/catalogue/mini-six.yaml",  # all answers of the history have scores
            encoder="hashed",
            encoder_dimension=half,
            warm_up=0,
            state_dir=folder,
            feedback_wait_s=1.0,
        )
        began_s = time.monotonic()
        records, sizes = 0, Counter[str]()
        with _to_broker(settings) if on_broker else _to_files(Path(folder)) as put:
            for w in SyntheticHistory(settings, int(time.time() * 1000)).records(queries):
                put(w)
                records += 1
                sizes[w.topic] += len(w.key) + len(w.value)
        took_s, size = time.monotonic() - began_s, sizes.total()
        say(f"{records} records of {queries} queries written in {took_s:.0f} s, {size / 1e6:.0f} MB")
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh) as process:
            report = process.submit(_audited, settings, None if on_broker else folder).result()
    each = {
        topic.removeprefix(settings.kafka.prefix): round(bytes_ / queries) for topic, bytes_ in sizes.items()
    }
    found = {"queries": queries, "records": records, "mb": round(size / 1e6, 1), "d": 2 * half}
    return {**found, "bytes_per_query": each, **report}


def _audited(settings: Settings, folder: str | None) -> dict[str, Any]:
    if folder is not None:
        report = audit(FileLog(Path(folder)), settings)
    else:
        log = BrokerLog(settings)
        report = audit(log, settings)
        log.close()
    found: dict[str, Any] = msgspec.to_builtins(report)
    kept = {name: found[name] for name in ("states", "wrong", "learner", "peak_mb", "seconds")}
    return {**kept, "cpu_s": round(time.process_time(), 1)}


@contextmanager
def _to_files(folder: Path) -> Iterator[Callable[[Written], object]]:
    """Yield a function that writes a record to its topic's file."""
    files: dict[str, BinaryIO] = {}
    with ExitStack() as stack:

        def put(w: Written) -> None:
            if w.topic not in files:
                files[w.topic] = stack.enter_context((folder / w.topic).open("wb"))
            files[w.topic].write(_HEAD.pack(w.timestamp_ms, len(w.key), len(w.value)) + w.key + w.value)

        yield put


@contextmanager
def _to_broker(settings: Settings) -> Iterator[Callable[[Written], object]]:
    """Yield a function that sends a record; all records are delivered when the block ends."""
    kafka_admin.create(settings, Topics(settings).declared(load_catalogue(Path(settings.catalogue)).groups))
    with closing(kafka_clients.producer(settings, linger_ms=5)) as producer:
        under_way: list[Any] = []

        def put(w: Written) -> None:
            under_way.append(producer.send(w.topic, key=w.key, value=w.value, partition=w.partition))
            if len(under_way) >= _IN_FLIGHT:
                under_way[-1].get(timeout=120)
                under_way.clear()

        yield put
        producer.flush(timeout=120)


def _raws(file: BinaryIO) -> Iterator[Raw]:
    offset = 0
    while head := file.read(_HEAD.size):
        timestamp_ms, key, value = _HEAD.unpack(head)
        yield Raw(offset, timestamp_ms, file.read(key), file.read(value))
        offset += 1
