"""`explain QUERY_ID`: why this action, and what every step, score, prune and coin of the price was."""

import sys
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import click
import msgspec
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from agents.executor.explanation import StepExplained, bounds_in_words
from agents.executor.explanation import explain as explain_search
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.reward import Reward
from streams.client import Client, Story
from streams.settings import Settings

# More drafts than these are shown when asked for.
_DRAFTS = 40
# Prunes of one step that are shown in words.
_PRUNED = 8
# A charge below this is rounding.
_NOTHING = 1e-9
# Wide tables have room for words in a terminal of 80 columns.
_NARROW: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}


@click.command()
@click.argument("query_id")
@click.option(
    "--group", "groups", multiple=True, help="Not needed: every group is found on the broker.", hidden=True
)
@click.option("--drafts", is_flag=True, help="Show each draft, however many there are.")
@click.option("--json", "as_json", is_flag=True, help="Print the records instead.")
@click.pass_obj
def explain(settings: Settings, query_id: str, groups: tuple[str, ...], drafts: bool, as_json: bool) -> None:
    """Explain one query from the log: means, widths, runner-ups, every step, score, prune and price.

    Exits with 1 if there is no record under this id.
    """
    with Client(settings) as client:
        story = client.explain(query_id)
    letters = story.dead_letters
    if not story.found:
        click.echo(
            f"error: nothing on record for {query_id}: check the id, --prefix, and the retention", err=True
        )
        sys.exit(1)
    if as_json:
        records = [
            *letters,
            *story.decisions,
            *story.steps,
            *story.verifications,
            *story.answers,
            *story.rewards,
        ]
        plain = [msgspec.to_builtins(r) for r in records]
        click.echo(orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode())
        return
    # Texts of models and clients are printed as they are: no markup of theirs is obeyed.
    console = Console(markup=False, highlight=False)
    console.print(query_id, style="bold", end=": ")
    console.print(story.query.question[:500] if story.query else "the Query itself is not on record")
    if story.decision is not None:
        _decision(console, story.decision)
    else:
        console.print("\nno Decision on record")
    if story.answer is not None:
        _search(console, story.answer, drafts)
    else:
        console.print("\nno Answer on record: the search is still running, or the rooms are not")
    for reward in story.rewards:
        _reward(console, reward)
    for letter in letters:
        console.print(f"\ndead letter {letter.key} of the {letter.room}: {letter.error}: {letter.reason}")
    _times(console, story)


def _decision(console: Console, decision: Decision) -> None:
    w = decision.objective.weights
    console.print(
        f"\nDecision {decision.seq}: {decision.action}, by {decision.reason}, "
        f"policy {decision.policy.name} "
        f"after {decision.policy.version} rewards, {decision.candidates} candidates, "
        f"propensity {_n(decision.propensity)}"
    )
    console.print(
        f"objective {decision.objective.name or 'own weights'}: correct {w.correct:.3g}, score {w.score:.3g}, "
        f"cost {w.cost:.3g}; "
        f"catalogue version {decision.catalogue_version}"
        + (f"; without an executor: {', '.join(decision.masked_models)}" if decision.masked_models else "")
    )
    rows = [(str(decision.action), decision.mean, decision.width, decision.score)]
    rows += [(c.action, c.mean, c.width, c.score) for c in decision.runners_up]
    charges = [_charge(*row[1:]) for row in rows]
    cautious = any(charge > _NOTHING for charge in charges)
    columns = ["action", "mean", "width", *(["charge"] if cautious else []), "score"]
    table = Table(*columns, title="what was ranked")
    for at, ((action, mean, width, score), charge) in enumerate(zip(rows, charges, strict=True)):
        charged = [_n(charge if charge > _NOTHING else None)] if cautious else []
        table.add_row(action, _n(mean), _n(width), *charged, _n(score), style=None if at else "bold")
    console.print(table)
    if cautious:
        console.print("charge: for leaving the configuration that is best overall (docs/policies.md)")
    if decision.predicted is not None:
        p = decision.predicted
        console.print(f"predicted: correct {p.correct:.3f}, score {p.score:.3f}, log cost {p.log_cost:.2f}")


