"""Compares the gateway with LiteLLM's proxy: requests per second and latency, by number of connections.

The gateway's side is the whole product: before a request is answered, a Query, a Decision, a step and an Answer are on
the broker. Its engine is a recording and each search has one step, so that no model is measured. LiteLLM answers from
its own mock. Both sides have the same client. They alternate, in reverse order every other round, and each turn
restarts its server.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import httpx
import msgspec
import psutil

from bench import litellm
from bench.load import ChatLoad, LoadFigures
from bench.streams import BenchFailed, recording, running
from streams.client.events import read_timelines
from streams.demo.summary import latencies
from streams.local.broker import LocalBroker, free_port
from streams.local.deployment import Deployment, settings_for
from streams.log.blocking import BlockingLog
from streams.settings import Settings
from streams.topics import Topics

Side = Literal["ours", "ours_minilm", "litellm"]
SIDES: Final[tuple[Side, ...]] = ("ours", "ours_minilm", "litellm")
CONNECTIONS: Final = (1, 4, 32, 256)

# The targets: at least this share of LiteLLM's throughput, and at most this median latency at four connections.
SHARE: Final = 0.5
P50_MS: Final = 100.0


class GatewayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of the measurement.

    Attributes:
        seconds: Duration of each measurement.
        rounds: Number of turns for each side.
        connections: The loads in a turn, as numbers of connections, in order.
        sides: The sides to measure.
    """

    seconds: float = 6.0
    rounds: int = 2
    connections: tuple[int, ...] = CONNECTIONS
    sides: tuple[Side, ...] = SIDES


class ServerUnderLoad(msgspec.Struct, frozen=True):
    """A server under measurement.

    Attributes:
        url: Base URL of the server's endpoint.
        model: Model name to use in requests.
        groups: Process groups whose CPU time is measured, keyed by name.
        stored: Returns how many records of each kind are on the broker; empty for a server without a broker.
        hops: Returns the p50 and p95 of each hop for the latest queries, in ms; empty for a server without a broker.
    """

    url: str
    model: str
    groups: dict[str, int]
    stored: Callable[[], dict[str, int]] = dict
    hops: Callable[[], dict[str, dict[str, float]]] = dict


