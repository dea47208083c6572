"""The shorter commands of `python -m experiments`, and the options all share: each parses, calls, prints."""

import asyncio
import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any] | click.Command)

CATALOGUE = Path("infra/catalogue/mini.yaml")
RECORDING = Path("experiments/data/math.parquet")
TRAFFIC = Path("experiments/data/mixed.parquet")
PATH = click.Path(path_type=Path)

with_mapping = click.option(
    "--mapping", type=PATH, help="File that names the columns (experiments/foreign.py)."
)
with_catalogue = click.option(
    "--catalogue", type=PATH, default=CATALOGUE, show_default=True, help="The models and verifiers."
)
with_jobs = click.option("--jobs", type=click.IntRange(min=1), help="Processes; default: one per core.")
with_half = click.option(
    "--half",
    type=click.IntRange(0, 1),
    help="For development: half of history is history, this half is judged, no live question is used.",
)
with_batch = click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Queries that the policy decides together.",
)
with_cache = click.option(
    "--cache",
    type=PATH,
    default=Path("out/vectors"),
    show_default=True,
    help="Folder that caches embeddings.",
)


def with_outcomes(default: Path) -> Callable[[F], F]:
    """Return the option `--outcomes`, which a command takes as `source`."""
    return click.option(
        "--outcomes",
        "source",
        type=PATH,
        default=default,
        show_default=True,
        help="A recording, or any CSV, JSONL or Parquet file together with --mapping.",
    )


def beside_of(outcomes: Path, kind: str) -> Path:
    """Return the path of a file of some kind that accompanies a table of outcomes.

    >>> beside_of(Path("data/math.parquet"), "latency").as_posix()
    'data/math.latency.json'
    """
    return outcomes.with_name(f"{outcomes.name.split('.')[0]}.{kind}.json")


