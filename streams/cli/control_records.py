"""The control state as commands see it, and functions that write control records."""

from collections.abc import Callable, Iterator
from pathlib import Path

import click

from agents.catalogue.control_state import ControlState
from agents.catalogue.file import states_cost_range
from schemas.control import (
    ControlRecord,
    CostBoundsEntry,
    decode_control,
)
from schemas.errors import UniscaleError
from schemas.objective import UNITS
from streams.client.client import Client
from streams.control_follower import (
    catalogue_of,
    default_objective,
)
from streams.log.blocking import read_all
from streams.settings import Settings
from streams.topics import Topics


def _echo_note(text: str) -> None:
    click.echo(f"note: {text}", err=True)


def control_state(settings: Settings, note: Callable[[str], None] = _echo_note) -> ControlState:
    """Return the current control state, from the catalogue file, configured objectives and control records.

    Args:
        settings: The deployment's settings.
        note: Called with a message for each control record that has no effect.
    """
    base = catalogue_of(settings)
    found = ControlState.of(base, settings.queries.own_objectives(), default_objective(settings))
    for offset, entry in entries(settings):
        try:
            found = found.after(entry, offset)
        except UniscaleError as error:
            note(f"control record {offset} has no effect: {error}")
    return found


def entries(settings: Settings) -> Iterator[tuple[int, ControlRecord]]:
    """Yield the readable control records on the broker, each with its offset; print a note about the others."""
    for record in read_all(settings, [Topics(settings).control]):
        if record.value:
            try:
                yield record.offset, decode_control(record.value)
            except UniscaleError as error:
                click.echo(f"note: control record {record.offset} has no effect: {error}", err=True)


def send(settings: Settings, entry: ControlRecord) -> int:
    """Write a control record and return its offset."""
    with Client(settings) as client:
        return client.steer(entry)


def freeze_cost_range(settings: Settings) -> None:
    """Write the catalogue's cost range to `control`, so that rewards keep their scale when prices change, and print it.

    Does nothing if the catalogue file states a range, or if one is already in `control`.
    """
    if states_cost_range(Path(settings.catalogue)):
        return
    if any(isinstance(entry, CostBoundsEntry) for _, entry in entries(settings)):
        return
    found = catalogue_of(settings).cost_range
    send(settings, CostBoundsEntry(cost_range=found))
    click.echo(
        f"costs are rated on a scale from {found.low:.2g} to {found.high:.2g} {UNITS[found.unit]} a query, by today's "
        "prices; later prices do not change it, `python -m streams objective bounds` does"
    )
