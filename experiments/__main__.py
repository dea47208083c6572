"""python -m experiments: record outcomes, rerun the paper's experiments on them, evaluate policies on anyone's data."""

import click

from experiments.commands import card, changes, compare, depth_limit, frontier, latency, ope, prior
from experiments.paper_command import paper
from experiments.record_command import record


@click.group()
def cli() -> None:
    """Record the outcomes of every configuration, and evaluate policies on them without Kafka."""


for command in (record, paper, frontier, compare, changes, prior, ope, card, latency, depth_limit):
    cli.add_command(command)


if __name__ == "__main__":
    cli(prog_name="python -m experiments")
