"""python -m experiments: record outcomes, rerun the paper on them, judge policies on anyone's history."""

import asyncio
import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from experiments.outcomes import Outcomes

CATALOGUE = Path("infra/catalogue/mini.yaml")
RECORDING = Path("experiments/data/math.parquet")


@click.group()
def cli() -> None:
    """Record outcomes of every configuration, and learn from them without Kafka."""


@cli.command()
@click.option(
    "--catalogue",
    type=click.Path(path_type=Path),
    default=Path("infra/catalogue/mini.yaml"),
    show_default=True,
)
@click.option("--task", type=click.Choice(["math", "code"]), default="math", show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Of every search.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Of the questions of each level.",
)
@click.option("--model", "models", multiple=True, help="Only these models.")
@click.option(
    "--verifiers", type=click.IntRange(min=1), help="How many, the one in use first; all by default."
)
@click.option("--engine", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="Of the torch engine: cpu or cuda.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads, if not all cores.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=48,
    show_default=True,
    help="(question, model) pairs at a time, 28 searches each.",
)
@click.option(
    "--part",
    default="1/1",
    show_default=True,
    help="K/N: the K-th of N processes that record together, each with questions of its own and in the same WORK.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of all drafts.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("out/record"),
    show_default=True,
    help="Folder of the journal: the same command goes on where it was.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The Parquet file; WORK/<task>.parquet if none.")
def record(
    catalogue: Path,
    task: str,
    samples: int,
    share: float,
    models: tuple[str, ...],
    verifiers: int | None,
    engine: str,
    device: str,
    threads: int | None,
    in_flight: int,
    part: str,
    seed: int,
    work: Path,
    out: Path | None,
) -> None:
    """Run every (question, configuration) for real and write one Parquet file of outcomes.

    Killed at any moment, the same command goes on where it was.
    """
    from tqdm import tqdm

    from agents.aggregator.grade import grader_version
    from agents.aggregator.math_pool import MathPool
    from agents.space.catalogue import load_catalogue
    from experiments.record import table
    from experiments.record.bench import Kind, open_bench, weights
    from experiments.record.journal import Journal, JournalError, journals
    from experiments.record.questions import Task, fingerprint, questions_of
    from experiments.record.run import Plan
    from experiments.record.run import record as run

    if threads:
        import torch

        torch.set_num_threads(threads)
    loaded = load_catalogue(catalogue)
    if unknown := set(models) - set(loaded.model_names):
        raise click.BadParameter(f"--model {sorted(unknown)[0]}: choose of {', '.join(loaded.model_names)}")
    questions = questions_of(cast(Task, task), share=share)
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)
    number, parts = (int(found[1]), int(found[2])) if found else (1, 0)
    if number > parts:
        raise click.BadParameter(f"--part {part}: give K/N with K from 1 to N, such as 1/2")

    async def go(pool: MathPool) -> None:
        bench = await open_bench(loaded, cast(Kind, engine), pool.judge, device=device, verifiers=verifiers)
        plan = Plan.of(bench, questions, samples, seed, models, (number, parts))
        rules = bench.rules
        settings = {
            "catalogue": loaded.fingerprint,
            "task": task,
            "questions": fingerprint(questions),
            "models": list(dict.fromkeys(action.model for action in plan.actions)),
            "verifiers": list(bench.verifiers),
            "weights": weights(loaded),
            "engine": engine,
            "grader": grader_version(),
            "seed": seed,
            "eta": rules.eta,
            "sampling": {m.name: _plain(m.sampling) for m in loaded.models},
        }
        try:
            # The number of samples may grow: what was recorded of the first ones stays.
            name = task if parts == 1 else f"{task}-{number}-of-{parts}"
            journal = Journal(work / f"{name}.jsonl", settings, journals(work, task))
        except JournalError as error:
            raise click.ClickException(str(error)) from error
        wanted = {shard[0] for shard in plan.shards()}
        share_done = len(wanted & journal.done) / len(wanted)
        with tqdm(
            total=plan.searches(), initial=round(plan.searches() * share_done), unit="search", smoothing=0.02
        ) as bar:
            rate = await run(plan, bench, journal, in_flight=in_flight, progress=bar.update)
        if bench.close is not None:
            await bench.close()
        click.echo(f"{len(wanted)} shards, {rate:.1f} searches/s now")
        whole = Journal(journal.path, settings, journals(work, task))
        if missing := {shard[0] for shard in replace(plan, part=(1, 1)).shards()} - whole.done:
            click.echo(f"{len(missing)} shards are another part's; who finishes last writes the file")
            return
        path = out or work / f"{task}.parquet"
        rows = [row for row in whole.rows() if row["sample"] < samples]
        size = table.write(path, rows, questions, {**settings, "samples": samples})
        click.echo(f"{len(rows)} searches: {path}, {size / 1e6:.1f} MB")

    with MathPool() as pool:
        asyncio.run(go(pool))


def _plain(value: object) -> object:
    import msgspec

    return msgspec.to_builtins(value)


