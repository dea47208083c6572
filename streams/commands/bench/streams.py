"""`bench`: measure the streams on every broker there is."""

import os
import tempfile
from pathlib import Path
from typing import Any

import click
import orjson

from streams.demo.run import QUESTIONS
from streams.local.broker import kafka_home
from streams.settings import Settings


@click.command()
@click.option(
    "--queries",
    type=click.IntRange(min=20),
    default=600,
    show_default=True,
    help="Queries of each run on Kafka; a quarter of it on the embedded broker.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Steps of every search."
)
@click.option(
    "--in-flight", type=click.IntRange(min=1), default=256, show_default=True, help="Queries in flight."
)
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
    show_default=True,
    help="Runs of each configuration on Kafka; figures are their medians. The embedded broker gets one.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Another checkout to measure in turn with this one, for instance a worktree of an earlier commit.",
)
@click.option(
    "--engine/--no-engine", default=True, show_default=True, help="Also measure search beside bare vLLM."
)
@click.option(
    "--engine-queries",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    help="Questions that the engine searches.",
)
@click.option(
    "--questions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=QUESTIONS,
    show_default=True,
    help="Questions for the engine.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/bench/stream.json"),
    show_default=True,
    help="The file to write.",
)
@click.pass_obj
def bench(
    settings: Settings,
    queries: int,
    steps: int,
    in_flight: int,
    brokers: tuple[str, ...],
    runs: int,
    against: Path | None,
    engine: bool,
    engine_queries: int,
    questions: Path,
    out: Path,
) -> None:
    """Measure queries per second and the latency of each stage, with engines that answer at once; write OUT.

    Three configurations take turns: with the encoder, without it, and without it at one step per query. Apache Kafka is
    measured if KAFKA_HOME names it or shared/kafka is in the checkout. Then the catalogue's largest model runs on
    vLLM: tokens per second of searches, beside bare vLLM given the same requests. OUT is written after each part.
    """
    from streams.bench.engine import EnginePlan, measure_engine
    from streams.bench.run import Plan  # these import numpy and more, which `--help` need not wait for
    from streams.bench.turns import measure, versions

    kinds = list(brokers) or [*(["kafka"] if kafka_home(os.environ) else []), "embedded"]
    plans = {
        "kafka": Plan(queries=queries, steps=steps, in_flight=in_flight),
        # It is a tenth as fast and meant for trying things out: fewer queries tell as much.
        "embedded": Plan(queries=max(queries // 4, 20), steps=steps, in_flight=in_flight),
    }
    found: dict[str, Any] = {"cpus": os.cpu_count(), "versions": versions(Path.cwd()), "brokers": {}}
    if against is not None:
        found["against"] = {"versions": versions(against), "brokers": {}}
    for kind in kinds:
        # One run of the embedded broker is enough to see what it is good for.
        times = runs if kind == "kafka" else 1
        measured = measure({kind: plans[kind]}, settings, times, click.echo, against)  # type: ignore[dict-item]
        found["brokers"] |= measured["here"]
        if against is not None:
            found["against"]["brokers"] |= measured["against"]
        _write(out, found)
    if engine:
        with tempfile.TemporaryDirectory() as folder:
            plan = EnginePlan(catalogue=settings.catalogue, questions=str(questions), queries=engine_queries)
            found["engine"] = measure_engine(plan, Path(folder), click.echo)
        _write(out, found)
    click.echo(f"wrote {out}")


def _write(out: Path, found: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))


COMMANDS = [bench]
