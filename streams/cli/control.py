"""`catalogue`, `objective`, `keys`: change a running deployment through records on `control`."""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from agents.catalogue.control_state import ControlState
from agents.catalogue.file import entry_of, read_yaml, states_cost_range, with_list_price
from agents.catalogue.models import CatalogueError
from agents.catalogue.objectives import Accuracy, Goal, MeanCost
from schemas.control import (
    CatalogueEntry,
    ControlRecord,
    CostBoundsEntry,
    KeyEntry,
    ObjectiveEntry,
    PriceFactorEntry,
    Scope,
    decode_control,
)
from schemas.errors import UniscaleError
from schemas.objective import UNITS, CostRange, Weights
from schemas.prices import Prices, rate_in_words
from schemas.record import check_name
from streams.client.client import Client
from streams.control import (
    catalogue_of,
    check_graders,
    default_objective,
    mixed_in_words,
    overlong_in_words,
)
from streams.log import kafka_admin
from streams.log.blocking import read_all
from streams.settings import Settings
from streams.topics import Topics

# `catalogue` and `objective`: change a running deployment through records on `control`.


def _echo_note(text: str) -> None:
    click.echo(f"note: {text}", err=True)


def control_state(settings: Settings, note: Callable[[str], None] = _echo_note) -> ControlState:
    """Return the current control state: catalogue file, configured objectives and control records on the broker.

    Args:
        settings: Of the deployment.
        note: Called with what is to be said of each record that has no effect.
    """
    base = catalogue_of(settings)
    found = ControlState.of(base, settings.queries.own_objectives(), default_objective(settings))
    for offset, entry in _entries(settings):
        try:
            found = found.after(entry, offset)
        except UniscaleError as error:
            note(f"control record {offset} has no effect: {error}")
    return found


def _entries(settings: Settings) -> Iterator[tuple[int, ControlRecord]]:
    """Yield the readable control records on the broker, with their offsets."""
    for record in read_all(settings, [Topics(settings).control]):
        if record.value:
            try:
                yield record.offset, decode_control(record.value)
            except UniscaleError as error:
                click.echo(f"note: control record {record.offset} has no effect: {error}", err=True)


def _send(settings: Settings, entry: ControlRecord) -> int:
    """Write a control record and return its offset."""
    with Client(settings) as client:
        return client.steer(entry)


@click.group()
def catalogue() -> None:
    """Add or remove a model, or set its price, at run time; list and show the models."""


@catalogue.command("show")
@click.argument("name")
@click.pass_obj
def show_entry(settings: Settings, name: str) -> None:
    """Print the current entry of model NAME, as a file for `catalogue add`."""
    click.echo(entry_of(control_state(settings).catalogue.model(name)), nl=False)


@catalogue.command("list")
@click.pass_obj
def list_models(settings: Settings) -> None:
    """Print the current models, with their groups and sizes."""
    found = control_state(settings)
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
            m.endpoint.url or m.endpoint.kind,
            m.verifier or found.catalogue.verifier,
            rate_in_words(m.rate),
        )
    Console().print(table)


