"""Send queries with progress bars and wait for their Answers: what `produce` and `replay` share."""

from collections.abc import Sequence

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from schemas.query import Query
from streams.client import Asked, Client, Pace
from streams.settings import Settings


def send_and_wait(settings: Settings, queries: Sequence[Query], pace: Pace, *, wait: bool) -> int:
    """Send queries, wait for their Answers on request, print how they ended, and return the exit code.

    0 when all were sent and, with `wait`, have an Answer; 1 when one has none in time, or its id was in use.
    """
    with Client(settings) as client, bars() as bar:
        sent = bar.add_task("sent", total=len(queries))
        if not wait:
            client.send(queries, pace, lambda n: bar.update(sent, completed=n))
            return 0
        answered = bar.add_task("answered", total=len(queries))

        def progress(asked: Asked) -> None:
            bar.update(sent, completed=asked.sent)
            bar.update(answered, completed=asked.answered + len(asked.taken))

        asked = client.ask_all(queries, pace=pace, progress=progress)
    ends = ", ".join(f"{end} {count}" for end, count in asked.ends.items())
    click.echo(f"{len(queries)} queries: {ends or 'no Answer'}", err=True)
    if asked.taken:
        click.echo(f"error: {len(asked.taken)} query ids, e.g. {min(asked.taken)}, were used before and keep "
                   "their first Answer; to send the file again, give --run NAME", err=True)  # fmt: skip
    if asked.missing:
        click.echo(
            f"error: {len(asked.missing)} queries have no Answer, e.g. {asked.missing[0]}; are the rooms running?",
            err=True,
        )
    return 1 if asked.missing or asked.taken else 0


def bars(console: Console | None = None) -> Progress:
    """Return progress bars with a count and the time elapsed."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
