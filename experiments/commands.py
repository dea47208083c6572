"""The commands of `python -m experiments` that evaluate policies on outcomes, and the options that commands share."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import orjson
from threadpoolctl import threadpool_limits

from agents.bandit.prior import digest
from agents.bandit.variances import USUAL
from agents.catalogue.file import load_catalogue
from agents.minilm import MiniLM
from experiments import early_exit, off_policy, page
from experiments.behaviour import POLICIES, behaviour
from experiments.category_variances import chosen, tried
from experiments.changes import changes as follow_changes
from experiments.contenders import combined, estimated
from experiments.families import families
from experiments.foreign import load_foreign, rows_of
from experiments.frontier import AFTER_HISTORY, ENOUGH, PLAYERS, PRICES, Terms
from experiments.frontier import frontier as judge
from experiments.journal import Journal, lines_of, record_live_run
from experiments.loop import SEEDS, spaces
from experiments.outcomes import BanditWorld, OutcomeError, beside_of, build_world, load_recording
from experiments.paper import Beside, networks_wanted, read_beside, run_paper
from experiments.prior import control_of, prior_of_outcomes
from experiments.runs import MORE_SEEDS, NetworkRecord, Scope, one_thread_each, rebuild
from experiments.ungraded import ungraded
from experiments.yardstick import holm

F = TypeVar("F", bound=Callable[..., Any] | click.Command)

CATALOGUE = Path("infra/catalogue/mini.yaml")
RECORDING = Path("experiments/data/math.parquet")
TRAFFIC = Path("experiments/data/mixed.parquet")
STEP_SCORES = Path("../shared/data/tts_prm")
PATH = click.Path(path_type=Path)
SHOWN = 0.05  # differences with p values below this are considered significant

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
    """Return the option `--outcomes`, whose value a command receives as `source`."""
    return click.option(
        "--outcomes",
        "source",
        type=PATH,
        default=default,
        show_default=True,
        help="A recording, or any CSV, JSONL or Parquet file together with --mapping.",
    )


def open_world(
    source: Path, mapping: Path | None, catalogue: Path, cache: Path, verifier: str | None = None
) -> BanditWorld:
    """Return the world for a recording, or for any other table with a mapping (options as on the command line).

    Raises:
        OutcomeError: A file cannot be used.
    """
    if mapping is not None:
        return build_world(load_foreign(source, mapping), MiniLM(), cache=cache)
    return build_world(load_recording(source, verifier=verifier), MiniLM(), load_catalogue(catalogue), cache)


def joint_world(source: Path, mapping: Path | None, catalogue: Path, cache: Path) -> tuple[str, BanditWorld]:
    """Return a table's name and the world with its arms; for a recording, these are the joint space's arms."""
    world = open_world(source, mapping, catalogue, cache)
    return world.outcomes.name, spaces(world).get("uis", world)


@click.command()
@click.option("--out", type=PATH, default=Path("out/paper"), show_default=True)
@with_outcomes(RECORDING)
@with_mapping
@with_catalogue
@click.option("--verifier", help="Use the runs of this verifier; default: the one in use.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Use at most this many of the paper's seeds and of the others.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Five further seeds instead of twenty; fewer conditions of feedback and rows of the frontier.",
)
@click.option(
    "--rebuild-networks",
    is_flag=True,
    help="Train what NAME.networks.json beside the outcomes lacks, by the paper's recipe: 90 minutes on two cores. "
    "Can be stopped and resumed.",
)
@with_jobs
@click.option(
    "--step-scores",
    type=PATH,
    default=STEP_SCORES,
    show_default=True,
    help="Folder with recorded step scores (samples.csv.gz); if it exists, early exit is replayed on them.",
)
@with_cache
@click.option(
    "--results",
    type=PATH,
    help="Also copy tables.json and the figures to this folder, and fill in its page, as in docs/results.",
)
def paper(
    out: Path,
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    verifier: str | None,
    seeds: int | None,
    quick: bool,
    rebuild_networks: bool,
    jobs: int | None,
    step_scores: Path,
    cache: Path,
    results: Path | None,
) -> None:
    """Compute the paper's tables from outcomes; write report.html, tables.json and PNG figures."""
    began = time.perf_counter()

    def say(text: str) -> None:
        click.echo(f"{time.perf_counter() - began:7.1f} s  {text}", err=True)

    # A single thread, so that sums are identical on every machine with these libraries.
    with threadpool_limits(1), contextlib.ExitStack() as stack:
        world = open_world(source, mapping, catalogue, cache, verifier)
        beside = Beside() if mapping else read_beside(source, load_catalogue(catalogue), cache, verifier)
        say("outcomes read and embedded")
        record = NetworkRecord.load(beside_of(source, "networks"), world)
        if rebuild_networks:
            rebuild(
                record, *networks_wanted(world), jobs=jobs, done=lambda name: say("/".join(map(str, name)))
            )
        scope = Scope(
            seeds=SEEDS[:seeds],
            more_seeds=(MORE_SEEDS[:5] if quick else MORE_SEEDS)[:seeds],
            whole=not quick,
            record=record,
            say=say,
            pool=None if jobs == 1 else stack.enter_context(one_thread_each(jobs)),
        )
        found = run_paper(world, scope, beside)
        if (step_scores / "samples.csv.gz").is_file():
            found.tables["early_exit_replayed"] = early_exit.replay_tts_prm(step_scores)
            found.tables["early_exit_by_width"] = early_exit.replay_wide(step_scores)
        found.tables["behaviour"] = behaviour()
        say("tables done")
        drawn = page.write_run(out, world, found)
        if results is not None:
            page.write_results(results, out / "tables.json", found.tables, drawn)
    click.echo(f"written: {out / 'report.html'}, {out / 'tables.json'}")


