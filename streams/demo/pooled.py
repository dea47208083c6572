"""Pools runs of the demo with different seeds.

    python -m streams.demo.pooled out/demo-3/summary.json out/demo-23/summary.json … [--json FILE]

It prints the comparison with each baseline over all runs, what became of the facts, and after how many queries the
choices followed each change.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from streams.demo.paired import opponent, pool, sentence
from streams.demo.summary import facts_told


def pooled(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return several runs as one: `comparisons`, `changes`, and what is to be known of the runs.

    Args:
        summaries: The summary.json of each run.

    Raises:
        ValueError: a summary has no pairs, or the controls or the changes differ.
    """
    runs = [summary.get("comparisons", []) for summary in summaries]
    controls = {tuple(opponent(each["control"]) for each in run) for run in runs}
    if len(controls) != 1 or not all(run and all(each["pairs"] for each in run) for run in runs):
        raise ValueError("give the summary.json of runs that compared the policy with the same controls")
    changes = [summary.get("changes", []) for summary in summaries]
    if len({tuple(each["name"] for each in run) for run in changes}) != 1:
        raise ValueError("give the summary.json of runs with the same changes")
    made = ("version", "commit", "policy", "catalogue", "broker")
    return {
        "seeds": [summary["seed"] for summary in summaries],
        **{name: ", ".join(sorted({summary[name] for summary in summaries})) for name in made},
        "queries": sum(summary["queries"] for summary in summaries),
        "unanswered": sum(summary["unanswered"] for summary in summaries),
        "audit_wrong": sum(bool(summary["audit"]["wrong"]) for summary in summaries),
        "mode": summaries[0]["mode"],
        "engine": summaries[0]["engine"],
        "comparisons": [pool(same) for same in zip(*runs, strict=True)],
        "facts": {name: sum(each["facts"][name] for each in summaries) for name in summaries[0]["facts"]},
        "changes": [_change(same) for same in zip(*changes, strict=True)],
    }


def _change(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a change over several runs, with one count for each run in `after` and `without_change`."""
    compared = [each["comparison"] for each in runs if each["comparison"] is not None]
    return {
        **{name: runs[0][name] for name in ("name", "title", "asked")},
        **{name: [each[name] for each in runs] for name in ("condition", "after", "without_change", "notes")},
        "comparison": pool(compared) if compared else None,
    }


def line(change: dict[str, Any]) -> str:
    """Return after how many queries the choices followed a change, in each run."""
    counts = ", ".join(str(each) if each else f"not within {change['asked']}" for each in change["after"])
    return f"{change['title']}: the choices followed after {counts} queries."


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--json", "to", type=click.Path(path_type=Path), help="Also write the figures to this file.")
def main(files: tuple[Path, ...], to: Path | None) -> None:
    """Pool runs of the demo, given the summary.json of each."""
    try:
        found = pooled([orjson.loads(file.read_bytes()) for file in files])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for comparison in found["comparisons"]:
        click.echo(sentence(comparison))
    if said := facts_told(found["facts"]):
        click.echo(said)
    for change in found["changes"]:
        click.echo(line(change))
        for seed, notes in zip(found["seeds"], change["notes"], strict=True):
            for note in notes:
                click.echo(f"  seed {seed}: {note}")
        if change["comparison"] is not None:
            click.echo(f"  after it: {sentence(change['comparison'])}")
    if to is not None:
        for each in (*found["comparisons"], *(c["comparison"] for c in found["changes"] if c["comparison"])):
            del each["pairs"]
        to.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
