"""`topics create|check|list|acls`: create the topics that `streams/topics.py` declares, or report differences."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agents.space.catalogue_file import load_catalogue
from streams.acls import command, grants
from streams.runtime.kafka.clients import admin
from streams.settings import Settings
from streams.topics import Topic, Topics


def declared(settings: Settings, groups: tuple[str, ...] = ()) -> list[Topic]:
    """Return the topics of the deployment, for the groups of the catalogue and further ones."""
    return Topics(settings).declared([*load_catalogue(Path(settings.catalogue)).groups, *groups])


@click.group()
def topics() -> None:
    """Create, check or list the topics of this deployment."""


_group = click.option(
    "--group", "groups", multiple=True, help="Executor group besides those of the catalogue; may be repeated."
)


@topics.command("create")
@_group
@click.pass_obj
def create(settings: Settings, groups: tuple[str, ...]) -> None:
    """Create missing topics, then check all of them. Existing topics are not changed."""
    page = declared(settings, groups)
    made = admin.create(settings, page)
    click.echo(f"created {len(made)} of {len(page)} topics")
    for note in admin.require(settings, page):
        click.echo(f"note: {note}")


@topics.command("check")
@_group
@click.pass_obj
def check(settings: Settings, groups: tuple[str, ...]) -> None:
    """Compare partitions, retention, compaction and record size with what is declared; exits with 1 on a difference."""
    page = declared(settings, groups)
    for note in admin.require(settings, page):
        click.echo(f"note: {note}")
    click.echo(f"{len(page)} topics are as declared")


@topics.command("list")
@_group
@click.pass_obj
def show(settings: Settings, groups: tuple[str, ...]) -> None:
    """Print the declared topics; needs no broker."""
    table = Table("topic", "record", "key", "partitions", "cleanup", "retention", "max bytes")
    for t in declared(settings, groups):
        kept = "forever" if t.retention_ms < 0 else f"{t.retention_ms / 3_600_000:g} h"
        table.add_row(
            t.name,
            t.record,
            t.key,
            str(t.partitions),
            "compact" if t.compacted else "delete",
            kept,
            str(t.max_bytes),
        )
    Console().print(table)


@topics.command("acls")
@_group
@click.option(
    "--principal", default="User:{worker}", show_default=True,
    help="Principal of each process; {worker} stands for decider, executor.GROUP, …, client or operator.",
)  # fmt: skip
@click.option(
    "--tool", default="kafka-acls.sh", show_default=True, help="Kafka's tool, as your shell finds it."
)
@click.option(
    "--command-config", default="admin.properties", show_default=True,
    help="File with the security settings under which the tool connects.",
)  # fmt: skip
@click.pass_obj
def acls(settings: Settings, groups: tuple[str, ...], principal: str, tool: str, command_config: str) -> None:
    """Print the commands that give each room's principal the rights it needs, and no others; needs no broker."""
    known = load_catalogue(Path(settings.catalogue)).groups
    connection = [tool, "--bootstrap-server", settings.kafka.bootstrap, "--command-config", command_config]
    for worker, granted in grants(Topics(settings), [*known, *groups]).items():
        click.echo(f"# {worker}")
        for grant in granted:
            click.echo(command(grant, principal.replace("{worker}", worker), connection))


COMMANDS = [topics]
