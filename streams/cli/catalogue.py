"""`catalogue`: add, remove or price a model in a running deployment, and list and show its models."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agents.catalogue.file import entry_of, read_yaml, with_list_price
from agents.catalogue.models import CatalogueError
from schemas.control import (
    CatalogueEntry,
    PriceFactorEntry,
)
from schemas.errors import UniscaleError
from schemas.prices import Prices, rate_in_words
from streams.cli import control_records
from streams.control_follower import (
    check_graders,
    mixed_in_words,
    overlong_in_words,
)
from streams.log import kafka_admin
from streams.settings import Settings
from streams.topics import Topics


@click.group()
def catalogue() -> None:
    """At run time, add or remove a model or set its price, and list or show the models."""


@catalogue.command("show")
@click.argument("name")
@click.pass_obj
def show_entry(settings: Settings, name: str) -> None:
    """Print the current entry for model NAME, as a file for `catalogue add`."""
    click.echo(entry_of(control_records.control_state(settings).catalogue.model(name)), nl=False)


@catalogue.command("list")
@click.pass_obj
def list_models(settings: Settings) -> None:
    """Print the current models, with their groups and sizes."""
    found = control_records.control_state(settings)
    table = Table(
        "model",
        "group",
        "parameters",
        "endpoint",
        "verifier",
        "charges",
        title=f"{found.catalogue.name}, control offset {found.offset}",
    )
    for m in found.catalogue.models:
        table.add_row(
            m.name,
            m.group,
            f"{m.parameters:,}" if m.parameters else "–",
            ", ".join(m.endpoint.servers) or m.endpoint.kind,
            m.verifier or found.catalogue.verifier,
            rate_in_words(m.rate),
        )
    Console().print(table)


@catalogue.command("add")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def add_entry(settings: Settings, file: Path) -> None:
    """Add the model described by a YAML FILE (one entry, as in a catalogue), or replace it.

    Creates the topics of the model's group, whose executors load the model. For a new group, start an executor with
    `worker executor --group GROUP`. Run this command with the deployment's settings, because they determine how many
    partitions new topics get.
    """
    entry = read_yaml(file, "the entry of a model")
    if not isinstance(entry.get("name"), str):
        raise CatalogueError(
            f"{file}: not the entry of a model: write name, checkpoint, architecture, sampling, …"
        )
    # The record states today's price, whichever release reads it later.
    record = CatalogueEntry(name=entry["name"], op="add", model=with_list_price(entry))
    before = control_records.control_state(settings)
    try:
        after = before.after(record, before.offset + 1)  # fail here rather than in every process
        check_graders(after.catalogue)
    except UniscaleError as error:
        raise CatalogueError(f"{file}: {error}") from None
    group = after.catalogue.model(record.name).group
    declared = Topics(settings).declared
    # With settings other than the deployment's, topics would be created with the wrong partition count, and every
    # process would end.
    kafka_admin.require(settings, declared(before.catalogue.groups))
    kafka_admin.create(settings, declared(after.catalogue.groups))
    kafka_admin.require(settings, declared(after.catalogue.groups))  # topics of an existing group
    offset = control_records.send(settings, record)
    click.echo(f"{record.name} added to group {group}, control offset {offset}")
    if record.name in after.catalogue.overlong:
        click.echo(f"note: {overlong_in_words(after.catalogue)}", err=True)
    if (said := mixed_in_words(after.catalogue)) and not mixed_in_words(before.catalogue):
        click.echo(f"note: {said}", err=True)
    if group not in before.catalogue.groups:
        click.echo(
            f"no executor serves {group} yet: start `python -m streams worker executor --group {group}`"
        )


@catalogue.command("remove")
@click.argument("name")
@click.pass_obj
def remove(settings: Settings, name: str) -> None:
    """Remove a model, so that it is no longer chosen. Searches in flight finish, and their rewards are learned."""
    before = control_records.control_state(settings)
    before.catalogue.model(name)
    record = CatalogueEntry(name=name, op="remove")
    before.after(record, before.offset + 1)
    click.echo(f"{name} removed, control offset {control_records.send(settings, record)}")


@catalogue.command("price")
@click.argument("name")
@click.argument("factor", type=float, required=False)
@click.option("--input", "of_input", type=float, help="USD per million tokens of prompts.")
@click.option("--output", "of_output", type=float, help="USD per million tokens generated.")
@click.option("--cached-input", type=float, help="USD per million tokens of prompts from the server's cache.")
@click.pass_obj
def price(
    settings: Settings,
    name: str,
    factor: float | None,
    of_input: float | None,
    of_output: float | None,
    cached_input: float | None,
) -> None:
    """Set the price of model NAME: a price factor (a query costs its eFLOPs times FACTOR), or prices in USD.

    Takes effect from the next decision. Queries that were decided earlier keep their price.
    """
    prices = None
    if of_input is not None and of_output is not None:
        prices = Prices(input=of_input, output=of_output, cached_input=cached_input)
    elif (of_input, of_output, cached_input) != (None, None, None):
        raise click.UsageError("give --input and --output, in USD per million tokens")
    if (factor is None) == (prices is None):
        raise click.UsageError(
            "give FACTOR where costs are in eFLOPs, --input and --output where they are in USD"
        )
    record = PriceFactorEntry(name=name, factor=factor, prices=prices)
    before = control_records.control_state(settings)
    # Fail here rather than in every process.
    before.catalogue.with_rate(name, record.rate, before.offset + 1)
    click.echo(
        f"{name} charges {rate_in_words(record.rate)}, control offset {control_records.send(settings, record)}"
    )


COMMANDS = [catalogue]
