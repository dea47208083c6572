"""`python -m experiments`: record outcomes, run the paper's experiments on them, and evaluate policies on any data."""

from typing import Any

import click

from experiments import commands
from experiments.record import commands as recording
from schemas.errors import UniscaleError


class Lab(click.Group):
    """The command group. For errors that the user can fix, it prints a single line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except UniscaleError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:  # pyarrow's message contains only the file name
            raise click.ClickException(
                f"{error.filename or error}: {error.strerror or 'no such file'}"
            ) from error


@click.group(cls=Lab)
def cli() -> None:
    """Record the outcomes of every configuration, and evaluate policies on them without Kafka."""


for command in (
    recording.record,
    recording.join,
    commands.paper,
    commands.frontier,
    commands.by_family,
    commands.ungraded_first,
    commands.picture,
    commands.usual,
    commands.category_variances,
    commands.compare,
    commands.changes,
    commands.prior,
    commands.ope,
    recording.card,
    recording.latency,
    recording.depth_limit,
):
    cli.add_command(command)


if __name__ == "__main__":
    cli(prog_name="python -m experiments")
