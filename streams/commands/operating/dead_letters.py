"""`dead-letters list|retry`: records that could not be handled, and another try for them."""

import sys

import click
import orjson

from schemas.base import decode
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from streams.runtime.kafka.clients import connections
from streams.runtime.kafka.clients.again import Again
from streams.settings import Settings
from streams.topics import Topics


def letters(settings: Settings) -> list[DeadLetter]:
    """Return the dead letters on the broker, oldest first."""
    found = []
    for record in connections.read_all(settings, [Topics(settings).dead_letter]):
        try:
            found.append(decode(record.value, DeadLetter))
        except UniscaleError as error:
            click.echo(f"note: offset {record.offset} cannot be read: {error}", err=True)
    return found


@click.group("dead-letters")
def dead_letters() -> None:
    """List records that could not be handled, or send them again."""


@dead_letters.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.pass_obj
def show(settings: Settings, as_json: bool) -> None:
    """Print every dead letter: where the record is, which room could not handle it, and why."""
    found = letters(settings)
    if as_json:
        for x in found:
            line = {"origin": x.key, "room": x.room, "error": x.error, "field": x.field, "reason": x.reason,
                    "query_id": x.query_id, "size": x.size, "sha256": x.sha256, "attempts": x.attempts}  # fmt: skip
            click.echo(orjson.dumps(line).decode())
        return
    for x in found:
        query = f", query {x.query_id}" if x.query_id else ""
        click.echo(f"{x.key}  {x.error} in the {x.room}{query}, {x.size} bytes, tried {x.attempts}x")
        click.echo(f"    {x.reason[:500]}")
    click.echo(f"{len(found)} dead letters")


@dead_letters.command("retry")
@click.argument("origins", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Retry every dead letter, each origin once.")
@click.pass_obj
def retry(settings: Settings, origins: tuple[str, ...], everything: bool) -> None:
    """Read records again at their ORIGINS (topic/partition/offset, as `list` prints them) and send them again.

    Fix the cause first: an invalid record becomes a dead letter again. A query whose Answer is `rejected` keeps that
    Answer, because the first one counts: send it under a new id instead. Exits with 1 if the topic no longer holds
    an origin.
    """
    if bool(origins) == everything:
        raise click.UsageError("give ORIGINS, or --all")
    known = {x.key: x for x in letters(settings)}
    wanted = list(known) if everything else list(origins)
    lost = 0
    with Again(settings) as again:
        for origin in wanted:
            if origin not in known:
                click.echo(f"error: {origin}: no such dead letter", err=True)
                lost += 1
                continue
            letter = known[origin]
            if again.send(letter.origin.topic, letter.origin.partition, letter.origin.offset):
                click.echo(f"sent again: {origin}")
                continue
            click.echo(
                f"error: {origin}: the topic no longer holds it; the letter has the first {len(letter.head)} of "
                f"{letter.size} bytes",
                err=True,
            )
            lost += 1
    sys.exit(1 if lost else 0)


COMMANDS = [dead_letters]
