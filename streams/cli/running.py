"""Starting processes: `up`, `worker`, `broker`, `demo`, and the topics they need."""

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from agents.catalogue.file import load_catalogue
from streams.acls import command, grants
from streams.cli.queries import bars
from streams.client.client import SentQueries
from streams.control import Control
from streams.demo.run import CONTROL, QUESTIONS, Demo, run
from streams.local.broker import LocalBroker
from streams.local.deployment import (
    Supervisor,
    service_commands,
    settings_for,
    stopped_by_signals,
    with_previews,
)
from streams.runtime import kafka_admin
from streams.services import SERVICES
from streams.settings import Settings
from streams.topics import Topic, Topics

# `demo`: the whole system on this machine, in one command.

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
@click.option("--questions", "count", type=click.IntRange(min=3), default=210, help="Number of questions.")
@click.option(
    "--questions-file",
    "questions",
    type=click.Path(path_type=Path),
    default=QUESTIONS,
    help="Question file in JSON lines, as for `produce`.",
)
@click.option("--seed", default=3, help="Seed of the shuffle and of every choice.")
@click.option("--policy", default="contextual", help="Policy that chooses; docs/policies.md lists them.")
@click.option(
    "--accuracy",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.98,
    help="Share of the accuracy within reach to keep, as cheaply as possible.",
)
@click.option("--objective", help="Use a named objective instead, e.g. cost-sensitive or quality-priority.")
@click.option(
    "--control",
    default=CONTROL,
    help="Configuration that a baseline of every question takes, for comparison; `none` asks each question once.",
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
@click.option("--gateway", is_flag=True, help="Also serve the page, at UNISCALE_GATEWAY_PORT, while it runs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/demo"),
    help="Folder for the summary and the report.",
)
@click.pass_obj
def demo(settings: Settings, /, objective: str | None, accuracy: float, control: str, **options: Any) -> None:
    """Stream questions through the whole loop on this machine and see the choices improve.

    Starts a broker and all services with the six mini models and sends the questions with several in flight. The policy
    chooses for each question; its baseline takes the control's configuration and is not learned from. Audits the log
    and stops everything it started. Prints what the policy is worth against the control, then the figures; writes
    summary.json and report.html. Exits with 1 if a query has no Answer or the audit finds a discrepancy.
    """
    console = Console()
    if objective is not None:
        settings = settings.replace(objective=objective)
    weighted = objective is not None or options["policy"] != "contextual"
    what = Demo(
        accuracy=None if weighted else accuracy, control="" if control == "none" else control, **options
    )
    with bars(console) as bar:
        answered, rewarded = bar.add_task("answered", total=None), bar.add_task("rewarded", total=None)

        def progress(asked: SentQueries) -> None:
            bar.update(answered, completed=asked.answered, total=asked.total)
            bar.update(rewarded, completed=len(asked.rewarded), total=asked.total)

        summary = run(what, settings, console.print, progress)
    show_demo(summary, console)
    console.print(f"{what.out / 'summary.json'}, {what.out / 'report.html'}")
    sys.exit(1 if summary["unanswered"] or summary["audit"]["wrong"] else 0)


def show_demo(summary: Mapping[str, Any], console: Console) -> None:
    """Print what a run came to: first what choosing was worth, then figures."""
    if "sentence" in summary:
        console.print(summary["sentence"], style="bold")
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


# `up`, `worker`, `broker`: start processes.

_BROKER = click.Choice(["auto", "kafka", "embedded"])
_data = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data/broker"),
    help="Folder for the log of the broker that is started. It stays, and the next start goes on with it.",
)


