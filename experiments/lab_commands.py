"""`python -m experiments paper` and `ope`."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from experiments.paper import Beside, Results
    from experiments.world import World

CATALOGUE = Path("infra/catalogue/mini.yaml")
RECORDING = Path("experiments/data/math.parquet")
STEP_SCORES = Path("../shared/data/tts_prm")
PATH = click.Path(path_type=Path)


@click.command()
@click.option("--out", type=PATH, default=Path("out/paper"), show_default=True)
@click.option(
    "--outcomes", "source", type=PATH, default=RECORDING, show_default=True,
    help="A recording of ours, or any CSV, JSONL or Parquet with --mapping.",
)  # fmt: skip
@click.option("--mapping", type=PATH, help="What the columns mean (experiments/foreign.py).")
@click.option("--catalogue", type=PATH, default=CATALOGUE, show_default=True)
@click.option(
    "--coding", type=PATH,
    help="A recording of the second task; code.parquet beside the outcomes where it is there.",
)  # fmt: skip
@click.option("--verifier", help="Whose runs of a recording; those of the one in use by default.")
@click.option("--seeds", type=click.IntRange(min=1), help="At most so many of the paper's and of the others.")
@click.option(
    "--quick",
    is_flag=True,
    help="Five further seeds for twenty, without long streams, boosted trees, off-policy estimates.",
)
@click.option(
    "--networks", type=PATH,
    help="What MLP and NeuralUCB chose; NAME.networks.json beside the outcomes by default.",
)  # fmt: skip
@click.option(
    "--rebuild-networks", is_flag=True,
    help="Train what that file lacks, by the paper's recipe: hours on two cores. Killed, it goes on where it was.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; one a core by default.")
@click.option(
    "--step-scores", type=PATH, default=STEP_SCORES, show_default=True,
    help="Folder with samples.csv.gz of recorded step scores: early exit is replayed on them where it is there.",
)  # fmt: skip
@click.option("--cache", type=PATH, default=Path("out/vectors"), show_default=True, help="Of embeddings.")
def paper(
    out: Path,
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    coding: Path | None,
    verifier: str | None,
    seeds: int | None,
    quick: bool,
    networks: Path | None,
    rebuild_networks: bool,
    jobs: int | None,
    step_scores: Path,
    cache: Path,
) -> None:
    """Run the paper's tables on outcomes: report.html, tables.json and PNG figures."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from experiments.early_exit import replay_tts_prm
    from experiments.loop import SEEDS
    from experiments.networks import Record, one_thread_each
    from experiments.paper import run_paper
    from experiments.scope import MORE_SEEDS, Scope

    clock = _Clock()
    # One thread: sums are then the same on every machine that has these libraries.
    with threadpool_limits(1):
        world, beside = _load(source, mapping, catalogue, coding, cache, verifier)
        clock.say("outcomes read and embedded")
        record = Record.load(networks or beside_of(source, "networks"), world)
        if rebuild_networks:
            _rebuild(record, world, jobs, clock.say)
        scope = Scope(
            seeds=SEEDS[:seeds],
            more_seeds=(MORE_SEEDS[:5] if quick else MORE_SEEDS)[:seeds],
            whole=not quick,
            stream_rounds=0 if quick else 10_000,
            repetitions=0 if quick else 50,
            record=record,
            say=clock.say,
        )
        with contextlib.ExitStack() as stack:
            if jobs != 1:
                scope = replace(scope, pool=stack.enter_context(one_thread_each(jobs)))
            results = run_paper(world, scope, beside)
        if (step_scores / "samples.csv.gz").is_file():
            results.tables["early_exit_replayed"] = replay_tts_prm(step_scores)
        clock.say("tables done")
        _write(out, world, results, clock)
    click.echo(f"written: {out / 'report.html'}, {out / 'tables.json'}")


def beside_of(outcomes: Path, kind: str) -> Path:
    """Return where something that belongs to outcomes is kept.

    >>> beside_of(Path("data/math.parquet"), "latency").as_posix()
    'data/math.latency.json'
    """
    return outcomes.with_name(f"{outcomes.name.split('.')[0]}.{kind}.json")