def measure(
    settings: Settings,
    broker: LocalBroker,
    plan: GatewayPlan,
    python: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return each side's figures, by number of connections.

    Args:
        settings: Settings common to all turns.
        broker: A running broker.
        plan: The extent of the measurement.
        python: The Python in LiteLLM's environment; None to skip that side.
        say: Called with a line for each measurement.

    Raises:
        ServiceFailed: a service did not become ready.
        BenchFailed: a request failed, or its Answer is not on the broker.
    """
    sides = [side for side in plan.sides if side != "litellm" or python is not None]
    taken: dict[Side, dict[int, list[LoadFigures]]] = {s: {c: [] for c in plan.connections} for s in sides}
    spent: dict[Side, list[dict[str, float]]] = {side: [] for side in sides}
    hops: dict[Side, dict[str, dict[str, float]]] = {}
    for at in range(plan.rounds):
        for side in sides if at % 2 == 0 else sides[::-1]:
            with (
                tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder,
                contextlib.ExitStack() as stack,
            ):
                if side == "litellm":
                    assert python is not None
                    url, group = stack.enter_context(litellm.running(python, Path(folder)))
                    served = ServerUnderLoad(url, litellm.MODEL, {"litellm": group})
                else:
                    encoder: Literal["hashed", "minilm"] = "minilm" if side == "ours_minilm" else "hashed"
                    served = stack.enter_context(_ours(settings, broker, Path(folder), encoder))
                figures, cpu, hops[side] = _turn(served, plan)
            for connections_, one in figures.items():
                taken[side][connections_].append(one)
                say(
                    f"round {at + 1}, {side}, {connections_} connections: {one.requests_per_s:.1f} requests/s, "
                    f"p50 {one.p50_ms} ms, p99 {one.p99_ms} ms"
                )
            spent[side].append(cpu)
    found: dict[str, Any] = {
        side: {str(c): summary(runs) for c, runs in taken[side].items()} for side in sides
    }
    found["cpu_ms_per_request"] = {side: _means(each) for side, each in spent.items()}
    found["hops_ms_at_one_connection"] = {side: each for side, each in hops.items() if each}
    return {**found, "compared": compared(found)}


def one_by_one(settings: Settings, kind: Any, queries: int, folder: Path) -> dict[str, Any]:
    """Return the latency with and without the models' share, one question at a time, on an idle system.

    The whole product runs as `up` starts it, including the models. The questions are sums, each asked once, with the
    model `auto`.

    Args:
        settings: The system's settings.
        kind: The broker to start.
        queries: Number of questions.
        folder: The folder for the system's state and log.

    Returns:
        For the first question, the median and the last question (`first`, `median` and `last`), in seconds:
        `client_s`, the time from sending the request to the last byte of the answer; `total_s` as reported by the
        gateway; `models_s`, the sum of the gateway's `queue_s`, `generate_s` and `verify_s`; and `rest_s`, which is
        `client_s` minus `models_s`. Each median is taken separately. `slowest_rest_s` is the maximum over all
        questions.

    Raises:
        ServiceFailed: the system did not start.
        BenchFailed: a question was not answered.
    """
    settings = settings.replace(state_dir=str(folder / "state"), gateway_port=free_port())
    url = f"http://127.0.0.1:{settings.gateway.port}"
    system = Deployment(settings, broker=kind, log_path=folder / "services.log", optional=("gateway",))
    with system, httpx.Client(base_url=url, timeout=settings.queries.timeout_s) as client:
        system.supervisor.wait_ready(600)
        wait_served(client)
        taken = [_asked(client, f"How much is {at % 89 + 2} plus {at // 89 + 3}?") for at in range(queries)]
    return {
        "first": taken[0],
        "median": {name: median(each[name] for each in taken) for name in taken[0]},
        "last": taken[-1],
        "slowest_rest_s": max(each["rest_s"] for each in taken),
        "queries": queries,
    }


def wait_served(client: httpx.Client) -> None:
    """Wait until an executor serves every model."""
    while (models := client.get("/health/ready").json()["models"])["ready"] < models["of"]:
        time.sleep(0.1)


def _asked(client: httpx.Client, question: str) -> dict[str, float]:
    body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
    began_s = time.perf_counter()
    response = client.post("/v1/chat/completions", json=body)
    client_s = time.perf_counter() - began_s
    if response.status_code != 200:
        raise BenchFailed(f"{question}: status {response.status_code}, {response.text[:500]}")
    timings = response.json()["uniscale"]["timings"]
    models_s = sum(timings[name] for name in ("queue_s", "generate_s", "verify_s"))
    return {
        "client_s": client_s,
        "total_s": timings["total_s"],
        "models_s": models_s,
        "rest_s": client_s - models_s,
    }


def summary(runs: Sequence[LoadFigures]) -> dict[str, Any]:
    """Return the medians over the rounds, and each round's throughput."""
    return {
        "requests_per_s": float(median(run.requests_per_s for run in runs)),
        "p50_ms": _median(run.p50_ms for run in runs),
        "p99_ms": _median(run.p99_ms for run in runs),
        "runs": [run.requests_per_s for run in runs],
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def compared(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gateway's share of LiteLLM's throughput, by side and connections, and whether the targets are met."""
    ours = [side for side in ("ours", "ours_minilm") if side in found]
    told: dict[str, Any] = {}
    for side in ours:
        if "litellm" in found:
            told[f"{side}_share"] = {
                c: round(row["requests_per_s"] / found["litellm"][c]["requests_per_s"], 3)
                for c, row in found[side].items()
                if found["litellm"][c]["requests_per_s"]
            }
            shares = told[f"{side}_share"]
            # Unknown if LiteLLM answered no request under one of the loads.
            whole = len(shares) == len(found[side])
            told[f"{side}_share_reached"] = all(s >= SHARE for s in shares.values()) if whole else None
        if "4" in found[side]:
            p50_ms = found[side]["4"]["p50_ms"]
            told[f"{side}_p50_reached"] = p50_ms is not None and p50_ms <= P50_MS
    return told


def _turn(
    served: ServerUnderLoad, plan: GatewayPlan
) -> tuple[dict[int, LoadFigures], dict[str, float], dict[str, dict[str, float]]]:
    """Measure one server under every load. Return the figures, the CPU ms per request by process group, and the hops.

    The hops are measured with one connection.
    """
    _load(ChatLoad(url=served.url, model=served.model, connections=4, seconds=1.0, warm_s=0.5))
    before = {name: group_cpu_s(group) for name, group in served.groups.items()}
    already = served.stored()
    figures: dict[int, LoadFigures] = {}
    hops: dict[str, dict[str, float]] = {}
    for count in plan.connections:
        figures[count] = _load(
            ChatLoad(url=served.url, model=served.model, connections=count, seconds=plan.seconds)
        )
        if count == 1:
            hops = served.hops()
    sent = sum(one.sent for one in figures.values())
    cpu = {name: 1000 * (group_cpu_s(group) - before[name]) / sent for name, group in served.groups.items()}
    for kind, records in served.stored().items():
        if records - already[kind] < sent:
            raise BenchFailed(
                f"{sent} requests were answered, but the broker has {records - already[kind]} of {kind}"
            )
    return figures, cpu, hops


def _load(load: ChatLoad) -> LoadFigures:
    argv = [sys.executable, "-m", "bench.load", load.url, "--model", load.model]
    argv += [
        "--connections",
        str(load.connections),
        "--seconds",
        str(load.seconds),
        "--warm-s",
        str(load.warm_s),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailed(f"the client failed: {done.stderr[-2000:]}")
    found = msgspec.json.decode(done.stdout, type=LoadFigures)
    if found.errors:
        raise BenchFailed(
            f"{load.url}, {load.connections} connections: {found.errors} of {found.sent} requests"
        )
    return found


@contextlib.contextmanager
def _ours(
    settings: Settings, broker: LocalBroker, folder: Path, encoder: Literal["hashed", "minilm"]
) -> Iterator[ServerUnderLoad]:
    questions = [f"Question {n}: how many are {n % 97} and {n % 89} together?" for n in range(50)]
    recorded = partial(recording, questions=questions, steps=1)
    shared = settings_for(settings, broker).replace(
        encoder=encoder, gateway_port=free_port(), max_in_flight=max(CONNECTIONS)
    )
    deployed = running(shared, folder, recorded, optional=("gateway",))
    with deployed as (settings, catalogue, supervisor):
        groups_of = {name: service.pid for name, service in supervisor.services.items()}
        if broker.process is not None:
            groups_of["broker"] = broker.process.pid
        # One path per search: this measures the infrastructure, not wide searches.
        yield ServerUnderLoad(
            f"http://127.0.0.1:{settings.gateway.port}/v1",
            f"{catalogue.smallest.name}/1/1/1",
            groups_of,
            lambda: _stored(settings, Topics(settings)),
            lambda: _hops(settings, catalogue.groups),
        )


def _stored(settings: Settings, topics: Topics) -> dict[str, int]:
    """Return how many queries, decisions and answers are on the broker."""
    kinds = {"query": topics.query, "decision": topics.decision, "answer": topics.answer}
    with BlockingLog(settings) as log:
        return {kind: sum(log.end_offsets([topic]).values()) for kind, topic in kinds.items()}


def _hops(settings: Settings, groups: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return each hop's p50 and p95 for the latest hundred queries, in ms between append times on the broker."""
    answered = [one for one in read_timelines(settings, groups).by_id.values() if "answer" in one.at_ms]
    return latencies(sorted(answered, key=lambda one: one.at_ms["query"])[-100:])


def group_cpu_s(group: int) -> float:
    """Return the CPU seconds used by a group's live processes (Linux)."""
    used_s = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # the process has ended
            if os.getpgid(process.pid) == group:
                used_s += sum(process.cpu_times()[:2])
    return used_s


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(sum(run[name] for run in runs) / len(runs), 3) for name in runs[0]}
