"""Writes a run's results: a self-contained HTML page, and a folder of results that is kept in the repository.

The HTML page contains every figure, and every table next to the paper's numbers. The folder contains tables.json, the
figures, and a hand-written README.md where only the text between `<!-- made: NAME -->` and `<!-- /made -->` is
generated. A test compares the numbers in the README's sentences with tables.json.
"""

import base64
import html
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from experiments import figures
from experiments.frontier import AFTER_HISTORY, ELSEWHERE, PLAYERS, SIMPLEST
from experiments.loop import MODES
from experiments.outcomes import BanditWorld
from experiments.paper import Results

PAPER: Final = yaml.safe_load(Path(__file__).with_name("paper_numbers.yaml").read_text(encoding="utf-8"))
"""The paper's own numbers, shown next to ours."""


@dataclass(frozen=True)
class ReportSection:
    """One section of the page.

    Attributes:
        title: The section's heading.
        tables: The keys of its tables in tables.json.
        figures: The names of its PNG files.
    """

    title: str
    tables: tuple[str, ...]
    figures: tuple[str, ...] = ()


SECTIONS: Final = (
    ReportSection("Main table", ("main",), tuple(f"regret-{mode}" for mode in MODES)),
    ReportSection("Accuracy and cost of the actions", ("outcomes",), ("accuracy-cost",)),
    ReportSection(
        "The joint space against routing and against TTS", ("joint_frontier",), ("joint-frontier",)
    ),
    ReportSection(
        "Cost at equal accuracy", ("frontier", "frontier_of", "against_ridge_from_history"), ("frontier",)
    ),
    ReportSection("The pacer: keeping to a mean cost", ("pacer",)),
    ReportSection("Four reward modes", ("pareto",), ("pareto",)),
    ReportSection("BEST-Route*", ("best_route",)),
    ReportSection("Action semantics against one-hot", ("semantics",), ("semantics",)),
    ReportSection("Exploration factor α", ("alpha",), ("alpha",)),
    ReportSection("Dense feedback against binary correctness", ("dense_feedback",)),
    ReportSection("Drift at round 51", ("drifts",), ("drifts",)),
    ReportSection(
        "Early exit", ("early_exit", "early_exit_replayed", "early_exit_by_width"), ("early-exit",)
    ),
    ReportSection("Latency by component", ("latency", "latency_run")),
    ReportSection("The verifier", ("verifiers",)),
    ReportSection("Verifier scores of right and wrong answers", ("verifier_scores",), ("verifier-scores",)),
    ReportSection("Second task", ("second_task", "second_task_frontier")),
    ReportSection("Readings of the paper, run both ways", ("readings",)),
    ReportSection("Against the best fixed arm and the best contextual policy", ("versus_best",)),
    ReportSection("Our own policies", ("own_policies",)),
    ReportSection("A change of objective: what has to be relearned", ("shared_objective",)),
    ReportSection("Feedback as production has it", ("feedback",)),
    ReportSection("Cold start", ("cold_start",)),
)

PRINTED: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "best_route": (PAPER["best_route"], "reward, accuracy %, tera-eFLOPs"),
    "semantics": (PAPER["semantics"], "regret at 130, at 210, accuracy %, tera-eFLOPs"),
    "dense_feedback": (PAPER["dense"], "accuracy %, tera-eFLOPs"),
    "drifts": (PAPER["drifts"], "regret at 130, at 210, accuracy %, tera-eFLOPs"),
    "early_exit": ({"overall": PAPER["early_exit"]}, "accuracy %, TFLOPs, TB, tera-eFLOPs"),
    "latency": (PAPER["latency"], "seconds, percent"),
    "second_task": ({"cost_sensitive": PAPER["coding"]}, "reward, accuracy %, tera-eFLOPs"),
    "verifier_scores": (
        {"answers": PAPER["scores_of"], "measures": PAPER["scores"]},
        "mean, standard deviation; pooled AUROC, point-biserial",
    ),
}


