"""python -m experiments.family: make, measure and publish the second edition of the mini family."""

import json
import os
from pathlib import Path

import click

WORK = Path("out/family")
POOL = 240_000


@click.group()
def cli() -> None:
    """Make the second edition of the mini family. Every part goes on where it was killed."""
    # Before torch or a tokenizer starts its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@cli.command()
@click.option("--write/--no-write", default=False, help="Also replace the kept tokenizer.")
def tokenizer(write: bool) -> None:
    """Measure vocabularies: tokens a validation problem and a GSM8K question takes, by number of entries."""
    from experiments.family.corpus import MIXTURE, problems, sample_texts
    from experiments.family.tasks.gsm import MISSING, sources
    from experiments.family.tokenizer import ENTRIES, FILE, prompt_of, trained

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
        click.echo(f"{entries:5}  {each:6.1f} tokens a problem  {real:6.1f} a GSM8K question")
        if write and entries == ENTRIES:
            made.save(str(FILE))


@cli.command()
@click.option("--size", default=POOL, show_default=True, help="Problems, GSM8K's wording apart.")
@click.option("--seed", default=0, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=WORK, show_default=True)
def corpus(size: int, seed: int, processes: int, work: Path) -> None:
    """Make the training corpus, once."""
    from experiments.family.corpus import make_pool
    from experiments.family.tasks.gsm import MISSING, QUESTIONS

    if not QUESTIONS.exists():
        click.echo(MISSING)
    pool = make_pool(size, seed, work / "pool", processes)
    click.echo(
        f"{len(pool):,} problems, {len(pool.tokens):,} tokens, {pool.learnt.mean():.0%} of them learnt"
    )


@cli.command()
@click.argument("names", nargs=-1)
@click.option("--seed", default=0, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), help="Another number than the ladder's.")
@click.option("--size", default=POOL, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=WORK, show_default=True)
def train(names: tuple[str, ...], seed: int, steps: int | None, size: int, work: Path) -> None:
    """Train generators by NAME, or all; one that is finished is left alone."""
    import torch

    from experiments.family.corpus import make_pool
    from experiments.family.ladder import GENERATORS, rung
    from experiments.family.publish import finished
    from experiments.family.train import train as run

    torch.set_num_threads(1)
    for name in names or [shape.name for shape in GENERATORS]:
        if (folder := finished(name, work)) is not None:
            click.echo(f"{name}: already trained, in {folder}")
            continue
        outcome = run(rung(name), make_pool(size, seed, work / "pool"), work / name, seed, steps)
        assert outcome is not None
        click.echo(
            f"{name}: loss {outcome.last_loss:.4f}, {outcome.tokens:,} tokens, {outcome.minutes:.1f} minutes"
        )


@cli.command()
@click.argument("names", nargs=-1)
@click.option("--each", default=100, show_default=True, help="Test questions a level.")
@click.option("--samples", default=3, show_default=True, help="Samples a question for the depths; 0: none.")
@click.option("--midway", is_flag=True, help="Also look at models that are still being trained.")
@click.option(
    "--sealed", is_flag=True, help="Open the sealed everyday questions: once, when the family is final."
)
@click.option("--work", type=click.Path(path_type=Path), default=WORK, show_default=True)
def evaluate(names: tuple[str, ...], each: int, samples: int, midway: bool, sealed: bool, work: Path) -> None:
    """Evaluate generators; results are kept in WORK/evaluation.json by name."""
    import torch

    from experiments.family import evaluate as evaluation
    from experiments.family.ladder import GENERATORS, rung
    from experiments.family.publish import finished
    from experiments.family.sampling import load_generator
    from experiments.family.train import STATE
    from experiments.family.train import midway as unfinished

    torch.set_num_threads(1)
    if sealed and any(finished(shape.name, work) is None for shape in GENERATORS):
        raise click.UsageError(
            "--sealed opens the sealed questions, and not all generators are finished: train first"
        )
    file = work / "evaluation.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    for name in names or [shape.name for shape in GENERATORS]:
        folder = finished(name, work)
        if folder is not None:
            model = load_generator(folder)
        elif midway and (work / name / STATE).exists():
            model = unfinished(work / name, rung(name))
        else:
            click.echo(f"{name}: not trained yet")
            continue
        sets = ("development", "sealed") if sealed else ("development",)
        report = evaluation.evaluate(model, each, sets, samples=samples)
        if folder is not None:
            report["price_ratio_64"] = evaluation.price_ratio_64(evaluation.architecture(folder), None)
            kept[name] = report
        click.echo(f"{name}: {json.dumps(report, indent=1)}")
    work.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, indent=1) + "\n")