def _search(console: Console, answer: Answer, drafts: bool) -> None:
    console.print(
        f"\nAnswer: {answer.status} by {answer.by}, {answer.steps} steps, {len(answer.trace)} drafts, "
        f"{answer.completed} completed, {answer.generated_tokens} tokens, path score {_n(answer.score)}"
    )
    if answer.error:
        console.print(f"error: {answer.error}")
    try:
        steps = explain_search(answer)
    except ValueError as error:
        console.print(f"the trace is not that of a search: {error}")
        steps = ()
    if steps:
        console.print(_steps(steps))
        _early_exit(console, answer, steps)
        each = drafts or len(answer.trace) <= _DRAFTS
        console.print(_forest(steps, each))
        if not each:
            console.print(f"each of the {len(answer.trace)} drafts: --drafts")
    if answer.text:
        console.print(answer.text)


def _steps(steps: Sequence[StepExplained]) -> Table:
    """Return a row a step: how many drafts met which fate, and what search control knew after it."""
    table = Table(
        "step", "drafts", "tokens", "best", "mean", "V_max", "D_best", "H_max", "fates",
        title="the search, by step", **_NARROW,
    )  # fmt: skip
    for step in steps:
        scores = [draft.score for draft in step.drafts if draft.score is not None]
        counts = Counter(draft.fate for draft in step.drafts)
        control = step.control
        table.add_row(
            str(control.step), str(len(step.drafts)), str(sum(draft.tokens for draft in step.drafts)),
            _n(max(scores, default=None)), _n(fmean(scores) if scores else None), _n(control.v_max),
            str(control.best_depth or "–"), str(control.limit),
            ", ".join(f"{number} {fate}" for fate, number in counts.items()),
        )  # fmt: skip
    return table


def _early_exit(console: Console, answer: Answer, steps: Sequence[StepExplained]) -> None:
    """Print the proof of each prune: what the path could still reach, and what it would have had to beat."""
    eta = answer.limits.eta if answer.limits is not None else 1.0
    for step in steps:
        pruned = [draft for draft in step.drafts if draft.fate == "early_exit"]
        if pruned:
            console.print(
                f"\nearly exit after step {step.control.step}: {bounds_in_words(step.control, eta)}"
            )
        for draft in pruned[:_PRUNED]:
            console.print(f"  {draft.place}: {draft.why}", soft_wrap=True)
        if len(pruned) > _PRUNED:
            console.print(f"  and {len(pruned) - _PRUNED} more")


def _forest(steps: Sequence[StepExplained], each: bool) -> Table:
    title = "the forest" if each else "the path that was answered"
    table = Table("step", "draft", "place", "tokens", "score", "path", "why", title=title, **_NARROW)
    for step in steps:
        for draft in step.drafts:
            if each or draft.chosen:
                table.add_row(
                    str(step.control.step), str(draft.index), draft.place, str(draft.tokens), _n(draft.score),
                    _n(draft.path_score), f"answered: {draft.why}" if draft.chosen else draft.why,
                )  # fmt: skip
    return table


def _reward(console: Console, reward: Reward) -> None:
    console.print(
        f"\nReward ({reward.kind}): {_n(reward.reward)} from correct {_n(reward.correct)}"
        f"{f' ({reward.graded_by})' if reward.graded_by else ''}, score {_n(reward.score)}, "
        f"log cost {_n(reward.log_cost)}"
    )
    if reward.fault:
        console.print(f"nothing is learned from it: a fault of the {reward.fault}")
    if reward.missing:
        console.print(f"could not be computed: {reward.missing}")
    if reward.price is not None:
        p = reward.price
        console.print(
            f"price {p.eflops:.4g} eFLOPs: prefill {p.prefill_eflops:.4g}, decoding {p.decoding_eflops:.4g}, verifier "
            f"{p.verifier_eflops:.4g} ({p.compute_flops:.4g} FLOPs, {p.memory_bytes:.4g} bytes at {p.intensity:g}"
            + (f"; an eFLOP costs {p.factor:g})" if p.factor != 1.0 else ")")
        )


def _times(console: Console, story: Story) -> None:
    if not story.at_ms:
        return
    table = Table("stage", "after the query, ms", title="when")
    begin = min(story.at_ms.values())
    for stage, at in sorted(story.at_ms.items(), key=lambda item: item[1]):
        table.add_row(stage, str(at - begin))
    console.print(table)


def _charge(mean: float | None, width: float | None, score: float | None) -> float:
    """Return what was taken from a score for leaving the incumbent; 0 where nothing was ranked."""
    return 0.0 if mean is None or width is None or score is None else mean + width - score


def _n(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


COMMANDS = [explain]
