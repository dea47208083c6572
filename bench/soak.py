"""Runs a deployment under steady load for hours, to see if memory, descriptors or loop lag grow or records are lost.

A soak runs every service, including the gateway, with a recorded engine and otherwise default settings. It sends
requests over HTTP at a steady rate, and every ten seconds appends one JSON line per process to a file. The report pools
the soaks of several files:

    python -m bench soak out/soak/1.jsonl --minutes 100                   # about half a core with Apache Kafka
    python -m bench soak --report out/soak/1.jsonl out/soak/2.jsonl       # exits with 1 if something grows, or is lost

**The criterion** was written down before the first soak. Samples from the first 20 minutes are ignored, because bounded
stores are not full before then (`gateway_recent` 2,000, `snapshot_every` 1,000, ten queries a second). The rest of a
soak is divided into blocks of ten minutes, each represented by the median of its samples. Least squares fits a common
slope, with a separate intercept per soak, to the medians. These are nearly independent (the report prints the
correlation of adjacent blocks), so the slope's interval is Student's, at 95 % for all services and measures combined
(Bonferroni). Its upper end must not exceed `MOST_AN_HOUR` plus the documented growth (`GROWS`).

Loop lag is how late a callback runs, minus how late an idle thread wakes up at the same time. The latter is caused by
other work on the machine.
"""

import asyncio
import itertools
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import msgspec
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families
from scipy import stats

from agents.serving.recorded import RecordedPath, RecordedStep
from bench.gateway import wait_served
from bench.memory import pss_mb
from bench.streams import BenchFailed, cpu_s, running
from bench.turns import versions
from streams.audit import BrokerLog, Report, audit
from streams.local.broker import LocalBroker, free_port
from streams.local.deployment import Supervisor, settings_for
from streams.settings import Settings

EVERY_S: Final = 10.0
WARM_MIN: Final = 20.0
BLOCK_MIN: Final = 10.0
CONFIDENCE: Final = 0.95

MOST_AN_HOUR: Final = {"memory_mb": 1.0, "descriptors": 1.0, "loop_lag_ms": 1.0}
"""Allowed growth of each measure per hour, beyond `GROWS`."""

GROWS: Final[Mapping[tuple[str, str], float]] = {
    # Ids of ended queries, in a dictionary for the first 65,536 and then in an array with 16 bytes for each.
    ("decider", "memory_mb"): 160e-6,
    # Hashes of closed queries, up to 200,000 of them.
    ("aggregator", "memory_mb"): 100e-6,
}
"""Growth per query by design; docs/operating.md, "Growth", names the stores."""

_PATHS: Final = 4
_RECORDED: Final = 200
_ASK_S: Final = 120.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample from one process at one moment.

    Attributes:
        run: The soak's name.
        at_s: Seconds since the load started.
        service: The service's name, or `broker`.
        memory_mb: The process's resident memory.
        pss_mb: The process's proportional set size.
        descriptors: Number of open descriptors.
        loop_lag_ms: The event loop's mean lag since the last sample, minus an idle thread's; None for the broker.
        cpu_s: CPU seconds used so far.
        queries: Number of requests that have ended so far.
        restarts: How often the service has been restarted so far.
    """

    run: str
    at_s: float
    service: str
    memory_mb: float
    pss_mb: float
    descriptors: int
    loop_lag_ms: float | None
    cpu_s: float
    queries: int
    restarts: int


# The soak.


def soak(
    settings: Settings,
    broker: LocalBroker,
    minutes: float,
    rate: float,
    out: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run one soak, append its samples to a file as they are taken, and return the outcome of its queries.

    Args:
        settings: Base settings, whose limits and ports are replaced.
        broker: A running broker; only the soak's own topics are used.
        minutes: Duration of the load, in minutes.
        rate: Queries per second, whether or not earlier ones have been answered.
        out: A file of JSON lines to append samples to.
        say: Called with a line once a minute.

    Raises:
        ServiceFailed: a service does not become ready.
    """
    run, ports = uuid.uuid4().hex[:8], defaultdict[str, int](free_port)
    shared = settings_for(settings, broker).replace(
        gateway_port=free_port(), gateway_recent=2000, snapshot_every=1000
    )
    deployed = running(
        shared,
        broker.directory,
        lambda catalogue: _recording(catalogue.model_names),
        optional=("gateway",),
        ports=ports.__getitem__,
    )
    url = f"http://127.0.0.1:{shared.gateway.port}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("ab", buffering=0) as file, _Idle() as idle:
        _append(file, {"run": run, "versions": versions(Path.cwd()), "rate": rate, "minutes": minutes})
        with deployed as (settings, _, supervisor):
            with httpx.Client(base_url=url, trust_env=False) as client:
                wait_served(client)
            sampler = _Sampler(run, supervisor, broker, ports, idle)
            load = asyncio.run(_asked(url, rate, minutes, sampler, file, say))
            report = _settled(settings)
        restarts = {name: each.restarts for name, each in supervisor.services.items() if each.restarts}
        ended = {
            "run": run,
            "ended": dict(load),
            "restarts": restarts,
            "audit": report.line,
            "wrong": report.wrong,
            "pending": report.states.get("pending", 0),
        }
        _append(file, ended)
    return ended


