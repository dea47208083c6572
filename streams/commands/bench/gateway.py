"""`bench-gateway`: measure the gateway beside LiteLLM's proxy."""

import os
import tempfile
from pathlib import Path

import click
import orjson

from streams.local.broker import Broker
from streams.local.signals import stopped_by_signals
from streams.settings import Settings


@click.command("bench-gateway")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.5),
    default=6.0,
    show_default=True,
    help="Length of each measurement.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Turns of each side; figures are medians over them.",
)
@click.option(
    "--quick", is_flag=True, help="One round of one second: shows that it works, not how fast it is."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes of LiteLLM's proxy.",
)
@click.option(
    "--one-by-one",
    type=click.IntRange(min=1),
    help="Instead, ask so many typed questions, one after another, and print what everything but the models took.",
)
@click.option(
    "--broker",
    "kind",
    type=click.Choice(["auto", "kafka", "embedded"]),
    default="auto",
    show_default=True,
    help="Which broker to start; auto: Apache Kafka where there is one.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/bench/gateway.json"),
    show_default=True,
    help="The file to write; LiteLLM's environment is made beside it.",
)
@click.pass_obj
def bench_gateway(
    settings: Settings,
    seconds: float,
    rounds: int,
    quick: bool,
    workers: int,
    one_by_one: int | None,
    kind: str,
    out: Path,
) -> None:
    """Measure requests per second and latency of the gateway at 1, 4, 32 and 256 connections; write OUT.

    Three sides take turns, called by the same client: the gateway with the hashed encoder (`ours`), with the real one
    (`ours_minilm`), and LiteLLM's proxy with mock answers (`litellm`). A search has one step and a recorded engine.
    Every request of ours is on the broker before it is answered. Where LiteLLM cannot be installed, the file says why.
    """
    from streams.bench import gateway, litellm
    from streams.bench.gateway import Plan, measure
    from streams.bench.turns import versions  # with numpy and more, which `--help` need not wait for

    if one_by_one is not None:
        with stopped_by_signals(), tempfile.TemporaryDirectory() as folder:
            found = gateway.one_by_one(settings, kind, one_by_one, Path(folder))
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    plan = (
        Plan(seconds=1.0, rounds=1, workers=workers)
        if quick
        else Plan(seconds=seconds, rounds=rounds, workers=workers)
    )
    peer: dict[str, str] = {}
    python: Path | None = None
    try:
        python = litellm.install(out.parent / "litellm")
        peer["litellm"] = litellm.version(python)
    except litellm.PeerMissing as error:
        click.echo(f"LiteLLM is left out: {error}", err=True)
        peer["litellm"] = f"missing: {error}"
    with Broker.choose(kind, os.environ) as broker:  # type: ignore[arg-type]
        click.echo(broker.version)
        measured = measure(settings, broker, plan, python, click.echo)
        found = {
            "cpus": os.cpu_count(),
            "versions": {**versions(Path.cwd()), **peer},
            "broker": broker.version,
            "engine": "recorded, one step a search, one path",
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            "litellm_workers": plan.workers,
            **measured,
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    click.echo(f"wrote {out}")


COMMANDS = [bench_gateway]
