"""The summary of a run, as JSON and as a self-contained page."""

import html
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from schemas.query import Query
from streams.client.events import Timelines
from streams.demo.paired import in_words, sentence
from streams.timeline import Timeline

# The selection and order of the questions.


def thirds(queries: Sequence[Query], count: int, seed: int) -> list[Query]:
    """Return `count` queries in random order, such that each third has the overall share of every level.

    >>> qs = [Query(query_id=f"{l}{i}", text="x", metadata={"level": l}) for l in "ab" for i in range(6)]
    >>> [sorted(q.metadata["level"] for q in thirds(qs, 12, 1)[t * 4 : t * 4 + 4]) for t in range(3)]
    [['a', 'a', 'b', 'b'], ['a', 'a', 'b', 'b'], ['a', 'a', 'b', 'b']]
    """
    rng = random.Random(seed)
    levels: dict[str, list[Query]] = {}
    for query in queries:
        levels.setdefault(str(query.metadata.get("level", "")), []).append(query)
    for group in levels.values():
        rng.shuffle(group)
    # Each level's questions are spread evenly over all questions, so that any prefix has nearly the same shares.
    spread = [((i + 0.5) / len(group), query) for group in levels.values() for i, query in enumerate(group)]
    dealt = [query for _, query in sorted(spread, key=lambda each: each[0])][:count]
    cuts = [round(len(dealt) * part / 3) for part in range(4)]
    ordered = []
    for begin, end in pairwise(cuts):
        part = dealt[begin:end]
        rng.shuffle(part)
        ordered += part
    return ordered


# The summary of a run, which is computed from its log and which the demo writes to summary.json.


