"""`explain QUERY_ID`: why this action, and what every step, score, prune and coin of the price was."""

import sys
from pathlib import Path

import click
import msgspec
import orjson
from rich.console import Console
from rich.table import Table

from agents.space.catalogue import load_catalogue
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.reward import Reward
from streams.ledger import Story, read_ledger
from streams.settings import Settings


@click.command()
@click.argument("query_id")
@click.option("--group", "groups", multiple=True, help="A further executor group, besides the catalogue's.")
@click.option("--json", "as_json", is_flag=True, help="Print the records instead.")
@click.pass_obj
def explain(settings: Settings, query_id: str, groups: tuple[str, ...], as_json: bool) -> None:
    """Explain one query from the log: means, widths, runner-ups, every step, score, prune and price.

    Exit 1 when nothing is on record under this id.
    """
    known = [*load_catalogue(Path(settings.catalogue)).groups, *groups]
    story = read_ledger(settings, known).stories.get(query_id)
    if story is None:
        click.echo(
            f"error: nothing on record for {query_id}: check the id, --prefix, and the retention", err=True
        )
        sys.exit(1)
    if as_json:
        records = [*story.decisions, *story.steps, *story.verifications, *story.answers, *story.rewards]
        plain = [msgspec.to_builtins(r) for r in records]
        click.echo(orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console()
    if story.query is not None:
        console.print(f"[bold]{query_id}[/bold]: {story.query.question[:500]}")
    if story.decision is not None:
        _decision(console, story.decision)
    if story.answer is not None:
        _search(console, story.answer)
    for reward in story.rewards:
        _reward(console, reward)
    _times(console, story)


def _decision(console: Console, decision: Decision) -> None:
    w = decision.objective.weights
    console.print(
        f"\nDecision {decision.seq}: [bold]{decision.action}[/bold], by {decision.reason}, "
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
    table = Table("action", "mean", "width", "score", title="what was ranked")
    table.add_row(
        str(decision.action), _n(decision.mean), _n(decision.width), _n(decision.score), style="bold"
    )
    for c in decision.runners_up:
        table.add_row(c.action, _n(c.mean), _n(c.width), _n(c.score))
    console.print(table)
    if decision.predicted is not None:
        p = decision.predicted
        console.print(f"predicted: correct {p.correct:.3f}, score {p.score:.3f}, log cost {p.log_cost:.2f}")


def _search(console: Console, answer: Answer) -> None:
    console.print(
        f"\nAnswer: [bold]{answer.status}[/bold] by {answer.by}, {answer.steps} steps, {len(answer.trace)} drafts, "
        f"{answer.completed} completed, {answer.generated_tokens} tokens, path score {_n(answer.score)}"
    )
    if answer.error:
        console.print(f"error: {answer.error}")
    table = Table("step", "draft", "after", "tree", "tokens", "score", "fate", "bound", title="the forest")
    for at, draft in enumerate(answer.trace[:400]):
        table.add_row(
            str(draft.depth), str(at), str(draft.parent) if draft.parent >= 0 else "–", str(draft.tree),
            str(draft.tokens),
            _n(draft.score), draft.fate, _n(draft.bound), style="bold" if at in answer.path else "",
        )  # fmt: skip
    console.print(table)
    if answer.text:
        console.print(answer.text)


def _reward(console: Console, reward: Reward) -> None:
    console.print(
        f"\nReward ({reward.kind}): [bold]{_n(reward.reward)}[/bold] from correct {_n(reward.correct)}"
        f"{f' ({reward.graded_by})' if reward.graded_by else ''}, score {_n(reward.score)}, "
        f"log cost {_n(reward.log_cost)}"
    )
    if reward.price is not None:
        p = reward.price
        console.print(
            f"price {p.eflops:.4g} eFLOPs: prefill {p.prefill_eflops:.4g}, decoding {p.decoding_eflops:.4g}, verifier "
            f"{p.verifier_eflops:.4g} ({p.compute_flops:.4g} FLOPs, {p.memory_bytes:.4g} bytes at {p.intensity:g})"
        )


def _times(console: Console, story: Story) -> None:
    if not story.at_ms:
        return
    table = Table("stage", "after the query, ms", title="when")
    begin = min(story.at_ms.values())
    for stage, at in sorted(story.at_ms.items(), key=lambda item: item[1]):
        table.add_row(stage, str(at - begin))
    console.print(table)


def _n(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


COMMANDS = [explain]