@cli.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/paper"), show_default=True)
@click.option(
    "--outcomes",
    "source",
    type=click.Path(path_type=Path),
    default=RECORDING,
    show_default=True,
    help="A recording of ours, or any CSV, JSONL or Parquet with --mapping.",
)
@click.option(
    "--mapping", type=click.Path(path_type=Path), help="What the columns mean (experiments/foreign.py)."
)
@click.option("--catalogue", type=click.Path(path_type=Path), default=CATALOGUE, show_default=True)
@click.option("--quick", is_flag=True, help="Without the networks, feedback conditions and boosted trees.")
@click.option(
    "--networks", is_flag=True, help="MLP and NeuralUCB too, at their full training: minutes a run."
)
@click.option(
    "--step-scores",
    type=click.Path(path_type=Path, exists=True),
    help="Folder with samples.csv.gz of recorded step scores: early exit is replayed on them.",
)
@click.option("--cache", type=click.Path(path_type=Path), default=Path("out/vectors"), show_default=True)
def paper(
    out: Path,
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    quick: bool,
    networks: bool,
    step_scores: Path | None,
    cache: Path,
) -> None:
    """Run the paper's tables on outcomes: report.html, tables.json and PNG figures."""
    import time

    import orjson

    from agents.embedder.minilm import MiniLM
    from agents.space.catalogue import load_catalogue
    from experiments import figures
    from experiments.early_exit import replay_tts_prm
    from experiments.foreign import load_foreign
    from experiments.outcomes import OutcomeError, load_recording
    from experiments.paper import Scope, run_paper
    from experiments.report import write_report
    from experiments.scenarios import MODES
    from experiments.world import build_world

    began = time.perf_counter()
    encoder = MiniLM()
    off = other = None
    try:
        if mapping is not None:
            world = build_world(load_foreign(source, mapping), encoder, cache=cache)
        else:
            loaded = load_catalogue(catalogue)
            world = build_world(load_recording(source), encoder, loaded, cache)
            off, other = further_runs(source)
    except (OutcomeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    second = build_world(other, encoder, loaded, cache) if other is not None else None
    seeds = (3, 23, 42, 50, 57)
    scope = Scope(
        more_seeds=seeds if quick else tuple(range(20)),
        networks=networks and not quick,
        long=not quick,
        say=lambda text: click.echo(text, err=True),
    )
    results = run_paper(world, scope, without_exit=off, other_verifier=second)
    if step_scores is not None:
        results.tables["early_exit_replayed"] = replay_tts_prm(step_scores)
    out.mkdir(parents=True, exist_ok=True)
    tables = orjson.dumps(results.tables, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    (out / "tables.json").write_bytes(tables)
    drawn = []
    name = "uis" if "uis" in results.tables["main"] else "all"
    for mode in MODES:
        runs = {policy: run for (space, m, policy), run in results.runs.items() if (space, m) == (name, mode)}
        drawn += [out / f"regret-{mode}.png", out / f"accuracy-cost-{mode}.png"]
        figures.regret_curves(drawn[-2], runs, f"{name}, {mode}")
        figures.accuracy_cost(drawn[-1], world, runs, f"{name}, {mode}")
    drawn.append(out / "pareto.png")
    figures.pareto(drawn[-1], results.tables["pareto"], world)
    write_report(out / "report.html", results.tables, drawn)
    (out / "timings.json").write_bytes(orjson.dumps({"seconds": time.perf_counter() - began}))
    click.echo(f"written: {out / 'report.html'}, {out / 'tables.json'}")


@cli.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--floor", default=50.0, show_default=True, help="Fewest effective decisions an estimate may rest on."
)
def ope(log: Path, floor: float) -> None:
    """Estimate what each action, taken always, would have earned on a LOG of randomised decisions.

    LOG is a CSV, JSONL or Parquet with the columns action, propensity and reward.
    """
    import numpy as np

    from experiments import ope as evaluation
    from experiments.foreign import rows_of
    from experiments.outcomes import OutcomeError

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
                "SNIPS": evaluation.snips(logged, policy, floor=floor),
                "DR": evaluation.doubly_robust(logged, policy, predicted, floor=floor),
            }
        except evaluation.EvaluationError as error:
            click.echo(f"{name}: not estimated: {error}")
            continue
        for kind, e in found.items():
            click.echo(
                f"{name}: {kind} {e.value:.4f} [{e.low:.4f}, {e.high:.4f}], {e.effective:.0f} effective"
            )


def further_runs(source: Path) -> "tuple[Outcomes | None, Outcomes | None]":
    """Return a recording's runs without early exit, and those under its other verifier, where it has them."""
    import orjson
    import pyarrow.parquet as pq

    from experiments.outcomes import OutcomeError, load_recording

    settings = orjson.loads(pq.read_schema(source).metadata[b"uniscale.settings"])
    off = other = None
    with contextlib.suppress(OutcomeError):
        off = load_recording(source, early_exit=False)
    if len(settings["verifiers"]) > 1:
        with contextlib.suppress(OutcomeError):
            other = load_recording(source, verifier=settings["verifiers"][1])
    return off, other


if __name__ == "__main__":
    cli(prog_name="python -m experiments")
