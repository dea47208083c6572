"""`bench`: measure the streams on every broker there is."""

import os
from pathlib import Path
from typing import Any

import click
import orjson

from streams.broker import kafka_home
from streams.settings import Settings


@click.command()
@click.option(
    "--queries",
    type=click.IntRange(min=20),
    default=600,
    show_default=True,
    help="Per run; three runs a broker.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Steps of every search."
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Queries on their way at once.",
)
@click.option(
    "--broker", "brokers", multiple=True, type=click.Choice(["kafka", "embedded"]), help="[all there are]"
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
    settings: Settings, queries: int, steps: int, in_flight: int, brokers: tuple[str, ...], out: Path
) -> None:
    """Measure queries per second and latency per stage with engines that answer at once; writes OUT.

    Apache Kafka is measured when KAFKA_HOME names it or ../shared/kafka is there.
    """
    from streams.bench import Plan, measure  # with numpy and more, which `--help` need not wait for

    kinds = list(brokers) or [*(["kafka"] if kafka_home(os.environ) else []), "embedded"]
    plan = Plan(queries=queries, steps=steps, in_flight=in_flight)
    found: dict[str, Any] = {"cpus": os.cpu_count(), "brokers": {}}
    for kind in kinds:
        found["brokers"][kind] = measure(kind, settings, plan, click.echo)  # type: ignore[arg-type]
    # Needs the models in an engine, which this command does not load.
    found["engine"] = {"search_tokens_per_s": None, "raw_vllm_tokens_per_s": None}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    click.echo(f"wrote {out}")


COMMANDS = [bench]
