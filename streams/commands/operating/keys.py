"""`keys`: API keys of the gateway. A key is shown once; the topics hold its SHA-256 alone."""

import hashlib
import secrets
from typing import get_args

import click

from schemas.base import encode
from schemas.control import KeyEntry, Scope, decode_control
from schemas.errors import UniscaleError
from streams.runtime.kafka.clients import connections
from streams.settings import Settings
from streams.topics import Topics

PREFIX = "uk-"


class UnknownKey(UniscaleError):
    """There is no API key of that name. `keys list` shows which there are."""


def make_key() -> tuple[str, str]:
    """Return a new key of 32 random bytes, and its SHA-256 in hex."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()


@click.group()
def keys() -> None:
    """Add, revoke or list the API keys of the gateway."""


@keys.command("add")
@click.argument("name")
@click.option("--tenant", required=True, help="Who its queries belong to.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(get_args(Scope)),
              default=("ask", "feedback", "read"), show_default=True, help="What it may do.")  # fmt: skip
@click.option(
    "--model", "models", multiple=True, help="A model name it may ask for; may be repeated. Default: all."
)
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    help="An objective it may name. Default: all.",
)
@click.option("--per-minute", type=int, help="Maximum requests per minute.")
@click.option("--in-flight", type=int, help="Maximum requests in flight.")
@click.option("--eflops-per-day", type=float, help="Maximum eFLOPs of its answers in 24 hours.")
@click.option("--if-none", is_flag=True, help="Do nothing where there is a key already.")
@click.pass_obj
def add(
    settings: Settings,
    name: str,
    tenant: str,
    scopes: tuple[Scope, ...],
    models: tuple[str, ...],
    objectives: tuple[str, ...],
    per_minute: int | None,
    in_flight: int | None,
    eflops_per_day: float | None,
    if_none: bool,
) -> None:
    """Add an API key called NAME, or replace it, and print the key. It cannot be shown again."""
    if if_none and (known := _known(settings)):
        click.echo(f"{len(known)} keys exist, none was added; `keys list` shows them", err=True)
        return
    key, digest = make_key()
    entry = KeyEntry(
        name=name, op="add", sha256=digest, tenant=tenant, scopes=scopes, allowed_models=models or None,
        allowed_objectives=objectives or None, per_minute=per_minute, in_flight=in_flight,
        eflops_per_day=eflops_per_day,
    )  # fmt: skip
    _send(settings, entry)
    click.echo(f"key {name!r} of tenant {tenant!r} added; it is not shown again:", err=True)
    click.echo(key)


@keys.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke(settings: Settings, name: str) -> None:
    """Revoke the API key called NAME. Requests with it are refused from then on."""
    if name not in _known(settings):
        raise UnknownKey(f"key {name!r} does not exist; `keys list` shows the names")
    _send(settings, KeyEntry(name=name, op="revoke"))
    click.echo(f"key {name!r} revoked")


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
            "a minute": entry.per_minute, "in flight": entry.in_flight, "eFLOPs a day": entry.eflops_per_day
        }  # fmt: skip
        said = ", ".join(f"{most:g} {what}" for what, most in limits.items() if most is not None)
        click.echo(f"{entry.name}\t{entry.tenant}\t{','.join(entry.scopes)}\t{said or 'no limits'}")


def _known(settings: Settings) -> dict[str, KeyEntry]:
    found: dict[str, KeyEntry] = {}
    for record in connections.read_all(settings, [Topics(settings).control]):
        try:
            entry = decode_control(record.value)
        except UniscaleError:
            continue
        if isinstance(entry, KeyEntry):
            found.pop(entry.name, None)
            if entry.op == "add":
                found[entry.name] = entry
    return found


def _send(settings: Settings, entry: KeyEntry) -> None:
    producer = connections.producer(settings)
    try:
        topic = Topics(settings).control
        producer.send(topic, key=entry.key.encode(), value=encode(entry)).get(timeout=30)
    finally:
        producer.close()


COMMANDS = [keys]
