"""`bench-recovery`: measure how long the learner takes to recover from its log."""

import os

import click
import orjson

from streams.local.broker import Broker
from streams.local.launch import settings_for
from streams.settings import Settings


@click.command("bench-recovery")
@click.option(
    "--rows", type=click.IntRange(min=1), default=10_000, show_default=True, help="Observations to recover."
)
@click.option(
    "--half",
    type=click.IntRange(min=8),
    default=1024,
    show_default=True,
    help="Length of each embedding, the query's and the action's.",
)
@click.option(
    "--broker",
    "kind",
    type=click.Choice(["none", "auto", "kafka", "embedded"]),
    help="Which broker to start; none: use the one at --bootstrap. [none where --bootstrap is given, else auto]",
)
@click.pass_context
def bench_recovery(ctx: click.Context, rows: int, half: int, kind: str | None) -> None:
    """Write ROWS observations to a broker and measure the decider's recovery of them; the last line is JSON.

    `recover_<ROWS>_s` counts from the assignment of the partition until the learner is ready: reading its log
    (`read_s`) and folding it (`fold_s`). `difference` compares it with the learner that wrote the log.
    """
    from streams.bench.recovery import measure  # with numpy and more, which `--help` need not wait for

    settings: Settings = ctx.obj
    given = ctx.find_root().params.get("bootstrap") or "UNISCALE_BOOTSTRAP" in os.environ

    def say(text: str) -> None:
        click.echo(text, err=True)

    if (kind or ("none" if given else "auto")) == "none":
        found = {**measure(settings, rows, half, say), "broker": f"at {settings.kafka.bootstrap}"}
    else:
        with Broker.choose(kind or "auto", os.environ) as broker:  # type: ignore[arg-type]
            say(broker.version)
            found = {**measure(settings_for(settings, broker), rows, half, say), "broker": broker.version}
    click.echo(orjson.dumps(found).decode())


COMMANDS = [bench_recovery]
