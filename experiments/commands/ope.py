"""`python -m experiments ope`: what each action would have earned on a log if it had always been taken."""

import contextlib
from pathlib import Path

import click

from experiments.commands.options import PATH


@click.command()
@click.argument("log", type=PATH)
@click.option(
    "--floor", default=50.0, show_default=True, help="Fewest effective decisions that an estimate needs."
)
def ope(log: Path, floor: float) -> None:
    """Estimate what each action would have earned if always taken, from a LOG of randomised decisions.

    LOG is a CSV, JSONL or Parquet file with the columns action, propensity and reward.
    """
    import numpy as np

    from experiments.measures import ope as evaluation
    from experiments.outcomes.foreign import rows_of
    from experiments.outcomes.table import OutcomeError

    try:
        rows = [row for _, row in rows_of(log)]
        names = sorted({str(row["action"]) for row in rows})
        logged = evaluation.Log(
            np.array([names.index(str(row["action"])) for row in rows]),
            np.array([float(row["propensity"]) for row in rows]),
            np.array([float(row["reward"]) for row in rows]),
        )
    except (OutcomeError, evaluation.EvaluationError) as error:
        raise click.ClickException(str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise click.ClickException(
            f"{log}: each row needs action, propensity and reward as numbers ({error})"
        ) from error
    click.echo(f"logged policy: {logged.rewards.mean():.4f} over {len(rows)} decisions")
    predicted = evaluation.cross_fitted(np.zeros((len(rows), 0)), logged, len(names))
    for at, name in enumerate(names):
        policy = evaluation.greedy_probabilities([at] * len(rows), len(names))
        try:
            found = {
                "IPS": evaluation.ips(logged, policy, floor=floor),
                "SNIPS": evaluation.snips(logged, policy, floor=floor),
                "DR": evaluation.doubly_robust(logged, policy, predicted, floor=floor),
            }
            with contextlib.suppress(evaluation.EvaluationError):  # uniform logs only
                found["replay"] = evaluation.replay(logged, [at] * len(rows), floor=floor)
        except evaluation.EvaluationError as error:
            click.echo(f"{name}: not estimated: {error}")
            continue
        for kind, e in found.items():
            click.echo(
                f"{name}: {kind} {e.value:.4f} [{e.low:.4f}, {e.high:.4f}], {e.effective:.0f} effective"
            )
