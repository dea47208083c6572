"""The page of results that the repository keeps: what each section found, in words, and its figures."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.report import paper_numbers
from experiments.report.sections import SECTIONS

POLICIES = ("random", "greedy", "mlp", "knn", "neural_ucb", "ts", "uniscale", "oracle")


def write_summary(folder: Path, tables: Mapping[str, Any], figures: Mapping[str, Path], command: str) -> None:
    """Write README.md and copy the figures beside it; figures of an earlier run that are no longer drawn go.

    Args:
        folder: Holds nothing else.
        tables: As in tables.json.
        figures: PNG files by name.
        command: What makes the page again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in set(folder.glob("*.png")) - {folder / path.name for path in figures.values()}:
        stale.unlink()
    o = tables["outcomes"]
    parts = [
        f"# Results on {o['name']}",
        f"Made by `{command}`, and not edited.",
        f"{o['questions']} questions, {o['actions']} actions, {o['samples']} sample{'s' * (o['samples'] > 1)} a cell; "
        f"the paper's tables on {len(o['seeds'])} seeds, the others on {len(o['more_seeds'])} further ones. "
        "Costs are in tera-eFLOPs a query by the cost model that the service prices with: 1 is 10¹² of the eFLOPs in "
        "its records. All tables, with intervals and beside the paper's numbers, are in the `report.html` and "
        "`tables.json` that the command writes.",
    ]
    if o["not_run"]:
        parts.append(f"Not run: {len(o['not_run'])} rows ({o['not_run_because'] or 'not trained'}).")
    for section in SECTIONS:
        if not any(name in tables for name in section.tables):
            continue
        said = section.finding(tables) if section.finding is not None else ""
        shown = [figures[name] for name in section.figures if name in figures]
        table = _main(tables) if section.tables == ("main",) else ""
        table = _frontier(tables) if section.tables[0] == "frontier" else table
        if not said and not shown:
            continue
        parts += [f"## {section.title}", *(each for each in (said, table) if each)]
        for path in shown:
            shutil.copyfile(path, folder / path.name)
            parts.append(f"![{section.title}]({path.name})")
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _main(tables: Mapping[str, Any]) -> str:
    """Return mean rewards of the joint space, best in bold and second best in italics, the paper's below."""
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
        printed = [f"{paper_numbers.MAIN[mode][name]['uis'][0]:.3f}" for name in POLICIES]
        lines.append(f"| the paper's, on its own models | {' | '.join(printed)} |")
    return "\n".join(lines)


def _frontier(tables: Mapping[str, Any]) -> str:
    """Return mean cost ratios and areas of every row."""
    lines = ["| | cost at equal accuracy | out of reach | area (AIQ) |", "|---|---|---|---|"]
    for name, row in tables["frontier"].items():
        found, area = row["mean_cost_ratio"], row["aiq"]
        cost = "–"
        if found is not None:
            ends = ["∞" if found[end] is None else f"{found[end]:.2f}" for end in ("low", "high")]
            cost = f"{found['mean']:.2f} [{', '.join(ends)}]"
        missed = ", ".join(f"{100 * float(q):g} %" for q in row["unreached"])
        lines.append(f"| {name.replace('_', ' ')} | {cost} | {missed} | {area['mean']:.3f} |")
    return "\n".join(lines)
