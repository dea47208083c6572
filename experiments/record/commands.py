"""The commands of `python -m experiments` that make recordings or rerun their searches."""

import asyncio
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from agents.catalogue.file import load_catalogue
from agents.grading.grade import grader_version
from agents.grading.pool import GradingPool
from agents.minilm import MiniLM
from experiments import rerun
from experiments.commands import PATH, RECORDING, joint_world, with_cache, with_catalogue
from experiments.journal import SearchJournal, journals
from experiments.outcomes import OutcomeError, beside_of, load_recording
from experiments.record import table
from experiments.record.plan import IN_FLIGHT, RecordingPlan, run_of, take_over
from experiments.record.plan import record as run
from experiments.record.searches import open_bench, weights
from experiments.record.table import Question, everyday, facts, fingerprint, mixed_traffic, questions_of

T = TypeVar("T")
SEVEN_EACH = {"mixed": mixed_traffic, "facts": facts, "everyday": everyday}
"""The tasks whose models have seven configurations each."""
VERSIONS = ("torch", "onnxruntime", "numpy")
SHARE = click.FloatRange(0, 1)


@click.command()
@with_catalogue
@click.option(
    "--task",
    type=click.Choice(["math", "code", *SEVEN_EACH]),
    default="math",
    show_default=True,
    help="Mixed traffic, everyday facts and everyday questions have seven configurations a model.",
)
@click.option(
    "--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Samples per search."
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
    type=SHARE,
    default=1.0,
    show_default=True,
    help="Share of the questions of each level that are also run without early exit. Mixed traffic: none.",
)
@click.option(
    "--other-share",
    type=SHARE,
    default=1.0,
    show_default=True,
    help="Share of the questions of each level that are also run under the other verifiers. Mixed traffic: none.",
)
@click.option("--engine", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: all cores.")
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=IN_FLIGHT,
    show_default=True,
    help="Questions in progress; few for a server with few slots.",
)
@click.option(
    "--part",
    default="1/1",
    show_default=True,
    help="K/N: this is the K-th of N processes that record together. They share WORK and divide the questions.",
)
@click.option(
    "--work",
    type=PATH,
    default=Path("out/record"),
    show_default=True,
    help="Folder of the journal, from which the same command resumes, and of the file <task>.parquet.",
)
@click.option(
    "--continue",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A shorter recording to make longer: its searches are kept, even where its journal is gone.",
)
def record(
    catalogue: Path,
    task: str,
    samples: int,
    share: float,
    whole_share: float,
    other_share: float,
    engine: str,
    threads: int | None,
    at_once: int,
    part: str,
    work: Path,
    earlier: Path | None,
) -> None:
    """Run every question with every configuration for real, and write the outcomes to a Parquet file.

    It can be stopped at any moment; the same command then resumes. Questions alternate between levels, so that the
    progress bar gives a good estimate within minutes.
    """
    if threads:
        import torch

        torch.set_num_threads(threads)
    loaded, mixed = load_catalogue(catalogue), task in SEVEN_EACH
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)
    number, parts = (int(found[1]), int(found[2])) if found else (1, 0)
    if number > parts:
        raise click.BadParameter(f"--part {part}: give K/N with K from 1 to N, such as 1/2")

    def asked(share: float) -> list[Question]:
        return SEVEN_EACH[task](share) if mixed else questions_of(task, share)

    async def go(pool: GradingPool) -> None:
        bench = await open_bench(loaded, engine, pool.ask, verifiers=1 if mixed else None)
        part_of = (number, parts)
        plan = (
            RecordingPlan.of_mixed(bench, asked(share), samples, part_of)
            if mixed
            else RecordingPlan.of(
                bench, asked(share), samples, part_of, asked(whole_share), asked(other_share)
            )
        )
        settings = {
            "catalogue": loaded.fingerprint,
            "task": task,
            # The digest is of all questions, so that a short recording can be extended without losing its searches.
            "questions": fingerprint(asked(1.0)),
            "models": list(loaded.model_names),
            "searched": sorted({(action.qp, action.cp) for action in plan.actions}),
            "verifiers": list(bench.verifiers),
            "weights": weights(loaded),
            "engine": engine,
            "grader": grader_version(),
            "seed": plan.seed,
            "eta": bench.rules.eta,
            "sampling": {m.name: msgspec.to_builtins(m.sampling) for m in loaded.models},
        }
        # The number of samples may grow; those recorded before are kept.
        name = task if parts == 1 else f"{task}-{number}-of-{parts}"
        journal = SearchJournal(work / f"{name}.jsonl", settings, journals(work, task))
        if earlier is not None:
            take_over(journal, earlier, asked(1.0))
        wanted = plan.runs()
        done = sum(run_of(row) in wanted for row in journal.rows())
        with tqdm(total=plan.searches(), initial=done, unit="search", smoothing=0.02) as bar:
            await run(plan, bench, journal, in_flight=at_once, progress=bar.update)
        if bench.close is not None:
            await bench.close()
        whole = SearchJournal(journal.path, settings, journals(work, task))
        of_all_parts = replace(plan, part=(1, 1)).runs()
        if missing := {name for name, _, _ in of_all_parts - whole.done}:
            click.echo(f"{len(missing)} shards are another part's; who finishes last writes the file")
            return
        path = work / f"{task}.parquet"
        rows = [row for row in whole.rows() if run_of(row) in of_all_parts]
        stamped = {**settings, "questions": fingerprint(asked(share)), "samples": samples}
        size = table.write(path, rows, asked(share), stamped)
        click.echo(f"{len(rows)} searches: {path}, {size / 1e6:.1f} MB")

    with GradingPool() as pool:
        asyncio.run(go(pool))


