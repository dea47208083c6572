"""The one command line. Each command parses, calls, prints; 0 is success, 1 a refusal, 2 a wrong call."""

import os
import sys
from typing import Any

import click
from kafka.errors import KafkaError

from schemas.errors import UniscaleError
from streams.broker import BrokerError
from streams.clients import BrokerUnreachable
from streams.settings import Settings, SettingsError
from streams.supervisor import RoomFailed


class _Commands(click.Group):
    """A group that turns refusals into one line and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        from streams.admin import TopicsWrong

        try:
            return super().invoke(ctx)
        except (
            UniscaleError,
            SettingsError,
            BrokerError,
            BrokerUnreachable,
            RoomFailed,
            TopicsWrong,
            LookupError,
            KafkaError,
        ) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
            sys.exit(130)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--bootstrap", metavar="HOST:PORT", help="Where the broker is. [env UNISCALE_BOOTSTRAP; 127.0.0.1:9092]"
)
@click.option("--prefix", help="Prefix of every topic and consumer group. [env UNISCALE_PREFIX; uniscale.]")
@click.option(
    "--catalogue",
    metavar="FILE",
    help="The model catalogue. [env UNISCALE_CATALOGUE; infra/catalogue/mini.yaml]",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    help="[env UNISCALE_LOG_LEVEL; INFO]",
)
@click.pass_context
def main(ctx: click.Context, /, **flags: Any) -> None:
    """UniScale-Streams: pick model and test-time search per query, online, on Kafka.

    Every setting is an environment variable UNISCALE_<NAME> as well (`settings` lists them). TLS and SASL:
    UNISCALE_SECURITY_PROTOCOL, UNISCALE_SSL_CAFILE, UNISCALE_SASL_USERNAME, …

    Exit codes: 0 success, 1 refused or failed (the last line says why), 2 wrong call, 130 interrupted.
    """
    ctx.obj = Settings.from_env(os.environ, **flags)


@main.command("settings")
@click.pass_obj
def settings_command(settings: Settings) -> None:
    """Print every setting with its present value, as environment variables."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        hidden = name in ("sasl_password", "encoder_key") and value
        click.echo(f"UNISCALE_{name.upper()}={'***' if hidden else value}")


def _load() -> None:
    from streams.commands import (
        bench,
        control,
        dead_letters,
        demo,
        explain,
        monitor,
        queries,
        replay,
        rooms,
        topics,
        verify,
    )

    for module in (
        rooms,
        queries,
        monitor,
        replay,
        explain,
        topics,
        control,
        dead_letters,
        verify,
        demo,
        bench,
    ):
        for command in module.COMMANDS:
            main.add_command(command)


_load()
