"""python -m experiments.mini: make, measure and release the mini family."""

import os
from pathlib import Path

import click

from experiments.mini.measuring import WORK, evaluate, release, select, work_folder

POOL = 240_000


@click.group()
def cli() -> None:
    """Make the mini family: six generators and two verifiers. A command that was killed resumes when run again."""
    # Before torch or a tokenizer starts its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@cli.command()
@click.option("--write/--no-write", default=False, help="Replace the tokenizer that ships.")
def tokenizer(write: bool) -> None:
    """Compare vocabulary sizes by the mean tokens of a validation problem and of a GSM8K question."""
    from experiments.mini.corpus import MIXTURE, problems, sample_texts
    from experiments.mini.tasks.gsm import MISSING, sources
    from experiments.mini.tokenizer import ENTRIES, FILE, prompt_of, trained

    texts = sample_texts()
    chosen = [
        p for level, share in MIXTURE.items() for p in problems(level, "validation", 5, round(3000 * share))
    ]
    measured = [prompt_of(p.question) + p.solution for p in chosen]
    people = [question for question, _ in sources()[:500]]
    if not people:
        click.echo(MISSING)
    for entries in (1_024, 1_280, 1_536, 2_048, 3_072):
        made = trained(texts, entries)
        each = sum(len(e.ids) for e in made.encode_batch(measured)) / len(measured)
        real = sum(len(e.ids) for e in made.encode_batch(people)) / max(1, len(people))
        click.echo(f"{entries:5} entries: {each:.1f} tokens per problem, {real:.1f} per GSM8K question")
        if write and entries == ENTRIES:
            made.save(str(FILE))


@cli.command()
@click.option("--size", default=POOL, show_default=True, help="Number of problems, not counting GSM8K's.")
@click.option("--seed", default=0, show_default=True)
@click.option("--processes", default=1, show_default=True)
@work_folder
def corpus(size: int, seed: int, processes: int, work: Path) -> None:
    """Generate the training corpus, unless it is there already."""
    from experiments.mini.corpus import make_pool
    from experiments.mini.tasks.gsm import MISSING, QUESTIONS

    if not QUESTIONS.exists():
        click.echo(MISSING)
    pool = make_pool(size, seed, work / "pool", processes)
    click.echo(
        f"{len(pool):,} problems, {len(pool.tokens):,} tokens, {pool.learnt.mean():.0%} of them trained on"
    )


@cli.command()
@click.argument("names", nargs=-1)
@click.option("--seed", default=0, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), help="Number of training steps; default: the ladder's.")
@click.option("--size", default=POOL, show_default=True)
@work_folder
def train(names: tuple[str, ...], seed: int, steps: int | None, size: int, work: Path) -> None:
    """Train the generators NAMES, or all of them. Finished ones are skipped."""
    import torch

    from experiments.mini.checkpoints import finished
    from experiments.mini.corpus import make_pool
    from experiments.mini.ladder import GENERATORS, rung
    from experiments.mini.training.generator import train as run

    torch.set_num_threads(1)
    for name in names or [shape.name for shape in GENERATORS]:
        if (folder := finished(name, work)) is not None:
            click.echo(f"{name}: already trained, in {folder}; remove that folder to train it again")
            continue
        outcome = run(rung(name), make_pool(size, seed, work / "pool"), work / name, seed, steps)
        assert outcome is not None
        click.echo(
            f"{name}: loss {outcome.last_loss:.4f}, {outcome.tokens:,} tokens, {outcome.minutes:.1f} minutes"
        )


@cli.command()
@click.argument("names", nargs=-1)
@click.option(
    "--solutions", default=2_400, show_default=True, help="Solutions sampled per generator and temperature."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--size", default=POOL, show_default=True)
@work_folder
def verifiers(names: tuple[str, ...], solutions: int, seed: int, size: int, work: Path) -> None:
    """Train the verifiers NAMES, or both, on solutions sampled from the finished generators."""
    import torch

    from experiments.mini.checkpoints import finished
    from experiments.mini.corpus import make_pool
    from experiments.mini.ladder import GENERATORS
    from experiments.mini.training.judging import train_verifier
    from experiments.mini.training.solutions import training_set
    from experiments.mini.training.verifier import VERIFIERS

    torch.set_num_threads(1)
    folders = {shape.name: finished(shape.name, work) for shape in GENERATORS}
    checkpoints = [folder for folder in folders.values() if folder is not None]
    if len(checkpoints) < len(folders):
        waiting = ", ".join(name for name, folder in folders.items() if folder is None)
        raise click.UsageError(f"verifiers learn from all generators; train first: {waiting}")
    for shape in VERIFIERS:
        if (names and shape.name not in names) or finished(shape.name, work) is not None:
            continue
        data = training_set(checkpoints, work, solutions, seed)
        pool = make_pool(size, seed, work / "pool")
        source = folders[shape.inherits] if shape.inherits else None
        outcome = train_verifier(shape, data, pool, work / shape.name, source, seed)
        click.echo(f"{shape.name}: loss {outcome.last_loss:.4f}, {outcome.minutes:.1f} minutes")


@cli.command(name="all")
@click.option("--processes", default=1, show_default=True, help="Processes that generate the corpus.")
@click.pass_context
def everything(context: click.Context, processes: int) -> None:
    """Run every stage, from the corpus to the release. Stages that are done, and models that ship, are skipped."""
    context.invoke(corpus, size=POOL, seed=0, processes=processes, work=WORK)
    context.invoke(train, names=(), seed=0, steps=None, size=POOL, work=WORK)
    context.invoke(verifiers, names=(), solutions=2_400, seed=0, size=POOL, work=WORK)
    context.invoke(select, each=25, work=WORK)
    context.invoke(evaluate, work=WORK)
    context.invoke(release)


for command in (evaluate, select, release):
    cli.add_command(command)


if __name__ == "__main__":
    cli(prog_name="python -m experiments.mini")
