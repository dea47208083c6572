"""`python -m bench`: each command measures one thing and prints or writes JSON. SIGTERM stops everything it started.

A benchmark's module is imported only when its command runs, so that `--help` does not have to wait for numpy and such.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import click
import msgspec
import orjson

from streams.cli import CONTEXT, RefusingGroup, flags_of_settings
from streams.demo.run import QUESTIONS
from streams.local.broker import LocalBroker, kafka_home
from streams.local.deployment import settings_for, stopped_by_signals
from streams.settings import Settings

Kind = Literal["kafka", "embedded"]

F = TypeVar("F", bound=Callable[..., Any])

_say: Final = partial(click.echo, err=True)

_started_broker = click.option(
    "--broker",
    "kind",
    type=click.Choice(["auto", "kafka", "embedded"]),
    default="auto",
    help="Which broker to start; auto: Apache Kafka where there is one.",
)


def _out(file: str, what: str = "The file to write.") -> Callable[[F], F]:
    return click.option("--out", type=click.Path(path_type=Path), default=Path(file), help=what)


@click.group(cls=RefusingGroup, context_settings=CONTEXT)
@flags_of_settings
@click.pass_context
def main(ctx: click.Context, /, **flags: Any) -> None:
    """Measure UniScale-Streams. The settings are those of `python -m streams`, from UNISCALE_<NAME>."""
    ctx.with_resource(stopped_by_signals())
    ctx.obj = Settings.from_env(os.environ, **flags)


# `audit`: the audit of a log.


@main.command("audit")
@click.option("--queries", type=click.IntRange(min=100), default=100_000, help="In the log.")
@click.option("--half", type=click.IntRange(min=2), default=384, help="Length of s_q and of s_a.")
@click.option(
    "--broker", "on_broker", is_flag=True, help="Write to the broker of the settings instead of files."
)
@click.pass_obj
def audit(settings: Settings, queries: int, half: int, on_broker: bool) -> None:
    """Measure the time and peak memory of an audit, in a separate process.

    The services' own code generates the log without engines and writes it to temporary files (about 13 KB per query) or
    to separate topics on a broker. Prints one JSON object. Exits with 1 if the audit finds a discrepancy.
    """
    from bench.audit import measure

    found = measure(settings, queries, half, on_broker, _say)
    click.echo(msgspec.json.encode(found).decode())
    sys.exit(1 if found["wrong"] else 0)


# `gateway`: the gateway compared with LiteLLM's proxy.


@main.command("gateway")
@click.option("--seconds", type=click.FloatRange(min=0.5), default=6.0, help="Length of each measurement.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=2,
    help="Turns of each side; figures are medians over them.",
)
@click.option(
    "--one-by-one",
    type=click.IntRange(min=1),
    help="Instead, ask so many typed questions, one after another, and print what everything but the models took.",
)
@_started_broker
@_out("out/bench/gateway.json", "The file to write; LiteLLM's environment is made beside it.")
@click.pass_obj
def measure_gateway(
    settings: Settings, /, one_by_one: int | None, kind: str, out: Path, **options: Any
) -> None:
    """Measure the gateway's requests per second and latency at 1, 4, 32 and 256 connections; write OUT.

    Three sides take turns and get requests from the same client: the gateway with the hashed encoder (`ours`), the
    gateway with the real encoder (`ours_minilm`), and LiteLLM's proxy with mock answers (`litellm`). A search has one
    step and a recorded engine. Every request to the gateway is on the broker before it is answered. If LiteLLM cannot
    be installed, OUT says why.
    """
    from bench import gateway, litellm, peers
    from bench.gateway import GatewayPlan, measure
    from bench.turns import versions

    if one_by_one is not None:
        with tempfile.TemporaryDirectory() as folder:
            found = gateway.one_by_one(settings, kind, one_by_one, Path(folder))
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    plan = GatewayPlan(**options)
    peer: dict[str, str] = {}
    python: Path | None = None
    try:
        python = peers.install(out.parent / "litellm", litellm.PINS)
        peer["litellm"] = litellm.version(python)
    except peers.PeerMissing as error:
        click.echo(f"LiteLLM is left out: {error}", err=True)
        peer["litellm"] = f"missing: {error}"
    with LocalBroker.choose(kind, os.environ) as broker:  # type: ignore[arg-type]
        click.echo(broker.version)
        measured = measure(settings, broker, plan, python, click.echo)
        found = {
            "cpus": os.cpu_count(),
            "versions": {**versions(Path.cwd()), **peer},
            "broker": broker.version,
            "engine": "recorded, one step a search, one path",
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            **measured,
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    click.echo(f"wrote {out}")


# `ttft`: the time to the first token of a stream.


@main.command("ttft")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Turns of each side.")
@click.option("--streams", type=click.IntRange(min=1), multiple=True, default=(1, 32), help="Open streams.")
@click.option("--each", type=click.IntRange(min=1), default=5, help="Streams in a row in each of them.")
@click.option(
    "--server", default="", help="Base of a server of chat completions, without /v1. [one of our own]"
)
@click.option("--model", default="paced", help="Its model.")
@_started_broker
@click.pass_obj
def measure_ttft(settings: Settings, /, kind: Any, **options: Any) -> None:
    """Measure the time to the first token from a server, and from the gateway of a whole deployment in front of it.

    Prints one JSON object: the p50 and p95 for both, by number of open streams, and how much later the gateway's median
    is.
    """
    from bench.ttft import FirstTokenPlan, measure

    with tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder:
        found = measure(settings, kind, FirstTokenPlan(**options), Path(folder))
    click.echo(orjson.dumps({"cpus": os.cpu_count(), "open_streams": found}))


# `traces`: what traces cost.


@main.command("traces")
@click.option("--queries", type=click.IntRange(min=20), default=2000, help="Queries of each round.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=6, help="Rounds with traces, and as many without."
)
@click.option("--steps", type=click.IntRange(min=1), default=5, help="Steps of every search.")
@click.option("--in-flight", type=click.IntRange(min=1), default=256, help="Queries in flight.")
@_started_broker
@click.pass_obj
def measure_traces(settings: Settings, /, kind: Any, **options: int) -> None:
    """Measure what traces cost: one deployment with and without the tracer, in alternating rounds.

    The encoder is the hashed one and engines answer at once, so the tracer takes a larger share than beside models.
    Prints one JSON object: queries per second and processor time a query (services and broker, and the tracer), of each
    round, and the ratios with traces to without, with 95 % intervals over the pairs of rounds.
    """
    from bench.traces import TracePlan, measure

    with (
        tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder,
        LocalBroker.choose(kind, os.environ) as broker,
    ):
        found = measure(settings, broker, TracePlan(**options), Path(folder))
        found = {"cpus": os.cpu_count(), "broker": broker.version, **found}
    click.echo(orjson.dumps(found))


# `closed`, `kills`: recovery of the learner after many queries, and of any service.

_BROKER: Final = click.option(
    "--broker",
    "kind",
    type=click.Choice(["none", "auto", "kafka", "embedded"]),
    help="Which broker to start; none: use the one at --bootstrap. [none where --bootstrap is given, else auto]",
)


@main.command("closed")
@click.argument("queries", type=click.IntRange(min=1), default=1_000_000)
@click.option(
    "--lived",
    type=click.IntRange(min=1),
    default=50_000,
    help="How many of them are decided and learned here; the others are entered as ids only.",
)
@click.option(
    "--half",
    type=click.IntRange(min=8),
    default=384,
    help="Length of each embedding, the query's and the action's.",
)
@_BROKER
@click.pass_context
def closed(ctx: click.Context, queries: int, lived: int, half: int, kind: str | None) -> None:
    """Write the log of QUERIES ended queries, start the decider on it, and send duplicates. The last line is JSON.

    `rss_mb` and `peak_mb` are the decider's resident memory. `ready_s` is measured from the start of its process and
    includes `read_s` for reading the log and `fold_s` for folding the rows after the newest snapshot. Half of
    `duplicates_sent` are redeliveries, which are skipped; the others reuse an id and are refused.
    """
    from bench.closed import measure

    _measured(ctx, kind, lambda settings, say: measure(settings, queries, lived, half, say))


@main.command("kills")
@click.option("--rounds", type=click.IntRange(min=1), default=5, help="How often each service is killed.")
@click.option(
    "--service", "services", multiple=True, help="Kill only this service; may be repeated. [all services]"
)
@click.option(
    "--rate", type=click.FloatRange(min=0.0), default=4.0, help="Other queries per second, all the time."
)
@click.option(
    "--lived",
    "lived_s",
    type=click.FloatRange(min=0.0),
    help="Seconds that a process lives before it is killed; the supervisor restarts a young one after a pause. [62]",
)
@click.option(
    "--engines/--no-engines", default=False, help="Run the catalogue's engines instead of a recording."
)
@_BROKER
@click.pass_context
def kills(ctx: click.Context, /, kind: str | None, **plan: Any) -> None:
    """Kill every service in turn (kill -9) and measure the seconds until it serves again. The last line is JSON.

    A recovery lasts from the kill until the reward of a query sent at that moment is closed. `ready_s` is the time
    until the service's next process is ready. Each process lives for a minute before it is killed, so a round takes
    little more than a minute. All other queries must also end with a closed reward.
    """
    from bench.kills import measure

    _measured(ctx, kind, lambda settings, say: measure(settings, say=say, **plan))


def _broker_kind(ctx: click.Context, kind: str | None) -> str:
    given = ctx.find_root().params.get("bootstrap") or "UNISCALE_BOOTSTRAP" in os.environ
    return kind or ("none" if given else "auto")


def _measured(
    ctx: click.Context, kind: str | None, measure: Callable[[Settings, Callable[[str], None]], dict[str, Any]]
) -> None:
    """Measure on the chosen broker and print the result."""
    settings: Settings = ctx.obj
    if _broker_kind(ctx, kind) == "none":
        found = {**measure(settings, _say), "broker": f"at {settings.kafka.bootstrap}"}
    else:
        with LocalBroker.choose(kind or "auto", os.environ) as broker:  # type: ignore[arg-type]
            _say(broker.version)
            found = {**measure(settings_for(settings, broker), _say), "broker": broker.version}
    click.echo(orjson.dumps(found).decode())


# `refit`: the contextual policy's refits.


@main.command("refit")
@click.option("--models", type=click.IntRange(min=1), default=10, help="Hosted models.")
@click.option("--values", type=click.IntRange(min=0), default=25, help="Categories; each request has one.")
@click.option(
    "--repeated",
    type=click.IntRange(min=0),
    default=0,
    help="Every how many questions one is asked again. [never]",
)
@click.option("--outcomes", type=click.IntRange(min=10), default=2560, help="Learned in all.")
@click.option("--runs", type=click.IntRange(min=1), default=3, help="Figures are the least of so many.")
def measure_refit(**sizes: int) -> None:
    """Measure the processor time of each refit by a contextual policy without a prior, and print JSON."""
    from bench.refit import measure

    click.echo(orjson.dumps(measure(**sizes), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


# `gpu`: eFLOPs compared with seconds on a GPU.


@main.command("gpu")
@click.option("--model", "models", multiple=True, help="Of the catalogue `qwen3`; may be repeated. [all]")
@click.option("--batch", "batches", multiple=True, type=click.IntRange(min=1), help="[1, 4, 16, 64, 256]")
@click.option("--repetitions", type=click.IntRange(min=5), default=7, help="Of each figure.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measure nothing: print the tables of an earlier OUT.",
)
@_out("out/bench/gpu.json")
def measure_gpu(
    models: tuple[str, ...], batches: tuple[int, ...], repetitions: int, report: Path | None, out: Path
) -> None:
    """Measure Qwen3 models with random weights on a GPU, and compare the seconds with eFLOPs; write OUT.

    Decoding is measured by batch and context, and prompt reading by length. Needs a CUDA device, with torch and
    transformers to use it; the six models take five minutes on an H100. Models and batches that do not fit in its
    memory are left out. Prints the tables. Without a GPU, says so and exits with 1.
    """
    from bench import gpu
    from bench.gpu_timing import QWEN3, NoGPU

    if unknown := set(models) - {*QWEN3}:
        raise click.UsageError(f"unknown models {sorted(unknown)}; there are {list(QWEN3)}")
    if report is not None:
        found = orjson.loads(report.read_bytes())
    else:
        whole = gpu.GPUPlan()
        plan = gpu.GPUPlan(
            models=models or whole.models, batches=batches or whole.batches, repetitions=repetitions
        )
        try:
            found = gpu.run(plan, _say)
        except NoGPU as error:
            raise click.ClickException(f"no GPU: {error}") from None
        _write(out, found)
    compared = gpu.compare(found)
    click.echo(f"{gpu.markdown(compared)}\n\n{gpu.in_words(compared)}")


# `latency`: the time of live queries by component.


@main.command("latency")
@click.option("--queries", type=click.IntRange(min=1), default=200, help="How many are asked, or read.")
@_BROKER
@_out("out/bench/latency.json")
@click.pass_context
def measure_latency(ctx: click.Context, queries: int, kind: str | None, out: Path) -> None:
    """Measure the time of live queries by component, compared with the lab; print the table and write OUT.

    Starts a deployment with the catalogue's models and sends the demo's questions, one after another, with the
    objective quality-priority, as in the lab. With `--broker none` it sends nothing, but reads the latest Answers from
    the deployment at --bootstrap, regardless of the load there.
    """
    from bench import latency

    settings: Settings = ctx.obj
    if _broker_kind(ctx, kind) == "none":
        timelines, broker_version = latency.latest(settings, queries), f"at {settings.kafka.bootstrap}"
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalBroker.choose(cast(Any, kind or "auto"), os.environ) as broker,
        ):
            broker_version = broker.version
            timelines = latency.ask(settings_for(settings, broker), queries, Path(folder), _say)
    found = {"cpus": os.cpu_count(), "broker": broker_version, **latency.beside_lab(timelines)}
    _write(out, found)
    click.echo(latency.in_words(found))
    click.echo(f"wrote {out}")


# `streams`: the streams on every available broker.


@main.command("streams")
@click.option(
    "--queries",
    type=click.IntRange(min=20),
    default=600,
    help="Queries of each run on Kafka; a quarter of it on the embedded broker.",
)
@click.option("--steps", type=click.IntRange(min=1), default=5, help="Steps of every search.")
@click.option("--in-flight", type=click.IntRange(min=1), default=256, help="Queries in flight.")
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    type=click.Choice(["kafka", "embedded"]),
    help="Broker to measure; may be repeated. [all there are]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    help="Runs of each configuration on Kafka; figures are medians. The embedded broker gets one.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Another checkout to measure in turn with this one, by its own command.",
)
@click.option("--engine/--no-engine", default=True, help="Also measure search beside bare vLLM.")
@click.option(
    "--questions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=QUESTIONS,
    help="Questions for the engine.",
)
@_out("out/bench/stream.json")
@click.pass_obj
def streams(
    settings: Settings,
    /,
    queries: int,
    brokers: tuple[Kind, ...],
    runs: int,
    against: Path | None,
    engine: bool,
    questions: Path,
    out: Path,
    **options: int,
) -> None:
    """Measure queries per second and each stage's latency, with engines that answer at once; write OUT.

    Three configurations take turns: with the encoder, without it, and without it at one step per query. Apache Kafka is
    measured if KAFKA_HOME is set or shared/kafka is beside the checkout. Then the catalogue's largest model runs on
    vLLM, to compare the tokens per second of searches with those of bare vLLM given the same requests. OUT is written
    after each part.
    """
    from bench.engine import EnginePlan, measure_engine
    from bench.streams import StreamPlan
    from bench.turns import alternate, round_here, round_in, versions

    kinds: Sequence[Kind] = brokers or (("kafka", "embedded") if kafka_home(os.environ) else ("embedded",))
    found: dict[str, Any] = {"cpus": os.cpu_count(), "versions": versions(Path.cwd()), "brokers": {}}
    if against is not None:
        found["against"] = {"versions": versions(against), "brokers": {}}
    for kind in kinds:
        # The embedded broker is a tenth as fast and only meant for trials, so fewer queries suffice.
        on_kafka = kind == "kafka"
        plan = StreamPlan(queries=queries if on_kafka else max(queries // 4, 20), **options)
        sides = {"here": partial(round_here, kind, settings, plan)}
        if against is not None:
            sides["against"] = partial(round_in, against, kind, settings, plan)
        measured = alternate(sides, runs if on_kafka else 1, click.echo)
        found["brokers"][kind] = measured["here"]
        if against is not None:
            found["against"]["brokers"][kind] = measured["against"]
        _write(out, found)
    if engine:
        with tempfile.TemporaryDirectory() as folder:
            asked = EnginePlan(catalogue=settings.catalogue, questions=str(questions))
            found["engine"] = measure_engine(asked, Path(folder), click.echo)
        _write(out, found)
    click.echo(f"wrote {out}")


def _write(out: Path, found: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))


# `learner`, `memory`: the learner alone, and the memory of a deployment.


@main.command("learner")
@_out("out/bench/learner.json")
@click.option("--rounds", type=click.IntRange(min=1), default=400, help="Timed rounds of each row.")
@click.option("--smoke", is_flag=True, help="Tiny sizes: shows that it runs, measures nothing.")
@click.option("--row", nargs=2, metavar="ROW JSON", help="One row alone, in this process.")
def measure_learner(out: Path, rounds: int, smoke: bool, row: tuple[str, str] | None) -> None:
    """Measure the learner (decide, update, batches, recovery, memory, scaling) and public libraries; write OUT."""
    from bench import learner

    if row is not None:
        click.echo(orjson.dumps(learner.row(*row)).decode())
    else:
        learner.run(out, rounds=rounds, smoke=smoke)


@main.command("memory")
@click.option("--queries", type=click.IntRange(min=1), default=60)
@click.option("--in-flight", type=click.IntRange(min=1), default=16)
@click.option("--broker", "kind", type=click.Choice(["embedded", "kafka", "auto"]), default="embedded")
@click.option("--large", type=click.IntRange(min=0), default=0, help="Large requests over HTTP after that.")
@click.option("--bytes", "size", type=click.IntRange(min=1), default=1_000_000, help="Of each.")
@click.option(
    "--ceiling", type=click.IntRange(min=0), help="MB for each service beside what it takes when ready."
)
@click.option(
    "--open", "rows", type=click.IntRange(min=1), help="Instead: so many open rows, in the decider alone."
)
@click.pass_obj
def memory(
    settings: Settings,
    queries: int,
    in_flight: int,
    kind: str,
    large: int,
    size: int,
    ceiling: int | None,
    rows: int | None,
) -> None:
    """Measure the combined memory of broker, services and engines while the demo's questions are answered.

    With --open, instead measure how many bytes an open row takes in the decider's memory, its file and its snapshots.
    """
    from bench import open_rows
    from bench.memory import measure

    if rows is not None:
        click.echo(orjson.dumps(open_rows.measure(settings, rows), option=orjson.OPT_INDENT_2).decode())
        return
    found = measure(settings, queries, in_flight, kind, large=large, size=size, ceiling=ceiling)
    click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())


@main.command("hostile")
@click.option(
    "--outcomes", type=click.IntRange(min=1), default=1000, help="Of the honest five, and of the sixth."
)
@click.option("--seeds", type=click.IntRange(min=1), default=5, help="Orders of traffic and timing.")
@click.option("--kind", "kinds", multiple=True, help="A kind of hostility; may be repeated. [default: all]")
@click.option(
    "--prior", "priors", multiple=True, type=click.Choice(["shipped", "none"]), default=["shipped", "none"]
)
@_out("out/bench/hostile", "A folder.")
def measure_hostile(
    outcomes: int, seeds: int, kinds: tuple[str, ...], priors: tuple[str, ...], out: Path
) -> None:
    """Measure how one hostile tenant of six affects the others; write report.json and report.md to OUT.

    The services run in memory with a recorded engine. Runs in the journal OUT/lives.jsonl are not repeated. Prints the
    table. Exits with 1 if a bound is not met.
    """
    from bench import hostile

    known = [*hostile.KINDS, hostile.UNTAUGHT]
    if unknown := set(kinds) - {*known}:
        raise click.UsageError(f"unknown kinds {sorted(unknown)}; there are {known}")
    table = hostile.measure(kinds or known, priors, range(1, seeds + 1), outcomes, out, _say)
    click.echo(hostile.markdown(table))
    bound = [row for row in table if row["setting"] in hostile.KINDS]
    sys.exit(0 if all(row["met"] for row in bound) else 1)


@main.command("soak")
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--minutes", type=click.FloatRange(min=0.1), default=100.0)
@click.option("--rate", type=click.FloatRange(min=0.1), default=10.0, help="Queries a second.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder for the log and the state; temporary without it."
)
@_started_broker
@click.option("--report", "reported", is_flag=True, help="Run nothing: report the soaks that FILES hold.")
@click.pass_obj
def measure_soak(
    settings: Settings,
    /,
    files: tuple[Path, ...],
    data: Path | None,
    kind: str,
    reported: bool,
    **load: float,
) -> None:
    """Put a whole deployment under steady load, append its processes' resource use to one FILE, and audit the log.

    With --report, fit the hourly growth of memory, descriptors and loop lag to the samples in all FILES, and exit with
    1 if growth may exceed a bound, or if anything was lost.
    """
    from bench import soak

    if reported:
        found = soak.report(*soak.read(files))
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())
        sys.exit(0 if found["well"] else 1)
    [out] = files
    with LocalBroker.choose(cast(Any, kind), os.environ, directory=data) as broker:
        ended = soak.soak(settings, broker, out=out, say=_say, **load)
    click.echo(orjson.dumps(ended).decode())
