"""`bench-audit`: measure the audit of a log."""

import sys

import click
import msgspec

from streams.settings import Settings


@click.command("bench-audit")
@click.option(
    "--queries", type=click.IntRange(min=100), default=100_000, show_default=True, help="In the log."
)
@click.option(
    "--half", type=click.IntRange(min=2), default=384, show_default=True, help="Length of s_q and of s_a."
)
@click.option(
    "--broker", "on_broker", is_flag=True, help="Write to the broker of the settings instead of files."
)
@click.pass_obj
def bench_audit(settings: Settings, queries: int, half: int, on_broker: bool) -> None:
    """Measure the audit of a log: its seconds and its peak memory, in a process of its own.

    The log is made by the rooms' own code without engines, and written to temporary files (about 13 KB a query) or to
    topics of their own on a broker. Prints one JSON object; exits with 1 if the audit finds a discrepancy.
    """
    from streams.bench.audit import measure  # with numpy and more, which `--help` need not wait for

    found = measure(settings, queries, half, on_broker, lambda text: click.echo(text, err=True))
    click.echo(msgspec.json.encode(found).decode())
    sys.exit(1 if found["wrong"] else 0)


COMMANDS = [bench_audit]