@click.command()
@click.argument("service", type=click.Choice(list(SERVICES)))
@click.option(
    "--group", default="", show_default=False, help="Executor group, for `executor`: one of the catalogue's."
)
@click.option("--instance", default="0", help="Stable name of this worker within its service.")
@click.option(
    "--metrics-port", default=0, help="Port for Prometheus metrics and health probes; 0 serves none."
)
@click.pass_obj
def worker(settings: Settings, service: str, group: str, instance: str, metrics_port: int) -> None:
    """Run one service in this process until SIGTERM or Ctrl-C.

    Topics must exist (`topics create`). A worker that exits by itself has failed: run it under something that restarts
    it (`up`, systemd, Docker). Keep its --instance across restarts, so that it gets its partitions back without a
    wait.
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
@click.option("--port", default=9092, help="Port of the broker, if one is started.")
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
    default=0,
    help="First port for metrics and health probes, one per process; 0 serves none.",
)
@click.option("--gateway", is_flag=True, help="Also start the HTTP gateway, at UNISCALE_GATEWAY_PORT.")
@click.option("--quiet", is_flag=True, help="Write only the log file.")
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
        if kind != "none":
            broker = stack.enter_context(LocalBroker.choose(kind, os.environ, port=port, directory=data))  # type: ignore[arg-type]
            settings = settings_for(settings, broker)
            click.echo(f"{broker.version} on {broker.bootstrap}; {broker.kept}")
        groups = Control(settings).base.groups
        page = Topics(settings).declared(groups)
        click.echo(f"topics: created {len(kafka_admin.create(settings, page))} of {len(page)}")
        for note in kafka_admin.require(settings, page):
            click.echo(f"note: {note}")
        optional = ("gateway",) if gateway else ()
        services = service_commands(
            groups, metrics_port=metrics_port or settings.metrics_port, optional=optional
        )
        if gateway:
            settings = with_previews(settings)
        environ = settings.environ(os.environ)
        echo = None if quiet else click.echo
        supervisor = stack.enter_context(Supervisor(services, environ=environ, log_path=log_path, echo=echo))

        def watch(waiting: list[str]) -> None:
            if broker is not None:
                broker.revive(click.echo)

        supervisor.wait_ready(600, tick=watch)
        click.echo(f"all {len(services)} services are ready; log in {log_path}")
        if gateway:
            click.echo(f"gateway: http://{settings.gateway.host}:{settings.gateway.port}/")
        while True:
            watch([])
            time.sleep(1.0)


@click.command("broker")
@click.option("--kind", type=_BROKER, default="auto", help="Broker to start.")
@click.option("--port", default=9092, help="The port it listens on.")
@_data
@click.pass_obj
def broker_command(settings: Settings, kind: str, port: int, data: Path) -> None:
    """Run a broker on this machine until Ctrl-C: Apache Kafka if it is installed, else the embedded one."""
    chosen = LocalBroker.choose(kind, os.environ, port=port, directory=data)  # type: ignore[arg-type]
    with stopped_by_signals(), chosen as running:
        click.echo(f"{running.version} on {running.bootstrap}; {running.kept}; Ctrl-C stops it")
        assert running.process is not None
        code = running.process.wait()
        raise click.ClickException(
            f"the broker exited with code {code}; see {running.directory / 'broker.log'}"
        )


# `topics create|check|list|acls`: create the topics that `streams/topics.py` declares, or report differences.


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
    made = kafka_admin.create(settings, page)
    click.echo(f"created {len(made)} of {len(page)} topics")
    for note in kafka_admin.require(settings, page):
        click.echo(f"note: {note}")


@topics.command("check")
@_group
@click.pass_obj
def check(settings: Settings, groups: tuple[str, ...]) -> None:
    """Compare partitions, retention, compaction and record size with what is declared; exits with 1 on a difference."""
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
@click.option("--tool", default="kafka-acls.sh", help="Kafka's tool, as your shell finds it.")
@click.option(
    "--command-config",
    default="admin.properties",
    help="File with the security settings under which the tool connects.",
)
@click.pass_obj
def acls(settings: Settings, groups: tuple[str, ...], principal: str, tool: str, command_config: str) -> None:
    """Print the commands that give each service's principal the rights it needs, and no others; needs no broker."""
    known = load_catalogue(Path(settings.catalogue)).groups
    connection = [tool, "--bootstrap-server", settings.kafka.bootstrap, "--command-config", command_config]
    for worker, granted in grants(Topics(settings), [*known, *groups]).items():
        click.echo(f"# {worker}")
        for grant in granted:
            click.echo(command(grant, principal.replace("{worker}", worker), connection))


COMMANDS = [demo, up, worker, broker_command, topics]
