"""`calibrate`: measure what a token costs on a server of your own, from its hourly price and a load test."""

import asyncio
import time
from collections.abc import Sequence

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agents.catalogue.models import Model
from agents.serving.calibration import Processed, calibrated
from agents.serving.registry import HostingOptions, connected
from schemas.prices import Prices
from streams.control_follower import Control
from streams.services.hosting import hosting_options
from streams.settings import Settings
from streams.words import counted


@click.command()
@click.argument("name", metavar="MODEL")
@click.option(
    "--usd-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    required=True,
    help="What its server costs.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Requests in flight: the load that you expect.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=180.0,
    show_default=True,
    help="How long the load lasts.",
)
@click.pass_obj
def calibrate(settings: Settings, name: str, usd_per_hour: float, at_once: int, seconds: float) -> None:
    """Measure what a token of MODEL costs on a server of your own, and print its price for the catalogue.

    Sends the server a load of requests, half of the time with long prompts and half with long answers, and divides the
    server's price among the tokens. The result assumes that load: with fewer requests in flight, a token costs more.
    Run this command while nothing else is using the server.
    """
    base = Control(settings).base
    model = base.model(name)
    if model.endpoint.kind == "in-process":
        raise click.BadParameter(
            f"{name} runs in its executor; only a server can be driven", param_hint="MODEL"
        )
    click.echo(
        f"sending {name} {counted(at_once, 'request')} at once for {seconds:g} s, first with long prompts, "
        "then with long answers …",
        err=True,
    )
    found, halves = asyncio.run(
        _calibrated(model, hosting_options(settings, base), usd_per_hour, at_once, seconds)
    )
    for what, half in zip(("long prompts", "long answers"), halves, strict=True):
        rates = f"{half.prompt_tokens / half.seconds:.0f} tokens of prompts a second"
        click.echo(f"{what}: {rates}, {half.tokens / half.seconds:.0f} generated")
    assumed = f"${usd_per_hour:g} an hour, {counted(at_once, 'request')} at once"
    click.echo(
        f"price: {{input: {found.input:g}, output: {found.output:g}}}  # USD per million tokens, at {assumed}"
    )
    click.echo(
        f"next: replace the `price` line of {name} in {settings.catalogue} with this one; for a running deployment: "
        f"python -m streams catalogue price {name} --input {found.input:g} --output {found.output:g}"
    )


async def _calibrated(
    model: Model, options: HostingOptions, usd_per_hour: float, at_once: int, seconds: float
) -> tuple[Prices, Sequence[Processed]]:
    loaded = await connected(model, options)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(f"{counted(at_once, 'request')} at once", total=seconds)
            return await calibrated(
                loaded.engine, model.sampling, usd_per_hour, at_once=at_once, seconds=seconds, clock=time.monotonic,
                ended=lambda now: bar.update(task, completed=now),
            )  # fmt: skip
    finally:
        await loaded.engine.close()


COMMANDS = [calibrate]
