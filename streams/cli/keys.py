"""`keys`: the gateway's API keys. A key is shown only once; the topics contain only its SHA-256."""

import hashlib
import secrets
from pathlib import Path
from typing import Any, get_args

import click

from schemas.control import (
    KeyEntry,
    Scope,
)
from schemas.errors import UniscaleError
from schemas.objective import UNITS
from schemas.record import check_name
from streams.cli import control_records
from streams.control_follower import (
    catalogue_of,
)
from streams.settings import Settings
from streams.words import counted

PREFIX = "uk-"

_NOBODY_TEACHES = (
    "none of the keys has the scope `teach`: the policy learns from everybody's questions without a reference, so one "
    "tenant's hard questions cost the others right answers, and references teach it nothing. Give the scope to a key "
    "that you trust (`keys add NAME --tenant TENANT --scope ask --scope feedback --scope read --scope teach`)"
)


class UnknownKey(UniscaleError):
    """There is no API key with that name. `keys list` shows all names."""


def make_key() -> tuple[str, str]:
    """Return a new key of 32 random bytes, and its SHA-256 in hex."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()


@click.group()
def keys() -> None:
    """Add, revoke or list the gateway's API keys."""


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
        click.echo(
            f"nothing was added: there is {counted(len(known), 'key')} already; `keys list` shows what there is",
            err=True,
        )
        return
    check_name("KeyEntry", "tenant", tenant)  # a Query with an invalid tenant would be refused
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
    control_records.send(settings, entry)
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
    """Revoke the API key called NAME. From then on, requests with this key are refused."""
    if name not in _known(settings):
        raise UnknownKey(f"key {name!r} does not exist; `keys list` shows the names")
    control_records.send(settings, KeyEntry(name=name, op="revoke"))
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
    for _, entry in control_records.entries(settings):
        if isinstance(entry, KeyEntry):
            found.pop(entry.name, None)
            if entry.op == "add":
                found[entry.name] = entry
    return found


COMMANDS = [keys]
