"""The report of a run: a page that can be sent on, with one message a figure and costs in units of a baseline's."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from schemas.objective import UNITS
from streams.client.events import Timelines
from streams.demo.figures import STYLE, Bar, Line, bars, figure, plot, shares, table
from streams.demo.following import WINDOW, Change, told
from streams.demo.paired import opponent, sentence
from streams.demo.summary import facts_told
from streams.timeline import Timeline

FEWEST = 10
"""Fewest questions after which a ratio of total costs is drawn; before that, a single question decides it."""


def render(timelines: Timelines, sent: Sequence[str], summary: Mapping[str, Any]) -> str:
    """Return the HTML page of a run.

    Args:
        timelines: The timelines of the run's queries.
        sent: The ids of the policy's queries in the first act.
        summary: The run's summary, as `streams.demo.run` writes it.
    """
    policy = [
        timelines.by_id[each]
        for each in sent
        if each in timelines.by_id and timelines.by_id[each].decision and timelines.by_id[each].closing
    ]
    known = [each for each in summary["comparisons"] if each["cost_ratio"] is not None]
    parts = [cost_figure(known, summary["unit"]), accuracy_figure(known)] if known else []
    if known:
        parts.append(saving_figure(known[0]))
    parts.append(choices_figure(policy, summary["models"]))
    parts += [change_figure(msgspec.convert(each, Change), each["comparison"]) for each in summary["changes"]]
    title = headline(known[0]) if known else "A run of UniScale-Streams"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style><main>",
            f"<h1>{html.escape(title)}</h1>",
            *(
                f'<p class="lead">{html.escape(said)}</p>'
                for said in (lead(known, summary), facts_told(summary["facts"]))
                if said
            ),
            *parts,
            f"<section><h2>How this was measured</h2>{table(measured(summary))}</section></main></html>",
        ]
    )


def headline(comparison: Mapping[str, Any]) -> str:
    """Return what a comparison came to, without its intervals."""
    policy, control = comparison["policy"]["accuracy"], comparison["control"]["accuracy"]
    return f"{policy:.0%} right against {control:.0%}, at {comparison['cost_ratio']['mean']:.0%} of the cost"


def lead(known: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """Return what was compared with what."""
    largest = summary["parameters"]
    size = f" (of at most {largest / 1e6:.0f} million parameters)" if largest else ""
    told = (
        f"For each of {summary['queries']} questions, UniScale-Streams chose one of {len(summary['models'])} language "
        f"models{size} and how much search to spend on the answer."
    )
    if not known:
        return told
    live, earlier = (
        " and ".join(opponent(each["control"]) for each in known if each["control"]["recorded"] is recorded)
        for recorded in (False, True)
    )
    told += f" The same questions also went to {live}."
    if earlier:
        told += f" What {earlier} came to on them is known from an earlier run."
    return f"{told} Ranges are 95% intervals."


def cost_figure(known: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Return the figure of the mean costs, in units of the first baseline's."""
    main, base = known[0], known[0]["control"]["mean_cost"]
    ratio = main["cost_ratio"]
    message = (
        f"It cost less than {opponent(main['control'])}"
        if ratio["high"] < 1
        else f"It cost more than {opponent(main['control'])}"
        if ratio["low"] > 1
        else f"No difference in cost to {opponent(main['control'])} is shown"
    )
    rows = [
        Bar(
            "UniScale-Streams",
            ratio["mean"],
            f"{ratio['mean']:.2f}",
            (ratio["low"], ratio["high"], f"{ratio['low']:.2f} to {ratio['high']:.2f}"),
            main=True,
        ),
        *(
            Bar(opponent(each["control"]), own := each["control"]["mean_cost"] / base, f"{own:.2f}")
            for each in known
        ),
    ]
    money = f" One costs {base:.3g} USD." if unit == "usd" else ""
    caption = f"Mean cost of an answer, times {opponent(main['control'])}, scoring included.{money}"
    return figure(message, caption, bars(rows))


def accuracy_figure(known: Sequence[Mapping[str, Any]]) -> str:
    """Return the figure of the accuracies."""
    main = known[0]
    gained, control = main["accuracy_difference"], opponent(main["control"])
    message = (
        f"It was right more often than {control}"
        if gained["low"] > 0
        else f"It was right less often than {control}"
        if gained["high"] < 0
        else f"No difference in accuracy to {control} is shown"
    )
    rows = [
        Bar("UniScale-Streams", main["policy"]["accuracy"], f"{main['policy']['accuracy']:.0%}", main=True),
        *(Bar(opponent(each["control"]), own := each["control"]["accuracy"], f"{own:.0%}") for each in known),
    ]
    differences = "; ".join(
        f"{100 * each['accuracy_difference']['mean']:+.1f} points ({100 * each['accuracy_difference']['low']:+.1f} to "
        f"{100 * each['accuracy_difference']['high']:+.1f}) to {opponent(each['control'])}"
        for each in known
    )
    return figure(
        message, f"Share of the questions answered right. Difference: {differences}.", bars(rows, 1.0)
    )


