"""`python -m experiments prior`: what history teaches the contextual policy before its first decision."""

from pathlib import Path

import click

from experiments.commands.options import CATALOGUE, PATH


@click.command()
@click.argument("outcomes", type=PATH)
@click.option("-o", "--out", type=PATH, required=True, help="File to which the prior is written.")
@click.option("--mapping", type=PATH, help="File that names the columns of a table that is not a recording.")
@click.option(
    "--logged", is_flag=True, help="OUTCOMES is a log: one configuration per row, with its propensity."
)
@click.option(
    "--catalogue",
    type=PATH,
    default=CATALOGUE,
    show_default=True,
    help="The deployment's, which has also priced OUTCOMES.",
)
@click.option(
    "--history-only",
    is_flag=True,
    help="Use only the third of the questions that the other commands call history.",
)
@click.option(
    "--cap",
    default=2000.0,
    show_default=True,
    help="Weight of the prior: it counts as at most this many observations.",
)
@click.option(
    "--options", default="{}", show_default=True, help="The policy's options, as in UNISCALE_POLICY_OPTIONS."
)
def prior(
    outcomes: Path,
    out: Path,
    mapping: Path | None,
    logged: bool,
    catalogue: Path,
    history_only: bool,
    cap: float,
    options: str,
) -> None:
    """Make a prior from OUTCOMES: a recording, a complete table with --mapping, or a log with --logged.

    A log is CSV, JSONL or Parquet with the columns text, action (model/qp/cp/bs), correct, cost and propensity, and
    score where there is one. Start the decider with UNISCALE_PRIOR=FILE and an empty log.
    """
    import orjson
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from agents.decider.errors import DeciderError
    from agents.decider.policies.contextual.history.prior import digest
    from agents.embedder.minilm import MiniLM
    from agents.space.catalogue_file import load_catalogue
    from experiments.outcomes.foreign import load_foreign
    from experiments.outcomes.history import control_of, prior_of_log, prior_of_outcomes
    from experiments.outcomes.table import OutcomeError, load_recording

    encoder, known, asked = MiniLM(), load_catalogue(catalogue), orjson.loads(options)
    best = ""
    try:
        # Sums in another order have other last bits: the file is the same on any number of cores.
        with threadpool_limits(1):
            if logged:
                made, rows = prior_of_log(outcomes, encoder, known, asked, cap=cap)
            else:
                table = load_foreign(outcomes, mapping) if mapping else load_recording(outcomes)
                made, rows = prior_of_outcomes(
                    table, encoder, known, asked, cap=cap, history_only=history_only
                )
                best = "" if mapping else control_of(table, known, history_only=history_only)
    except (OutcomeError, DeciderError) as error:
        raise click.ClickException(str(error)) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(made)
    click.echo(f"{out}: {rows} questions, {len(made)} bytes, sha256 {digest(made)}")
    if best:
        click.echo(f"most accurate on them of the largest model: {best}")
