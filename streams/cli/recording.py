"""`record`: run every configuration on a file of questions and write the outcomes, for `prior` to make a prior from."""

import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click
import msgspec
from rich.console import Console

from schemas.action import Action
from schemas.answer import Answer
from schemas.query import Query
from streams.cli.queries import bars
from streams.client.client import Client
from streams.client.outcomes import cells, outcome_of, pinned, read_outcomes
from streams.client.questions import QuestionError, read_questions
from streams.control_follower import Control
from streams.settings import Settings
from streams.words import counted


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of JSON lines to append the outcomes to. What it has already is not run again.",
)
@click.option(
    "--action",
    "actions",
    multiple=True,
    metavar="MODEL/QP/CP/BS",
    help="A configuration to run; repeatable. [all of the catalogue]",
)
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first questions.")
@click.option(
    "--max-cost",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop when this run has cost so much, in the deployment's unit: USD or eFLOPs.",
)
@click.option(
    "--at-once", type=click.IntRange(min=1), default=16, show_default=True, help="Searches in flight."
)
@click.pass_obj
def record(
    settings: Settings,
    file: Path,
    out: Path,
    actions: tuple[str, ...],
    limit: int | None,
    max_cost: float | None,
    at_once: int,
) -> None:
    """Run configurations on the questions in FILE, on a running deployment, and write what each achieved and cost.

    FILE contains JSON lines as for `produce`, each with a `reference`. The learner learns nothing from these queries.
    To resume an interrupted run, repeat the command. `python -m streams prior OUT` makes a prior from the outcomes.
    """
    if out.suffix != ".jsonl":
        raise click.BadParameter(
            f"{out}: outcomes are JSON lines; end its name in .jsonl", param_hint="--out"
        )
    questions = list(islice(read_questions(file), limit))
    if not questions:
        raise QuestionError(f"{file}: contains no questions")
    if without := next((each.query_id for each in questions if each.reference is None), None):
        raise QuestionError(f"{file}: {without!r} has no reference; without one no answer can be graded")
    control = Control(settings)
    space = control.space(control.catalogue)
    chosen = [Action.parse(each) for each in actions] or list(space.actions)
    if unknown := next((each.id for each in chosen if each not in space.actions), None):
        raise click.BadParameter(f"{unknown}: is not in the catalogue", param_hint="--action")
    done = list(read_outcomes(out)) if out.exists() else []
    wanted = list(cells(questions, chosen, done))
    total = len(questions) * len(chosen)
    click.echo(
        f"{counted(len(questions), 'question')} × {counted(len(chosen), 'configuration')}: "
        f"{counted(total, 'search', 'searches')}, {total - len(wanted)} done"
    )
    sys.exit(_recorded(settings, wanted, out, at_once, max_cost))


def _recorded(
    settings: Settings,
    wanted: Sequence[tuple[Query, Action]],
    out: Path,
    at_once: int,
    max_cost: float | None,
) -> int:
    """Run searches in groups and append their outcomes. Return the exit code, which is 1 if any has no outcome."""
    run, spent, unit, ended = uuid.uuid4().hex[:8], 0.0, "", 0
    lost: Counter[str] = Counter()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("ab") as rows, Client(settings) as client, bars(Console(stderr=True)) as bar:
        searches = bar.add_task("searches", total=len(wanted))
        while ended < len(wanted) and (max_cost is None or spent < max_cost):
            of = {
                f"record-{run}-{ended + at}": cell for at, cell in enumerate(wanted[ended : ended + at_once])
            }
            sent = client.ask_all([pinned(*cell, query_id) for query_id, cell in of.items()], rewards=True)
            for query_id, (question, _) in of.items():
                reward = sent.rewards.get(query_id)
                if reward is not None and reward.cost is not None:
                    spent, unit = spent + reward.cost, reward.objective.cost_range.unit
                if found := reward and outcome_of(
                    question, reward, propensity=1.0, question_id=question.query_id
                ):
                    rows.write(msgspec.json.encode(found) + b"\n")
                else:
                    lost[_why(sent.answers.get(query_id))] += 1
            rows.flush()
            ended += len(of)
            bar.update(searches, completed=ended)
    click.echo(f"{out}: {counted(ended - lost.total(), 'outcome')}, {spent:.4g} {unit}".rstrip())
    for why, count in lost.most_common():
        click.echo(
            f"error: no outcome of {counted(count, 'search', 'searches')}: {why}; rerun the command to retry",
            err=True,
        )
    if ended < len(wanted):
        left = counted(len(wanted) - ended, "search", "searches")
        click.echo(f"stopped at --max-cost {max_cost:g}: {left} left", err=True)
    return 1 if lost or ended < len(wanted) else 0


def _why(answer: Answer | None) -> str:
    if answer is None:
        return "no Answer came; are the services running?"
    return f"{answer.status}: {answer.error}" if answer.error else f"{answer.status}, not graded"


COMMANDS = [record]