@click.command()
@click.argument("recordings", nargs=-1, required=True, type=PATH)
@click.option("-o", "--out", type=PATH, required=True, help="The recording to write.")
def join(recordings: tuple[Path, ...], out: Path) -> None:
    """Write one recording with the rows of several RECORDINGS of different questions or models."""
    rows, questions, settings = table.joined(recordings)
    size = table.write(out, rows, questions, settings)
    click.echo(f"{len(rows)} searches of {len(questions)} questions: {out}, {size / 1e6:.1f} MB")


@click.command()
@click.argument("recording", type=PATH, default=RECORDING)
def card(recording: Path) -> None:
    """Print the figures of a RECORDING's data card."""
    told, rows = table.settings_of(recording), pq.read_table(recording)
    right = rows.filter(pc.field("early_exit") & (pc.field("verifier") == told["verifiers"][0]))

    def asked(which: pc.Expression) -> str:
        return f"{len(pc.unique(rows.filter(which)['question']))} questions"

    levels = Counter(question.level for question in table.questions_in(recording))
    figures = {
        "questions": ", ".join(f"{count} of {level}" for level, count in levels.items()),
        "samples of each search": told["samples"],
        "rows": f"{rows.num_rows:,}, {pc.sum(rows['derived']).as_py():,} of them derived",
        "verifiers": ", ".join(f"{v} ({asked(pc.field('verifier') == v)})" for v in told["verifiers"]),
        "without early exit": asked(~pc.field("early_exit")),
        **{
            name: told[name]
            for name in ("sampling", "engine", "seed", "eta", "grader", "catalogue", "weights")
        },
        "right, with early exit": f"{100 * (pc.mean(right['correct']).as_py() or 0):.2f} %",
        "searches that met no answer": f"{100 * (1 - (pc.mean(right['complete']).as_py() or 0)):.2f} %",
        "size": f"{recording.stat().st_size / 1e6:.1f} MB",
    }
    for name, value in figures.items():
        click.echo(f"{name}: {value if isinstance(value, str) else orjson.dumps(value).decode()}")


@click.command()
@click.argument("recording", type=PATH, default=RECORDING)
@with_catalogue
@click.option(
    "--rounds",
    type=click.IntRange(min=51),
    help="Queries, for a trial run; default: 210, 50 of them warm-up.",
)
@with_cache
@click.option("--out", type=PATH, help="Default: NAME.latency.json next to the recording.")
def latency(recording: Path, catalogue: Path, rounds: int | None, cache: Path, out: Path | None) -> None:
    """Run the queries of one seed in the joint space for real, one after another, and print the time by component.

    Also print the bandit's time at the paper's d = 2,048, on random vectors of that length.

    This takes minutes. Run it on an otherwise idle machine; any other load distorts the result.
    """
    import torch

    torch.set_num_threads(1)
    before, (_, world) = os.getloadavg()[0], joint_world(recording, None, catalogue, cache)

    async def go(reopened: rerun.Reopened) -> dict[str, Any]:
        return await rerun.breakdown(world, MiniLM(), reopened, rounds)

    measured = _with(recording, catalogue, go)
    measured["bandit_at_2048"] = round(rerun.bandit_alone(world), 4)
    cpus = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    measured["run"] |= {
        "machine": f"{next(iter(cpus), platform.machine())}, {os.cpu_count()} cores, 1 thread a model",
        "load_before_and_after": [round(before, 2), round(os.getloadavg()[0], 2)],
        "versions": ", ".join(
            [
                f"python {platform.python_version()}",
                *(f"{name} {metadata.version(name)}" for name in VERSIONS),
            ]
        ),
        "day": time.strftime("%Y-%m-%d"),
    }
    path = out or beside_of(recording, "latency")
    path.write_bytes(orjson.dumps(measured, option=orjson.OPT_INDENT_2) + b"\n")
    for name, seconds in measured["seconds"].items():
        click.echo(f"{name}: {seconds:.3f} s")
    click.echo(f"written: {path}")


@click.command("depth-limit")
@click.argument("recording", type=PATH, default=RECORDING)
@with_catalogue
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Searches to rerun with early exit, and as many without it; drawn at random where there are more.",
)
def depth_limit(recording: Path, catalogue: Path, most: int) -> None:
    """Rerun searches that reached their depth limit, first excluding the paths cut off there, then counting them.

    The results are written to NAME.depth-limit.json next to the recording. Searches already in the file are not rerun
    as long as their outcomes in the recording are the same.
    """
    path = beside_of(recording, "depth-limit")

    async def go(reopened: rerun.Reopened) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        known = rerun.load_limit(path, recording, reopened.settings).again
        with tqdm(unit="search") as bar:
            for early_exit in (True, False):
                try:
                    o = load_recording(recording, early_exit=early_exit)
                except OutcomeError:  # this recording has no runs without early exit
                    continue
                rows += await rerun.run_again(
                    o, early_exit, reopened, most, bar.update, known.get(early_exit, {})
                )
        return rows

    rows = _with(recording, catalogue, go)
    rerun.save_limit(path, recording, rows)
    other = sum(row["kept_out"] != row["completed"] for row in rows)
    click.echo(
        f"{len(rows)} searches that met a limit were run again, {sum(row['reproduced'] for row in rows)} of them as "
        f"recorded; {other} end otherwise under the other reading: {path}"
    )


def _with(recording: Path, catalogue: Path, do: Callable[[rerun.Reopened], Awaitable[T]]) -> T:
    """Run a coroutine on a reopened recording, with a pool of graders."""

    async def go(pool: GradingPool) -> T:
        return await do(await rerun.reopen(recording, load_catalogue(catalogue), pool.ask))

    with GradingPool() as pool:
        return asyncio.run(go(pool))