@cli.command()
@click.argument("names", nargs=-1)
@click.option(
    "--solutions", default=2_400, show_default=True, help="Sampled of each generator a temperature."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--size", default=POOL, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=WORK, show_default=True)
def verifiers(names: tuple[str, ...], solutions: int, seed: int, size: int, work: Path) -> None:
    """Train verifiers by NAME, or all, on solutions that the finished generators sample."""
    import torch

    from experiments.family.corpus import make_pool
    from experiments.family.judging import train_verifier
    from experiments.family.ladder import GENERATORS
    from experiments.family.publish import finished
    from experiments.family.solutions import training_set
    from experiments.family.verifier import VERIFIERS

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


@cli.command()
@click.option("--each", default=25, show_default=True, help="Test questions a level.")
@click.option("--work", type=click.Path(path_type=Path), default=WORK, show_default=True)
def select(each: int, work: Path) -> None:
    """Measure best of 16 under each verifier against one sample; kept in WORK/selection.json."""
    import torch

    from experiments.family.ladder import GENERATORS
    from experiments.family.publish import finished
    from experiments.family.selection import selection
    from experiments.family.verifier import VERIFIERS

    torch.set_num_threads(1)
    found = {
        s.name: folder for s in (*GENERATORS, *VERIFIERS) if (folder := finished(s.name, work)) is not None
    }
    judges = {s.name: found.pop(s.name) for s in VERIFIERS if s.name in found}
    report = json.dumps(selection(found, judges, each, work), indent=1)
    (work / "selection.json").write_text(report + "\n")
    click.echo(report)


@cli.command()
@click.option("--work", type=click.Path(path_type=Path), default=WORK, show_default=True)
def publish(work: Path) -> None:
    """Copy finished checkpoints into the repository, where `build` and `evaluate` find them."""
    from experiments.family.publish import publish as run

    click.echo(f"published: {', '.join(run(work)) or 'nothing new'}")


@cli.command()
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    default=Path("models"),
    show_default=True,
    help="The folder that ships.",
)
@click.option(
    "--catalogue",
    type=click.Path(path_type=Path),
    default=Path("infra/catalogue/mini.yaml"),
    show_default=True,
    help="Where the catalogue is written; a folder below or beside which MODELS stands as `models`.",
)
@click.option(
    "--questions",
    default=60,
    show_default=True,
    help="Validation questions a level for the anchors; 0: none.",
)
@click.option("--partial", is_flag=True, help="Write what is trained, to try it, though models are missing.")
@click.option("--work", type=click.Path(path_type=Path), default=WORK, show_default=True)
def release(models: Path, catalogue: Path, questions: int, partial: bool, work: Path) -> None:
    """Write what ships: MODELS with cards, family.json and test questions, and the catalogue's verifier and costs."""
    import torch

    from experiments.family import release as releasing
    from experiments.family.anchors import measured
    from experiments.family.ladder import GENERATORS
    from experiments.family.publish import CHECKPOINTS, finished
    from experiments.family.verifier import VERIFIERS

    torch.set_num_threads(1)
    folders = {s.name: folder for s in GENERATORS if (folder := finished(s.name, work)) is not None}
    selection = releasing.read_report("selection.json", work, CHECKPOINTS)
    reports = releasing.Reports(
        evaluation=releasing.read_report("evaluation.json", work, CHECKPOINTS),
        selection=selection,
        anchors=measured(folders, questions, work / "anchors.json") if questions else {},
    )
    try:
        missing = releasing.release(work, models, reports, partial=partial)
    except FileNotFoundError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"written: {models}" + (f", without {', '.join(missing)}" if missing else ""))
    if {shape.name for shape in VERIFIERS} & set(missing):
        click.echo(f"{catalogue}: left alone, a catalogue needs its verifiers")
        return
    verifier = releasing.default_verifier(selection)
    made = releasing.write_catalogue(releasing.TEMPLATE, catalogue, verifier)
    click.echo(f"written: {catalogue}, verifier {made.verifier}, fingerprint {made.fingerprint}")


@cli.command()
@click.option("--processes", default=1, show_default=True, help="For the corpus.")
@click.pass_context
def build(context: click.Context, processes: int) -> None:
    """Make everything from nothing, or go on where it was: corpus, generators, verifiers, publication, evaluation."""
    context.invoke(corpus, size=POOL, seed=0, processes=processes, work=WORK)
    context.invoke(train, names=(), seed=0, steps=None, size=POOL, work=WORK)
    context.invoke(verifiers, names=(), solutions=2_400, seed=0, size=POOL, work=WORK)
    context.invoke(publish, work=WORK)
    context.invoke(select, each=25, work=WORK)
    context.invoke(evaluate, names=(), each=100, samples=3, midway=False, sealed=False, work=WORK)


if __name__ == "__main__":
    cli(prog_name="python -m experiments.family")
