"""`python -m experiments record`: run every search of a plan for real, and keep what came of it."""

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from experiments.record.plan import Cost


@click.command()
@click.option(
    "--catalogue",
    type=click.Path(path_type=Path),
    default=Path("infra/catalogue/mini.yaml"),
    show_default=True,
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default=True,
    help="Folder to which the checkpoint paths in the catalogue are relative.",
)
@click.option(
    "--task",
    type=click.Choice(["math", "code", "mixed"]),
    default="math",
    show_default=True,
    help="Mixed traffic has questions of all families, and seven configurations a model.",
)
@click.option(
    "--samples", type=click.IntRange(min=1), help="Samples per search; default: 1, or 2 for mixed traffic."
)
@click.option("--short", is_flag=True, help="Mixed traffic with 500 live questions instead of 1,000.")
@click.option(
    "--estimate",
    "few",
    type=click.IntRange(min=1),
    help="Record only this many questions, print how long all of them will take, and stop.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the questions of each level.",
)
@click.option(
    "--whole-share",
    type=click.FloatRange(0.0, 1.0),
    default=1.0,
    show_default=True,
    help="Share of the questions of each level that are also run without early exit. Mixed traffic: none.",
)
@click.option(
    "--other-share",
    type=click.FloatRange(0.0, 1.0),
    default=1.0,
    show_default=True,
    help="Share of the questions of each level that are also run under the other verifiers. Mixed traffic: none.",
)
@click.option("--model", "models", multiple=True, help="Only these models.")
@click.option(
    "--verifiers",
    type=click.IntRange(min=1),
    help="Number of verifiers, starting with the one in use; default: all.",
)
@click.option("--engine", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="Device of the torch engine: cpu or cuda.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: all cores.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=48,
    show_default=True,
    help="Pairs of question and model in progress at a time; each takes 28 searches.",
)
@click.option(
    "--part",
    default="1/1",
    show_default=True,
    help="K/N: this is the K-th of N processes that record together. They share WORK and divide the questions.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all drafts.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("out/record"),
    show_default=True,
    help="Folder of the journal, from which the same command resumes.",
)
@click.option(
    "--continue",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A shorter recording to make longer: its searches are kept, even where its journal is gone.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="The Parquet file; default: WORK/<task>.parquet."
)
def record(
    catalogue: Path,
    folder: Path,
    task: str,
    samples: int | None,
    short: bool,
    few: int | None,
    share: float,
    whole_share: float,
    other_share: float,
    models: tuple[str, ...],
    verifiers: int | None,
    engine: str,
    device: str,
    threads: int | None,
    in_flight: int,
    part: str,
    seed: int,
    work: Path,
    earlier: Path | None,
    out: Path | None,
) -> None:
    """Run every question with every configuration for real, and write the outcomes to a Parquet file.

    It can be stopped at any moment; the same command then resumes.
    """
    from tqdm import tqdm

    from agents.answers import GradingPool, grader_version
    from agents.catalogue.file import load_catalogue
    from experiments.journal import JournalError, SearchJournal, journals
    from experiments.outcomes import OutcomeError
    from experiments.record import table
    from experiments.record.plan import RecordingPlan, estimate, run_of, take_over
    from experiments.record.plan import record as run
    from experiments.record.questions import Task, fingerprint, mixed_traffic, questions_of
    from experiments.record.searches import Kind, open_bench, weights

    if threads:
        import torch

        torch.set_num_threads(threads)
    loaded = load_catalogue(catalogue)
    if unknown := set(models) - set(loaded.model_names):
        raise click.BadParameter(
            f"--model {sorted(unknown)[0]}: choose one of {', '.join(loaded.model_names)}"
        )
    mixed = task == "mixed"
    if short and not mixed:
        raise click.BadParameter("--short is for --task mixed alone")
    of_samples = samples or (2 if mixed else 1)
    questions = (
        mixed_traffic(share=share, short=short) if mixed else questions_of(cast(Task, task), share=share)
    )
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)
    number, parts = (int(found[1]), int(found[2])) if found else (1, 0)
    if number > parts:
        raise click.BadParameter(f"--part {part}: give K/N with K from 1 to N, such as 1/2")

    async def go(pool: GradingPool) -> None:
        bench = await open_bench(
            loaded,
            cast(Kind, engine),
            pool.judge,
            folder=folder,
            device=device,
            verifiers=1 if mixed else verifiers,
        )

        def some(share: float) -> set[str]:
            return {q.question_id for q in questions_of(cast(Task, task), share=share)} if share else set()

        told = (bench, questions, of_samples, seed, models, (number, parts))
        plan = (
            RecordingPlan.of_mixed(*told)
            if mixed
            else RecordingPlan.of(*told, some(whole_share), some(other_share))
        )
        if few is not None:
            chosen = random.Random(0).sample(questions, min(few, len(questions)))
            costs = await estimate(plan, bench, chosen, in_flight)
            click.echo(_told(costs, len(questions), of_samples, len(chosen)))
            return
        rules = bench.rules
        of_all = mixed_traffic(share=share) if mixed else questions_of(cast(Task, task))
        settings = {
            "catalogue": loaded.fingerprint,
            "task": task,
            # Of all there are: a short recording can be made longer, and its searches stay.
            "questions": fingerprint(of_all),
            "models": list(dict.fromkeys(action.model for action in plan.actions)),
            "searched": sorted({(action.qp, action.cp) for action in plan.actions}),
            "verifiers": list(bench.verifiers),
            "weights": weights(loaded, folder),
            "engine": engine,
            "grader": grader_version(),
            "seed": seed,
            "eta": rules.eta,
            "sampling": {m.name: _plain(m.sampling) for m in loaded.models},
        }
        try:
            # The number of samples may grow: what was recorded of the first ones stays.
            name = task if parts == 1 else f"{task}-{number}-of-{parts}"
            journal = SearchJournal(work / f"{name}.jsonl", settings, journals(work, task))
            if earlier is not None:
                take_over(journal, earlier, of_all)
        except (JournalError, OutcomeError) as error:
            raise click.ClickException(str(error)) from error
        wanted = plan.runs()
        done = sum(run_of(row) in wanted for row in journal.rows())
        with tqdm(total=plan.searches(), initial=done, unit="search", smoothing=0.02) as bar:
            rate = await run(plan, bench, journal, in_flight=in_flight, progress=bar.update)
        if bench.close is not None:
            await bench.close()
        click.echo(f"{sum(1 for _ in plan.shards())} shards, {rate:.1f} searches/s now")
        whole = SearchJournal(journal.path, settings, journals(work, task))
        of_all_parts = replace(plan, part=(1, 1)).runs()
        if missing := {name for name, _, _ in of_all_parts - whole.done}:
            click.echo(f"{len(missing)} shards are another part's; who finishes last writes the file")
            return
        path = out or work / f"{task}.parquet"
        rows = [row for row in whole.rows() if run_of(row) in of_all_parts]
        stamped = {**settings, "questions": fingerprint(questions), "samples": of_samples}
        size = table.write(path, rows, questions, stamped)
        click.echo(f"{len(rows)} searches: {path}, {size / 1e6:.1f} MB")

    with GradingPool() as pool:
        asyncio.run(go(pool))


def _told(costs: "Sequence[Cost]", questions: int, samples: int, few: int) -> str:
    lines = [f"{few} questions recorded; processor seconds a question, first sample and each later one:"]
    for cost in costs:
        later = "-" if cost.later_s is None else f"{cost.later_s:.2f}"
        hours = cost.hours(questions, samples)
        lines.append(f"{cost.model:12} {cost.first_s:6.2f} {later:>6}  {hours:5.2f} hours in all")
    total = sum(cost.hours(questions, samples) for cost in costs)
    lines.append(f"{questions} questions, {samples} samples: {total:.1f} processor hours")
    return "\n".join(lines)


def _plain(value: object) -> object:
    import msgspec

    return msgspec.to_builtins(value)
