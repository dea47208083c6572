"""One HTML page with every table beside the paper's numbers and every figure in it: no file beside it is needed."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import paper_numbers

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}td,th{border-bottom:1px solid #ddd;padding:.25rem .6rem;text-align:right}
td:first-child,th:first-child{text-align:left}.paper{color:#777}img{max-width:100%}"""
MEASURES = ("reward", "accuracy", "eflops")


def write_report(path: Path, tables: Mapping[str, Any], figures: Sequence[Path]) -> None:
    """Write the page."""
    o = tables["outcomes"]
    parts = [
        f"<h1>{_text(o['name'])}</h1><p>{o['questions']} questions, {o['actions']} actions, {o['samples']} "
        f"samples; seeds {', '.join(map(str, o['seeds']))}. Means with standard deviation over seeds; "
        "reward, accuracy and cost over the 160 rounds after warm-up, regret over all 210, against the best "
        "realised outcome of each question.</p>"
    ]
    if o["not_run"]:
        parts.append(f"<p><strong>Not run here:</strong> {', '.join(o['not_run'])}.</p>")
    for scenario, modes in {**tables["main"], **_named(tables, "best_route")}.items():
        parts += [_main(scenario, mode, policies, o["unit"]) for mode, policies in modes.items()]
    for name, table in tables.items():
        if name not in ("outcomes", "main", "best_route") and table:
            parts.append(f"<h2>{_text(name.replace('_', ' '))}</h2>{_nested(table)}")
    parts += [
        f'<h2>{_text(figure.stem)}</h2><img alt="{_text(figure.stem)}" src="{_inline(figure)}">'
        for figure in figures
    ]
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><title>{_text(o['name'])}</title><style>{STYLE}</style>"
        + "\n".join(parts),
        encoding="utf-8",
    )


def _named(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: tables[name]} if name in tables else {}


def _main(scenario: str, mode: str, policies: Mapping[str, Any], unit: str) -> str:
    theirs = paper_numbers.MAIN.get(mode, {}) if scenario != "best_route" else {}
    cost = "cost (tera-eFLOPs)" if unit == "eFLOPs" else f"cost ({unit})"
    rows = [
        f"<tr><th>policy<th>reward<th>accuracy %<th>{_text(cost)}<th>regret"
        "<th class=paper>paper: reward, accuracy, cost"
    ]
    for policy, figures in policies.items():
        cells = "".join(f"<td>{_spread(figures[m])}" for m in (*MEASURES, "regret"))
        printed = theirs.get(policy, {}).get(scenario)
        if scenario == "best_route":
            printed = paper_numbers.BEST_ROUTE.get(mode, {}).get(policy)
        beside = ", ".join(f"{value:g}" for value in printed) if printed else ""
        rows.append(f"<tr><td>{_text(policy)}{cells}<td class=paper>{beside}")
    return f"<h2>{_text(scenario)}, {_text(mode.replace('_', ' '))}</h2><table>{''.join(rows)}</table>"


def _nested(table: Mapping[str, Any], depth: int = 3) -> str:
    """Return nested figures: rows of measures where a level holds them, headings above."""
    if all(isinstance(row, Mapping) and any(_is_spread(v) for v in row.values()) for row in table.values()):
        columns = list(dict.fromkeys(name for row in table.values() for name in row))
        head = "".join(f"<th>{_text(name)}" for name in columns)
        body = "".join(
            f"<tr><td>{_text(name)}" + "".join(f"<td>{_cell(row.get(column))}" for column in columns)
            for name, row in table.items()
        )
        return f"<table><tr><th>{head}{body}</table>"
    parts = []
    for name, value in table.items():
        if isinstance(value, Mapping) and not _is_spread(value):
            parts.append(f"<h{depth}>{_text(name)}</h{depth}>{_nested(value, min(6, depth + 1))}")
        else:
            parts.append(f"<p>{_text(name)}: {_cell(value)}</p>")
    return "".join(parts)


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and {"mean", "low", "high"} <= set(value)


def _spread(value: Mapping[str, float]) -> str:
    return f"{value['mean']:.4g} ({value['std']:.2g})" if "std" in value else f"{value['mean']:.4g}"


def _cell(value: Any) -> str:
    if _is_spread(value):
        return f"{_spread(value)} [{value['low']:.4g}, {value['high']:.4g}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{_text(str(k))} {_cell(v)}" for k, v in value.items())
    return "" if value is None else _text(str(value))


def _inline(figure: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(figure.read_bytes()).decode()


def _text(value: str) -> str:
    return html.escape(str(value))
