"""`verify-decisions`: replay the learner's log and compare every Decision with what it calls for."""

import sys
from itertools import islice

import click

from agents.decider.errors import CorruptState
from agents.decider.observations import Row, decode_row
from agents.decider.reproduce import mismatches
from agents.decider.snapshot import SNAPSHOT_KEY
from streams import clients
from streams.encoders import encoder_of
from streams.policies import policy_of
from streams.settings import Settings
from streams.topics import Topics


@click.command("verify-decisions")
@click.option("--show", default=10, show_default=True, help="Print so many mismatches at most.")
@click.pass_obj
def verify_decisions(settings: Settings, show: int) -> None:
    """Rebuild the policy from the decider's changelog, place by place, and check every Decision against it.

    Run with the settings of the live decider (policy, options, warm-up, seed, encoder). Exit 1 when one differs.
    """
    latest: dict[bytes, bytes | None] = {}
    for record in clients.read_all(settings, [Topics(settings).changelog("decider", "pending")]):
        latest[record.key] = record.value
    rows = [decode_row(k, v) for k, v in latest.items() if v and not k.startswith(SNAPSHOT_KEY)]
    if not rows:
        raise CorruptState("the decider's changelog", "no rows", "at least one decision")
    policy = policy_of(settings, encoder_of(settings))
    decisions = sum(isinstance(row, Row) for row in rows)
    found = mismatches(policy, rows, settings.seed)
    shown = list(islice(found, show))
    rest = sum(1 for _ in found)
    for m in shown:
        click.echo(
            f"{m.query_id} (place {m.seq}): {m.field} is {m.logged!r} in the log, {m.replayed!r} replayed"
        )
    click.echo(f"{decisions} decisions replayed, {len(shown) + rest} mismatches")
    sys.exit(1 if shown else 0)


COMMANDS = [verify_decisions]