@click.command()
@with_outcomes(TRAFFIC)
@with_mapping
@with_catalogue
@click.option(
    "--orders",
    type=click.IntRange(1, len(MORE_SEEDS)),
    default=len(MORE_SEEDS),
    show_default=True,
    help="Number of random orders of the questions.",
)
@click.option(
    "--prices",
    type=click.IntRange(2, 18),
    default=18,
    show_default=True,
    help="Number of prices; fewer than the criteria's eighteen are placed by history.",
)
@click.option(
    "--history",
    type=click.IntRange(min=10),
    help="Questions of history that rows learn from, drawn anew in each order; default: all of it, a third.",
)
@click.option("--live", type=click.IntRange(min=10), help="Ask about this many of the live questions only.")
@with_half
@with_batch
@click.option(
    "--policy",
    "policies",
    type=click.Choice([*PLAYERS, *AFTER_HISTORY]),
    multiple=True,
    help="Only these policies, next to the fixed mix and the ridge in hindsight.",
)
@click.option(
    "--context",
    help="Add rows that also see each question's category: its family, level, or random:N, which means nothing.",
)
@click.option(
    "--no-hindsight",
    is_flag=True,
    help="Leave out the ridge in hindsight, which takes longer than most rows.",
)
@click.option(
    "--paretobandit",
    type=PATH,
    help="An interpreter that has the package paretobandit 0.1.1 (PyPI), for a row of its learner.",
)
@click.option(
    "--usual",
    type=PATH,
    multiple=True,
    help="Begin from the means of what `usual` estimated on these tables, not from the shipped generic prior.",
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
    prices: int,
    history: int | None,
    live: int | None,
    half: int | None,
    batch: int,
    policies: tuple[str, ...],
    context: str | None,
    no_hindsight: bool,
    paretobandit: Path | None,
    usual: tuple[Path, ...],
    jobs: int | None,
    cache: Path,
    journal: Path | None,
    out: Path | None,
    results: Path | None,
) -> None:
    """Print each policy's cost at equal accuracy, relative to the cheapest mix of fixed arms that reaches it.

    Every run on a table's live questions that has a journal is appended to experiments/live-runs.jsonl.
    """
    table, world = joint_world(source, mapping, catalogue, cache)
    terms = Terms(
        history=history,
        live=live,
        prices=None if prices == len(PRICES) else prices,
        half=half,
        batch=batch,
        hindsight=not no_hindsight,
        paretobandit=paretobandit,
        context=context,
        usual=combined([orjson.loads(path.read_bytes()) for path in usual]) if usual else None,
        journal=Journal() if journal is None else Journal.open(journal),
    )
    known = {**PLAYERS, **AFTER_HISTORY}
    players = {name: known[name] for name in policies} if policies else PLAYERS
    asked = {
        "table": table,
        "rows": sorted([*players, *([] if paretobandit is None else ["paretobandit"])]),
        "history": "third" if history is None else str(history),
        "live": live,
        "half": half,
        "orders": orders,
        "prices": None if prices == len(PRICES) else prices,
        "batch": batch,
        **({"context": context} if context is not None else {}),
        **({"usual": sorted(path.stem for path in usual)} if usual else {}),
    }
    if journal is not None and half is None:
        record_live_run(asked)
    with threadpool_limits(1), contextlib.ExitStack() as stack:
        scope = Scope(
            more_seeds=MORE_SEEDS[:orders],
            whole=False,
            say=lambda text: click.echo(text, err=True),
            pool=None if jobs == 1 else stack.enter_context(one_thread_each(jobs)),
        )
        tables = judge(world, scope, players, terms).tables
    if not tables:
        raise OutcomeError(f"{source}: too few questions to keep a third of them for history; give more")
    for name, row in tables["frontier"].items():
        click.echo(f"{name}: {_said(row)}")
    if few := tables.get("of_few_prices"):
        click.echo(
            f"warning: {prices} prices are few (below {ENOUGH}); one fewer would raise the mean by", err=True
        )
        for name, rise in few.items():
            told = (
                "no ratio, or a target depends on one price"
                if rise is None
                else f"{100 * rise:.1f} % at most"
            )
            click.echo(f"  {name}: {told}", err=True)
    for name, row in tables.get("against_text_alone", {}).items():
        told = (
            "misses a target that it reaches" if row["cost_ratio"] is None else _interval(row["cost_ratio"])
        )
        if moved := row.get("without_one_price"):
            low, high = ("∞" if moved[end] is None else f"{moved[end]:.3f}" for end in ("low", "high"))
            told += f", without any one price {low} to {high}"
        chances = f"worse p = {row['p_worse']:.3f}, better p = {row['p_better']:.3f}"
        click.echo(f"{name} against the text alone: {told}; {chances}")
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
        rows = [name for name in POLICIES if name in tables["frontier"]]
        page.write_fleet(results, table, {**tables, "behaviour": behaviour(rows)})
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(page.as_json(tables) + b"\n")


