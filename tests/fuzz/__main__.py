"""`python -m tests.fuzz --records N [--from SEED]`: print what each target was given."""

import logging
import tempfile
from collections import Counter
from pathlib import Path

import click

from tests.fuzz.targets import BATCH, TARGETS, batch, settings_in


@click.command()
@click.option("--records", default=10_000, show_default=True, help="Records in all.")
@click.option("--from", "first", default=0, show_default=True, help="Seed of the first batch, to go on.")
def main(records: int, first: int) -> None:
    """Fuzz every handler, follower, row decoder and body; exit with 1 at the first batch that ends a service."""
    logging.disable(logging.CRITICAL)
    given, decodable = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_in(Path(folder))
        for seed in range(first, first + -(-records // BATCH)):
            found = batch(settings, seed)
            given += found.given
            decodable += found.decodable
            if found.faults:
                raise click.ClickException(f"seed {seed}: " + "\n".join(found.faults[:5]))
            if seed % 40 == 39:
                click.echo(f"{given.total()} records, go on with --from {seed + 1}", err=True)
    for target in TARGETS:
        click.echo(f"{target:<28}{given[target]:>10}{decodable[target] / max(1, given[target]):>8.1%}")
    click.echo(f"{'all':<28}{given.total():>10}{decodable.total() / max(1, given.total()):>8.1%}")


if __name__ == "__main__":
    main()
