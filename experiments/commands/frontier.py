"""`python -m experiments frontier`: only the cost at equal accuracy, on anyone's outcomes."""

import contextlib
from pathlib import Path
from typing import Any

import click

from experiments.commands import options
from experiments.commands.options import PATH, TRAFFIC


@click.command()
@options.outcomes(TRAFFIC)
@options.mapping
@options.catalogue
@click.option(
    "--orders",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of random orders of the questions.",
)
@click.option(
    "--policy", "policies", multiple=True, help="Only these policies, next to the fixed mix and the ceilings."
)
@click.option("--trees", is_flag=True, help="Also try boosted trees as the ceiling; takes minutes.")
@options.jobs
@options.cache
@click.option("--out", type=PATH, help="JSON file to which the whole table is written.")
def frontier(
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    orders: int,
    policies: tuple[str, ...],
    trees: bool,
    jobs: int | None,
    cache: Path,
    out: Path | None,
) -> None:
    """Print what each policy pays for an accuracy, relative to the cheapest mix of fixed arms that reaches it."""
    import orjson
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from agents.embedder.minilm import MiniLM
    from agents.space.catalogue_file import load_catalogue
    from experiments.outcomes.foreign import load_foreign
    from experiments.outcomes.table import OutcomeError, load_recording
    from experiments.outcomes.world import build_world
    from experiments.tables.frontier import AFTER_HISTORY, PLAYERS
    from experiments.tables.frontier import frontier as run
    from experiments.trials.networks import one_thread_each
    from experiments.trials.scenarios import spaces
    from experiments.trials.scope import MORE_SEEDS, Scope

    known = {**PLAYERS, **AFTER_HISTORY}
    if unknown := [name for name in policies if name not in known]:
        raise click.BadParameter(f"--policy {unknown[0]}: choose from {', '.join(known)}")
    if orders > len(MORE_SEEDS):
        raise click.BadParameter(f"--orders {orders}: at most {len(MORE_SEEDS)}")
    try:
        if mapping is not None:
            world = build_world(load_foreign(source, mapping), MiniLM(), cache=cache)
        else:
            world = build_world(load_recording(source), MiniLM(), load_catalogue(catalogue), cache)
    except (OutcomeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    worlds = spaces(world)
    with threadpool_limits(1), contextlib.ExitStack() as stack:
        scope = Scope(
            more_seeds=MORE_SEEDS[:orders],
            whole=trees,
            say=lambda text: click.echo(text, err=True),
            pool=None if jobs == 1 else stack.enter_context(one_thread_each(jobs)),
        )
        players = {name: known[name] for name in policies} if policies else PLAYERS
        tables = run(worlds.get("uis", world), scope, players).tables
    if not tables:
        raise click.ClickException(f"{source}: too few questions to keep a third of them for history")
    for name, row in tables["frontier"].items():
        click.echo(f"{name}: {_said(row)}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(orjson.dumps(tables, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")


def _said(row: dict[str, Any]) -> str:
    found = row["mean_cost_ratio"]
    if found is None:
        missed = ", ".join(f"{100 * float(q):g} %" for q in row["unreached"])
        return f"no ratio, out of reach: {missed or 'no target stands'}"
    ends = ["∞" if found[end] is None else f"{found[end]:.3f}" for end in ("low", "high")]
    at = ", ".join(
        f"{100 * float(q):g} %: {'–' if each['cost_ratio'] is None else format(each['cost_ratio']['mean'], '.3f')}"
        for q, each in row["at"].items()
    )
    return f"{found['mean']:.3f} [{', '.join(ends)}]; at {at}"