@click.command("families")
@with_outcomes(TRAFFIC)
@with_mapping
@with_catalogue
@click.option("--model", required=True, help="The model without which the fixed mix is also made.")
@click.option("--policy", type=click.Choice(list(PLAYERS)), default="default_with_prior", show_default=True)
@click.option("--orders", type=click.IntRange(1, len(MORE_SEEDS)), default=len(MORE_SEEDS), show_default=True)
@with_cache
@click.option("--journal", type=PATH, help="What `frontier --journal` played; what it lacks is played.")
@click.option("--out", type=PATH, required=True, help="JSON file to write.")
def by_family(
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    model: str,
    policy: str,
    orders: int,
    cache: Path,
    journal: Path | None,
    out: Path,
) -> None:
    """Write what a policy costs at equal accuracy by family of questions, and the share of each that a model gets."""
    _, world = joint_world(source, mapping, catalogue, cache)
    terms = Terms(journal=Journal() if journal is None else Journal.open(journal))
    with threadpool_limits(1):
        scope = Scope(
            more_seeds=MORE_SEEDS[:orders], whole=False, say=lambda text: click.echo(text, err=True)
        )
        found = families(world, scope, policy, PLAYERS[policy], terms, model)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(page.as_json(found) + b"\n")
    click.echo(f"written: {out}")


@click.command("ungraded")
@with_outcomes(TRAFFIC)
@with_catalogue
@click.option("--model", required=True, help="The model that no verifier scores.")
@click.option("--orders", type=click.IntRange(1, len(MORE_SEEDS)), default=len(MORE_SEEDS), show_default=True)
@with_jobs
@with_cache
@click.option("--out", type=PATH, required=True, help="JSON file to write.")
def ungraded_first(
    source: Path, catalogue: Path, model: str, orders: int, jobs: int | None, cache: Path, out: Path
) -> None:
    """Write what 330 graded queries cost after 1,000 ungraded ones, with and without an unverified model."""
    _, world = joint_world(source, None, catalogue, cache)
    with threadpool_limits(1), one_thread_each(jobs) as pool:
        found = ungraded(world, Scope(more_seeds=MORE_SEEDS[:orders], whole=False, pool=pool), model)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(page.as_json(found) + b"\n")
    click.echo(f"written: {out}")


@click.command()
@click.argument("folder", type=PATH, default=Path("docs/results/fleets"))
def picture(folder: Path) -> None:
    """Draw FOLDER/cost.png, the README's picture, from the tables.json that `frontier --results FOLDER` writes."""
    page.draw_fleets(folder, orjson.loads((folder / "tables.json").read_bytes()))


