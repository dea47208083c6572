"""A folder of results that the repository keeps: tables.json, the figures, and a page written by hand.

Only what stands between `<!-- made: NAME -->` and `<!-- /made -->` is written here; the rest is its author's. A test
compares the figures in the author's
sentences with tables.json.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from experiments.report import paper_numbers
from experiments.tables.frontier import AFTER_HISTORY, PLAYERS

POLICIES = ("random", "greedy", "mlp", "knn", "neural_ucb", "ts", "uniscale", "oracle")
BLOCK: Final = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- /made -->)", re.DOTALL)


def write_results(
    folder: Path, tables_json: Path, tables: Mapping[str, Any], drawn: Mapping[str, Path]
) -> None:
    """Copy tables and figures to a folder, and fill in its page; figures of an earlier run that are not drawn go.

    Args:
        folder: Holds nothing else. A page that is not there begins with the tables and figures alone.
        tables_json: The file, and
        tables: what it holds.
        drawn: PNG files by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in set(folder.glob("*.png")) - {folder / path.name for path in drawn.values()}:
        stale.unlink()
    for path in (tables_json, *drawn.values()):
        shutil.copyfile(path, folder / path.name)
    page = folder / "README.md"
    figures = "\n\n".join(f"![{name}]({path.name})" for name, path in drawn.items())
    blocks = "\n\n".join(f"<!-- made: {name} -->\n<!-- /made -->" for name in MADE)
    begun = f"# Results on {tables['outcomes']['name']}\n\n{blocks}\n\n{figures}\n"
    page.write_text(
        filled(page.read_text(encoding="utf-8") if page.is_file() else begun, tables), encoding="utf-8"
    )


def filled(page: str, tables: Mapping[str, Any]) -> str:
    """Return a page with its made blocks as these tables give them."""
    return BLOCK.sub(lambda found: f"{found[1]}{MADE[found[2]](tables)}\n{found[3]}", page)


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
    rows = tables.get("frontier", {})
    ranked = [name for name in ("fixed_mix_from_history", *PLAYERS, *AFTER_HISTORY) if name in rows]
    for name in [*ranked, *sorted(rows.keys() - set(ranked))]:
        row = rows[name]
        found, area = row["mean_cost_ratio"], row["aiq"]
        cost = "–"
        if found is not None:
            ends = ["∞" if found[end] is None else f"{found[end]:.2f}" for end in ("low", "high")]
            cost = f"{found['mean']:.2f} [{', '.join(ends)}]"
        missed = ", ".join(f"{100 * float(q):g} %" for q in row["unreached"])
        lines.append(f"| {name.replace('_', ' ')} | {cost} | {missed} | {area['mean']:.3f} |")
    return "\n".join(lines)


MADE: Final = {"main": _main, "frontier": _frontier}
