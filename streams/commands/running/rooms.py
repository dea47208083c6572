"""`up`, `worker`, `broker`: start processes."""

import contextlib
import os
import signal
from pathlib import Path

import click

from agents.space.catalogue_file import load_catalogue
from streams.control import Control
from streams.local.broker import Broker
from streams.local.launch import room_commands, settings_for, with_previews
from streams.local.signals import stopped_by_signals
from streams.local.supervisor import Supervisor
from streams.rooms import ROOMS
from streams.runtime.kafka.clients import admin
from streams.settings import Settings
from streams.topics import Topics

_BROKER = click.Choice(["auto", "kafka", "embedded"])


@click.command()
@click.argument("room", type=click.Choice(list(ROOMS)))
@click.option("--group", default="", help="Executor group, for `executor`: one of the catalogue's.")
@click.option(
    "--instance", default="0", show_default=True, help="Stable name of this worker within its room."
)
@click.option(
    "--metrics-port", default=0, help="Port for Prometheus metrics and health probes; 0 serves none."
)
@click.pass_obj
def worker(settings: Settings, room: str, group: str, instance: str, metrics_port: int) -> None:
    """Run one room in this process until SIGTERM or Ctrl-C.

    Topics must exist (`topics create`). A worker that exits by itself has failed: run it under something that restarts
    it (`up`, systemd, Docker). Keep its --instance across restarts, so that it gets its partitions back without a
    wait.
    """
    from streams.worker import run_room

    if ROOMS[room].grouped:
        groups = load_catalogue(Path(settings.catalogue)).groups
        if not group:
            raise click.UsageError(f"`{room}` needs --group: one of {', '.join(groups)}")
    run_room(
        settings, room, group=group, instance=instance, metrics_port=metrics_port or settings.metrics_port
    )


@click.command()
@click.option("--broker", "kind", type=click.Choice(["none", "auto", "kafka", "embedded"]), default="none",
              show_default=True,
              help="Also start a broker: Apache Kafka from KAFKA_HOME, or the embedded one.")  # fmt: skip
@click.option("--port", default=9092, show_default=True, help="Port of the broker, if one is started.")
@click.option(
    "--log",
    "log_path",
    type=click.Path(path_type=Path),
    default=Path("out/up.log"),
    show_default=True,
    help="Log file of all rooms; rotated at 50 MB.",
)
@click.option(
    "--metrics-port",
    default=0,
    help="First port for metrics and health probes, one per process; 0 serves none.",
)
@click.option("--gateway", is_flag=True, help="Also start the HTTP gateway, at UNISCALE_GATEWAY_PORT.")
@click.option("--quiet", is_flag=True, help="Write only the log file.")
@click.pass_obj
def up(
    settings: Settings, kind: str, port: int, log_path: Path, metrics_port: int, gateway: bool, quiet: bool
) -> None:
    """Run all rooms on this machine, supervised, with one log. Ctrl-C stops everything it started.

    With your Kafka: `python -m streams --bootstrap kafka:9092 up`.

    To try it out: `python -m streams up --broker auto`.
    """
    with stopped_by_signals(), contextlib.ExitStack() as stack:
        if kind != "none":
            broker = stack.enter_context(Broker.choose(kind, os.environ, port=port))  # type: ignore[arg-type]
            settings = settings_for(settings, broker)
            click.echo(f"{broker.version} on {broker.bootstrap}")
        groups = Control(settings).base.groups
        page = Topics(settings).declared(groups)
        click.echo(f"topics: created {len(admin.create(settings, page))} of {len(page)}")
        for note in admin.require(settings, page):
            click.echo(f"note: {note}")
        optional = ("gateway",) if gateway else ()
        rooms = room_commands(groups, metrics_port=metrics_port or settings.metrics_port, optional=optional)
        if gateway:
            settings = with_previews(settings)
        environ = {**os.environ, **settings.environ()}
        echo = None if quiet else click.echo
        supervisor = stack.enter_context(Supervisor(rooms, environ=environ, log_path=log_path, echo=echo))
        supervisor.wait_ready(600)
        click.echo(f"all {len(rooms)} rooms are ready; log in {log_path}")
        if gateway:
            click.echo(f"gateway: http://{settings.gateway.host}:{settings.gateway.port}/")
        while True:
            signal.pause()


@click.command("broker")
@click.option("--kind", type=_BROKER, default="auto", show_default=True, help="Broker to start.")
@click.option("--port", default=9092, show_default=True, help="The port it listens on.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Folder for Kafka's log. [a temporary one]",
)
@click.pass_obj
def broker_command(settings: Settings, kind: str, port: int, directory: Path | None) -> None:
    """Run a broker on this machine until Ctrl-C: Apache Kafka if it is installed, else the embedded one."""
    chosen = Broker.choose(kind, os.environ, port=port)  # type: ignore[arg-type]
    if directory:
        chosen = Broker(chosen.kind, port=port, directory=directory, home=chosen.home)
    with stopped_by_signals(), chosen as running:
        click.echo(f"{running.version} on {running.bootstrap}, log in {running.directory}; Ctrl-C stops it")
        assert running.process is not None
        code = running.process.wait()
        raise click.ClickException(
            f"the broker exited with code {code}; see {running.directory / 'broker.log'}"
        )


COMMANDS = [up, worker, broker_command]
