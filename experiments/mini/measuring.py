"""The commands that measure the family and release it."""

import json
from pathlib import Path

import click

from experiments.commands import CATALOGUE, PATH

OUT = Path("out/mini")
WORK = OUT / "work"

work_folder = click.option("--work", type=PATH, default=WORK, show_default=True)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--each", default=100, show_default=True, help="Test questions per level.")
@click.option("--samples", default=3, show_default=True, help="Samples per question for the depths; 0: none.")
@click.option("--midway", is_flag=True, help="Include models whose training has not finished.")
@click.option(
    "--sealed",
    is_flag=True,
    help="Open the sealed everyday questions: once, when the family is final. "
    "Their result is kept for as long as the weights stay the same.",
)
@click.option("--seed", default=11, show_default=True, help="Seed of the test questions.")
@work_folder
@click.option(
    "--out",
    type=PATH,
    default=OUT / "evaluation.json",
    show_default=True,
    help="Report on the whole family, including the results of `select`.",
)
def evaluate(
    names: tuple[str, ...],
    each: int,
    samples: int,
    midway: bool,
    sealed: bool,
    seed: int,
    work: Path,
    out: Path,
) -> None:
    """Evaluate the generators NAMES, or all of them. Results are saved in WORK after each generator."""
    import torch

    from experiments.mini.checkpoints import finished, read_report, report_name, weights_digest, write_report
    from experiments.mini.ladder import GENERATORS, rung
    from experiments.mini.measures import evaluate as evaluation
    from experiments.mini.measures.summary import summary
    from experiments.mini.sampling import load_generator
    from experiments.mini.training.generator import midway as unfinished
    from experiments.mini.training.loop import STATE

    torch.set_num_threads(1)
    if sealed and any(finished(shape.name, work) is None for shape in GENERATORS):
        raise click.UsageError(
            "--sealed opens the sealed questions, and not all generators are finished: train first"
        )
    kept_as, beside = report_name("evaluation", seed), report_name("selection", seed)
    kept = read_report(kept_as, work)
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
        report = evaluation.evaluate(model, each, sets, samples=samples, seed=seed)
        if folder is not None:
            report["price_ratio_64"] = evaluation.price_ratio_64(evaluation.architecture(folder), None)
            report["weights"] = weights_digest(folder)
            if not evaluation.carry_sealed(report, kept.get(name, {})):
                click.echo(
                    f"{name}: its result on the sealed questions was of other weights, and is left out"
                )
            kept[name] = report
            write_report(kept_as, work, kept)
        click.echo(f"{name}: {json.dumps(report, indent=1)}")
    write_report(out.name, out.parent, summary(kept, read_report(beside, work), each, seed))
    click.echo(f"written: {out}")


@click.command()
@click.option("--each", default=25, show_default=True, help="Test questions per level.")
@click.option("--seed", default=11, show_default=True, help="Seed of the test questions.")
@work_folder
def select(each: int, seed: int, work: Path) -> None:
    """Compare best-of-16 accuracy under each verifier with that of one sample; writes WORK/selection.json.

    With a seed other than 11 it writes WORK/selection-SEED.json, which chooses no verifier.
    """
    import torch

    from experiments.mini.checkpoints import finished, report_name, write_report
    from experiments.mini.ladder import GENERATORS
    from experiments.mini.measures.selection import selection
    from experiments.mini.training.verifier import VERIFIERS

    torch.set_num_threads(1)
    found = {
        s.name: folder for s in (*GENERATORS, *VERIFIERS) if (folder := finished(s.name, work)) is not None
    }
    judges = {s.name: found.pop(s.name) for s in VERIFIERS if s.name in found}
    report = selection(found, judges, each, work, seed)
    write_report(report_name("selection", seed), work, report)
    click.echo(json.dumps(report, indent=1))


@click.command()
@click.option(
    "--models",
    type=PATH,
    default=Path("models"),
    show_default=True,
    help="Folder to write to; `models` is the one that ships.",
)
@click.option(
    "--catalogue",
    type=PATH,
    default=CATALOGUE,
    show_default=True,
    help="Catalogue to write; its checkpoint paths begin with `models/`.",
)
@click.option(
    "--questions",
    default=60,
    show_default=True,
    help="Validation questions per level for the anchors; 0: no anchors.",
)
@click.option("--partial", is_flag=True, help="Release even if some models are missing, for a trial.")
@work_folder
def release(models: Path, catalogue: Path, questions: int, partial: bool, work: Path) -> None:
    """Write checkpoints, cards, family.json and test questions to MODELS, and the catalogue."""
    import torch

    from experiments.mini.checkpoints import MODELS, SECOND_SEED, SEED, finished, keep_reports
    from experiments.mini.ladder import GENERATORS
    from experiments.mini.measures.anchors import measured
    from experiments.mini.measures.selection import default_verifier
    from experiments.mini.release import models as releasing
    from experiments.mini.release.criteria import Measured
    from experiments.mini.training.verifier import VERIFIERS

    torch.set_num_threads(1)
    folders = {s.name: folder for s in GENERATORS if (folder := finished(s.name, work)) is not None}
    first, again = (Measured.read(work, seed) for seed in (SEED, SECOND_SEED))
    anchors = measured(folders, questions, work) if questions else {}
    reports = releasing.Reports(first, anchors, again)
    try:
        missing = releasing.release(work, models, reports, partial=partial)
    except FileNotFoundError as error:
        raise click.UsageError(str(error)) from error
    if models.resolve() == MODELS.resolve():
        keep_reports(work)
    click.echo(f"written: {models}" + (f", without {', '.join(missing)}" if missing else ""))
    if {shape.name for shape in VERIFIERS} & set(missing):
        click.echo(f"{catalogue}: left alone, a catalogue needs its verifiers")
        return
    verifier = default_verifier(first.selection)
    made = releasing.write_catalogue(releasing.TEMPLATE, catalogue, verifier)
    click.echo(f"written: {catalogue}, verifier {made.verifier}, fingerprint {made.fingerprint}")
