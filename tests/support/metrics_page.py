"""docs/metrics.md, made from `streams/metrics.py` and the alert rules."""

import ast
import inspect
import re
from pathlib import Path
from typing import Final

import yaml
from prometheus_client import Counter, Gauge, Histogram

from streams import metrics as module
from streams.metrics import Metrics

ALERTS = Path("infra/prometheus/alerts.yml")

HEAD = """# Metrics

What a process serves to Prometheus on its `--metrics-port` ([health](operating.md#health)). Each process lists every
metric and fills those of its service. `infra/prometheus/alerts.yml` has the alert rules, and the
[runbook](operating.md#runbook) says what to do about them; `infra/grafana/dashboards/uniscale.json` is the dashboard.
A histogram has the usual series `_bucket`, `_sum` and `_count`. One alert, ServiceDown, reads Prometheus' own `up`.

`WRITE_GOLDEN=1 python -m pytest tests/streams/test_reference_pages.py` writes this page again from the code.
"""

UNITS: Final = {
    "_timestamp_seconds": "Unix time, s",
    "_seconds": "s",
    "eflops": "eFLOPs",
    "_usd": "USD",
    "tokens": "tokens",
    "objective_price": "accuracy per eFLOP",
    "accuracy": "share, 0 to 1",
    "uplift_accuracy": "share, −1 to 1",
    "_ratio": "ratio",
    "cost_drift": "ratio",
    "suspended_models": "0 or 1",
    "uniscale_reward": "reward",
    "reward_term": "`correct`, `score`: 0 to 1; `log_cost`: natural logarithm",
}
"""The unit of a metric by how its name ends, the longest first; of what is not here, `count`."""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(_section(title, names) for title, names in sections().items())])


def sections() -> dict[str, list[str]]:
    """Return the attributes of `Metrics` that each of its methods adds, by the service in its docstring."""
    found = {}
    for method in ast.parse(inspect.getsource(module)).body[-1].body:  # type: ignore[attr-defined]
        if isinstance(method, ast.FunctionDef) and method.name.startswith("_of_"):
            told = (ast.get_docstring(method) or "").removeprefix("Add the metrics of ").rstrip(".")
            targets = (node.targets[0] for node in method.body if isinstance(node, ast.Assign))
            found[told[:1].upper() + told[1:]] = [
                each.attr for each in targets if isinstance(each, ast.Attribute)
            ]
    return found


def alerts() -> dict[str, set[str]]:
    """Return the names of the series that each alert reads."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {
        rule["alert"]: set(re.findall(r"uniscale_\w+", rule["expr"]))
        for group in groups
        for rule in group["rules"]
    }


def _section(title: str, names: list[str]) -> str:
    head = "| metric | type | labels | unit | meaning | alerts |"
    return "\n".join([f"## {title}", "", head, "|---|---|---|---|---|---|", *map(_row, names), ""])


def _row(attribute: str) -> str:
    metric: Counter | Gauge | Histogram = getattr(Metrics("page"), attribute)
    [family] = metric.collect()
    name = family.name + ("_total" if family.type == "counter" else "")
    read = [
        alert for alert, series in alerts().items() if name in {_series(each, family.type) for each in series}
    ]
    labels = ", ".join(f"`{label}`" for label in metric._labelnames) or "–"
    meaning = family.documentation.replace("|", r"\|")
    return f"| `{name}` | {family.type} | {labels} | {_unit(family.name)} | {meaning} | {', '.join(read) or '–'} |"


def _series(name: str, kind: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name) if kind == "histogram" else name


def _unit(name: str) -> str:
    endings = sorted((ending for ending in UNITS if name.endswith(ending)), key=len)
    return UNITS[endings[-1]] if endings else "count"
