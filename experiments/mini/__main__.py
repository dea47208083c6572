"""python -m experiments.mini: make, measure and publish the mini family."""

import json
import os
import sys
from itertools import islice
from pathlib import Path

import click

from experiments.mini.corpus import MIXTURE, problems_of
from experiments.mini.ladder import GENERATORS, VERIFIERS, rung
from experiments.mini.problems import SPLITS
from experiments.mini.programs import inputs_for

WORK = Path("out/mini/work")
MODELS = Path("models")
SOLUTIONS_EACH = 2_400


@click.group()
def cli() -> None:
    """Make, measure and publish the mini family: six generators and two process reward models."""
    # Before torch or a tokenizer starts its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@cli.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--work", type=click.Path(path_type=Path), default=WORK, show_default=True, help="Working folder."
)
@click.option("--seed", default=0, show_default=True, help="Seed of data order and weights.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps, if not the ladder's.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads, if not all cores.")
def train(names: tuple[str, ...], work: Path, seed: int, steps: int | None, threads: int | None) -> None:
    """Train models by NAME, or `all`. A killed run goes on where it was; a trained model is left alone.

    Verifiers learn from solutions that the trained generators sample, so those come first.
    """
    import torch

    from experiments.mini.judging import train_verifier
    from experiments.mini.solutions import training_set
    from experiments.mini.train import Schedule, train_generator

    if threads:
        torch.set_num_threads(threads)
    shapes = [*GENERATORS, *VERIFIERS] if names == ("all",) else [_rung(name) for name in names]
    for shape in shapes:
        if (work / shape.name / "training.json").exists():
            click.echo(f"{shape.name}: already trained, in {work / shape.name}")
            continue
        schedule = Schedule(steps or shape.steps, shape.learning_rate, seed)
        if shape in GENERATORS:
            _, outcome = train_generator(shape, schedule, work)
        else:
            untrained = [r.name for r in GENERATORS if not (work / r.name / "training.json").exists()]
            if untrained:
                raise click.ClickException(
                    f"{shape.name} learns from all generators; train first: {', '.join(untrained)}"
                )
            data = training_set(work, [r.name for r in GENERATORS], SOLUTIONS_EACH, seed)
            _, outcome = train_verifier(shape, schedule, data, work)
        click.echo(
            f"{shape.name}: loss {outcome.first_loss:.3f} to {outcome.last_loss:.4f}, {outcome.minutes:.1f} minutes"
        )


@cli.command()
@click.option(
    "--questions",
    default=500,
    show_default=True,
    help="Mini-math questions, as many for each of five levels.",
)
@click.option("--seed", default=11, show_default=True, help="Seed of the questions.")
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    default=MODELS,
    show_default=True,
    help="The family's folder.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/mini/evaluation.json"), show_default=True
)
@click.option(
    "--write-tables/--no-write-tables",
    default=False,
    help="Also put the tables into models/README.md and the cards.",
)
def evaluate(questions: int, seed: int, models: Path, out: Path, write_tables: bool) -> None:
    """Evaluate the family through vLLM: greedy, one sample, pass@16, best-of-16, and the verifiers' AUROC."""
    from experiments.mini import evaluate as evaluation
    from experiments.mini import publish as publishing

    generators, verifiers = [r.name for r in GENERATORS], [r.name for r in VERIFIERS]
    missing = [
        name for name in (*generators, *verifiers) if not (models / name / "model.safetensors").exists()
    ]
    if missing:
        raise click.ClickException(
            f"{models} lacks {', '.join(missing)}; make them with: python -m experiments.mini all"
        )
    try:
        report = evaluation.evaluate(models, generators, verifiers, questions, seed, out)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    click.echo(publishing.tables(report))
    click.echo(f"written: {out}")
    if write_tables:
        publishing.write_tables(models, report)


@cli.command()
@click.option(
    "--work", type=click.Path(path_type=Path), default=WORK, show_default=True, help="Working folder."
)
@click.option(
    "--models", type=click.Path(path_type=Path), default=MODELS, show_default=True, help="Where to publish."
)
@click.option(
    "--questions", default=60, show_default=True, help="Validation questions a level for the anchors."
)
def publish(work: Path, models: Path, questions: int) -> None:
    """Copy trained models to the models folder with cards, measure their anchors and write family.json."""
    from experiments.mini import publish as publishing
    from experiments.mini.anchors import measure_anchors

    try:
        publishing.publish(work, models)
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from error
    anchors = measure_anchors(models, [r.name for r in GENERATORS], questions)
    publishing.write_family(models, anchors)
    click.echo(f"published: {models}")


@cli.command(name="all")
@click.option("--seed", default=0, show_default=True, help="Seed of data order and weights.")
@click.pass_context
def everything(context: click.Context, seed: int) -> None:
    """Train all eight models, publish them and evaluate them: the whole family from nothing."""
    context.invoke(train, names=("all",), work=WORK, seed=seed, steps=None, threads=None)
    context.invoke(publish, work=WORK, models=MODELS, questions=60)
    context.invoke(
        evaluate,
        questions=500,
        seed=11,
        models=MODELS,
        out=Path("out/mini/evaluation.json"),
        write_tables=True,
    )


@cli.command()
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=click.Choice(list(MIXTURE)),
    help="Levels; all of mini-math if none.",
)
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True)
@click.option("--count", default=30, show_default=True, help="Questions of each level.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="File to write; standard output if none.")
def questions(levels: tuple[str, ...], split: str, count: int, seed: int, out: Path | None) -> None:
    """Write questions with their references as JSON lines, ready for `python -m streams produce`."""
    from agents.aggregator.program import run

    lines = []
    for level in levels or [level for level in MIXTURE if not level.startswith("code")]:
        for problem in islice(problems_of(level, split, seed), count):
            reference: object = problem.answer
            if problem.task == "code":
                reference = {"tests": [[value, run(problem.answer, value)] for value in inputs_for(problem)]}
            lines.append(
                json.dumps({"text": problem.question, "reference": reference, "metadata": {"level": level}})
            )
    text = "\n".join(lines) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)


def _rung(name: str):  # type: ignore[no-untyped-def]
    try:
        return rung(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


if __name__ == "__main__":
    cli(prog_name="python -m experiments.mini")