def summarise(
    timelines: Timelines, sent: Iterable[str], *, broker: str, mode: str, wall_s: float
) -> dict[str, Any]:
    """Return the summary of a run.

    Thirds are those of the queries with a scalar reward, in the order of their decisions. `rewards` is the number of
    queries whose reward is closed.

    Args:
        timelines: The timelines of the run's queries.
        sent: The ids of the queries that were sent, without baselines.
        broker: Name and version of the broker.
        mode: Description of the objective.
        wall_s: Seconds from the first query to the last reward.
    """
    ids = list(sent)
    queries = [timelines.by_id[q] for q in ids if q in timelines.by_id]
    rewarded = sorted(
        (s for s in queries if s.decision and s.closing and s.closing.reward is not None),
        key=lambda s: s.seq,
    )
    third = max(1, len(rewarded) // 3)
    first, last = rewarded[:third], rewarded[-third:]
    answers = [s.answer for s in queries if s.answer]
    return {
        "broker": broker,
        "engine": _served(a.engine for a in answers),
        "verifier": _served(a.verifier for a in answers),
        "mode": mode,
        "queries": len(ids),
        "answers": len(answers),
        "unanswered": len(ids) - len(answers),
        "statuses": Counter(a.status for a in answers),
        "rewards": sum(s.closing is not None for s in queries),
        "dead_letters": len(timelines.dead_letters),
        "duplicates": sum(s.repeats for s in queries),
        "accuracy": _mean(_correct(queries)),
        "accuracy_last_third": _mean(_correct(last)),
        "mean_reward": _mean(_rewards(rewarded)),
        "mean_reward_first_third": _mean(_rewards(first)),
        "mean_reward_last_third": _mean(_rewards(last)),
        "mean_cost_eflops_first_third": _mean(s.eflops or 0.0 for s in first),
        "mean_cost_eflops_last_third": _mean(s.eflops or 0.0 for s in last),
        "distinct_actions": len({s.decision.action.id for s in queries if s.decision}),
        "tokens": sum(a.generated_tokens for a in answers),
        "drafts": sum(len(a.trace) for a in answers),
        "wall_s": round(wall_s, 2),
        # Baselines are queries, too, and their records are in the log.
        "bytes_per_query": round(timelines.bytes / max(1, len(timelines.by_id))),
        "latency_ms": latencies(queries),
    }


def latencies(queries: Sequence[Timeline]) -> dict[str, dict[str, float]]:
    """Return the p50 and p95 of every stage's duration, in ms between append times on the broker."""
    samples: dict[str, list[float]] = {}

    def gap(name: str, timeline: Timeline, begin: str, end: str) -> None:
        if begin in timeline.at_ms and end in timeline.at_ms:
            samples.setdefault(name, []).append(timeline.at_ms[end] - timeline.at_ms[begin])

    for timeline in queries:
        gap("query_to_context", timeline, "query", "context")
        gap("context_to_decision", timeline, "context", "decision")
        gap("query_to_decision", timeline, "query", "decision")
        gap("decision_to_first_step", timeline, "decision", "step/1")
        for step in range(1, 1 + len({s.step for s in timeline.steps})):
            gap("step_to_verification", timeline, f"step/{step}", f"verification/{step}")
            gap("verification_to_next_step", timeline, f"verification/{step}", f"step/{step + 1}")
        gap("answer_to_reward", timeline, "answer", "reward/final")
        gap("query_to_answer", timeline, "query", "answer")
    return {
        name: {"p50": round(float(np.percentile(ms, 50)), 1), "p95": round(float(np.percentile(ms, 95)), 1)}
        for name, ms in samples.items()
    }


def _rewards(queries: Sequence[Timeline]) -> list[float]:
    return [s.closing.reward for s in queries if s.closing and s.closing.reward is not None]


def _correct(queries: Sequence[Timeline]) -> list[float]:
    return [s.closing.correct for s in queries if s.closing and s.closing.correct is not None]


def _costs(queries: Sequence[Timeline]) -> list[float]:
    return [cost for s in queries if (cost := s.eflops) is not None]


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _served(values: Iterable[Any]) -> list[str]:
    return sorted({f"{v.name} {v.version}".strip() for v in values if v is not None})


# The self-contained page of a run, with its rewards, costs, accuracy, choices by level and latencies.

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}svg{background:#fafafa;border:1px solid #ddd}h2{margin-top:2em}"""

_WINDOW = 20
_COLOURS = ("#1660a8", "#b4541a", "#8a8a8a")
"""Colours of the policy and its controls."""
_NO_CONTROLS: Mapping[str, Sequence[float]] = {}


def render(timelines: Timelines, summary: Mapping[str, Any]) -> str:
    """Return the HTML page of a run."""
    closed = sorted(
        (s for s in timelines.by_id.values() if s.decision and s.closing),
        key=lambda s: s.seq,
    )
    queries = [s for s in closed if s.decision and s.decision.query.learn]
    baselines = {
        action: [
            s for s in closed if s.decision and not s.decision.query.learn and s.decision.action.id == action
        ]
        for action in (each["control"]["action"] for each in summary["comparisons"])
    }

    def beside(values: Callable[[Sequence[Timeline]], list[float]]) -> str:
        return curve(values(queries), {in_words(action): values(own) for action, own in baselines.items()})

    return "\n".join(
        [
            "<!doctype html><meta charset=utf-8><title>UniScale-Streams: a run</title>",
            f"<style>{_STYLE}</style><h1>A run of UniScale-Streams</h1>",
            f"<p>{summary['queries']} queries through {html.escape(str(summary['broker']))}, engines "
            f"{html.escape(', '.join(summary['engine']) or 'none')}, mode {html.escape(str(summary['mode']))}. "
            f"Means over the last {_WINDOW} queries, in the order of decisions.</p>",
            *(f"<p><strong>{html.escape(sentence(each))}</strong></p>" for each in summary["comparisons"]),
            "<h2>Reward</h2>",
            curve(_rewards(queries)),
            "<h2>Cost, eFLOPs a query</h2>",
            beside(_costs),
            "<h2>Accuracy</h2>",
            beside(_correct),
            "<h2>Choices by level</h2>",
            choices(queries),
            "<h2>Where the time goes</h2>",
            latency_table(summary["latency_ms"]),
        ]
    )


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return an HTML table of texts and numbers."""
    marked = [("th", head), *(("td", row) for row in rows)]
    cells = ["".join(f"<{tag}>{html.escape(str(each))}</{tag}>" for each in row) for tag, row in marked]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells if row) + "</table>"


def latency_table(stages: Mapping[str, Mapping[str, float]]) -> str:
    """Return the durations of the stages, including waiting, as a table, in ms between append times on the broker."""
    rows = ((name.replace("_", " "), f"{ms['p50']:,.0f}", f"{ms['p95']:,.0f}") for name, ms in stages.items())
    return table(("stage, ms", "p50", "p95"), rows)


def curve(values: Sequence[float], controls: Mapping[str, Sequence[float]] = _NO_CONTROLS) -> str:
    """Return running means as inline SVG: those of the policy, and those of its controls, by name."""
    width, height = 860, 240
    if len(values) < 2:
        return "<p>too few values</p>"
    lines = {"the policy": _running(values), **{name: _running(own) for name, own in controls.items() if own}}
    low, high = min(map(min, lines.values())), max(map(max, lines.values()))
    span = (high - low) or 1.0

    def line(ys: Sequence[float], colour: str) -> str:
        points = (
            f"{70 + i * (width - 90) / max(1, len(ys) - 1):.1f},{height - 25 - (y - low) * (height - 65) / span:.1f}"
            for i, y in enumerate(ys)
        )
        return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'

    coloured = list(zip(lines.items(), _COLOURS, strict=False))
    return (
        f'<svg viewBox="0 0 {width} {height}" width="100%">'
        + "".join(line(ys, colour) for (_, ys), colour in reversed(coloured))
        + "".join(
            f'<text x="{70 + 220 * n}" y="16" font-size="13" fill="{colour}">{html.escape(name)}</text>'
            for n, ((name, _), colour) in enumerate(coloured if controls else ())
        )
        + f'<text x="5" y="{height - 25}" font-size="12">{low:.4g}</text>'
        f'<text x="5" y="44" font-size="12">{high:.4g}</text>'
        f'<text x="{width - 90}" y="{height - 6}" font-size="12">{len(values)} queries</text></svg>'
    )


def _running(values: Sequence[float]) -> list[float]:
    return [sum(values[max(0, i - _WINDOW + 1) : i + 1]) / min(i + 1, _WINDOW) for i in range(len(values))]


def choices(queries: Sequence[Timeline]) -> str:
    """Return a table of how many times the policy chose each model, the mean QP·CP and the accuracy, by level."""
    levels: dict[str, list[Timeline]] = {}
    for timeline in queries:
        if timeline.decision and timeline.decision.reason == "policy":
            level = str(timeline.decision.query.metadata.get("level", "all"))
            levels.setdefault(level, []).append(timeline)
    models = sorted({s.decision.action.model for group in levels.values() for s in group if s.decision})
    rows = []
    for level, group in sorted(levels.items()):
        count = Counter(s.decision.action.model for s in group if s.decision)
        width = fmean(s.decision.action.qp * s.decision.action.cp for s in group if s.decision)
        right = _mean(_correct(group))
        share = "–" if right is None else f"{right:.0%}"
        rows.append((level, *(count[model] for model in models), f"{width:.1f}", share))
    return table(("level", *models, "QP·CP", "right"), rows)
