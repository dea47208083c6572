"""Recovery time after a service is killed: from kill -9 to the closed reward of a query sent at that moment.

The services belong to a whole deployment, under a supervisor that restarts them, while other queries keep coming at a
steady rate. The services are killed in turn, each once it has run for a minute, because the supervisor delays the
restart of a process that ran for less. The others keep running while one recovers, so a round takes little more than a
minute.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import msgspec

from agents.catalogue.file import load_catalogue
from bench.streams import BenchFailed, cpu_s, recording, running
from bench.turns import versions
from schemas.query import Query
from streams.client.client import Client
from streams.client.events import EventFollower
from streams.local.deployment import STEADY_S, Service, Supervisor, service_commands
from streams.settings import Settings

_LIVED_S: Final = STEADY_S + 2.0
_PATIENCE_S: Final = 300.0
_STEPS: Final = 5
_QUESTIONS: Final = tuple(f"Question {n}: how many are {n} and {n + 3} together?" for n in range(50))


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One recovery.

    Attributes:
        service: The service that was killed.
        ready_s: Seconds from the kill until its successor was ready.
        seconds: Seconds from the kill until the reward of the query sent at that moment was closed.
        cpu_s: CPU seconds that the successor had used by then.
        lived_s: Age of the killed process, in seconds.
    """

    service: str
    ready_s: float
    seconds: float
    cpu_s: float
    lived_s: float


def measure(
    settings: Settings,
    rounds: int,
    *,
    rate: float,
    engines: bool,
    say: Callable[[str], None],
    services: Sequence[str] = (),
    lived_s: float | None = None,
) -> dict[str, Any]:
    """Return how many seconds every recovery took, by service, with the medians and the worst recoveries.

    Args:
        settings: The deployment's settings, with a running broker.
        rounds: How many times to kill each service.
        rate: Number of other queries per second.
        engines: Whether to run the catalogue's engines; if not, searches take five steps from a recording.
        say: Called with a line for each kill.
        services: The services to kill; empty for all of them.
        lived_s: A process's minimum age before it is killed, in seconds; None for an age at which it is restarted
            without a pause.

    Raises:
        BrokerUnreachable: no broker answers.
        ServiceFailed: a service does not start.
        BenchFailed: there is no such service, or a query has no closed reward five minutes after it was sent.
    """
    commands = service_commands(load_catalogue(Path(settings.catalogue)).groups)
    if unknown := set(services) - set(commands):
        raise BenchFailed(f"no service {', '.join(sorted(unknown))}; there are {', '.join(commands)}")
    recorded = None if engines else partial(recording, questions=_QUESTIONS, steps=_STEPS)
    with (
        tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder,
        running(settings.replace(engine_threads=1), Path(folder), recorded) as (
            settings,
            catalogue,
            supervisor,
        ),
        Client(settings) as client,
        Rewards(settings) as rewards,
    ):
        # One path per search: this measures recovery, not wide searches.
        pin = f"{catalogue.smallest.name}/1/1/1"
        queries = _queries("killed-", pin)
        _rewarded(client, rewards, next(queries))
        with _others(client, rewards, _queries("other-", pin), rate):
            kills = list(
                killed(
                    supervisor,
                    list(services or commands) * rounds,
                    lambda: _rewarded(client, rewards, next(queries)),
                    say,
                    _LIVED_S if lived_s is None else lived_s,
                )
            )
    return {
        "cpus": os.cpu_count(),
        "versions": versions(Path.cwd()),
        "engine": "vLLM" if engines else f"recorded, {_STEPS} steps a search, one path",
        "encoder": settings.encoder.kind,
        "other_queries_per_s": rate,
        **figures(kills),
    }


