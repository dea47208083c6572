"""`python -m experiments card`: the figures of a recording's data card."""

from collections import Counter
from pathlib import Path

import click

from experiments.commands.options import PATH, RECORDING


@click.command()
@click.argument("recording", type=PATH, default=RECORDING)
def card(recording: Path) -> None:
    """Print the figures of a RECORDING's data card."""
    import orjson
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from experiments.outcomes.table import OutcomeError
    from experiments.record.table import questions_in, settings_of

    if not recording.is_file():
        raise click.ClickException(f"{recording}: no such file; give a file made by `experiments record`")
    try:
        told = settings_of(recording)
    except OutcomeError as error:
        raise click.ClickException(str(error)) from error
    table = pq.read_table(recording)
    levels = Counter(question.level for question in questions_in(recording))
    right = table.filter(pc.field("early_exit") & (pc.field("verifier") == told["verifiers"][0]))
    sampling = {
        orjson.dumps(each, option=orjson.OPT_SORT_KEYS).decode() for each in told["sampling"].values()
    }

    def asked(which: pc.Expression) -> str:
        return f"{len(pc.unique(table.filter(which)['question']))} questions"

    figures = {
        "questions": ", ".join(f"{count} of {level}" for level, count in levels.items()),
        "samples of each search": told["samples"],
        "rows": f"{table.num_rows:,}, {pc.sum(table['derived']).as_py():,} of them derived",
        "verifiers": ", ".join(
            f"{name} ({asked(pc.field('verifier') == name)})" for name in told["verifiers"]
        ),
        "without early exit": asked(~pc.field("early_exit")),
        "sampling": "; ".join(sorted(sampling)),
        "engine": f"{told['engine']}, seed {told['seed']}, eta {told['eta']}",
        "grader": told["grader"],
        "catalogue": told["catalogue"],
        "weights": ", ".join(f"{name} {digest}" for name, digest in told["weights"].items()),
        "right, with early exit": f"{100 * (pc.mean(right['correct']).as_py() or 0):.2f} %",
        "searches that met no answer": f"{100 * (1 - (pc.mean(right['complete']).as_py() or 0)):.2f} %",
        "size": f"{recording.stat().st_size / 1e6:.1f} MB",
    }
    for name, value in figures.items():
        click.echo(f"{name}: {value}")
