"""`demo`: the whole system on this machine, in one command."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table

from streams.demo.changes import Counts
from streams.demo.following import Change, outcome, told
from streams.demo.paired import sentence
from streams.demo.run import CONTROLS, QUESTIONS, RECORDED, Demo, run
from streams.demo.standing import Standing
from streams.demo.summary import facts_told
from streams.settings import Settings

_SHOWN = (
    "broker",
    "engine",
    "queries",
    "answers",
    "unanswered",
    "rewards",
    "dead_letters",
    "duplicates",
    "mode",
    "accuracy",
    "accuracy_last_third",
    "mean_reward_first_third",
    "mean_reward_last_third",
    "mean_cost_eflops_first_third",
    "mean_cost_eflops_last_third",
    "distinct_actions",
    "wall_s",
)


@click.command()
@click.option("--questions", "count", type=click.IntRange(min=3), default=120, help="Number of questions.")
@click.option(
    "--questions-file",
    "questions",
    type=click.Path(path_type=Path),
    default=QUESTIONS,
    help="Question file in JSON lines, as for `produce`.",
)
@click.option("--seed", default=3, help="Seed of the shuffle and of every choice.")
@click.option("--policy", default="contextual", help="Policy to use; docs/policies.md lists them.")
@click.option(
    "--accuracy",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.98,
    help="As cheap as possible at this share of the accuracy within reach.",
)
@click.option("--objective", help="Use a named objective instead, e.g. cost-sensitive or quality-priority.")
@click.option(
    "--control",
    "controls",
    multiple=True,
    default=CONTROLS,
    help="Configuration of a baseline that also gets every question, in place of this one and the recorded ones; "
    "repeatable, or `none` for no baseline.",
)
@click.option(
    "--broker",
    type=click.Choice(["embedded", "kafka", "auto"]),
    default="embedded",
    help="`kafka` needs KAFKA_HOME and Java.",
)
@click.option(
    "--recording",
    default="",
    show_default=False,
    help="Answer from a recording (JSON lines) instead of loading engines.",
)
@click.option("--gateway", is_flag=True, help="Also serve the page at UNISCALE_GATEWAY_PORT during the run.")
@click.option("--no-changes", is_flag=True, help="Leave out the second act, in which the deployment changes.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/demo"),
    help="Folder for the summary and the report.",
)
@click.pass_obj
def demo(
    settings: Settings,
    /,
    objective: str | None,
    accuracy: float,
    controls: tuple[str, ...],
    no_changes: bool,
    **options: Any,
) -> None:
    """Run questions through the whole loop on this machine, then change it and see the choices follow.

    Starts a broker and all services with the catalogue's models and sends the questions, several at a time. The policy
    chooses a configuration for each question. Its baseline, by default one sample of the largest mini model, gets the
    same questions, and nothing is learned from it. What a search with that model and one sample of SmolLM2 came to on
    them is known from a recording. Then three things change: the objective, by a command; a model, which becomes worse
    without notice; and the catalogue, which a model joins. More questions show after how many the choices follow each
    change. Afterwards the demo audits the log and stops everything it started. It prints the policy's accuracy and cost
    against each baseline, then the figures, and writes summary.json and report.html. Exits with 1 if a query has no
    Answer, a change could not be made, or the audit finds a discrepancy.
    """
    console = Console()
    if objective is not None:
        settings = settings.replace(objective=objective)
    weighted = objective is not None or options["policy"] != "contextual"
    what = Demo(
        accuracy=None if weighted else accuracy,
        controls=() if controls == ("none",) else controls,
        recorded=RECORDED if controls == CONTROLS else (),
        changes=None if no_changes else Counts(),
        **options,
    )
    with Live(console=console, refresh_per_second=3) as live:

        def progress(standings: Sequence[Standing], changes: Sequence[Change]) -> None:
            tables = [standings_table(standings), *([changes_table(changes)] if changes else [])]
            live.update(Group(*tables))

        summary = run(what, settings, console.print, progress)
    if not console.is_terminal:
        console.print()  # there, Live ends its last table without a line break
    show_demo(summary, console)
    console.print(f"{what.out / 'summary.json'}, {what.out / 'report.html'}")
    failed = summary["unanswered"] or summary["changes_failed"] or summary["audit"]["wrong"]
    sys.exit(1 if failed else 0)


def standings_table(standings: Sequence[Standing]) -> Table:
    """Return how the policy and its baselines stand, as a table that is drawn again while a run goes on."""
    columns = (Column(name, justify="right") for name in ("answered", "right", "cost"))
    found = Table("", *columns, caption=f"cost: times {standings[1].name}" if len(standings) > 1 else None)
    for each in standings:
        right = "–" if each.right is None else f"{each.right:.0%}"
        cost = "–" if each.cost is None else f"{each.cost:.2f}"
        found.add_row(each.name, f"{each.closed} of {each.asked}", right, cost)
    return found


def changes_table(changes: Sequence[Change]) -> Table:
    """Return how the choices follow the changes, as a table that is drawn again while a run goes on."""
    found = Table("change", Column("queries", justify="right"), "the choices follow when", "they followed")
    for each in changes:
        open_ = each.closed < each.asked and each.after is None
        said = "–" if open_ else outcome(each)
        found.add_row(each.title, f"{each.closed} of {each.asked}", each.condition, said)
    return found


def show_demo(summary: Mapping[str, Any], console: Console) -> None:
    """Print a run's results: first the gain over the baselines, then the figures."""
    for comparison in summary["comparisons"]:
        console.print(sentence(comparison), style="bold")
    if said := facts_told(summary["facts"]):
        console.print(said)
    for each in summary["changes"]:
        console.print(told(change := msgspec.convert(each, Change)))
        for note in change.notes:
            console.print(f"  {note}")
    table = Table("", "", show_header=False)
    for name in _SHOWN:
        value = summary[name]
        shown = (
            f"{value:.4g}"
            if isinstance(value, float)
            else ", ".join(value)
            if isinstance(value, list)
            else str(value)
        )
        table.add_row(name, shown)
    console.print(table)


COMMANDS = [demo]