def saving_figure(main: Mapping[str, Any]) -> str:
    """Return the figure of what had been paid after each question, in units of what the main baseline had cost."""
    paid = accumulate(pair["cost"] for pair in main["pairs"])
    control_paid = accumulate(pair["control_cost"] for pair in main["pairs"])
    ratios = [ours / theirs for ours, theirs in zip(paid, control_paid, strict=True) if theirs][FEWEST - 1 :]
    if len(ratios) < 2:
        return ""
    name = opponent(main["control"])
    late = ratios[len(ratios) // 3 :]
    return figure(
        f"From a third of the run on, all answers so far had cost {min(late):.2f} to {max(late):.2f} times {name}",
        f"The cost of all answers so far, times {name} for each of the same questions.",
        plot(
            [Line(f"{ratios[-1]:.2f}", ratios, main=True)],
            ticks={0.0: "0", 0.5: "0.5", 1.0: "1"},
            foot=(f"{FEWEST}", f"{len(main['pairs'])} questions"),
            mark=(1.0, "one sample" if name.startswith("one sample") else name),
        ),
    )


def choices_figure(queries: Sequence[Timeline], models: Sequence[str]) -> str:
    """Return the figure of which model got which questions, by level.

    Args:
        queries: The policy's queries.
        models: The models, smallest first.
    """
    levels: dict[str, list[Timeline]] = {}
    for timeline in queries:
        if timeline.decision:
            level = str(timeline.decision.query.metadata.get("level", "all")).replace("_", " ")
            levels.setdefault(level, []).append(timeline)
    counts = {
        level: Counter(s.decision.action.model for s in group if s.decision)
        for level, group in levels.items()
    }
    chosen = [model for model in models if any(count[model] for count in counts.values())]
    if not chosen:
        return ""
    top = max(chosen, key=lambda model: sum(count[model] for count in counts.values()))
    share = {
        level: {model: count[model] / count.total() for model in chosen} for level, count in counts.items()
    }
    order = sorted(share, key=lambda level: (-share[level][top], -len(levels[level]), level))
    beside = {}
    for level in order:
        right = [s.closing.correct or 0.0 for s in levels[level] if s.closing]
        beside[level] = f"{sum(right) / len(right):.0%} of {len(right)} right"
    whole = sum(count[top] for count in counts.values()) / len(queries)
    message = f"{top} got {whole:.0%} of the questions"
    if len(order) > 1:
        first, last = order[0], order[-1]
        message += f": {share[first][top]:.0%} of {first}, {share[last][top]:.0%} of {last}"
    caption = "Which model answered, by kind of question. At the right, how often the answer was right."
    return figure(message, caption, shares({level: share[level] for level in order}, beside, chosen))


def change_figure(change: Change, comparison: Mapping[str, Any] | None) -> str:
    """Return the figure of a change of the second act, and of how the choices followed it."""
    share = change.name != "objective"
    caption = f"What was done: {change.did}. The choices follow when {change.condition}."
    if change.name != "joined":
        caption += (
            f" In the first act, where nothing changed, that happened by chance after {change.without_change} queries."
            if change.without_change
            else " In the first act, where nothing changed, that never happened by chance."
        )
    notes = list(change.notes)
    if comparison is not None and comparison["accuracy_difference"] is not None:
        notes.append(f"After the change: {sentence(comparison)}")
    drawn = "<p>too few queries</p>"
    if len(change.windows) > 1:
        spoken = f"{change.windows[-1]:.0%}" if share else f"{change.windows[-1]:.2f}"
        limit = f"{change.threshold:.0%}" if share else f"{change.threshold:.2f}"
        drawn = plot(
            [Line(spoken, change.windows, main=True)],
            ticks={0.0: "0%", 1.0: "100%"} if share else {0.0: "0"},
            foot=(f"{WINDOW}", f"{change.closed} queries after the change"),
            mark=(change.threshold, f"at {'most' if change.at_most else 'least'} {limit}"),
            dot=(change.after - WINDOW, change.windows[change.after - WINDOW]) if change.after else None,
        )
    said = "".join(f'<p class="lead">{html.escape(_capital(note))}</p>' for note in notes)
    return figure(told(change).removesuffix("."), caption, drawn, said)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def measured(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return how a run was made, by name of the part."""
    audit, ms = summary["audit"], summary["latency_ms"]
    decided = ms.get("context_to_decision")
    left_out = summary["changes_left_out"]
    return {
        "questions": f"{summary['queries']} of {summary['questions']}, seed {summary['seed']}",
        "objective": str(summary["mode"]),
        "cost": "in USD, as billed"
        if summary["unit"] == "usd"
        else f"in {UNITS[summary['unit']]}, computed from every token",
        "configurations": f"{summary['distinct_actions']} different ones were chosen",
        "a choice took": f"{decided['p50']:.0f} ms (median)" if decided else "–",
        "models run by": ", ".join(summary["engine"]) or "–",
        "broker": str(summary["broker"]),
        "audit": f"{audit['queries']} queries, {len(audit['discrepancies'])} discrepancies, "
        f"{len(audit['pending'])} pending",
        **({"second act": f"left out: {left_out}"} if left_out else {}),
    }
