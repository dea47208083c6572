"""Baselines that are not asked again: what they came to on all of the demo's questions, from one live run.

    python -m streams demo --questions 400 --no-changes --out out/demo-400 \
        --control mini-4m/1/4/2 --control smollm2-135m/1/1/1
    python -m streams.demo.recorded out/demo-400/summary.json

The second command writes `models/demo-recorded.jsonl`: a line about the run, then one for each question.
"""

import datetime
from pathlib import Path

import click
import msgspec
import orjson

from streams.demo.paired import Outcome

FILE = Path("models/demo-recorded.jsonl")


class Recorded(msgspec.Struct, frozen=True):
    """The outcome of each action on a question."""

    question: str
    outcomes: dict[str, Outcome]


def outcomes_of(path: Path, catalogue: str) -> dict[str, dict[str, Outcome]]:
    """Return the recorded outcomes by question and action; empty if there are none under this catalogue's prices."""
    about, *lines = path.read_bytes().splitlines() if path.is_file() else [b"{}"]
    if orjson.loads(about).get("catalogue") != catalogue:
        return {}
    return {
        line.question: line.outcomes for line in (msgspec.json.decode(each, type=Recorded) for each in lines)
    }


@click.command()
@click.argument("summary", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--out", default=FILE, type=click.Path(path_type=Path), help="Where to write the outcomes."
)
def main(summary: Path, out: Path) -> None:
    """Record the baselines of a run, given its summary.json, in which each ran on every question.

    Of a text that was asked twice, one outcome is kept.
    """
    run = orjson.loads(summary.read_bytes())
    about = {name: run[name] for name in ("catalogue", "questions", "seed", "unit", "engine", "commit")}
    found: dict[str, dict[str, Outcome]] = {}
    for each in run["comparisons"]:
        for pair in each["pairs"]:
            outcome = Outcome(pair["control_correct"], pair["control_cost"])
            found.setdefault(pair["question"], {})[each["control"]["action"]] = outcome
    costs = [outcome.cost for of in found.values() for outcome in of.values()]
    if free := costs.count(0.0):
        raise click.ClickException(
            f"{summary}: {free} of {len(costs)} outcomes cost nothing, so nothing ran for these: the query expired, "
            "or its model was not served. Run the demo again"
        )
    made = {**about, "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"}
    lines = [made, *(Recorded(question, of) for question, of in sorted(found.items()))]
    out.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


if __name__ == "__main__":
    main()