def _said(row: dict[str, Any]) -> str:
    found = row["mean_cost_ratio"]
    if found is None:
        missed = ", ".join(f"{100 * float(q):g} %" for q in row["unreached"])
        return f"no ratio, out of reach: {missed or 'no target stands'}"
    at = ", ".join(
        f"{100 * float(q):g} %: {'–' if each['cost_ratio'] is None else format(each['cost_ratio']['mean'], '.3f')}"
        for q, each in row["at"].items()
    )
    return f"{_interval(found)}; at {at}"


def _interval(found: dict[str, Any]) -> str:
    """Return a ratio with its interval."""
    mean, low, high = ("∞" if found[end] is None else f"{found[end]:.3f}" for end in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


@click.command()
@with_outcomes(TRAFFIC)
@with_mapping
@with_catalogue
@with_cache
@click.option("-o", "--out", type=PATH, help="JSON file to which they are written, for `frontier --usual`.")
def usual(source: Path, mapping: Path | None, catalogue: Path, cache: Path, out: Path | None) -> None:
    """Print the variances of the policy's blocks, for accuracy and cost, on a table's history and as shipped.

    Given these files for all tables but one, `frontier --usual` uses the remaining table to show what an unseen fleet
    would get.
    """
    _, world = joint_world(source, mapping, catalogue, cache)
    with threadpool_limits(1):
        found = estimated(world)
    for name, values in found.items():
        pairs = zip(values, USUAL[name], strict=True)
        click.echo(f"{name}: " + ", ".join(f"{value:.2g} (usually {known:g})" for value, known in pairs))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(orjson.dumps(found) + b"\n")


@click.command("category-variances")
@with_outcomes(TRAFFIC)
@with_mapping
@with_catalogue
@with_cache
@click.option("--orders", type=click.IntRange(1, len(MORE_SEEDS)), default=5, show_default=True)
@click.option("--prices", type=click.IntRange(2, 18), default=6, show_default=True)
@with_batch
@click.option(
    "--out", type=PATH, required=True, help="File of a line per run; what is in it is not run again."
)
def category_variances(
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    cache: Path,
    orders: int,
    prices: int,
    batch: int,
    out: Path,
) -> None:
    """Try factors for the usual variances of categories on both halves of a table's history; print the best so far.

    The best factor is chosen over all tables in OUT, by the rule in CRITERIA.md.
    """
    table, world = joint_world(source, mapping, catalogue, cache)
    rows = list(lines_of(out)) if out.exists() else []
    terms, scope = Terms(prices=prices, batch=batch, hindsight=False), Scope(more_seeds=MORE_SEEDS[:orders])
    out.parent.mkdir(parents=True, exist_ok=True)
    with threadpool_limits(1), out.open("ab") as file:
        for row in tried(world, table, scope, terms, rows):
            rows.append(row)
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            click.echo(orjson.dumps(row).decode(), err=True)
    factor, means = chosen(rows)
    for each, of in means.items():
        click.echo(f"{each:g} times the usual variances: " + ", ".join(f"{n} {r:.4f}" for n, r in of.items()))
    click.echo(f"chosen: {factor:g}")


@click.command()
@click.argument("journals", type=PATH, nargs=-1, required=True)
@click.option(
    "--row", default="default_with_prior", show_default=True, help="The row held against ridge_from_history."
)
def compare(journals: tuple[Path, ...], row: str) -> None:
    """Print the cost of ROW relative to the fixed ridge regression, from the last run of each table in JOURNALS.

    p values have Holm's correction over all tables and histories.
    """
    told = [line["verdict"] for path in journals for line in lines_of(path) if "verdict" in line]
    cells = {
        (each["table"], each["history"], each["live"], each["half"]): each
        for each in told
        if row in each["against"]
    }
    if not cells:
        raise OutcomeError(f"no journal holds {row} beside ridge_from_history; run `frontier --journal`")
    found = [each["against"][row] for each in cells.values()]
    worse, better = (holm([each[side] for each in found]) for side in ("p_worse", "p_better"))
    for (cell, verdict), each, w, b in zip(cells.items(), found, worse, better, strict=True):
        table, history, live, half = cell
        asked = f"history {history}" + (f", {live} live" if live else "")
        asked += "" if half is None else f", half {half} of history"
        paid_of = "misses a target that ridge_from_history reaches"
        if ends := each["cost_ratio"]:
            paid_of = f"{_interval(ends)} of ridge_from_history"
        paid = verdict["ratios"][row]
        click.echo(
            f"{table}, {asked}: {paid_of}, "
            f"{'out of reach' if paid is None else format(paid['mean'], '.3f')} of the fixed mix; "
            f"worse p = {w:.3f}, better p = {b:.3f}: "
            f"{'worse' if w < SHOWN else 'better' if b < SHOWN else 'neither shown'}"
        )


@click.command()
@with_outcomes(TRAFFIC)
@with_mapping
@with_catalogue
@click.option(
    "--orders",
    type=click.IntRange(1, len(MORE_SEEDS)),
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
    """Print how many queries the policy needs to adapt when a model degrades silently and when one is added.

    Every run on live questions is appended to experiments/live-runs.jsonl.
    """
    table, world = joint_world(source, mapping, catalogue, cache)
    if half is None:
        record_live_run({"table": table, "rows": ["changes"], "orders": orders, "batch": batch})
    with threadpool_limits(1):
        found = follow_changes(world, MORE_SEEDS[:orders], batch, half)
    for name, value in found.items():
        shown = "never" if value is None else value if isinstance(value, str) else f"{value:.4g}"
        click.echo(f"{name}: {shown}")


@click.command()
@click.argument("outcomes", type=PATH)
@click.option("-o", "--out", type=PATH, required=True, help="File to which the prior is written.")
@click.option("--mapping", type=PATH, help="File that names the columns of a table that is not a recording.")
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
    catalogue: Path,
    history_only: bool,
    cap: float,
    options: str,
) -> None:
    """Make a prior from OUTCOMES: one of our recordings, or another complete table with --mapping.

    `python -m streams prior` makes one from a deployment's own outcomes.
    """
    encoder, known, asked = MiniLM(), load_catalogue(catalogue), orjson.loads(options)
    # The order of a sum changes its last bits, so a single thread makes the file identical on any number of cores.
    with threadpool_limits(1):
        table = load_foreign(outcomes, mapping) if mapping else load_recording(outcomes)
        made, rows = prior_of_outcomes(table, encoder, known, asked, cap=cap, history_only=history_only)
        best = "" if mapping else control_of(table, known, history_only=history_only)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(made)
    click.echo(f"{out}: {rows} questions, {len(made)} bytes, sha256 {digest(made)}")
    if best:
        click.echo(f"most accurate on them of the largest model: {best}")


@click.command()
@click.argument("log", type=PATH)
@click.option(
    "--floor", default=50.0, show_default=True, help="Fewest effective decisions that an estimate needs."
)
def ope(log: Path, floor: float) -> None:
    """From a LOG of randomised decisions, estimate what each action would have earned if always taken.

    LOG is a CSV, JSONL or Parquet file with the columns action, propensity and reward.
    """
    rows = [row for _, row in rows_of(log)]
    try:
        actions = np.array([str(row["action"]) for row in rows])
        propensities, rewards = (
            np.array([float(row[name]) for row in rows]) for name in ("propensity", "reward")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise OutcomeError(
            f"{log}: each row needs action, propensity and reward as numbers ({error})"
        ) from error
    names, taken = np.unique(actions, return_inverse=True)
    logged = off_policy.LoggedDecisions(taken, propensities, rewards)
    click.echo(f"logged policy: {rewards.mean():.4f} over {len(rows)} decisions")
    predicted = off_policy.cross_fitted(np.zeros((len(rows), 0)), logged, len(names))
    for at, name in enumerate(names):
        policy = off_policy.greedy_probabilities([at] * len(rows), len(names))
        try:
            found = {
                "IPS": off_policy.ips(logged, policy, floor=floor),
                "SNIPS": off_policy.snips(logged, policy, floor=floor),
                "DR": off_policy.doubly_robust(logged, policy, predicted, floor=floor),
            }
            with contextlib.suppress(off_policy.EvaluationError):  # uniform logs only
                found["replay"] = off_policy.replay(logged, [at] * len(rows), floor=floor)
        except off_policy.EvaluationError as error:
            click.echo(f"{name}: not estimated: {error}")
            continue
        for kind, e in found.items():
            click.echo(
                f"{name}: {kind} {e.value:.4f} [{e.low:.4f}, {e.high:.4f}], {e.effective:.0f} effective"
            )
