"""The command line. Each command parses its arguments, calls one function and prints the result.

Exit codes are 0 for success, 1 for a refusal or failure, and 2 for a usage error. A command's module is imported only
when the command runs, because importing all of them takes seconds.
"""

import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeVar

import click

from schemas.errors import UniscaleError
from streams import __version__
from streams.settings import Settings, origins, variable

_MODULES: Final = {
    "init": "setup",
    "check": "setup",
    "calibrate": "calibrating",
    "up": "running",
    "worker": "running",
    "broker": "running",
    "demo": "demo",
    "topics": "running",
    "ask": "queries",
    "produce": "queries",
    "answers": "queries",
    "feedback": "queries",
    "replay": "queries",
    "record": "recording",
    "explain": "queries",
    "follow": "following",
    "catalogue": "catalogue",
    "objective": "objectives",
    "keys": "keys",
    "dead-letters": "operating",
    "learner": "learner",
    "prior": "learner",
    "verify-decisions": "learner",
    "audit": "operating",
    "simulate": "simulating",
}


class RefusingGroup(click.Group):
    """A command group that turns refusals into a one-line message and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and print a refusal as one line."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
            sys.exit(130)
        except EOFError as error:  # click would only print "Aborted!"
            raise RuntimeError(
                "a file is truncated. If an import caused this, the module's bytecode is incomplete, for example after "
                "the disk was full: delete the __pycache__ folder next to it"
            ) from error
        except (KeyError, IndexError, BrokenPipeError):
            raise  # a bug in our code, or a closed pipe, as with `head`
        except Exception as error:
            if not isinstance(error, _refusals()):
                raise
            click.echo(f"error: {error or type(error).__name__}", err=True)
            sys.exit(1)


class _Commands(RefusingGroup):
    """A command group that imports its commands lazily."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*_MODULES, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command."""
        if cmd_name in _MODULES:
            module = import_module(f"streams.cli.{_MODULES[cmd_name]}")
            commands: list[click.Command] = module.COMMANDS
            return next(command for command in commands if command.name == cmd_name)
        return super().get_command(ctx, cmd_name)


def _refusals() -> tuple[type[Exception], ...]:
    from streams.log.base import Unavailable
    from streams.log.kafka import KafkaError as ReadError
    from streams.log.kafka_clients import KafkaError

    # LookupError is raised by the audit, which shares no code with what it checks.
    return (UniscaleError, Unavailable, KafkaError, ReadError, LookupError, OSError)


_FLAGS: Final = (
    click.option(
        "--config",
        metavar="FILE",
        help="Settings by name, below the environment. [env UNISCALE_CONFIG; uniscale.yaml, if any]",
    ),
    click.option(
        "--bootstrap",
        metavar="HOST:PORT",
        help="Broker address. [env UNISCALE_BOOTSTRAP; 127.0.0.1:9092]",
    ),
    click.option(
        "--prefix", help="Prefix of every topic and consumer group. [env UNISCALE_PREFIX; uniscale.]"
    ),
    click.option(
        "--catalogue",
        metavar="FILE",
        help="The model catalogue. [env UNISCALE_CATALOGUE; infra/catalogue/mini.yaml]",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
        help="[env UNISCALE_LOG_LEVEL; INFO]",
    ),
)
CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
F = TypeVar("F", bound=Callable[..., Any])


def flags_of_settings(command: F) -> F:
    """Add the flags that select a deployment, which are passed to `Settings.from_env`."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(__version__, message="uniscale-streams %(version)s")
@flags_of_settings
@click.pass_context
def main(ctx: click.Context, /, **flags: Any) -> None:
    """UniScale-Streams: choose a model and its test-time search for each query, learning online, on Kafka.

    Every setting (`settings` lists them) is an environment variable UNISCALE_<NAME>, and a key of the configuration
    file. TLS and SASL: UNISCALE_SECURITY_PROTOCOL, UNISCALE_SSL_CAFILE, UNISCALE_SASL_USERNAME, …

    Exit codes: 0 success, 1 refused or failed (the last line says why), 2 usage error, 130 interrupted.
    """
    # A non-UTF-8 terminal cannot show all characters. In a file or pipe, no character may be lost.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict" and sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    if ctx.invoked_subcommand == "init" and not (flags["config"] or os.environ.get(variable("config"))):
        flags["config"] = ""  # `init` writes that file, and should not fail because an old one is broken
    ctx.obj = Settings.from_env(os.environ, **flags)


@main.command("settings")
@click.pass_context
def settings_command(ctx: click.Context) -> None:
    """Print every setting as an environment variable, with its current value and where it was set."""
    assert ctx.parent is not None
    where = origins(os.environ, ctx.parent.params)
    for name, text in ctx.obj.variables().items():
        click.echo(f"{name}={text}  # {where[name]}")