@click.command()
@click.argument("recording", type=PATH, default=RECORDING)
def card(recording: Path) -> None:
    """Print the figures of a RECORDING's data card."""
    import orjson
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from experiments.outcomes import OutcomeError
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

    from experiments import off_policy as evaluation
    from experiments.foreign import rows_of
    from experiments.outcomes import OutcomeError

    try:
        rows = [row for _, row in rows_of(log)]
        names = sorted({str(row["action"]) for row in rows})
        logged = evaluation.LoggedDecisions(
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


@click.command()
@click.argument("outcomes", type=PATH)
@click.option("-o", "--out", type=PATH, required=True, help="File to which the prior is written.")
@click.option("--mapping", type=PATH, help="File that names the columns of a table that is not a recording.")
@click.option(
    "--logged", is_flag=True, help="OUTCOMES is a log: one configuration per row, with its propensity."
)
@click.option(
    "--catalogue",
    type=PATH,
    default=CATALOGUE,
    show_default=True,
    help="The deployment's, which has also priced OUTCOMES.",
)
@click.option(
    "--history-only",
    is_flag=True,
    help="Use only the third of the questions that the other commands call history.",
)
@click.option(
    "--cap",
    default=2000.0,
    show_default=True,
    help="Weight of the prior: it counts as at most this many observations.",
)
@click.option(
    "--options", default="{}", show_default=True, help="The policy's options, as in UNISCALE_POLICY_OPTIONS."
)
def prior(
    outcomes: Path,
    out: Path,
    mapping: Path | None,
    logged: bool,
    catalogue: Path,
    history_only: bool,
    cap: float,
    options: str,
) -> None:
    """Make a prior from OUTCOMES: a recording, a complete table with --mapping, or a log with --logged.

    A log is CSV, JSONL or Parquet with the columns text, action (model/qp/cp/bs), correct, cost and propensity, and
    score where there is one. Start the decider with UNISCALE_PRIOR=FILE and an empty log.
    """
    import orjson
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from agents.bandit.errors import DeciderError
    from agents.bandit.prior import digest
    from agents.catalogue.file import load_catalogue
    from agents.minilm import MiniLM
    from experiments.foreign import load_foreign
    from experiments.outcomes import OutcomeError, load_recording
    from experiments.prior import control_of, prior_of_log, prior_of_outcomes

    encoder, known, asked = MiniLM(), load_catalogue(catalogue), orjson.loads(options)
    best = ""
    try:
        # Sums in another order have other last bits: the file is the same on any number of cores.
        with threadpool_limits(1):
            if logged:
                made, rows = prior_of_log(outcomes, encoder, known, asked, cap=cap)
            else:
                table = load_foreign(outcomes, mapping) if mapping else load_recording(outcomes)
                made, rows = prior_of_outcomes(
                    table, encoder, known, asked, cap=cap, history_only=history_only
                )
                best = "" if mapping else control_of(table, known, history_only=history_only)
    except (OutcomeError, DeciderError) as error:
        raise click.ClickException(str(error)) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(made)
    click.echo(f"{out}: {rows} questions, {len(made)} bytes, sha256 {digest(made)}")
    if best:
        click.echo(f"most accurate on them of the largest model: {best}")


@click.command()
@with_outcomes(TRAFFIC)
@with_mapping
@with_catalogue
@click.option(
    "--orders",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of random orders of the questions.",
)
@click.option(
    "--prices", type=click.IntRange(min=2), help="Number of prices, placed by history; default: the eighteen."
)
@click.option(
    "--history",
    default="third",
    show_default=True,
    help="Questions of history that rows learn from: a number, drawn anew in each order, or `third`, all of it.",
)
@click.option("--live", type=click.IntRange(min=10), help="Ask about this many of the live questions only.")
@with_half
@with_batch
@click.option(
    "--policy", "policies", multiple=True, help="Only these policies, next to the fixed mix and the ceilings."
)
@click.option("--trees", is_flag=True, help="Also try boosted trees as the ceiling; takes minutes.")
@click.option("--no-ceiling", is_flag=True, help="Leave out the ceilings, which cost more than most rows.")
@click.option(
    "--paretobandit",
    type=PATH,
    help="An interpreter that has the package paretobandit 0.1.1 (PyPI), for a row of its learner.",
)
@with_jobs
@with_cache
@click.option(
    "--journal",
    type=PATH,
    help="File of what was played: an interrupted run goes on, `compare` reads the verdicts.",
)
@click.option("--out", type=PATH, help="JSON file to which the whole table is written.")
@click.option(
    "--results",
    type=PATH,
    help="Also put the table into this folder's tables.json and fill in its page, as in docs/results/fleets.",
)
def frontier(
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    orders: int,
    prices: int | None,
    history: str,
    live: int | None,
    half: int | None,
    batch: int,
    policies: tuple[str, ...],
    trees: bool,
    no_ceiling: bool,
    paretobandit: Path | None,
    jobs: int | None,
    cache: Path,
    journal: Path | None,
    out: Path | None,
    results: Path | None,
) -> None:
    """Print what each policy pays for an accuracy, relative to the cheapest mix of fixed arms that reaches it.

    Every run on live questions of a table that has a journal is appended to experiments/live-runs.jsonl.
    """
    import orjson
    from threadpoolctl import threadpool_limits

    from experiments.frontier import AFTER_HISTORY, PLAYERS, Terms
    from experiments.frontier import frontier as run
    from experiments.journal import Journal, record_live_run
    from experiments.runs import MORE_SEEDS, Scope, one_thread_each

    known = {**PLAYERS, **AFTER_HISTORY}
    if unknown := [name for name in policies if name not in known]:
        raise click.BadParameter(f"--policy {unknown[0]}: choose from {', '.join(known)}")
    if orders > len(MORE_SEEDS):
        raise click.BadParameter(f"--orders {orders}: at most {len(MORE_SEEDS)}")
    if history != "third" and not (history.isdecimal() and int(history) >= 10):
        raise click.BadParameter(f"--history {history}: give `third` or a number of at least 10")
    table, world = _joint_world(source, mapping, catalogue, cache)
    terms = Terms(
        history=None if history == "third" else int(history),
        live=live,
        prices=prices,
        half=half,
        batch=batch,
        ceilings=not no_ceiling,
        paretobandit=paretobandit,
        journal=Journal() if journal is None else Journal.open(journal),
    )
    players = {name: known[name] for name in policies} if policies else PLAYERS
    asked = {
        "table": table,
        "rows": sorted([*players, *([] if paretobandit is None else ["paretobandit"])]),
        "history": history,
        "live": live,
        "half": half,
        "orders": orders,
        "prices": prices,
        "batch": batch,
    }
    if journal is not None and half is None:
        record_live_run(asked)
    with threadpool_limits(1), contextlib.ExitStack() as stack:
        scope = Scope(
            more_seeds=MORE_SEEDS[:orders],
            whole=trees,
            say=lambda text: click.echo(text, err=True),
            pool=None if jobs == 1 else stack.enter_context(one_thread_each(jobs)),
        )
        tables = run(world, scope, players, terms).tables
    if not tables:
        raise click.ClickException(f"{source}: too few questions to keep a third of them for history")
    for name, row in tables["frontier"].items():
        click.echo(f"{name}: {_said(row)}")
    if paretobandit is None:
        click.echo("paretobandit: not run; give --paretobandit an interpreter that has its package")
    terms.journal.conclude(
        {
            **asked,
            "ratios": {name: row["mean_cost_ratio"] for name, row in tables["frontier"].items()},
            "against": tables.get("against_ridge_from_history", {}),
        }
    )
    if results is not None:
        from experiments.page import write_fleet

        write_fleet(results, table, tables)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(orjson.dumps(tables, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")


@click.command()
@with_outcomes(TRAFFIC)
@with_mapping
@with_catalogue
@click.option(
    "--orders",
    type=click.IntRange(min=1, max=20),
    default=5,
    show_default=True,
    help="Number of random orders.",
)
@with_half
@with_batch
@with_cache
def changes(
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    orders: int,
    half: int | None,
    batch: int,
    cache: Path,
) -> None:
    """Print how many queries the policy needs when a model becomes worse without notice, and when one joins.

    Every run on live questions is appended to experiments/live-runs.jsonl.
    """
    from threadpoolctl import threadpool_limits

    from experiments.changes import changes as run
    from experiments.journal import record_live_run
    from experiments.runs import MORE_SEEDS

    table, world = _joint_world(source, mapping, catalogue, cache)
    if half is None:
        record_live_run({"table": table, "rows": ["changes"], "orders": orders, "batch": batch})
    with threadpool_limits(1):
        found = run(world, MORE_SEEDS[:orders], batch, half)
    for name, value in found.items():
        click.echo(
            f"{name}: {'never' if value is None else value if isinstance(value, str) else f'{value:.4g}'}"
        )


def _joint_world(
    source: Path, mapping: Path | None, catalogue: Path, cache: Path
) -> tuple[str, "BanditWorld"]:
    """Return a table's name, and the world of all configurations of a recording, or of all arms of another table."""
    from agents.catalogue.file import load_catalogue
    from agents.minilm import MiniLM
    from experiments.foreign import load_foreign
    from experiments.loop import spaces
    from experiments.outcomes import OutcomeError, build_world, load_recording

    try:
        if mapping is not None:
            world = build_world(load_foreign(source, mapping), MiniLM(), cache=cache)
        else:
            world = build_world(load_recording(source), MiniLM(), load_catalogue(catalogue), cache)
    except (OutcomeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    return world.outcomes.name, spaces(world).get("uis", world)


@click.command()
@click.argument("journals", type=PATH, nargs=-1, required=True)
@click.option(
    "--row", default="default_with_prior", show_default=True, help="The row held against ridge_from_history."
)
def compare(journals: tuple[Path, ...], row: str) -> None:
    """Print what ROW costs in terms of the ridge that never learns again, from the last run of each table in JOURNALS.

    The tables and histories are one family: p is Holm's over all of them.
    """
    from experiments.journal import lines_of
    from experiments.yardstick import holm

    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in journals:
        for line in lines_of(path):
            told = line.get("verdict")
            if told is not None and row in told["against"]:
                cells[told["table"], told["history"], told["live"], told["half"]] = told
    if not cells:
        raise click.ClickException(
            f"no journal holds {row} beside ridge_from_history; run `frontier --journal`"
        )
    found = [told["against"][row] for told in cells.values()]
    worse, better = (holm([each[side] for each in found]) for side in ("p_worse", "p_better"))
    for (table, history, live, half), told, each, w, b in zip(
        cells, cells.values(), found, worse, better, strict=True
    ):
        shown = "worse" if w < SHOWN else "better" if b < SHOWN else "neither shown"
        ends = each["cost_ratio"] or {}
        mean, low, high = (
            "∞" if ends.get(end) is None else f"{ends[end]:.3f}" for end in ("mean", "low", "high")
        )
        asked = f"history {history}" + (f", {live} live" if live else "")
        asked += "" if half is None else f", half {half} of history"
        paid = told["ratios"][row]
        click.echo(
            f"{table}, {asked}: {mean} [{low}, {high}] of ridge_from_history, "
            f"{'out of reach' if paid is None else format(paid['mean'], '.3f')} of the fixed mix; "
            f"worse p = {w:.3f}, better p = {b:.3f}: {shown}"
        )


SHOWN = 0.05


def _said(row: dict[str, Any]) -> str:
    found = row["mean_cost_ratio"]
    if found is None:
        missed = ", ".join(f"{100 * float(q):g} %" for q in row["unreached"])
        return f"no ratio, out of reach: {missed or 'no target stands'}"
    ends = ["∞" if found[end] is None else f"{found[end]:.3f}" for end in ("low", "high")]
    at = ", ".join(
        f"{100 * float(q):g} %: {'–' if each['cost_ratio'] is None else format(each['cost_ratio']['mean'], '.3f')}"
        for q, each in row["at"].items()
    )
    return f"{found['mean']:.3f} [{', '.join(ends)}]; at {at}"


if TYPE_CHECKING:
    from experiments.outcomes import BanditWorld
    from experiments.rerun import Reopened

T = TypeVar("T")
VERSIONS = ("torch", "onnxruntime", "numpy")


@click.command()
@click.argument("recording", type=PATH, default=RECORDING)
@with_catalogue
@click.option(
    "--mode",
    default="quality-priority",
    show_default=True,
    help="The objective (agents/catalogue/objectives.py).",
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
@with_cache
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

    from agents.catalogue.file import load_catalogue
    from agents.minilm import MiniLM
    from experiments.loop import spaces
    from experiments.outcomes import build_world, load_recording
    from experiments.rerun import bandit_alone, breakdown

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
@with_catalogue
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

    from experiments.outcomes import OutcomeError, load_recording
    from experiments.rerun import load_limit, met, run_again, save_limit

    if threads:
        torch.set_num_threads(threads)

    async def go(reopened: "Reopened") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        found = {True: load_recording(recording, early_exit=True)}
        with contextlib.suppress(OutcomeError):  # not every recording was also made without early exit
            found[False] = load_recording(recording, early_exit=False)
        known = load_limit(path, recording, reopened.settings).again
        counts = [int(met(o, reopened.settings, early_exit).sum()) for early_exit, o in found.items()]
        with tqdm(unit="search", total=sum(min(most, count) for count in counts)) as bar:
            for early_exit, o in found.items():
                rows.extend(
                    await run_again(o, early_exit, reopened, most, bar.update, known.get(early_exit, {}))
                )
        return rows

    path = out or beside_of(recording, "depth-limit")
    rows = _with(recording, catalogue, go)
    save_limit(path, recording, rows)
    other = sum(row["kept_out"] != row["completed"] for row in rows)
    click.echo(
        f"{len(rows)} searches that met a limit were run again, {sum(row['reproduced'] for row in rows)} of them as "
        f"recorded; {other} end otherwise under the other reading: {path}"
    )


def _with(recording: Path, catalogue: Path, run: "Callable[[Reopened], Awaitable[T]]") -> T:
    """Run something on a recording's checkpoints and a pool of graders."""
    from agents.answers import GradingPool
    from agents.catalogue.file import load_catalogue
    from experiments.outcomes import OutcomeError
    from experiments.rerun import reopen

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
