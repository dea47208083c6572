"""`python -m experiments latency` and `depth-limit`: what is measured on a recording's own searches, run again."""

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from experiments.commands import options
from experiments.commands.options import PATH, RECORDING, beside_of

if TYPE_CHECKING:
    from experiments.rerun.reopen import Reopened

T = TypeVar("T")
VERSIONS = ("torch", "onnxruntime", "numpy")


@click.command()
@click.argument("recording", type=PATH, default=RECORDING)
@options.catalogue
@click.option(
    "--mode",
    default="quality-priority",
    show_default=True,
    help="The objective (agents/space/objectives.py).",
)
@click.option("--seed", type=int, default=3, show_default=True, help="Seed of the order of questions.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads for generation and verification.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=51),
    help="Queries, for a trial run; default: 210, 50 of them warm-up.",
)
@options.cache
@click.option("--out", type=PATH, help="Default: NAME.latency.json next to the recording.")
def latency(
    recording: Path,
    catalogue: Path,
    mode: str,
    seed: int,
    threads: int,
    rounds: int | None,
    cache: Path,
    out: Path | None,
) -> None:
    """Run the queries of one seed in the joint space for real, one after another, and print where the time goes.

    Also print what the bandit takes at the paper's d = 2,048, on random vectors of that length.

    This takes minutes. Run it on an otherwise idle machine; any other load distorts the result.
    """
    import orjson
    import torch

    from agents.embedder.minilm import MiniLM
    from agents.space.catalogue_file import load_catalogue
    from experiments.outcomes.table import load_recording
    from experiments.outcomes.world import build_world
    from experiments.rerun.latency import bandit_alone, breakdown
    from experiments.trials.scenarios import spaces

    torch.set_num_threads(threads)
    encoder, before = MiniLM(), os.getloadavg()[0]

    async def go(reopened: "Reopened") -> dict[str, Any]:
        world = spaces(build_world(load_recording(recording), encoder, load_catalogue(catalogue), cache))[
            "uis"
        ]
        measured = await breakdown(world, mode, seed, encoder, reopened, rounds)
        return {**measured, "bandit_at_2048": round(bandit_alone(world, mode, seed), 4)}

    measured = _with(recording, catalogue, go)
    measured["run"] |= {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)} a model",
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
@options.catalogue
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: all cores.")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Searches to rerun with early exit, and as many without it; drawn at random where there are more.",
)
@click.option("--out", type=PATH, help="Default: NAME.depth-limit.json next to the recording.")
def depth_limit(recording: Path, catalogue: Path, threads: int | None, most: int, out: Path | None) -> None:
    """Rerun searches that reached their depth limit, first excluding the paths cut off there, then counting them.

    Searches that the file has already are kept, as long as the recording has the same outcomes of them.
    """
    import torch
    from tqdm import tqdm

    from experiments.outcomes.table import OutcomeError, load_recording
    from experiments.rerun.depth_limit import load, met, run_again, save

    if threads:
        torch.set_num_threads(threads)

    async def go(reopened: "Reopened") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        found = {True: load_recording(recording, early_exit=True)}
        with contextlib.suppress(OutcomeError):  # not every recording was also made without early exit
            found[False] = load_recording(recording, early_exit=False)
        known = load(path, recording, reopened.settings).again
        counts = [int(met(o, reopened.settings, early_exit).sum()) for early_exit, o in found.items()]
        with tqdm(unit="search", total=sum(min(most, count) for count in counts)) as bar:
            for early_exit, o in found.items():
                rows.extend(
                    await run_again(o, early_exit, reopened, most, bar.update, known.get(early_exit, {}))
                )
        return rows

    path = out or beside_of(recording, "depth-limit")
    rows = _with(recording, catalogue, go)
    save(path, recording, rows)
    other = sum(row["kept_out"] != row["completed"] for row in rows)
    click.echo(
        f"{len(rows)} searches that met a limit were run again, {sum(row['reproduced'] for row in rows)} of them as "
        f"recorded; {other} end otherwise under the other reading: {path}"
    )


def _with(recording: Path, catalogue: Path, run: "Callable[[Reopened], Awaitable[T]]") -> T:
    """Run something on a recording's checkpoints and a pool of graders."""
    from agents.aggregator.grading_pool import GradingPool
    from agents.space.catalogue_file import load_catalogue
    from experiments.outcomes.table import OutcomeError
    from experiments.rerun.reopen import reopen

    async def go(pool: GradingPool) -> T:
        return await run(await reopen(recording, load_catalogue(catalogue), pool.judge))

    try:
        with GradingPool() as pool:
            return asyncio.run(go(pool))
    except OutcomeError as error:
        raise click.ClickException(str(error)) from error


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