def printed_verifiers(names: list[str]) -> Mapping[str, Any]:
    """Return the paper's numbers for two verifiers: its smaller one for the first, its larger one for the second."""
    return {
        name: {
            mode: {policy: cells[at] for policy, cells in policies.items()}
            for mode, policies in PAPER["verifiers"].items()
        }
        for name, at in zip(names, (1, 0), strict=False)
    }


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.4rem 0 1.4rem;font-size:13px}caption{text-align:left;font-weight:600}
td,th{border-bottom:1px solid #ddd;padding:.2rem .55rem;text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}.paper{color:#777}img{max-width:100%;display:block;margin:1rem 0}
.note{max-width:56rem}small{color:#777}nav{column-width:22rem}nav a{display:block}.wide{overflow-x:auto}"""


def write_report(path: Path, tables: Mapping[str, Any], figures: Mapping[str, Path]) -> None:
    """Write the page.

    Args:
        path: The HTML file.
        tables: The tables, as in tables.json.
        figures: PNG files, keyed by name.
    """
    o = tables["outcomes"]
    parts = [_head(o)]
    shown = [s for s in SECTIONS if any(name in tables for name in s.tables)]
    links = (f'<a href="#{section.tables[0]}">{_text(section.title)}</a>' for section in shown)
    parts.append(f"<nav>{''.join(links)}</nav>")
    for section in shown:
        parts.append(f'<h2 id="{section.tables[0]}">{_text(section.title)}</h2>')
        for name in section.tables:
            parts += _tables(name, tables.get(name, {}), o)
        parts += [
            f'<img alt="{_text(name)}" src="{_inline(figures[name])}">'
            for name in section.figures
            if name in figures
        ]
    path.write_text(
        f"<!doctype html><html lang=en><meta charset='utf-8'><title>{_text(o['name'])}</title>"
        f"<style>{STYLE}</style>" + "\n".join(parts),
        encoding="utf-8",
    )


def _head(o: Mapping[str, Any]) -> str:
    text = (
        f"<h1>Policies on {_text(o['name'])}</h1><p class=note>{o['questions']} questions, {o['actions']} "
        f"actions, {o['samples']} recorded sample{'s' * (o['samples'] > 1)} a cell. The paper's tables: seeds "
        f"{', '.join(map(str, o['seeds']))}; the others: {len(o['more_seeds'])} further seeds. A cell is mean "
        "(standard deviation over seeds) [95 % interval of the mean over seeds]. All seeds share one table of "
        "outcomes, so intervals are of order, warm-up, realised sample and exploration, not of other questions. "
        "Grey: what the paper prints, on its own models and questions. docs/results/README.md says what each table "
        "holds.</p>"
    )
    if o["not_run"]:
        why = f" ({_text(o['not_run_because'])})" if o["not_run_because"] else ""
        text += (
            f"<p class=note><strong>Not run</strong>{why}: {', '.join(map(_text, o['not_run']))}. "
            "<code>paper --rebuild-networks</code> trains them.</p>"
        )
    return text


def _tables(name: str, table: Mapping[str, Any], o: Mapping[str, Any]) -> Iterator[str]:
    if name == "outcomes":
        return
    unit = "tera-eFLOPs" if o["unit"] == "eFLOPs" else o["unit"]
    if name == "main":
        for scenario, modes in table.items():
            for mode, policies in modes.items():
                theirs = {p: _with_spread(mode, p, scenario) for p in PAPER["main"][mode]}
                rows = {p: policies.get(p, {"reward": "not run"}) for p in theirs}
                yield _table(f"{scenario}: {mode}", rows, theirs, "reward, accuracy %, tera-eFLOPs", unit)
        return
    if name in ("frontier", "second_task_frontier"):
        yield _table(name, {policy: _at_targets(row) for policy, row in table.items()}, {}, "", unit)
        return
    printed, what = PRINTED.get(name, ({}, ""))
    if name == "verifiers":
        printed, what = printed_verifiers(list(table)), "reward, accuracy %, tera-eFLOPs"
    yield from _levels(name, table, printed, what, unit)


def _at_targets(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's row in the frontier without nesting: ratios by target, area, and spread over orders."""
    spread = row["over_orders"] or {}
    return {
        "mean_cost_ratio": row["mean_cost_ratio"],
        **{f"at {100 * float(q):g} %": at["cost_ratio"] for q, at in row["at"].items()},
        "most accurate reached (%)": 100 * max(at["accuracy"] for at in row["at"].values()),
        "aiq": row["aiq"],
        "orders reached": f"{spread['reached']} of {spread['orders']}" if spread else None,
        "std over orders": spread.get("std"),
    }


def _levels(title: str, table: Mapping[str, Any], printed: Any, what: str, unit: str) -> Iterator[str]:
    """Yield a table for the rows at this level, then the tables of deeper levels."""
    below = printed if isinstance(printed, Mapping) else {}
    if _depth(table) == 1:
        yield _table(title, {"": table}, {"": printed}, what, unit)
        return
    single = {name: value for name, value in table.items() if _depth(value) == 0}
    if single:
        yield _table(title, {"": single}, {}, "", unit)
    rows = {name: value for name, value in table.items() if _depth(value) == 1 and name != "histogram"}
    alike = len({tuple(row) for row in rows.values()}) == 1
    if rows and (alike or len(rows) > 2) and not (single and len(rows) == 1):
        yield _table(title, rows, below, what, unit)
    else:
        for name, value in rows.items():
            yield _table(f"{title}: {name}", {"": value}, {"": below.get(name)}, what, unit)
    for name, value in table.items():
        if _depth(value) > 1:
            yield from _levels(f"{title}: {name}", value, below.get(name, {}), what, unit)


def _table(
    title: str, rows: Mapping[str, Mapping[str, Any]], printed: Mapping[str, Any], what: str, unit: str
) -> str:
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    beside = what and any(isinstance(printed.get(name), list) for name in rows)
    head = "".join(f"<th>{_text(_heading(name, unit))}" for name in columns)
    head += f"<th class=paper>paper: {_text(what)}" if beside else ""
    body = []
    for name, row in rows.items():
        cells = "".join(f"<td>{_cell(row.get(column))}" for column in columns)
        if beside:
            told = printed.get(name)
            cells += f"<td class=paper>{', '.join(map(_number, told)) if isinstance(told, list) else ''}"
        body.append(f"<tr><td>{_text(_spaced(name))}{cells}")
    return (
        f"<div class=wide><table><caption>{_text(_spaced(title))}</caption><tr><th>{head}"
        f"{''.join(body)}</table></div>"
    )


def _with_spread(mode: str, policy: str, scenario: str) -> list[str] | None:
    """Return a cell of the paper's main table, each mean with its standard deviation; None if there is no such cell."""
    cell = PAPER["main"][mode][policy].get(scenario)
    if cell is None:
        return None
    return [f"{mean:g} ({std:g})" for mean, std in zip(cell["mean"], cell["std"], strict=True)]


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _depth(value: Any) -> int:
    """Return how many levels of nesting a table has above its figures; a row has one level."""
    if not isinstance(value, Mapping) or _is_figure(value):
        return 0
    return 1 + max((_depth(each) for each in value.values()), default=0)


def _is_figure(value: Mapping[str, Any]) -> bool:
    return "mean" in value or "median" in value


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        if "median" in value:
            median = "never" if value["median"] is None else f"{value['median']:g}"
            return f"{median} <small>({value['seeds']} of {value['of']} seeds)</small>"
        if "mean" in value:
            spread = f" ({value['std']:.2g})" if "std" in value else ""
            ends = (
                "∞" if value[end] is None else f"{value[end]:.4g}" for end in ("low", "high") if end in value
            )
            bounds = f" <small>[{', '.join(ends)}]</small>" if "low" in value else ""
            return f"{value['mean']:.4g}{spread}{bounds}"
        return ", ".join(f"{_text(_spaced(k))} {_cell(v)}" for k, v in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return _text(", ".join(map(str, value)))
    return "–" if value is None else _text(value)


def _heading(name: str, unit: str) -> str:
    """Return a column's name with its unit.

    >>> _heading("eflops_percent", "USD"), _heading("eflops", "USD"), _heading("regret_130", "USD")
    ('cost (%)', 'cost (USD)', 'regret 130')
    """
    for ending, sign in (("_percent", " (%)"), ("_points", " (points)")):
        if name.endswith(ending):
            return _heading(name.removesuffix(ending), "") + sign
    known = {"eflops": f"cost ({unit})", "accuracy": "accuracy (%)", "seconds": "seconds"}
    known |= {"compute": "compute (TFLOPs)", "memory": "memory (TB)"}
    if not unit:
        known = {"eflops": "cost"}
    return known.get(name, _spaced(name))


def _spaced(name: str) -> str:
    return str(name).replace("_", " ")


def _inline(figure: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(figure.read_bytes()).decode()


def _text(value: object) -> str:
    return html.escape(str(value))


POLICIES = ("random", "greedy", "mlp", "knn", "neural_ucb", "ts", "uniscale", "oracle")
BLOCK: Final = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- /made -->)", re.DOTALL)


def as_json(tables: Mapping[str, Any]) -> bytes:
    """Return tables as JSON; the same tables always produce the same bytes."""
    return orjson.dumps(tables, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def write_run(out: Path, world: BanditWorld, results: Results) -> dict[str, Path]:
    """Write a run's tables.json, figures and report.html to a folder; return the figures keyed by name."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.json").write_bytes(as_json(results.tables))
    drawn = figures.draw(out, world, results)
    write_report(out / "report.html", results.tables, drawn)
    return drawn


def write_results(
    folder: Path, tables_json: Path, tables: Mapping[str, Any], drawn: Mapping[str, Path]
) -> None:
    """Copy tables and figures to a folder, fill in its page, and delete earlier runs' figures that were not redrawn.

    Args:
        folder: A folder that contains only results. If it has no page, one with only tables and figures is created.
        tables_json: The tables.json file.
        tables: The contents of that file.
        drawn: PNG files, keyed by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in set(folder.glob("*.png")) - {folder / path.name for path in drawn.values()}:
        stale.unlink()
    for path in (tables_json, *drawn.values()):
        shutil.copyfile(path, folder / path.name)
    page = folder / "README.md"
    figures = "\n\n".join(f"![{name}]({path.name})" for name, path in drawn.items())
    blocks = "\n\n".join(f"<!-- made: {name} -->\n<!-- /made -->" for name in ("main", "frontier"))
    begun = f"# Results on {tables['outcomes']['name']}\n\n{blocks}\n\n{figures}\n"
    page.write_text(
        filled(page.read_text(encoding="utf-8") if page.is_file() else begun, tables), encoding="utf-8"
    )


def write_fleet(folder: Path, name: str, tables: Mapping[str, Any]) -> None:
    """Add one outcome table's frontier to those of other tables, and fill in their page.

    Args:
        folder: The folder containing the page, and `tables.json` with an entry per table of outcomes.
        name: The name of the table of outcomes.
        tables: Its results, as `frontier` returns them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known, page = folder / "tables.json", folder / "README.md"
    together = orjson.loads(known.read_bytes()) if known.is_file() else {}
    together[name] = tables
    known.write_bytes(as_json(together) + b"\n")
    draw_fleets(folder, together)
    if page.is_file():
        page.write_text(filled(page.read_text(), orjson.loads(known.read_bytes())))


def draw_fleets(folder: Path, tables: Mapping[str, Any]) -> None:
    """Draw the picture of a folder's tables, except those without a description."""
    if figures.FLEETS.keys() & tables.keys():
        figures.fleets(folder / "cost.png", tables)


def filled(page: str, tables: Mapping[str, Any]) -> str:
    """Return a page with its generated blocks filled in from these tables."""
    return BLOCK.sub(lambda found: f"{found[1]}{MADE[found[2]](tables)}\n{found[3]}", page)


def _main(tables: Mapping[str, Any]) -> str:
    """Return our mean rewards in the joint space above the paper's, the best in bold and the second best in italics."""
    joint = tables["main"].get("uis") or tables["main"]["all"]
    lines = ["| mean reward | " + " | ".join(name.replace("_", " ") for name in POLICIES) + " |"]
    lines.append("|---|" + "---|" * len(POLICIES))
    for mode, rows in joint.items():
        means = {name: rows[name]["reward"]["mean"] for name in POLICIES if name in rows}
        ranked = sorted((name for name in means if name != "oracle"), key=lambda name: -means[name])
        marks = dict(zip(ranked, ("**", "*"), strict=False))
        cells = [
            f"{marks.get(n, '')}{means[n]:.3f}{marks.get(n, '')}" if n in means else "–" for n in POLICIES
        ]
        lines.append(f"| {mode.replace('_', '-')} | {' | '.join(cells)} |")
        printed = [f"{PAPER['main'][mode][name]['uis']['mean'][0]:.3f}" for name in POLICIES]
        lines.append(f"| the paper's, on its own models | {' | '.join(printed)} |")
    return "\n".join(lines)


def _frontier(tables: Mapping[str, Any]) -> str:
    """Return every row's mean cost ratio and area."""
    lines = ["| | cost at equal accuracy | out of reach | area (AIQ) |", "|---|---|---|---|"]
    rows = tables.get("frontier", {})
    for name in _ranked(rows):
        row = rows[name]
        missed = ", ".join(f"{100 * float(q):g} %" for q in row["unreached"])
        lines.append(f"| {name.replace('_', ' ')} | {_paid(row)} | {missed} | {row['aiq']['mean']:.3f} |")
    return "\n".join(lines)


def _fleets(tables: Mapping[str, Any]) -> str:
    """Return every row's mean cost ratio on every table of outcomes, or the targets it does not reach."""
    lines = [f"| | {' | '.join(f'`{table}`' for table in tables)} |", "|---|" + "---|" * len(tables)]
    rows = {name for told in tables.values() for name in told["frontier"]}
    for name in _ranked(dict.fromkeys(rows | set(ELSEWHERE))):
        cells = []
        for told in tables.values():
            row = told["frontier"].get(name)
            missed = [] if row is None else [f"{100 * float(q):g} %" for q in row["unreached"]]
            cells.append("not run" if row is None else f"– ({', '.join(missed)})" if missed else _paid(row))
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ranked(rows: Mapping[str, Any]) -> list[str]:
    """Return the names of a frontier's rows in display order."""
    known = ("fixed_mix_from_history", *SIMPLEST, *ELSEWHERE, *PLAYERS, *AFTER_HISTORY)
    ranked = [name for name in dict.fromkeys(known) if name in rows]
    return [*ranked, *sorted(rows.keys() - set(ranked))]


def _paid(row: Mapping[str, Any]) -> str:
    """Return a row's mean cost ratio with its interval, or "–" if there is none."""
    if (found := row["mean_cost_ratio"]) is None:
        return "–"
    ends = ["∞" if found[end] is None else f"{found[end]:.2f}" for end in ("low", "high")]
    return f"{found['mean']:.2f} [{', '.join(ends)}]"


MADE: Final = {"main": _main, "frontier": _frontier, "fleets": _fleets}