@catalogue.command("add")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def add_entry(settings: Settings, file: Path) -> None:
    """Add the model described by a YAML FILE (one entry, as in a catalogue), or replace it.

    Creates its topics; the executors of its group load it. For a new group, start an executor:
    `worker executor --group GROUP`. Run it with the deployment's settings, which determine the new topics' partitions.
    """
    entry = read_yaml(file, "the entry of a model")
    if not isinstance(entry.get("name"), str):
        raise CatalogueError(
            f"{file}: not the entry of a model: write name, checkpoint, architecture, sampling, …"
        )
    # Whatever release reads it later, the record says the price of today.
    record = CatalogueEntry(name=entry["name"], op="add", model=with_list_price(entry))
    before = control_state(settings)
    try:
        after = before.after(record, before.offset + 1)  # fail here rather than in every process
        check_graders(after.catalogue)
    except UniscaleError as error:
        raise CatalogueError(f"{file}: {error}") from None
    group = after.catalogue.model(record.name).group
    declared = Topics(settings).declared
    # Settings that differ from the deployment's would create topics with a wrong partition count, which ends every
    # process.
    kafka_admin.require(settings, declared(before.catalogue.groups))
    kafka_admin.create(settings, declared(after.catalogue.groups))
    kafka_admin.require(settings, declared(after.catalogue.groups))  # topics of an existing group
    offset = _send(settings, record)
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
    before = control_state(settings)
    before.catalogue.model(name)
    record = CatalogueEntry(name=name, op="remove")
    before.after(record, before.offset + 1)
    click.echo(f"{name} removed, control offset {_send(settings, record)}")


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
    """Set the price of model NAME: its price factor (a query costs its eFLOPs times FACTOR), or prices in USD.

    Takes effect with the next decision. Queries decided before keep their price.
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
    before = control_state(settings)
    # Fail here rather than in every process.
    before.catalogue.with_rate(name, record.rate, before.offset + 1)
    click.echo(f"{name} charges {rate_in_words(record.rate)}, control offset {_send(settings, record)}")


@click.group()
def objective() -> None:
    """Set, remove or list the objectives that queries may name."""


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

    Takes effect with the next decision; nothing is relearned.
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
    click.echo(f"{name} set, control offset {_send(settings, entry)}")


@objective.command("remove")
@click.argument("name")
@click.pass_obj
def remove_objective(settings: Settings, name: str) -> None:
    """Remove objective NAME; from then on, queries that name it are rejected."""
    before = control_state(settings)
    if name not in before.objectives.named:
        raise CatalogueError(f"objective {name!r} does not exist; `objective list` shows the objectives")
    record = ObjectiveEntry(name=name, op="remove")
    before.after(record, before.offset + 1)  # fail here rather than in every process
    click.echo(f"{name} removed, control offset {_send(settings, record)}")


@objective.command("bounds")
@click.argument("low", type=float)
@click.argument("high", type=float)
@click.pass_obj
def bounds(settings: Settings, low: float, high: float) -> None:
    """Set the costs at which the cost term is 0 and 1, for all objectives, in the unit of the catalogue."""
    unit = catalogue_of(settings).unit
    entry = CostBoundsEntry(cost_range=CostRange(low=low, high=high, unit=unit))
    click.echo(f"bounds set, control offset {_send(settings, entry)}")


def freeze_cost_range(settings: Settings) -> None:
    """Write the catalogue's cost range to `control`, once, and print it, so that later prices do not change it."""
    if states_cost_range(Path(settings.catalogue)):
        return
    if any(isinstance(entry, CostBoundsEntry) for _, entry in _entries(settings)):
        return
    found = catalogue_of(settings).cost_range
    offset = _send(settings, CostBoundsEntry(cost_range=found))
    click.echo(
        f"cost range {found.low:g} to {found.high:g} {UNITS[found.unit]}, from what the models charge, control offset "
        f"{offset}; `objective bounds` sets another"
    )


@objective.command("list")
@click.pass_obj
def objectives(settings: Settings) -> None:
    """Print the current objectives."""
    found = control_state(settings).objectives
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


# `keys`: API keys of the gateway. A key is shown once; the topics hold only its SHA-256.

PREFIX = "uk-"

_NOBODY_TEACHES = (
    "none of the keys has the scope `teach`: the policy learns from everybody's questions without a reference, so one "
    "tenant's hard questions cost the others right answers, and references teach it nothing. Give the scope to a key "
    "that you trust (`keys add NAME --tenant TENANT --scope ask --scope feedback --scope read --scope teach`)"
)


class UnknownKey(UniscaleError):
    """There is no API key with that name. `keys list` shows the names."""


