"""`simulate`: run random histories with faults in memory, and check that every query is finally accounted for."""

import sys
import time
from pathlib import Path

import click

from streams.simulate.run import Failure, coverage, seeds_of, simulate


@click.command("simulate")
@click.option("--seeds", required=True, metavar="A-B", help="Range of seeds, for instance 1-150.")
@click.option("--minutes", type=float, help="Stop after this many minutes, at the end of a history.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the report to a file.")
@click.option(
    "--append",
    type=click.Path(path_type=Path),
    help="Journal file: skip the seeds in it, and append the others.",
)
@click.option("--only", metavar="N,N|none", help="Only these faults of each schedule, by index from 0.")
def simulate_command(
    seeds: str, minutes: float | None, json_file: Path | None, append: Path | None, only: str | None
) -> None:
    """Simulate deployments, traffic and faults in memory, all drawn from seeds, and check the outcome.

    At the end of each history, everything is restarted, drained, audited and folded again. The same seeds print the
    same bytes; timings, the table of faults, and failures go to standard error. Exits with 1 if a history fails, or if
    models that should not be chosen get more than a tenth of the last choices across all histories.
    """
    began_s = time.monotonic()
    first, last = seeds_of(seeds)
    places = None if only is None else [int(each) for each in only.split(",") if each.isdigit()]
    journal = simulate(first, last, only=places, minutes=minutes, append=append, told=_tell)
    for line in coverage(journal):
        click.echo(line, err=True)
    lived, took_s = journal.last - journal.first + 1, time.monotonic() - began_s
    click.echo(f"{lived:,} histories, {len(journal.failures)} failed; {took_s:.1f} s", err=True)
    if json_file is not None:
        json_file.write_bytes(journal.report)
    click.echo(journal.report, nl=False)
    sys.exit(1 if journal.failures or journal.astray else 0)


def _tell(failure: Failure) -> None:
    click.echo(f"seed {failure.seed} fails:", err=True)
    for each in failure.what:
        click.echo(f"  {each}", err=True)
    for each in failure.schedule:
        click.echo(f"  with {each}", err=True)
    click.echo(f"  {failure.command}", err=True)


COMMANDS = [simulate_command]
