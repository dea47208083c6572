"""`bench-recovery`, `bench-closed`, `bench-kills`: recovery of the learner, a learner after a long life, any room."""

import os
from collections.abc import Callable
from typing import Any, Final

import click
import orjson

from streams.local.broker import Broker
from streams.local.launch import settings_for
from streams.local.signals import stopped_by_signals
from streams.settings import Settings

_BROKER: Final = click.option(
    "--broker",
    "kind",
    type=click.Choice(["none", "auto", "kafka", "embedded"]),
    help="Which broker to start; none: use the one at --bootstrap. [none where --bootstrap is given, else auto]",
)


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
@_BROKER
@click.pass_context
def bench_recovery(ctx: click.Context, rows: int, half: int, kind: str | None) -> None:
    """Write ROWS observations to a broker and measure the decider's recovery of them; the last line is JSON.

    `recover_<ROWS>_s` counts from the assignment of the partition until the learner is ready: reading its log
    (`read_s`) and folding it (`fold_s`). `difference` compares it with the learner that wrote the log.
    """
    from streams.bench.recovery import measure  # with numpy and more, which `--help` need not wait for

    _measured(ctx, kind, lambda settings, say: measure(settings, rows, half, say))


@click.command("bench-closed")
@click.argument("queries", type=click.IntRange(min=1), default=1_000_000)
@click.option(
    "--lived",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    help="How many of them are decided and learned here; the others are entered as ids only.",
)
@click.option(
    "--half",
    type=click.IntRange(min=8),
    default=384,
    show_default=True,
    help="Length of each embedding, the query's and the action's.",
)
@_BROKER
@click.pass_context
def bench_closed(ctx: click.Context, queries: int, lived: int, half: int, kind: str | None) -> None:
    """Write the log of QUERIES ended queries, start the decider on it, and send duplicates; the last line is JSON.

    `rss_mb` and `peak_mb` are the decider's resident memory, `ready_s` counts from the start of its process. Half of
    `duplicates_sent` are redeliveries and are skipped; the others reuse an id and are refused.
    """
    from streams.bench.closed import measure  # with numpy and more, which `--help` need not wait for

    _measured(ctx, kind, lambda settings, say: measure(settings, queries, lived, half, say))


@click.command("bench-kills")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each room is killed.",
)
@click.option("--room", "rooms", multiple=True, help="Kill only this room; may be repeated. [all rooms]")
@click.option(
    "--rate",
    type=click.FloatRange(min=0.0),
    default=4.0,
    show_default=True,
    help="Other queries per second, all the time.",
)
@click.option(
    "--lived",
    "lived_s",
    type=click.FloatRange(min=0.0),
    help="Seconds that a process lives before it is killed; the supervisor restarts a young one after a pause. [62]",
)
@click.option(
    "--engines/--no-engines",
    default=False,
    show_default=True,
    help="Run the catalogue's engines instead of a recording.",
)
@_BROKER
@click.pass_context
def bench_kills(
    ctx: click.Context,
    rounds: int,
    rooms: tuple[str, ...],
    rate: float,
    lived_s: float | None,
    engines: bool,
    kind: str | None,
) -> None:
    """Kill every room in turn (kill -9) and measure the seconds until it serves again; the last line is JSON.

    A recovery counts from the kill until the reward of a query sent at that moment is closed; `ready_s` of it pass
    until the room's next process is ready. Each process lives for a minute before it is killed, so a round takes
    little more than that. All queries sent in between must end with a closed reward.
    """
    from streams.bench.kills import measure  # with numpy and more, which `--help` need not wait for

    _measured(
        ctx,
        kind,
        lambda settings, say: measure(
            settings, rounds, rate=rate, engines=engines, say=say, rooms=rooms, lived_s=lived_s
        ),
    )


def _measured(
    ctx: click.Context, kind: str | None, measure: Callable[[Settings, Callable[[str], None]], dict[str, Any]]
) -> None:
    """Measure on the broker of choice and print the result."""
    settings: Settings = ctx.obj
    given = ctx.find_root().params.get("bootstrap") or "UNISCALE_BOOTSTRAP" in os.environ

    def say(text: str) -> None:
        click.echo(text, err=True)

    with stopped_by_signals():
        if (kind or ("none" if given else "auto")) == "none":
            found = {**measure(settings, say), "broker": f"at {settings.kafka.bootstrap}"}
        else:
            with Broker.choose(kind or "auto", os.environ) as broker:  # type: ignore[arg-type]
                say(broker.version)
                found = {**measure(settings_for(settings, broker), say), "broker": broker.version}
    click.echo(orjson.dumps(found).decode())


COMMANDS = [bench_recovery, bench_closed, bench_kills]