async def _asked(
    url: str, rate: float, minutes: float, sampler: "_Sampler", file: Any, say: Callable[[str], None]
) -> Counter[str]:
    """Send queries at a steady rate and take samples; return the number of requests by outcome."""
    ended: Counter[str] = Counter()
    asking: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    # One connection per request, so that the number of open connections does not depend on the client's pooling.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def ask(number: int) -> None:
            try:
                async with session.post(f"{url}/v1/chat/completions", json=_request(number)) as got:
                    await got.read()
                    ended[str(got.status)] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                ended[type(error).__name__] += 1

        async def sample() -> None:
            for at in itertools.count(1):
                await asyncio.sleep(begun + at * EVERY_S - loop.time())
                samples = await asyncio.to_thread(sampler.look, loop.time() - begun, ended.total())
                for each in samples:
                    _append(file, each)
                if at % 6 == 0:
                    told = ", ".join(f"{each.service} {each.memory_mb:.0f}" for each in samples)
                    say(f"{at // 6} min, {dict(ended)}, {len(asking)} open; MB: {told}")

        sampling = asyncio.create_task(sample())
        for number in range(round(60 * minutes * rate)):
            await asyncio.sleep(begun + number / rate - loop.time())
            if sampling.done():
                break
            asking.add(task := asyncio.create_task(ask(number)))
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)
        sampling.cancel()
        await asyncio.wait([sampling])
        if not sampling.cancelled():
            sampling.result()
    return ended


