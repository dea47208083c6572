"""`objective`: set, remove and list a running deployment's objectives, and set its cost range."""

import click
from rich.console import Console
from rich.table import Table

from agents.catalogue.models import CatalogueError
from agents.catalogue.objectives import Accuracy, Goal, MeanCost
from schemas.control import (
    CostBoundsEntry,
    ObjectiveEntry,
)
from schemas.objective import UNITS, CostRange, Weights
from streams.cli import control_records
from streams.control_follower import (
    catalogue_of,
    default_objective,
)
from streams.settings import Settings


@click.group()
def objective() -> None:
    """Set, remove or list the objectives that queries can name."""


@objective.command("set")
@click.argument("name")
@click.argument("weights", nargs=-1, type=float, metavar="[CORRECT SCORE COST]")
@click.option(
    "--mean-cost", type=float, help="As accurate as possible at this mean cost per query, in eFLOPs or USD."
)
@click.option(
    "--accuracy", type=float, help="As cheap as possible at this share of the accuracy within reach, 0 to 1."
)
@click.pass_obj
def set_objective(
    settings: Settings,
    name: str,
    weights: tuple[float, ...],
    mean_cost: float | None,
    accuracy: float | None,
) -> None:
    """Set objective NAME to the weights CORRECT SCORE COST (normalised to sum to 1), a mean cost or an accuracy.

    Takes effect from the next decision; nothing is relearned.
    """
    if weights and len(weights) != 3:
        raise click.UsageError("give three weights, CORRECT SCORE COST, or --mean-cost, or --accuracy")
    entry = ObjectiveEntry(
        name=name,
        op="set",
        weights=Weights(correct=weights[0], score=weights[1], cost=weights[2]) if weights else None,
        mean_cost=mean_cost,
        accuracy=accuracy,
    )
    click.echo(f"{name} set, control offset {control_records.send(settings, entry)}")


@objective.command("remove")
@click.argument("name")
@click.pass_obj
def remove_objective(settings: Settings, name: str) -> None:
    """Remove objective NAME; from then on, queries that name it are rejected."""
    before = control_records.control_state(settings)
    if name not in before.objectives.named:
        raise CatalogueError(f"objective {name!r} does not exist; `objective list` shows the objectives")
    record = ObjectiveEntry(name=name, op="remove")
    before.after(record, before.offset + 1)  # fail here rather than in every process
    click.echo(f"{name} removed, control offset {control_records.send(settings, record)}")


@objective.command("bounds")
@click.argument("low", type=float)
@click.argument("high", type=float)
@click.pass_obj
def bounds(settings: Settings, low: float, high: float) -> None:
    """Set the costs that give cost terms of 0 and 1, for all objectives, in the catalogue's unit."""
    unit = catalogue_of(settings).unit
    entry = CostBoundsEntry(cost_range=CostRange(low=low, high=high, unit=unit))
    click.echo(f"bounds set, control offset {control_records.send(settings, entry)}")


@objective.command("list")
@click.pass_obj
def objectives(settings: Settings) -> None:
    """Print the current objectives."""
    found = control_records.control_state(settings).objectives
    unit = UNITS[found.cost_range.unit]
    table = Table("objective", "asks for", "since offset")
    for name, goal in found.named.items():
        table.add_row(name, _in_words(goal, unit), str(found.versions.get(name, "–")))
    Console().print(table)
    Console().print(
        f"cost range {found.cost_range.low:.4g} to {found.cost_range.high:.4g} {unit}; "
        f"by these settings, a query that names no objective gets {default_objective(settings)}"
    )


def _in_words(goal: Goal, unit: str) -> str:
    if isinstance(goal, MeanCost):
        return f"mean cost {goal.cost:.4g} {unit}"
    if isinstance(goal, Accuracy):
        return f"accuracy {goal.share:.4g} of what is within reach"
    return f"correct {goal.correct:.3g}, score {goal.score:.3g}, cost {goal.cost:.3g}"


COMMANDS = [objective]
