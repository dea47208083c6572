"""Commands that start processes (`up`, `worker`, `broker`) or manage topics (`topics`)."""

import contextlib
import os
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agents.catalogue.file import load_catalogue
from streams.acls import command, grants
from streams.cli.control_records import freeze_cost_range
from streams.control_follower import Control
from streams.local.broker import LocalBroker
from streams.local.deployment import (
    READY,
    Supervisor,
    metrics_ports,
    service_commands,
    settings_for,
    stopped_by_signals,
    with_previews,
)
from streams.local.llama import llama_commands
from streams.log import kafka_admin
from streams.services import SERVICES
from streams.settings import MAX_PORT, Settings
from streams.topics import Topic, Topics
from streams.trace import is_wanted

# `up`, `worker`, `broker`: start processes.

PORT = click.IntRange(0, MAX_PORT)
_BROKER = click.Choice(["auto", "kafka", "embedded"])
_data = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data/broker"),
    help="Folder for the log of the started broker. It is kept, and the next start reuses it.",
)


READY_S = 1800.0
"""Seconds that `up` waits for its services. The first import of vLLM alone takes minutes on a busy machine."""


@click.command()
@click.argument("service", type=click.Choice(list(SERVICES)))
@click.option(
    "--group", default="", show_default=False, help="Executor group, for `executor`: one of the catalogue's."
)
@click.option("--instance", default="0", help="Stable name of this worker within its service.")
@click.option(
    "--metrics-port",
    type=PORT,
    default=0,
    help="Port for Prometheus metrics and health probes; 0: none.",
)
@click.pass_obj
def worker(settings: Settings, service: str, group: str, instance: str, metrics_port: int) -> None:
    """Run one service in this process until SIGTERM or Ctrl-C.

    Topics must exist (`topics create`). A worker that exits by itself has failed, so run it under a supervisor
    (`up`, systemd, Docker). Keep its --instance across restarts, so that it gets its partitions back without
    waiting.
    """
    from streams.worker import run_service

    if SERVICES[service].grouped:
        groups = load_catalogue(Path(settings.catalogue)).groups
        if not group:
            raise click.UsageError(f"`{service}` needs --group: one of {', '.join(groups)}")
    run_service(
        settings, service, group=group, instance=instance, metrics_port=metrics_port or settings.metrics_port
    )


@click.command()
@click.option(
    "--broker",
    "kind",
    type=click.Choice(["none", "auto", "kafka", "embedded"]),
    default="none",
    help="Also start a broker: Apache Kafka from KAFKA_HOME, or the embedded one.",
)
@click.option("--port", type=PORT, default=9092, help="Port of the broker, if one is started.")
@_data
@click.option(
    "--log",
    "log_path",
    type=click.Path(path_type=Path),
    default=Path("out/up.log"),
    help="Log file of all services; rotated at 50 MB.",
)
@click.option(
    "--metrics-port",
    type=PORT,
    default=0,
    help="First port for metrics and health probes, one per process; 0: none.",
)
@click.option("--gateway", is_flag=True, help="Also start the HTTP gateway, at UNISCALE_GATEWAY_PORT.")
@click.option("--quiet", is_flag=True, help="Write to the log file only.")
@click.pass_obj
def up(
    settings: Settings,
    kind: str,
    port: int,
    data: Path,
    log_path: Path,
    metrics_port: int,
    gateway: bool,
    quiet: bool,
) -> None:
    """Run all services on this machine, supervised, with one log. Ctrl-C stops everything it started.

    With your Kafka: `python -m streams --bootstrap kafka:9092 up`.

    To try it out: `python -m streams up --broker auto`.
    """
    with stopped_by_signals(), contextlib.ExitStack() as stack:
        broker = None
        click.echo(
            f"log of the services: {log_path}"
            + ("" if kind == "none" else f"; of the broker: {data / 'broker.log'}")
        )
        if kind != "none":
            broker = stack.enter_context(LocalBroker.choose(kind, os.environ, port=port, directory=data))  # type: ignore[arg-type]
            settings = settings_for(settings, broker)
            click.echo(f"{broker.version} on {broker.bootstrap}; {broker.kept}")
        if gateway:
            from streams.gateway.app import listen

            listen(settings.gateway.host, settings.gateway.port).close()  # the gateway itself starts last
        models = Control(settings).base
        groups = models.groups
        page = Topics(settings).declared(groups)
        click.echo(f"topics: created {len(kafka_admin.create(settings, page))} of {len(page)}")
        for note in kafka_admin.require(settings, page):
            click.echo(f"note: {note}")
        freeze_cost_range(settings)
        optional = [*(["gateway"] if gateway else []), *(["tracer"] if is_wanted(os.environ) else [])]
        services = service_commands(
            groups, metrics_port=metrics_port or settings.metrics_port, optional=optional
        )
        services |= llama_commands(settings, READY, click.echo)
        if gateway:
            settings = with_previews(settings)
        environ = settings.environ(os.environ)
        echo = None if quiet else click.echo
        supervisor = stack.enter_context(
            Supervisor(services, environ=environ, log_path=log_path, echo=echo, keys=models.key_names)
        )

        def watch(waiting: list[str]) -> None:
            if broker is not None:
                broker.revive(click.echo)

        supervisor.wait_ready(READY_S, tick=watch, say=click.echo)
        click.echo(f"all {len(services)} services are ready; log in {log_path}")
        if ports := metrics_ports(services):
            click.echo("metrics: " + ", ".join(f"{name} {port}" for name, port in ports.items()))
        if gateway:
            click.echo(f"gateway: http://{settings.gateway.host}:{settings.gateway.port}/")
        while True:
            watch([])
            time.sleep(1.0)


