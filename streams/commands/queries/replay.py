"""`replay`: send recorded queries through the live system again, at any speed, under new ids."""

import sys
import uuid
from collections.abc import Iterator

import click
import msgspec

from schemas.base import decode
from schemas.errors import UniscaleError
from schemas.query import Query
from streams.client import Pace, renamed
from streams.commands.queries.sending import send_and_wait
from streams.runtime.kafka.clients import connections
from streams.settings import Settings
from streams.topics import Topics


@click.command()
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Queries per second; 0 sends as fast as the broker accepts them.",
)
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True),
    help="Keep the recorded pace, but this many times faster, instead of --rate.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="Replay at most this many, the oldest first.")
@click.option("--objective", help="Use this objective instead of their own.")
@click.option("--run", help="Name of the run, put before every id. [a new name]")
@click.option("--from-prefix", help="Replay the queries of another deployment on this broker.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait for all Answers.")
@click.pass_obj
def replay(settings: Settings, rate: float, speed: float | None, limit: int | None, objective: str | None,
           run: str | None, from_prefix: str | None, wait: bool) -> None:  # fmt: skip
    """Send the recorded queries of the `query` topic again, under ids RUN:<old id>, never mixed with the originals.

    Queries that are replays themselves are skipped. References and pins are kept; deadlines restart.
    """
    name = run or f"replay-{uuid.uuid4().hex[:6]}"
    source = settings.replace(prefix=from_prefix) if from_prefix else settings
    recorded = sorted(_recorded(source), key=lambda pair: pair[0])[: limit or None]
    if not recorded:
        click.echo(f"error: {Topics(source).query} holds no queries to replay", err=True)
        sys.exit(1)
    queries = list(renamed((query for _, query in recorded), name))
    if objective:
        queries = [msgspec.structs.replace(q, objective=objective, weights=None) for q in queries]
    at_s = tuple((ms - recorded[0][0]) / 1000 / speed for ms, _ in recorded) if speed else ()
    click.echo(f"run {name}: {len(queries)} queries")
    sys.exit(send_and_wait(settings, queries, Pace(rate, at_s), wait=wait))


def _recorded(settings: Settings) -> Iterator[tuple[int, Query]]:
    seen: set[str] = set()
    for record in connections.read_all(settings, [Topics(settings).query]):
        try:
            query = decode(record.value, Query)
        except UniscaleError:
            continue
        if query.query_id in seen or "replay_of" in query.metadata:
            continue
        seen.add(query.query_id)
        yield record.timestamp, query


COMMANDS = [replay]