def _request(number: int) -> dict[str, Any]:
    """Return one request. Every other question is one of a fixed set; the rest are unique."""
    question, right = _question(number // 2 % _RECORDED if number % 2 else _RECORDED + number)
    return {
        "model": "auto",
        "messages": [{"role": "user", "content": question}],
        "uniscale": {"reference": right},
    }


def _question(number: int) -> tuple[str, str]:
    return f"How much is {number % 89} plus {number // 89}?", str(number % 89 + number // 89)


def _recording(models: Sequence[str]) -> list[RecordedPath]:
    """Return one-step paths for the models. Later models are right more often."""
    rng, found = random.Random(5), []
    for at, (size, model), path in itertools.product(range(_RECORDED), enumerate(models, 1), range(_PATHS)):
        question, right = _question(at)
        answer = right if rng.random() < size / (len(models) + 1) else "0"
        step = RecordedStep(
            text=f"The answer is \\boxed{{{answer}}}.", tokens=12, score=rng.random(), finish="eos"
        )
        found.append(RecordedPath(question=question, model=model, path=path, prompt_tokens=12, steps=(step,)))
    return found


def _settled(settings: Settings) -> Report:
    """Return the audit's report once every query has its reward, or its last report after two minutes."""
    log = BrokerLog(settings)
    try:
        for _ in range(12):
            found = audit(log, settings)
            if not found.states.get("pending"):
                break
            time.sleep(10.0)
        return found
    finally:
        log.close()


class _Idle:
    """A thread that only sleeps. How long it oversleeps is a measure of other load on the machine."""

    def __init__(self) -> None:
        self.lag_s = self.beats = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        due = time.monotonic() + 0.1
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            self.lag_s, self.beats, due = self.lag_s + now - due, self.beats + 1, now + 0.1

    def __enter__(self) -> "_Idle":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()


class _Sampler:
    """Takes samples from a deployment's processes."""

    def __init__(
        self, run: str, supervisor: Supervisor, broker: LocalBroker, ports: Mapping[str, int], idle: _Idle
    ) -> None:
        self._run = run
        self._supervisor = supervisor
        self._broker = broker
        self._ports = ports
        self._idle = idle
        self._before: dict[str, tuple[float, float]] = {}
        self._client = httpx.Client(trust_env=False, timeout=30.0)

    def look(self, at_s: float, queries: int) -> list[Sample]:
        """Return a sample from every running process."""
        idle_ms = self._mean_ms("", self._idle.lag_s, self._idle.beats)
        found = []
        processes = {name: service.process for name, service in self._supervisor.services.items()}
        for name, process in {**processes, "broker": self._broker.process}.items():
            try:
                if process is None:
                    continue
                one = psutil.Process(process.pid)
                lag_ms = None if name == "broker" else self._mean_ms(name, *self._lag(name))
                found.append(
                    Sample(
                        run=self._run,
                        at_s=at_s,
                        service=name,
                        memory_mb=one.memory_info().rss / 1e6,
                        pss_mb=pss_mb([process.pid]),
                        descriptors=one.num_fds(),
                        loop_lag_ms=None if lag_ms is None or idle_ms is None else lag_ms - idle_ms,
                        cpu_s=cpu_s(process.pid),
                        queries=queries,
                        restarts=0 if name == "broker" else self._supervisor.services[name].restarts,
                    )
                )
            except (psutil.Error, OSError, httpx.HTTPError):
                continue  # the process has just ended, which the restart count shows
        return found

    def _lag(self, name: str) -> tuple[float, float]:
        """Return a service's total lag in seconds, and the number of measurements."""
        text = self._client.get(f"http://127.0.0.1:{self._ports[name]}/metrics").text
        return tuple(  # type: ignore[return-value]
            next(
                sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == f"uniscale_loop_lag_seconds_{part}"
            )
            for part in ("sum", "count")
        )

    def _mean_ms(self, name: str, total_s: float, count: float) -> float | None:
        """Return the mean since the last call, in ms; None on the first call, or if nothing was counted since."""
        before = self._before.get(name)
        self._before[name] = (total_s, count)
        if before is None or count <= before[1]:
            return None
        return 1000 * (total_s - before[0]) / (count - before[1])


def _append(file: Any, what: Any) -> None:
    file.write(msgspec.json.encode(what) + b"\n")


# The report.


def read(files: Sequence[Path]) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Return all samples in some files, and the start and end records of their soaks."""
    samples, said = [], []
    for file in files:
        for line in file.read_bytes().splitlines():
            if b'"service"' in line:
                samples.append(msgspec.json.decode(line, type=Sample))
            else:
                said.append(msgspec.json.decode(line))
    return samples, said


def report(samples: Sequence[Sample], said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each service's slope for each measure, whether it is within its bound, and the overall result.

    Args:
        samples: The samples of all soaks.
        said: The soaks' start and end records.

    Raises:
        BenchFailed: there are too few samples or blocks for a slope.
    """
    blocks: dict[tuple[str, str], dict[tuple[str, int], list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples:
        block = int((sample.at_s / 60 - WARM_MIN) // BLOCK_MIN)
        for measure in MOST_AN_HOUR:
            value = getattr(sample, measure)
            if block >= 0 and value is not None:
                blocks[sample.service, measure][sample.run, block].append((sample.at_s / 3600, value))
    judged = {key: of for key, of in blocks.items() if key[0] != "broker"}
    if not judged:
        raise BenchFailed(f"no sample is older than {WARM_MIN:g} minutes")
    level = 1 - (1 - CONFIDENCE) / len(judged)
    slopes = {key: _slope(of, level) for key, of in blocks.items()}
    rates = {run["run"]: run["rate"] for run in said if "rate" in run}
    an_hour = 3600 * float(np.mean(list(rates.values())))
    table = []
    for (service, measure), slope in sorted(slopes.items()):
        stated = GROWS.get((service, measure), 0.0) * an_hour
        bound = stated + MOST_AN_HOUR[measure]
        within = service == "broker" or slope["high"] <= bound
        table.append(
            {"service": service, "measure": measure, **slope, "stated": round(stated, 2), "within": within}
        )
    ends = [each for each in said if "audit" in each]
    whole = bool(ends) and all(
        not (each["wrong"] or each["pending"] or each["restarts"]) and set(each["ended"]) == {"200"}
        for each in ends
    )
    return {
        "soaks": len(rates),
        "ended": ends,
        "level": level,
        "slopes_an_hour": table,
        "well": whole and len(ends) == len(rates) and all(row["within"] for row in table),
    }


def _slope(blocks: Mapping[tuple[str, int], Sequence[tuple[float, float]]], level: float) -> dict[str, float]:
    """Return the common hourly slope of several soaks, its interval, and the blocks' autocorrelation."""
    runs = sorted({run for run, _ in blocks})
    keys = sorted(blocks)
    hours = np.array([np.mean([at for at, _ in blocks[key]]) for key in keys])
    values = np.array([np.median([value for _, value in blocks[key]]) for key in keys])
    place = np.array([runs.index(run) for run, _ in keys])
    free = len(keys) - len(runs) - 1
    if free < 1:
        raise BenchFailed(
            f"{len(keys)} blocks of {BLOCK_MIN:g} minutes in {len(runs)} soaks are too few for a slope"
        )
    for each in range(len(runs)):
        hours[place == each] -= hours[place == each].mean()
        values[place == each] -= values[place == each].mean()
    slope = hours @ values / (hours @ hours)
    rest = values - slope * hours
    error = np.sqrt(rest @ rest / free / (hours @ hours))
    half = stats.t.ppf((1 + level) / 2, free) * error
    after = [at for at in range(1, len(keys)) if place[at] == place[at - 1]]
    before = rest @ rest and sum(rest[at] * rest[at - 1] for at in after) / (rest @ rest)
    return {
        "slope": round(float(slope), 3),
        "low": round(float(slope - half), 3),
        "high": round(float(slope + half), 3),
        "blocks": len(keys),
        "correlation": round(float(before), 2),
    }
