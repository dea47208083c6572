"""`python -m experiments paper`."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.commands import (
    PATH,
    RECORDING,
    beside_of,
    with_cache,
    with_catalogue,
    with_jobs,
    with_mapping,
    with_outcomes,
)

if TYPE_CHECKING:
    from experiments.outcomes import BanditWorld
    from experiments.paper import Beside, Results

STEP_SCORES = Path("../shared/data/tts_prm")


@click.command()
@click.option("--out", type=PATH, default=Path("out/paper"), show_default=True)
@with_outcomes(RECORDING)
@with_mapping
@with_catalogue
@click.option(
    "--coding",
    type=PATH,
    help="A recording of the second task; default: code.parquet next to the outcomes, if it exists.",
)
@click.option("--verifier", help="Use the runs of this verifier; default: the one in use.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Use at most this many of the paper's seeds and of the others.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Five further seeds instead of twenty; no long streams, boosted trees or off-policy estimates.",
)
@click.option(
    "--networks",
    type=PATH,
    help="The choices of MLP and NeuralUCB; default: NAME.networks.json next to the outcomes.",
)
@click.option(
    "--rebuild-networks",
    is_flag=True,
    help="Train what that file lacks, by the paper's recipe: 90 minutes on two cores. Can be stopped and resumed.",
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
    coding: Path | None,
    verifier: str | None,
    seeds: int | None,
    quick: bool,
    networks: Path | None,
    rebuild_networks: bool,
    jobs: int | None,
    step_scores: Path,
    cache: Path,
    results: Path | None,
) -> None:
    """Compute the paper's tables from outcomes; write report.html, tables.json and PNG figures."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from experiments.early_exit import replay_tts_prm, replay_wide
    from experiments.loop import SEEDS
    from experiments.page import write_results
    from experiments.paper import run_paper
    from experiments.runs import MORE_SEEDS, NetworkRecord, Scope, one_thread_each

    clock = _Clock()
    # One thread: sums are then the same on every machine that has these libraries.
    with threadpool_limits(1):
        world, beside = read(source, mapping, catalogue, coding, cache, verifier)
        clock.say("outcomes read and embedded")
        record = NetworkRecord.load(networks or beside_of(source, "networks"), world)
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
            found = run_paper(world, scope, beside)
        if (step_scores / "samples.csv.gz").is_file():
            found.tables["early_exit_replayed"] = replay_tts_prm(step_scores)
            found.tables["early_exit_by_width"] = replay_wide(step_scores)
        clock.say("tables done")
        drawn = _write(out, world, found, clock)
        if results is not None:
            write_results(results, out / "tables.json", found.tables, drawn)
    click.echo(f"written: {out / 'report.html'}, {out / 'tables.json'}")


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


def read(
    source: Path,
    mapping: Path | None,
    catalogue: Path,
    coding: Path | None,
    cache: Path,
    verifier: str | None,
) -> "tuple[BanditWorld, Beside]":
    """Return outcomes and what is recorded beside them; arguments as `paper`'s options.

    Raises:
        ClickException: a file cannot be used.
    """
    import orjson

    from agents.catalogue.file import load_catalogue
    from agents.minilm import MiniLM
    from experiments.foreign import load_foreign
    from experiments.outcomes import OutcomeError, Outcomes, build_world, load_recording
    from experiments.paper import Beside
    from experiments.record.table import settings_of
    from experiments.rerun import load_limit

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
        # A recording of code is no second task beside itself.
        second = load_recording(coding) if coding.is_file() and not coding.samefile(source) else None
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


def _rebuild(record: object, world: "BanditWorld", jobs: int | None, say: Callable[[str], None]) -> None:
    from experiments.loop import MODES, SEEDS, spaces, steady
    from experiments.paper import MAIN, PARETO_MODES
    from experiments.runs import NetworkRecord, rebuild, wanted

    assert isinstance(record, NetworkRecord)
    worlds = {name: part for name, part in spaces(world).items() if name in MAIN}
    between = [mode for mode in PARETO_MODES if mode not in MODES]
    names = list(wanted(list(worlds), MODES, SEEDS, between))
    if record.refused:
        say(f"{record.refused}: everything is retrained")
    record.refused = ""
    say(f"{len(set(names) - set(record.chosen))} trainings")
    rebuild(record, worlds, steady, names, jobs=jobs, done=lambda name: say("/".join(map(str, name))))


def _write(out: Path, world: "BanditWorld", results: "Results", clock: _Clock) -> dict[str, Path]:
    import orjson

    from experiments import figures
    from experiments.loop import DRIFTS, MODES, spaces
    from experiments.page import write_report

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
    if "joint_frontier" in tables:
        drawn["joint-frontier"] = out / "joint-frontier.png"
        figures.joint_frontier(drawn["joint-frontier"], worlds)
    if results.points:
        drawn["frontier"] = out / "frontier.png"
        figures.frontier(drawn["frontier"], results.points, worlds[joint])
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
    return drawn
