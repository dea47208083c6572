"""A run as one self-contained page: learning curve, cost, accuracy, and the choices by level."""

import html
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streams.client import Ledger, Story
from streams.client.comparison import compared
from streams.demo.drift import is_further

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}svg{background:#fafafa;border:1px solid #ddd}h2{margin-top:2em}"""

_WINDOW = 20

_SHOWN_ABOVE = ("latency_ms", "sentence", "drift_sentence", "pairs")


def render(ledger: Ledger, summary: Mapping[str, Any]) -> str:
    """Return the page of a run as HTML."""
    closed = sorted(
        (s for s in ledger.stories.values() if s.decision and s.closing),
        key=lambda s: s.seq,
    )
    further = [s for s in closed if is_further(s)]
    stories = [s for s in closed if s.decision and s.decision.query.learn and not is_further(s)]
    twins = [s for s in closed if s.decision and not s.decision.query.learn]
    rewards = [s.closing.reward for s in stories if s.closing and s.closing.reward is not None]
    warm = sum(1 for s in stories if s.decision and s.decision.reason == "warm-up")
    return "\n".join(
        [
            "<!doctype html><meta charset=utf-8><title>UniScale-Streams: a run</title>",
            f"<style>{_STYLE}</style><h1>A run of UniScale-Streams</h1>",
            f"<p>{summary['queries']} queries through {html.escape(str(summary['broker']))}, engines "
            f"{html.escape(', '.join(summary['engine']) or 'none')}, mode {html.escape(str(summary['mode']))}. "
            f"Means over the last {_WINDOW} queries, in the order of decisions; grey is the control."
            f"{' The dashed line ends the uniform warm-up.' if warm else ''}</p>",
            f"<p><strong>{html.escape(str(summary.get('sentence', '')))}</strong></p>",
            f"<p>{html.escape(gained(summary))}</p>",
            *_against_control_group(stories),
            "<h2>Reward</h2>", curve(rewards, warm),
            "<h2>Cost, eFLOPs a query</h2>", curve(_costs(stories), warm, _costs(twins)),
            "<h2>Accuracy</h2>", curve(_correct(stories), warm, _correct(twins)),
            "<h2>Choices by level</h2>", choices(stories),
            *_after_the_price_rose(stories, further, summary),
            "<h2>Where the time goes</h2>", latencies(summary["latency_ms"]),
            "<h2>Numbers</h2>", numbers({k: v for k, v in summary.items() if k not in _SHOWN_ABOVE}),
        ]
    )  # fmt: skip


def _against_control_group(stories: Sequence[Story]) -> list[str]:
    if not any(s.decision and s.decision.cohort == "control" for s in stories):
        return []
    return [f"<p>{html.escape(compared(stories).sentence())}</p>"]


def _after_the_price_rose(
    stories: Sequence[Story], further: Sequence[Story], summary: Mapping[str, Any]
) -> list[str]:
    if "drift" not in summary:
        return []
    model = summary["drift"]["model"]
    before = stories[-len(further) :] if further else []
    part = [s for s in (*before, *further) if s.decision]
    share = [float(s.decision.action.model == model) for s in part if s.decision]
    return [
        f"<h2>{html.escape(model)} costs {summary['drift']['times']:g} times as much</h2>",
        f"<p>{html.escape(summary['drift_sentence'])} The dashed line is the moment of the change.</p>",
        "<h3>Its share of the choices</h3>", curve(share, len(before)),
        "<h3>Cost, eFLOPs a query</h3>", curve(_costs(part), len(before)),
    ]  # fmt: skip


def gained(summary: Mapping[str, Any]) -> str:
    """Return what the learner gained, in a few sentences; empty if a figure is missing."""
    names = (
        "mean_reward_warmup", "mean_reward_last_third", "mean_cost_eflops_first_third",
        "mean_cost_eflops_last_third", "accuracy", "accuracy_last_third",
    )  # fmt: skip
    told = [summary.get(name) for name in names]
    if any(value is None for value in told) or not told[2]:
        return ""
    warm, last, cost, cost_last, right, right_last = map(float, told)  # type: ignore[arg-type]
    return (
        f"Between the warm-up and the last third, the mean reward went from {warm:.3f} to {last:.3f}. A query of "
        f"the last third costs {cost_last / cost:.0%} of a query of the first. {right_last:.0%} of the last third's "
        f"answers are right, {right:.0%} of all answers. The objective sets this trade-off: "
        "`--objective quality-priority` puts right answers first."
    )


def latencies(stages: Mapping[str, Mapping[str, float]]) -> str:
    """Return the stages as a table, in ms between the broker's append times. Waiting is part of a stage."""
    rows = [
        f"<tr><td>{html.escape(name.replace('_', ' '))}</td><td>{ms['p50']:,.0f}</td><td>{ms['p95']:,.0f}</td></tr>"
        for name, ms in stages.items()
    ]
    return "<table><tr><th>stage, ms</th><th>p50</th><th>p95</th></tr>" + "".join(rows) + "</table>"


def curve(
    values: Sequence[float], dashed: int, control: Sequence[float] = (), width: int = 860, height: int = 220
) -> str:
    """Return running means as inline SVG: the policy's, and in grey the control's; a dashed line, if not at 0."""
    if len(values) < 2:
        return "<p>too few values</p>"
    means, others = _running(values), _running(control)
    low, high = min(means + others), max(means + others)
    span = (high - low) or 1.0

    def line(ys: Sequence[float], colour: str) -> str:
        places = (
            f"{70 + i * (width - 90) / max(1, len(ys) - 1):.1f},{height - 25 - (y - low) * (height - 45) / span:.1f}"
            for i, y in enumerate(ys)
        )
        return f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>'

    at = 70 + min(dashed, len(means) - 1) * (width - 90) / (len(means) - 1)
    upright = (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="10" y2="{height - 25}" stroke="#999" stroke-dasharray="4"/>'
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="100%">{line(others, "#aaa")}'
        f"{line(means, '#1660a8')}{upright if dashed else ''}"
        f'<text x="5" y="{height - 25}" font-size="12">{low:.4g}</text>'
        f'<text x="5" y="22" font-size="12">{high:.4g}</text>'
        f'<text x="{width - 90}" y="{height - 6}" font-size="12">{len(means)} queries</text></svg>'
    )


def _running(values: Sequence[float]) -> list[float]:
    return [sum(values[max(0, i - _WINDOW + 1) : i + 1]) / min(i + 1, _WINDOW) for i in range(len(values))]


def _costs(stories: Sequence[Story]) -> list[float]:
    return [cost for s in stories if (cost := s.eflops) is not None]


def _correct(stories: Sequence[Story]) -> list[float]:
    return [s.closing.correct for s in stories if s.closing and s.closing.correct is not None]


def choices(stories: Sequence[Story]) -> str:
    """Return, by level, how often each model was chosen after the warm-up, the mean drafts and the accuracy."""
    levels: dict[str, list[Story]] = {}
    for story in stories:
        if story.decision and story.decision.reason == "policy":
            level = str(story.decision.query.metadata.get("level", "all"))
            levels.setdefault(level, []).append(story)
    models = sorted({s.decision.action.model for group in levels.values() for s in group if s.decision})
    rows = [
        "<tr><th>level</th>"
        + "".join(f"<th>{html.escape(m)}</th>" for m in models)
        + "<th>QP·CP</th><th>right</th></tr>"
    ]
    for level, group in sorted(levels.items()):
        count = Counter(s.decision.action.model for s in group if s.decision)
        width = sum(s.decision.action.qp * s.decision.action.cp for s in group if s.decision) / len(group)
        right = [s.closing.correct for s in group if s.closing and s.closing.correct is not None]
        share = f"{sum(right) / len(right):.0%}" if right else "–"
        cells = "".join(f"<td>{count[m]}</td>" for m in models)
        rows.append(f"<tr><td>{html.escape(level)}</td>{cells}<td>{width:.1f}</td><td>{share}</td></tr>")
    return "<table>" + "".join(rows) + "</table>"


def numbers(summary: Mapping[str, Any]) -> str:
    """Return the summary as a table, one row a number."""
    rows = (
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(_shown(value))}</td></tr>"
        for name, value in _leaves(summary)
    )
    return "<table>" + "".join(rows) + "</table>"


def _leaves(summary: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}: ")
        else:
            yield f"{above}{name}", value


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
