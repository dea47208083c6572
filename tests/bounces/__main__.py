"""`python -m tests.bounces --faults all --seeds 10 --append FILE`: every fault with every seed, and a table of them."""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec

from streams.local.broker import kafka_home
from streams.local.deployment import stopped_by_signals
from tests.bounces.faults import FAULTS
from tests.bounces.run import Run, nodes_and_proxy, run


def read(journal: Path) -> dict[tuple[str, int], Run]:
    """Return the last run of each fault and seed; a line that a kill cut short counts as nothing."""
    runs: dict[tuple[str, int], Run] = {}
    for line in journal.read_bytes().splitlines() if journal.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            each = msgspec.json.decode(line, type=Run)
            runs[each.fault, each.seed] = each
    return runs


def table(runs: Iterable[Run]) -> str:
    """Return a table in Markdown: the seconds that each run took to drain, by fault and seed."""
    cells = {(each.fault, each.seed): each for each in runs}
    seeds = sorted({seed for _, seed in cells})
    lines = ["| fault | " + " | ".join(map(str, seeds)) + " |", "|---|" + "--:|" * len(seeds)]
    for fault in FAULTS:
        if found := [cells.get((fault, seed)) for seed in seeds if any(f == fault for f, _ in cells)]:
            lines.append(f"| {fault} | " + " | ".join(map(_cell, found)) + " |")
    return "\n".join(lines)


def _cell(each: Run | None) -> str:
    if each is None:
        return ""
    return "**failed**" if each.failed else f"{each.drained_s:.0f}"


@click.command()
@click.option("--faults", default="all", show_default=True, help=f"Names with commas: {', '.join(FAULTS)}.")
@click.option("--seeds", default="10", show_default=True, help="How many, from 1; or A-B.")
@click.option(
    "--append",
    "journal",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("out/bounces/journal.jsonl"),
    show_default=True,
    help="A journal: what it says has passed is not run again.",
)
@click.option("--minutes", type=float, help="Begin no run after so long.")
@click.option("--table", "only_table", is_flag=True, help="Print the table of the journal; run nothing.")
def main(faults: str, seeds: str, journal: Path, minutes: float | None, only_table: bool) -> None:
    """Let each fault strike services on three nodes of Apache Kafka, with each seed; exit with 1 if a run fails."""
    names = list(FAULTS) if faults == "all" else faults.split(",")
    if unknown := set(names) - FAULTS.keys():
        raise click.BadParameter(f"no fault {', '.join(sorted(unknown))}", param_hint="--faults")
    first, _, last = seeds.rpartition("-")
    wanted = [(name, seed) for seed in range(int(first or 1), int(last) + 1) for name in names]
    if not only_table:
        passed = {key for key, each in read(journal).items() if not each.failed}
        with stopped_by_signals():
            _run_all([each for each in wanted if each not in passed], journal, minutes)
    runs = {key: each for key, each in read(journal).items() if key in wanted}
    click.echo(table(runs.values()))
    for each in runs.values():
        if each.failed:
            click.echo(f"{each.fault} {each.seed}: {each.failed}", err=True)
    raise SystemExit(any(each.failed for each in runs.values()))


def _run_all(wanted: Sequence[tuple[str, int]], journal: Path, minutes: float | None) -> None:
    home = kafka_home(os.environ)
    if home is None:
        raise click.ClickException("no Apache Kafka found: set KAFKA_HOME to an unpacked distribution")
    journal.parent.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + 60 * minutes if minutes else float("inf")
    left = list(wanted)
    while left and time.monotonic() < until_s:
        with nodes_and_proxy(home) as (nodes, proxy):
            while left and time.monotonic() < until_s:
                fault, seed = left.pop(0)
                began_s = time.monotonic()
                done = run(fault, seed, nodes, proxy, journal.parent)
                with journal.open("ab") as out:
                    out.write(msgspec.json.encode(done) + b"\n")
                took_s = time.monotonic() - began_s
                click.echo(
                    f"{time.strftime('%H:%M:%S')} {fault} {seed}: {_said(done)}; {took_s:.0f} s", err=True
                )
                if done.failed:
                    break  # the next one begins on new nodes


def _said(done: Run) -> str:
    ended = "".join(f", {name} ended {times} times" for name, times in done.restarts.items())
    well = f"FAILED: {done.failed[:300]}" if done.failed else f"drained in {done.drained_s:.0f} s"
    return f"{well}; {done.queries} queries{ended}; {'; '.join(done.strikes)}"


if __name__ == "__main__":
    main()
