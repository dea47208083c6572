"""`verify-decisions`: replay the learner's log and compare every Decision with what it calls for."""

import sys
from itertools import islice

import click

from agents.decider.log.reproduce import mismatches, opened
from agents.decider.log.rows import Row
from streams.rooms.decider.policies import policy_of
from streams.rooms.embedder.encoders import encoder_of
from streams.runtime.kafka.clients import connections
from streams.settings import Settings
from streams.topics import Topics


@click.command("verify-decisions")
@click.option("--show", default=10, show_default=True, help="Print at most this many mismatches.")
@click.pass_obj
def verify_decisions(settings: Settings, show: int) -> None:
    """Rebuild the policy from the learner's log and snapshots, in order, and check every Decision against it.

    Run with the settings of the live decider (policy, options, warm-up, seed, encoder). If rows have been removed
    from the log, it starts at the oldest snapshot. Exits with 1 if a Decision differs.
    """
    topics = Topics(settings)
    records = connections.latest(settings, [topics.changelog("decider", "pending"), topics.snapshot])
    policy = policy_of(settings, encoder_of(settings))
    rows, after = opened(policy, records)
    decisions = sum(isinstance(row, Row) and row.seq > after for row in rows)
    found = mismatches(policy, rows, settings.policy.seed, after)
    shown = list(islice(found, show))
    rest = sum(1 for _ in found)
    for m in shown:
        click.echo(
            f"{m.query_id} (sequence number {m.seq}): {m.field} is {m.logged!r} in the log, {m.replayed!r} replayed"
        )
    since = f" after sequence number {after}, where the snapshot ends" if after >= 0 else ""
    click.echo(f"{decisions} decisions replayed{since}, {len(shown) + rest} mismatches")
    sys.exit(1 if shown else 0)


COMMANDS = [verify_decisions]
