"""python -m experiments: record outcomes, rerun the paper's experiments on them, evaluate policies on anyone's data."""

import click

from experiments.commands.card import card
from experiments.commands.frontier import frontier
from experiments.commands.ope import ope
from experiments.commands.paper import paper
from experiments.commands.prior import prior
from experiments.commands.record import record
from experiments.commands.rerun import depth_limit, latency


@click.group()
def cli() -> None:
    """Record the outcomes of every configuration, and evaluate policies on them without Kafka."""


for command in (record, paper, frontier, prior, ope, card, latency, depth_limit):
    cli.add_command(command)


if __name__ == "__main__":
    cli(prog_name="python -m experiments")