def killed(
    supervisor: Supervisor,
    order: Sequence[str],
    recovered: Callable[[], object],
    say: Callable[[str], None],
    lived_s: float = _LIVED_S,
) -> Iterator[Kill]:
    """Kill services in a given order and yield each recovery.

    Args:
        supervisor: The services' supervisor.
        order: The services to kill, in order; a service may appear more than once.
        recovered: Called right after each kill; returns when the deployment serves again.
        say: Called with a line for each kill.
        lived_s: A process's minimum age before it is killed, in seconds.

    Raises:
        ServiceFailed: a service does not recover.
    """
    for name in order:
        supervisor.wait_ready(_PATIENCE_S)
        service = supervisor.services[name]
        time.sleep(max(0.0, service.started_at + lived_s - time.monotonic()))
        before, began_s = service.started_at, time.monotonic()
        supervisor.kill(name)
        ready = _Noted(service, began_s)
        recovered()
        seconds = time.monotonic() - began_s
        supervisor.wait_ready(_PATIENCE_S)  # a reward can be closed before the service reports ready
        kill = Kill(
            service=name,
            ready_s=round(ready.after_s(), 2),
            seconds=round(seconds, 2),
            cpu_s=round(cpu_s(service.pid), 2),
            lived_s=round(began_s - before, 1),
        )
        say(f"{name}: ready after {kill.ready_s:.2f} s, rewarded after {kill.seconds:.2f} s")
        yield kill


def figures(kills: Sequence[Kill]) -> dict[str, Any]:
    """Return the report on recoveries, by service and overall."""
    by_service: dict[str, list[Kill]] = {}
    for kill in kills:
        by_service.setdefault(kill.service, []).append(kill)
    return {
        "kills": len(kills),
        **_spread(kills),
        "services": {
            name: {
                **_spread(each),
                "ready_s": round(median(k.ready_s for k in each), 2),
                "cpu_s": round(median(k.cpu_s for k in each), 2),
                "seconds": [k.seconds for k in each],
            }
            for name, each in by_service.items()
        },
        "least_lived_s": min(k.lived_s for k in kills),
    }


def _spread(kills: Sequence[Kill]) -> dict[str, float]:
    return {
        "p50_s": round(median(k.seconds for k in kills), 2),
        "worst_s": round(max(k.seconds for k in kills), 2),
    }


class _Noted:
    """Records when a service's next process is ready, while the caller waits for something else."""

    def __init__(self, service: Service, began_s: float) -> None:
        self._ready_s = 0.0
        self._thread = threading.Thread(target=self._wait, args=(service, began_s), daemon=True)
        self._thread.start()

    def _wait(self, service: Service, began_s: float) -> None:
        service.ready.wait(_PATIENCE_S)
        self._ready_s = time.monotonic() - began_s

    def after_s(self) -> float:
        self._thread.join()
        return self._ready_s


class Rewards:
    """Tracks, in a thread, which queries have a closed reward."""

    def __init__(self, settings: Settings) -> None:
        self._follower = EventFollower(settings, ["reward"])
        self._closed: set[str] = set()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def wait(self, query_ids: Sequence[str]) -> None:
        """Wait until these queries have a closed reward.

        Raises:
            BenchFailed: a query has no closed reward after five minutes.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed.issuperset(query_ids), _PATIENCE_S):
                missing = sorted(set(query_ids) - self._closed)
                raise BenchFailed(
                    f"{len(missing)} queries have no closed reward after {_PATIENCE_S:.0f} s: {missing[:5]}"
                )

    def _follow(self) -> None:
        while not self._ended.is_set():
            events = self._follower.poll(0.2)
            with self._changed:
                self._closed.update(e.query_id for e in events if e.record.closes)
                self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()
        self._follower.close()


def _queries(name: str, pin: str) -> Iterator[Query]:
    for n in count():
        yield Query(
            query_id=f"{name}{n}", text=_QUESTIONS[n % len(_QUESTIONS)], reference="0", pin_action=pin
        )


def _rewarded(client: Client, rewards: Rewards, query: Query) -> None:
    client.send([query])
    rewards.wait([query.query_id])


@contextmanager
def _others(client: Client, rewards: Rewards, queries: Iterator[Query], rate: float) -> Iterator[None]:
    """Send queries at a steady rate, whether or not earlier ones have ended; at the end, wait for all their rewards."""
    ended = threading.Event()
    sent: list[str] = []

    def run() -> None:
        while not ended.wait(1 / rate):
            query = next(queries)
            client.send([query])
            sent.append(query.query_id)

    thread = threading.Thread(target=run, daemon=True)
    if rate:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if rate:
            thread.join()
    rewards.wait(sent)