class _Clock:
    """Says what is being run, and keeps the seconds of each part."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.part = "reading"

    def say(self, text: str) -> None:
        now = time.perf_counter()
        self.seconds[self.part] = self.seconds.get(self.part, 0.0) + now - self.last
        self.last, self.part = now, text
        click.echo(f"{now - self.began:7.1f} s  {text}", err=True)


def _load(
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    coding: Path | None,
    cache: Path,
    verifier: str | None,
) -> "tuple[World, Beside]":
    import orjson

    from agents.embedder.minilm import MiniLM
    from agents.space.catalogue import load_catalogue
    from experiments.depth_limit import load as load_limit
    from experiments.foreign import load_foreign
    from experiments.outcomes import OutcomeError, Outcomes, load_recording
    from experiments.paper import Beside
    from experiments.rerun import settings_of
    from experiments.world import build_world

    def optional(**chosen: object) -> Outcomes | None:
        with contextlib.suppress(OutcomeError):
            return load_recording(source, **chosen)  # type: ignore[arg-type]
        return None

    encoder = MiniLM()
    try:
        if mapping is not None:
            return build_world(load_foreign(source, mapping), encoder, cache=cache), Beside()
        loaded = load_catalogue(catalogue)
        world = build_world(load_recording(source, verifier=verifier), encoder, loaded, cache)
        settings = settings_of(source)
        first = verifier or settings["verifiers"][0]
        names = sorted(settings["verifiers"], key=lambda name: bool(name != first))
        other = optional(verifier=names[1]) if len(names) > 1 else None
        limit, measured = beside_of(source, "depth-limit"), beside_of(source, "latency")
        coding = coding or source.with_name("code.parquet")
        second = load_recording(coding) if coding.is_file() else None
        return world, Beside(
            without_exit=optional(verifier=names[0], early_exit=False),
            other_verifier=build_world(other, encoder, loaded, cache) if other else None,
            verifiers=(names[0], names[-1]),
            coding=build_world(second, encoder, loaded, cache) if second else None,
            depth_limit=load_limit(limit, source, settings),
            latency=orjson.loads(measured.read_bytes()) if measured.is_file() else None,
        )
    except (OutcomeError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _rebuild(record: object, world: "World", jobs: int | None, say: Callable[[str], None]) -> None:
    from experiments.loop import SEEDS
    from experiments.networks import Record, rebuild, wanted
    from experiments.paper import MAIN
    from experiments.scenarios import MODES, spaces, steady

    assert isinstance(record, Record)
    worlds = {name: part for name, part in spaces(world).items() if name in MAIN}
    names = list(wanted(list(worlds), MODES, SEEDS))
    if record.refused:
        say(f"{record.refused}: all is trained anew")
    record.refused = ""
    say(f"{len(set(names) - set(record.chosen))} trainings")
    rebuild(record, worlds, steady, names, jobs=jobs, done=lambda name: say("/".join(map(str, name))))


def _write(out: Path, world: "World", results: "Results", clock: _Clock) -> None:
    import orjson

    from experiments import figures
    from experiments.report import write_report
    from experiments.scenarios import DRIFTS, MODES, spaces

    out.mkdir(parents=True, exist_ok=True)
    tables, runs = results.tables, results.runs
    (out / "tables.json").write_bytes(
        orjson.dumps(tables, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    )
    worlds = spaces(world)
    joint = "uis" if "uis" in worlds else "all"
    drawn = {
        name: out / f"{name}.png"
        for name in ("accuracy-cost", "pareto", "alpha", "semantics", *(f"regret-{mode}" for mode in MODES))
    }
    figures.accuracy_cost(drawn["accuracy-cost"], worlds[joint], runs, joint)
    figures.pareto(drawn["pareto"], tables["pareto"], world)
    for mode in MODES:
        figures.curves(drawn[f"regret-{mode}"], runs, [(name, mode) for name in tables["main"]], world)
    for name in ("alpha", "semantics"):
        figures.curves(drawn[name], runs, [(name, mode) for mode in MODES], world)
    if "drifts" in tables:
        drawn["drifts"] = out / "drifts.png"
        figures.curves(drawn["drifts"], runs, [("drifts", drift) for drift in DRIFTS], world)
    if "verifier_scores" in tables:
        drawn["verifier_scores"] = out / "verifier-scores.png"
        figures.score_histogram(drawn["verifier_scores"], tables["verifier_scores"])
    if "early_exit" in tables:
        drawn["early_exit"] = out / "early-exit.png"
        figures.early_exit(drawn["early_exit"], tables["early_exit"])
    write_report(out / "report.html", tables, drawn)
    clock.say("written")
    seconds = {name: round(value, 3) for name, value in clock.seconds.items()}
    (out / "timings.json").write_bytes(
        orjson.dumps(
            {"seconds": time.perf_counter() - clock.began, "parts": seconds}, option=orjson.OPT_INDENT_2
        )
    )


@click.command()
@click.argument("log", type=PATH)
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
@click.argument("recording", type=PATH, default=RECORDING)
def card(recording: Path) -> None:
    """Say what a RECORDING holds: the figures of its data card."""
    import orjson
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if not recording.is_file():
        raise click.ClickException(f"{recording}: no such file; give a recording of ours")
    table = pq.read_table(recording)
    if b"uniscale.settings" not in (table.schema.metadata or {}):
        raise click.ClickException(f"{recording}: is no recording of ours")
    told = orjson.loads(table.schema.metadata[b"uniscale.settings"])
    questions = orjson.loads(table.schema.metadata[b"uniscale.questions"])
    levels: dict[str, int] = {}
    for question in questions:
        levels[question["level"]] = levels.get(question["level"], 0) + 1
    right = table.filter(pc.field("early_exit") & (pc.field("verifier") == told["verifiers"][0]))
    sampling = {
        orjson.dumps(each, option=orjson.OPT_SORT_KEYS).decode() for each in told["sampling"].values()
    }
    figures = {
        "questions": ", ".join(f"{count} of {level}" for level, count in levels.items()),
        "samples of each search": told["samples"],
        "rows": f"{table.num_rows:,}, {pc.sum(table['derived']).as_py():,} of them derived",
        "verifiers": ", ".join(told["verifiers"]),
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