def make_key() -> tuple[str, str]:
    """Return a new key of 32 random bytes, and its SHA-256 in hex."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()


@click.group()
def keys() -> None:
    """Add, revoke or list the API keys of the gateway."""


@keys.command("add")
@click.argument("name")
@click.option("--tenant", required=True, help="Tenant that its queries belong to.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(get_args(Scope)),
    default=("ask", "feedback", "read"),
    help="Scope that it has; repeatable.",
)
@click.option(
    "--model", "models", multiple=True, help="Model name that it may request; repeatable. Default: all."
)
@click.option(
    "--objective", "objectives", multiple=True, help="Objective that it may name; repeatable. Default: all."
)
@click.option("--per-minute", type=int, help="Maximum requests per minute.")
@click.option("--in-flight", type=int, help="Maximum requests in flight.")
@click.option("--eflops-per-day", type=float, help="Maximum cost of its answers in 24 hours, in eFLOPs.")
@click.option("--usd-per-day", type=float, help="Maximum cost of its answers in 24 hours, in USD.")
@click.option("--if-none", is_flag=True, help="Do nothing if a key exists already.")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    help="Write the key to this file, readable only by its owner, instead of printing it: printed keys stay in logs.",
)
@click.pass_obj
def add(
    settings: Settings,
    /,
    name: str,
    tenant: str,
    scopes: tuple[Scope, ...],
    models: tuple[str, ...],
    objectives: tuple[str, ...],
    if_none: bool,
    path: Path | None,
    **limits: Any,
) -> None:
    """Add an API key called NAME, or replace it, and print the key. It cannot be shown again."""
    if if_none and (known := _known(settings)):
        click.echo(f"{len(known)} keys exist, none was added; `keys list` shows them", err=True)
        return
    check_name("KeyEntry", "tenant", tenant)  # as in a Query: otherwise every request would be refused
    unit = catalogue_of(settings).unit
    other = {"usd": "eflops", "eflops": "usd"}[unit]
    if limits[f"{other}_per_day"] is not None:
        raise click.UsageError(f"costs are in {UNITS[unit]}: give --{unit}-per-day, not --{other}-per-day")
    key, digest = make_key()
    entry = KeyEntry(
        name=name,
        op="add",
        sha256=digest,
        tenant=tenant,
        scopes=scopes,
        allowed_models=models or None,
        allowed_objectives=objectives or None,
        **limits,
    )
    if path is not None:
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)  # before the key is written or valid
        path.write_text(f"{key}\n")
    _send(settings, entry)
    if path is None:
        click.echo(f"key {name!r} of tenant {tenant!r} added; it is not shown again:", err=True)
        click.echo(key)
    else:
        click.echo(f"key {name!r} of tenant {tenant!r} added; it is in {path}: save it, and delete the file")
    _warn_if_nobody_teaches(_known(settings))


@keys.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke(settings: Settings, name: str) -> None:
    """Revoke the API key called NAME. Requests with it are refused from then on."""
    if name not in _known(settings):
        raise UnknownKey(f"key {name!r} does not exist; `keys list` shows the names")
    _send(settings, KeyEntry(name=name, op="revoke"))
    click.echo(f"key {name!r} revoked")
    _warn_if_nobody_teaches(_known(settings))


@keys.command("list")
@click.pass_obj
def list_keys(settings: Settings) -> None:
    """List the API keys: name, tenant, scopes and limits."""
    known = _known(settings)
    if not known:
        click.echo(
            "no API keys; the gateway listens only on this machine and accepts every request", err=True
        )
    for entry in known.values():
        limits = {
            "a minute": entry.per_minute,
            "in flight": entry.in_flight,
            "eFLOPs a day": entry.eflops_per_day,
            "USD a day": entry.usd_per_day,
        }
        said = ", ".join(f"{most:g} {what}" for what, most in limits.items() if most is not None)
        click.echo(f"{entry.name}\t{entry.tenant}\t{','.join(entry.scopes)}\t{said or 'no limits'}")
    _warn_if_nobody_teaches(known)


def _warn_if_nobody_teaches(known: dict[str, KeyEntry]) -> None:
    if known and not any("teach" in entry.scopes for entry in known.values()):
        click.echo(_NOBODY_TEACHES, err=True)


def _known(settings: Settings) -> dict[str, KeyEntry]:
    found: dict[str, KeyEntry] = {}
    for _, entry in _entries(settings):
        if isinstance(entry, KeyEntry):
            found.pop(entry.name, None)
            if entry.op == "add":
                found[entry.name] = entry
    return found


COMMANDS = [catalogue, objective, keys]
