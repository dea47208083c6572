"""`bench`: measure the streams on every broker there is."""

import os
import tempfile
from pathlib import Path
from typing import Any

import click
import orjson

from streams.local.broker import kafka_home
from streams.settings import Settings


@click.command()
@click.option(
    "--queries",
    type=click.IntRange(min=20),
    default=1000,
    show_default=True,
    help="Per run, three runs on Kafka; a quarter on the embedded broker.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Steps of every search."
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Queries on their way at once.",
)
@click.option(
    "--broker", "brokers", multiple=True, type=click.Choice(["kafka", "embedded"]), help="[all there are]"
)
@click.option(
    "--questions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=Path("models/mini-math-test.jsonl"),
    show_default=True,
    help="What the engine is asked.",
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
    questions: Path,
    out: Path,
) -> None:
    """Measure queries per second and latency per stage with engines that answer at once; writes OUT.

    Apache Kafka is measured when KAFKA_HOME names it or ../shared/kafka is there. Then the catalogue's largest model
    on vLLM: tokens per second of searches, beside bare vLLM given the same requests.
    """
    from streams.bench.engine import EnginePlan, measure_engine
    from streams.bench.run import Plan, measure  # with numpy and more, which `--help` need not wait for

    kinds = list(brokers) or [*(["kafka"] if kafka_home(os.environ) else []), "embedded"]
    plans = {
        "kafka": Plan(queries=queries, steps=steps, in_flight=in_flight),
        # A tenth as fast, and there to try things out: fewer queries say as much.
        "embedded": Plan(queries=max(queries // 4, 20), steps=steps, in_flight=in_flight),
    }
    found: dict[str, Any] = {"cpus": os.cpu_count(), "brokers": {}}
    for kind in kinds:
        found["brokers"][kind] = measure(kind, settings, plans[kind], click.echo)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        plan = EnginePlan(catalogue=settings.catalogue, questions=str(questions))
        found["engine"] = measure_engine(plan, Path(folder), click.echo)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    click.echo(f"wrote {out}")


COMMANDS = [bench]