@click.command("broker")
@click.option("--kind", type=_BROKER, default="auto", help="Broker to start.")
@click.option("--port", type=PORT, default=9092, help="Port to listen on.")
@_data
@click.pass_obj
def broker_command(settings: Settings, kind: str, port: int, data: Path) -> None:
    """Run a broker on this machine until Ctrl-C: Apache Kafka if it is installed, otherwise the embedded broker."""
    chosen = LocalBroker.choose(kind, os.environ, port=port, directory=data)  # type: ignore[arg-type]
    with stopped_by_signals(), chosen as running:
        click.echo(f"{running.version} on {running.bootstrap}; {running.kept}; Ctrl-C stops it")
        assert running.process is not None
        code = running.process.wait()
        why = running.no_room or f"see {running.directory / 'broker.log'}"
        raise click.ClickException(f"the broker exited with code {code}: {why}")


# `topics create|check|list|acls`: create the topics that `streams/topics.py` declares, or report differences.


def declared(settings: Settings, groups: tuple[str, ...] = ()) -> list[Topic]:
    """Return the deployment's topics, for the catalogue's groups and any further groups."""
    return Topics(settings).declared([*load_catalogue(Path(settings.catalogue)).groups, *groups])


@click.group()
def topics() -> None:
    """Create, check or list this deployment's topics."""


_group = click.option(
    "--group", "groups", multiple=True, help="Executor group besides those of the catalogue; repeatable."
)


@topics.command("create")
@_group
@click.pass_obj
def create(settings: Settings, groups: tuple[str, ...]) -> None:
    """Create missing topics, then check all of them. Existing topics are not changed."""
    page = declared(settings, groups)
    made = kafka_admin.create(settings, page)
    click.echo(f"created {len(made)} of {len(page)} topics")
    for note in kafka_admin.require(settings, page):
        click.echo(f"note: {note}")
    freeze_cost_range(settings)


@topics.command("check")
@_group
@click.pass_obj
def check(settings: Settings, groups: tuple[str, ...]) -> None:
    """Compare partitions, retention, compaction and record size with the declarations; exits with 1 if any differs."""
    page = declared(settings, groups)
    for note in kafka_admin.require(settings, page):
        click.echo(f"note: {note}")
    click.echo(f"{len(page)} topics are as declared")


@topics.command("list")
@_group
@click.pass_obj
def show_topics(settings: Settings, groups: tuple[str, ...]) -> None:
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
    "--principal",
    default="User:{worker}",
    help="Principal of each process; {worker} stands for decider, executor.GROUP, …, client or operator.",
)
@click.option("--tool", default="kafka-acls.sh", help="Kafka's ACL command, as your shell finds it.")
@click.option(
    "--command-config",
    default="admin.properties",
    help="File with the security settings for that command's connection.",
)
@click.pass_obj
def acls(settings: Settings, groups: tuple[str, ...], principal: str, tool: str, command_config: str) -> None:
    """Print the commands that grant each service's principal only the rights it needs; needs no broker."""
    known = load_catalogue(Path(settings.catalogue)).groups
    connection = [tool, "--bootstrap-server", settings.kafka.bootstrap, "--command-config", command_config]
    for worker, granted in grants(Topics(settings), [*known, *groups]).items():
        click.echo(f"# {worker}")
        for grant in granted:
            click.echo(command(grant, principal.replace("{worker}", worker), connection))


COMMANDS = [up, worker, broker_command, topics]
