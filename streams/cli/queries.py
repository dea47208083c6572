"""Client commands: `ask`, `produce`, `answers`, `feedback`, `replay`, `explain`."""

import contextlib
import itertools
import math
import sys
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import msgspec
import orjson
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agents.search.explain import StepExplained, bounds_in_words
from agents.search.explain import explain as explain_search
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.objective import UNITS, ObjectiveInForce, Weights
from schemas.query import Query
from schemas.record import decode
from schemas.reward import Reward
from schemas.spent import Spent
from streams.client.client import Client, SentQueries
from streams.client.events import EventFollower
from streams.client.questions import QuestionError, grader_from, query_from, read_questions, renamed
from streams.client.recorded import Recorded, read_recorded
from streams.client.replay import Replay, SendSchedule
from streams.log.blocking import BlockingLog
from streams.settings import Settings
from streams.timeline import Timeline
from streams.topics import Topics
from streams.words import counted

# Send queries with progress bars and wait for their Answers.


def send_and_wait(settings: Settings, queries: Sequence[Query], pace: SendSchedule, *, wait: bool) -> int:
    """Send queries, optionally wait for their Answers, print how they ended, and return the exit code.

    The exit code is 0 if all queries were sent and, with `wait`, answered. It is 1 if a query was not answered in time
    or its id was already in use.
    """
    with Client(settings) as client, bars() as bar:
        sent = bar.add_task("sent", total=len(queries))
        if not wait:
            client.send(queries, pace, lambda n: bar.update(sent, completed=n))
            return 0
        answered = bar.add_task("answered", total=len(queries))

        def progress(asked: SentQueries) -> None:
            bar.update(sent, completed=asked.sent)
            bar.update(answered, completed=asked.answered + len(asked.taken))

        asked = client.ask_all(queries, pace=pace, progress=progress)
    ends = ", ".join(f"{end} {count}" for end, count in asked.ends.items())
    click.echo(f"{counted(len(queries), 'query', 'queries')}: {ends or 'no Answer'}", err=True)
    if asked.taken:
        click.echo(
            f"error: {counted(len(asked.taken), 'query id')} used before, e.g. {min(asked.taken)}: the first Answer "
            "stays; to send the file again, give --run NAME",
            err=True,
        )
    if asked.missing:
        click.echo(
            f"error: no Answer for {counted(len(asked.missing), 'query', 'queries')}, e.g. {asked.missing[0]}; "
            "are the services running?",
            err=True,
        )
    return 1 if asked.missing or asked.taken else 0


def bars(console: Console | None = None) -> Progress:
    """Return progress bars that show a count and the elapsed time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


# `ask`, `produce`, `answers`, `feedback`.

# After this long without an Answer, `ask` prints on stderr that it is still waiting.
_PATIENCE_S = 15.0
# How long `ask` waits for the grade of an Answer that has a reference.
_GRADED_S = 10.0


def _weights(text: str | None) -> Weights | None:
    if text is None:
        return None
    try:
        correct, score, cost = (float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: write three numbers CORRECT,SCORE,COST, for example 0.4,0.4,0.2"
        ) from None
    return Weights(correct=correct, score=score, cost=cost)


@click.command()
@click.argument("text")
@click.option("--objective", help="Name of an objective, e.g. quality-priority.")
@click.option("--weights", help="Custom weights CORRECT,SCORE,COST instead of an objective.")
@click.option(
    "--mean-cost", type=float, help="As accurate as possible at this mean cost per query, in eFLOPs or USD."
)
@click.option(
    "--accuracy", type=float, help="As cheap as possible at this share of the accuracy within reach."
)
@click.option("-n", "n", default=1, help="Number of completed paths to return.")
@click.option(
    "--reference",
    "references",
    multiple=True,
    help="The right answer, if known; repeatable: any of them is right.",
)
@click.option("--grader", help="How the Answer is compared with it: a name, or JSON (docs/grading.md).")
@click.option("--pin", "pin_action", metavar="MODEL/QP/CP/BS", help="Use this configuration.")
@click.option("--model", "models", multiple=True, help="Allow only this model; repeatable.")
@click.option("--learn/--no-learn", default=True, help="Whether the learner may learn from this query.")
@click.option("--timeout", "timeout_s", default=120.0, help="Seconds until the query expires.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole Answer as JSON.")
@click.pass_obj
def ask(
    settings: Settings,
    /,
    text: str,
    weights: str | None,
    models: tuple[str, ...],
    references: tuple[str, ...],
    grader: str | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Send one question and wait for its Answer. Exits with 0 if the Answer is `ok`, and with 1 otherwise."""
    fields |= {"reference": list(references) if len(references) > 1 else next(iter(references), None)}
    fields |= {"grader": None if grader is None else grader_from(grader)}
    query = query_from(text, weights=_weights(weights), allowed_models=models or None, **fields)
    patience_s = _PATIENCE_S

    def progress(asked: SentQueries) -> None:
        nonlocal patience_s
        if asked.waited_s > patience_s:
            patience_s = float("inf")
            click.echo(
                f"no Answer to {query.query_id} yet; it is given once the services are ready", err=True
            )

    with Client(settings) as client, contextlib.ExitStack() as stack:
        # Followed from before the query, so that its Reward cannot be missed.
        rewards = None
        if references and not as_json:
            rewards = stack.enter_context(client.follow("reward"))
        answer = client.ask(query, progress=progress)
        show(answer, as_json)
        if rewards is not None and answer.status == "ok":
            click.echo(f"[{_grade(rewards, query.query_id)}]", err=True)
    sys.exit(0 if answer.status == "ok" else 1)


def _grade(rewards: EventFollower, query_id: str) -> str:
    """Return what the grader said of an Answer that has a reference."""
    end = time.monotonic() + _GRADED_S
    while time.monotonic() < end:
        for event in rewards.poll():
            if isinstance(reward := event.record, Reward) and reward.query_id == query_id and reward.closes:
                if reward.correct is None:
                    return f"not graded: {reward.missing or 'the answer cannot be compared'}"
                return f"graded {reward.correct:g} by {reward.grader} ({reward.rule})"
    return f"not graded yet; `explain {query_id}` will show it"


def show(answer: Answer, as_json: bool) -> None:
    """Print an Answer: its text on stdout and one line about it on stderr, or the whole record as JSON."""
    if as_json:
        click.echo(orjson.dumps(msgspec.to_builtins(answer), option=orjson.OPT_INDENT_2).decode())
        return
    if answer.text:
        click.echo(answer.text)
    words: list[str] = [answer.status]
    if answer.action is not None:
        words.append(str(answer.action))
    if answer.score is not None:
        words.append(f"score {answer.score:.3f}")
    if answer.steps:
        words.append(counted(answer.steps, "step"))
    click.echo(f"[{answer.query_id}: {', '.join(words)}]", err=True)
    if answer.error:
        click.echo(f"error: {answer.error}", err=True)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Queries per second; 0 sends as fast as the broker accepts them.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Send at most this many.")
@click.option("--objective", help="Objective of queries that name none.")
@click.option("--grader", help="Grader of queries that have a reference and name none: a name, or JSON.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    help="Seconds until a query expires, for queries that do not set it.",
)
@click.option(
    "--feedback-wait", "feedback_wait_s", type=float, help="Seconds to wait for feedback after an Answer."
)
@click.option(
    "--run", default="", show_default=False, help="Prefix every id with RUN:, to send a file again."
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for all Answers; exit with 1 if one does not arrive in time or an id was in use.",
)
@click.pass_obj
def produce(
    settings: Settings,
    /,
    file: Path,
    rate: float,
    limit: int | None,
    run: str,
    wait: bool,
    grader: str | None,
    **extra: Any,
) -> None:
    """Send the questions of a JSON-lines file.

    Each line has `text`, `question`, `problem` or `prompt` and, if known, `reference` or `answer`; or it is a complete
    Query record. All lines are validated before the first is sent.
    """
    queries = list(read_questions(file))
    if not queries:
        raise QuestionError(f"{file}: contains no questions")
    if twice := [query_id for query_id, n in Counter(q.query_id for q in queries).items() if n > 1]:
        raise QuestionError(f"{file}: query_id {twice[0]!r} appears more than once; give each line its own")
    if limit:
        queries = queries[:limit]
    if run:
        queries = list(renamed(queries, run))
    extra["grader"] = None if grader is None else grader_from(grader)
    for at, query in enumerate(queries):
        missing = {k: v for k, v in extra.items() if v is not None and getattr(query, k) is None}
        if any(asked is not None for asked in (query.weights, query.mean_cost, query.accuracy)):
            missing.pop("objective", None)
        if query.reference is None:
            missing.pop("grader", None)
        queries[at] = msgspec.structs.replace(query, **missing)
    sys.exit(send_and_wait(settings, queries, SendSchedule(rate), wait=wait))


@click.command()
@click.option(
    "--all", "everything", is_flag=True, help="Start with the oldest Answer on the topic. [from now on]"
)
@click.option("--follow/--no-follow", default=True, help="Keep following, or stop at the end.")
@click.option("--text/--no-text", default=False, help="Include the text of the answer.")
@click.pass_obj
def answers(settings: Settings, everything: bool, follow: bool, text: bool) -> None:
    """Print Answers as JSON lines. For each query, only the first is printed, because it is the one that counts."""
    with Client(settings) as client:
        for answer in client.answers(everything=everything, follow=follow):
            line = {
                "query_id": answer.query_id,
                "status": answer.status,
                "action": str(answer.action) if answer.action else None,
                "score": answer.score,
                "extracted": answer.extracted,
                "tokens": answer.generated_tokens,
                "steps": answer.steps,
                "error": answer.error,
            }
            if text:
                line["text"] = answer.text
            click.echo(orjson.dumps(line).decode())


@click.command()
@click.argument("query_id")
@click.argument("correct")
@click.option("--source", default="cli", help="Who gave this feedback.")
@click.pass_obj
def feedback(settings: Settings, query_id: str, correct: str, source: str) -> None:
    """Say whether an Answer was right: CORRECT is true, false or a grade from 0 to 1."""
    words = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
    try:
        grade = words[correct.lower()] if correct.lower() in words else float(correct)
    except ValueError:
        raise click.BadParameter(f"{correct!r}: write true, false or a number from 0 to 1") from None
    with Client(settings) as client:
        client.feedback(query_id, grade, source=source)
        known = client.asked(query_id)
    if not known:
        click.echo(
            f"warning: no query {query_id} is on record; check the id and --prefix. The feedback was sent, and counts "
            "if that query comes soon",
            err=True,
        )
        return
    click.echo(f"sent: {query_id}: {grade:g} by {source}; `explain` shows whether it was counted", err=True)


# `explain QUERY_ID`: why this action was chosen, with every step, score, pruned path and cost component.

# Maximum number of drafts shown by default.
_DRAFTS = 40
# Maximum number of pruned paths to explain per step.
_PRUNED = 8
# Compact tables, for terminals of 80 columns.
_NARROW: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}


@click.command()
@click.argument("query_id")
@click.option("--drafts", is_flag=True, help="Show each draft, however many there are.")
@click.option("--json", "as_json", is_flag=True, help="Print the records instead.")
@click.pass_obj
def explain(settings: Settings, query_id: str, drafts: bool, as_json: bool) -> None:
    """Explain one query from the log: means, widths, runners-up, every step, score and pruned path, and the cost.

    Exits with 1 if there is no record with this id.
    """
    with Client(settings) as client:
        timeline = client.explain(query_id)
    letters = timeline.dead_letters
    if not timeline.found:
        click.echo(
            f"error: nothing on record for {query_id}: check the id, --prefix, and the retention", err=True
        )
        sys.exit(1)
    if as_json:
        records = [
            *letters,
            *timeline.decisions,
            *timeline.steps,
            *timeline.verifications,
            *timeline.failures,
            *timeline.answers,
            *timeline.rewards,
        ]
        plain = [msgspec.to_builtins(r) for r in records]
        click.echo(orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode())
        return
    # Text from models and clients is printed verbatim, without interpreting markup.
    console = Console(markup=False, highlight=False)
    console.print(query_id, style="bold", end=": ")
    console.print(timeline.query.question[:500] if timeline.query else "the Query itself is not on record")
    if timeline.decision is not None:
        _earlier(console, timeline.decision)
        _decision(console, timeline.decision)
    else:
        console.print("\nno Decision on record")
    if timeline.answer is not None:
        _search(console, timeline.answer, drafts)
    else:
        console.print("\nno Answer on record: the search is still running, or the services are not")
    for reward in timeline.rewards:
        _reward(console, reward)
    for letter in letters:
        console.print(f"\ndead letter {letter.key} of the {letter.service}: {letter.error}: {letter.reason}")
    _times(console, timeline)


def _earlier(console: Console, decision: Decision) -> None:
    """Print each failed attempt before the final one: its action, why it failed, and its cost."""
    unit = UNITS[decision.objective.cost_range.unit]
    for each in decision.earlier:
        whose = ", ".join(part for part in (each.fault, each.cause) if part) or "nobody's fault"
        console.print(
            f"\nattempt {each.attempt} failed: {each.action} ({whose}): {each.error}; "
            f"{counted(each.tokens, 'token')}, {each.cost:.4g} {unit}"
        )
    if decision.attempt > 1:
        console.print(f"attempt {decision.attempt}, without {', '.join(decision.excluded)}:")


def _decision(console: Console, decision: Decision) -> None:
    why = _WHY.get(decision.reason, "")
    version = decision.catalogue_version
    console.print(
        f"\nDecision {decision.seq}: {decision.action}, by {decision.reason}{f' ({why})' if why else ''}, "
        f"policy {decision.policy.name} "
        f"after {decision.policy.version} rewards, {counted(decision.candidates, 'candidate')}, "
        f"propensity {_n(decision.propensity)}"
    )
    console.print(
        f"{_objective(decision.objective)}; catalogue {'as configured' if version < 0 else f'version {version}'}"
        + (f"; without an executor: {', '.join(decision.masked_models)}" if decision.masked_models else "")
        + (
            f"; too short for the question: {', '.join(decision.short_models)}"
            if decision.short_models
            else ""
        )
        + (f"; restricted by {', '.join(decision.required)}" if decision.required else "")
        + (f", which {', '.join(decision.unable_models)} lack" if decision.unable_models else "")
        + (f"; the request shows {', '.join(decision.features)}" if decision.features else "")
    )
    unit = UNITS[decision.objective.cost_range.unit]
    rows = [(str(decision.action), decision.predicted, decision.mean, decision.width, decision.score)]
    rows += [(c.action, c.predicted, c.mean, c.width, c.score) for c in decision.runners_up]
    table = Table("action", "right", unit, "mean", "width", "ranked by", title="what was ranked")
    for at, (action, predicted, *numbers) in enumerate(rows):
        terms = ("–", "–")
        if predicted is not None:
            terms = (
                f"{min(max(predicted.correct, 0), 1):.1%}",
                f"{math.exp(min(predicted.log_cost, 700)):.3g}",
            )
        table.add_row(
            f"{action}{' (taken)' * (at == 0)}", *terms, *map(_n, numbers), style=None if at else "bold"
        )
    console.print(table)
    console.print(
        f"right and {unit}: as predicted, the cost a typical one; mean: the reward expected under the objective; "
        "width: its uncertainty; actions are ranked by mean + width, or by what the policy draws"
    )
    if decision.objective.price:
        console.print(
            f"at the price in force, a right answer is worth {1 / decision.objective.price:.3g} {unit}"
        )


_WHY = {
    "warm-up": "tried too little so far",
    "floor": "every action keeps a share of the queries",
    "control": "the control group",
    "baseline": "no answer has been graded yet",
    "session": "a conversation stays with its model",
}
"""Why an action was taken that the policy's ranking does not explain, by `Decision.reason`."""


def _objective(told: ObjectiveInForce) -> str:
    """Return an objective in words."""
    if told.accuracy is not None:
        goal = f"as cheap as possible at {100 * told.accuracy:g}% of the accuracy within reach"
    elif told.mean_cost is not None:
        unit = UNITS[told.cost_range.unit]
        goal = f"as accurate as possible at a mean cost of {told.mean_cost:.4g} {unit}"
    else:
        w = told.weights
        goal = f"correct {w.correct:.3g}, score {w.score:.3g}, cost {w.cost:.3g}"
    return f"objective {told.name or 'of its own'}: {goal}"


UNSCORED = (
    "no verifier scored this search: no early exit, and of several paths the most frequent answer was chosen"
)


def _search(console: Console, answer: Answer, drafts: bool) -> None:
    console.print(
        f"\nAnswer: {answer.status} by {answer.by}, {counted(answer.steps, 'step')}, "
        f"{counted(len(answer.trace), 'draft')}, {answer.completed} completed, "
        f"{counted(answer.generated_tokens, 'token')}, path score {_n(answer.score)}"
    )
    if answer.limits is not None and not answer.limits.verified:
        console.print(UNSCORED if len(answer.trace) > 1 else "no verifier scored this answer")
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
    """Return a table with one row per step: the fates of its drafts, and the state of search control after it."""
    table = Table(
        "step",
        "drafts",
        "tokens",
        "best",
        "mean",
        "V_max",
        "D_best",
        "H_max",
        "fates",
        title="the search, by step",
        **_NARROW,
    )
    for step in steps:
        scores = [draft.score for draft in step.drafts if draft.score is not None]
        counts = Counter(draft.fate for draft in step.drafts)
        control = step.control
        table.add_row(
            str(control.step),
            str(len(step.drafts)),
            str(sum(draft.tokens for draft in step.drafts)),
            _n(max(scores, default=None)),
            _n(fmean(scores) if scores else None),
            _n(control.v_max),
            str(control.best_depth or "–"),
            str(control.limit),
            ", ".join(f"{number} {fate}" for fate, number in counts.items()),
        )
    return table


def _early_exit(console: Console, answer: Answer, steps: Sequence[StepExplained]) -> None:
    """Print why each path was pruned: the score it could still have reached, and the score it had to beat."""
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
                    str(step.control.step),
                    str(draft.index),
                    draft.place,
                    str(draft.tokens),
                    _n(draft.score),
                    _n(draft.path_score),
                    f"answered: {draft.why}" if draft.chosen else draft.why,
                )
    return table


def _reward(console: Console, reward: Reward) -> None:
    console.print(
        f"\nReward ({reward.kind}): {_n(reward.reward)} from correct {_n(reward.correct)}"
        f"{f' ({reward.graded_by})' if reward.graded_by else ''}, score {_n(reward.score)}, "
        f"log cost {_n(reward.log_cost)}"
    )
    if reward.grader:
        console.print(f"graded by {reward.grader}{f': {reward.rule}' if reward.rule else ''}")
    if reward.failed:
        console.print("learned as wrong, without its cost: its model gave no text")
    elif reward.fault:
        console.print(f"nothing is learned from it: a fault of the {reward.fault}")
    if reward.closed_early:
        console.print(
            "its feedback was not awaited to the end: too many rewards were open (max_open_rewards)"
        )
    if reward.missing:
        console.print(f"could not be computed: {reward.missing}")
    if reward.closes and reward.cost_only and not (reward.bounded or reward.fault):
        console.print("nobody graded it, and no score stands in for that: its cost alone is learned")
    if reward.price is not None:
        p = reward.price
        if p.unit == "usd" and p.billed is not None:
            held = f", {p.billed.cached_input} of them cached" if p.billed.cached_input else ""
            console.print(
                f"price ${p.cost:.4g}: {p.billed.input} tokens of prompts{held}, {p.billed.output} generated"
            )
            return
        console.print(
            f"price {p.cost:.4g} eFLOPs: prefill {p.prefill_eflops:.4g}, decoding {p.decoding_eflops:.4g}, verifier "
            f"{p.verifier_eflops:.4g} ({p.compute_flops:.4g} FLOPs, {p.memory_bytes:.4g} bytes at {p.intensity:g}"
            + (f"; an eFLOP costs {p.factor:g})" if p.factor != 1.0 else ")")
        )


def _times(console: Console, timeline: Timeline) -> None:
    if not timeline.at_ms:
        return
    table = Table("stage", "after the query, ms", title="when")
    begin = min(timeline.at_ms.values())
    for stage, at in sorted(timeline.at_ms.items(), key=lambda item: item[1]):
        table.add_row(stage, str(at - begin))
    console.print(table)
    if timeline.answer is not None and timeline.total_s is not None:
        console.print(_spent(timeline.answer.spent, timeline.total_s))


def _spent(spent: Spent, total_s: float) -> Table:
    """Return a table of where the time went between appending the Query and appending the Answer."""
    seconds = {name.removesuffix("_s"): s for name, s in msgspec.structs.asdict(spent).items()}
    seconds |= {"between services": max(0.0, total_s - spent.total_s), "in all": total_s}
    table = Table("component", "ms", "%", title="where the time went")
    for name, its_s in seconds.items():
        table.add_row(name, f"{1000 * its_s:.1f}", f"{100 * its_s / total_s:.1f}" if total_s > 0 else "–")
    return table


def _n(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


# `replay`: send recorded queries through the live system again, at any speed, under new ids.


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--since", type=click.DateTime(), help="Read the `query` topic from this time on (UTC).")
@click.option("--until", type=click.DateTime(), help="Read the `query` topic up to this time (UTC).")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    help="Multiple of the recorded pace. [1]",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    help="Queries per second instead; 0 sends as fast as they are answered.",
)
@click.option("--teach", type=bool, default=True, help="Whether the learner may learn from them. [yes]")
@click.option("--limit", type=click.IntRange(min=1), help="Replay at most this many, the oldest first.")
@click.option("--objective", help="Use this objective instead of their own.")
@click.option("--run", help="Name of the run, put before every id. [a new name]")
@click.option("--from-prefix", help="Replay the queries of another deployment on this broker.")
@click.option("--wait/--no-wait", default=True, help="Wait for all Answers and Rewards.")
@click.pass_obj
def replay(
    settings: Settings,
    file: Path | None,
    since: datetime | None,
    until: datetime | None,
    speed: float | None,
    rate: float | None,
    teach: bool,
    limit: int | None,
    objective: str | None,
    run: str | None,
    from_prefix: str | None,
    wait: bool,
) -> None:
    """Send recorded queries from FILE (.jsonl, .csv, .parquet) or the `query` topic again, under ids RUN:<old id>.

    Keeps the recorded pace unless --speed or --rate says otherwise. Skips queries that are themselves replays.
    References and pins are kept; deadlines restart. Prints a report at the end (docs/replay.md).
    """
    if speed is not None and rate is not None:
        raise click.UsageError("--speed and --rate: give one of them")
    if file is not None and (since or until or from_prefix):
        raise click.UsageError(
            "--since, --until and --from-prefix apply only to the `query` topic; drop them, or drop FILE"
        )
    name = run or f"replay-{uuid.uuid4().hex[:6]}"
    source = settings.replace(prefix=from_prefix) if from_prefix else settings
    if file is not None:
        for _ in read_recorded(file):  # validate the whole file before sending
            pass
        recorded = read_recorded(file)
    else:
        recorded = _recorded(source, _ms(since, 0), _ms(until, 1 << 62))
    with contextlib.closing(recorded):  # open connections would prevent the process from ending
        chosen: Iterator[Recorded] = itertools.islice(recorded, limit)
        if objective:
            goal = {"objective": objective, "weights": None, "mean_cost": None, "accuracy": None}
            chosen = (each._replace(query=msgspec.structs.replace(each.query, **goal)) for each in chosen)
        sending = Replay(chosen, name, SendSchedule(rate, speed or 1.0), learn=teach)
        if sending.all_sent:
            click.echo(f"error: {Topics(source).query} holds no queries to replay", err=True)
            sys.exit(1)
        click.echo(f"run {name}")
        sys.exit(_replayed(settings, sending, wait=wait))


def _replayed(settings: Settings, sending: Replay, *, wait: bool) -> int:
    with Client(settings) as client, bars(Console(stderr=True)) as bar:
        sent, answered = bar.add_task("sent", total=None), bar.add_task("answered", total=None)

        def progress(replay: Replay) -> None:
            bar.update(sent, completed=replay.sent)
            bar.update(answered, completed=replay.sent - replay.unanswered)

        client.replay(sending, wait=wait, progress=progress)
    click.echo(sending.report())
    if sending.behind_s > 1.0:
        click.echo(f"warning: the last query was sent {sending.behind_s:.0f} s after it was due", err=True)
    if taken := sending.ends["id taken"]:
        click.echo(f"error: {taken} id taken: give another --run NAME to replay them again", err=True)
    if wait and sending.unanswered:
        click.echo(
            f"error: no Answer for {counted(sending.unanswered, 'query', 'queries')}; are the services running?",
            err=True,
        )
    return 1 if taken or (wait and sending.unanswered) else 0


def _ms(at: datetime | None, default: int) -> int:
    return default if at is None else int(at.replace(tzinfo=UTC).timestamp() * 1000)


def _recorded(settings: Settings, since_ms: int, until_ms: int) -> Generator[Recorded, None, None]:
    """Yield the queries of the topic, except replays, in order of append time."""
    seen: OrderedDict[str, None] = OrderedDict()
    with BlockingLog(settings) as log:
        for record in log.read_in_time(Topics(settings).query, since_ms, until_ms):
            try:
                query = decode(record.value, Query)
            except UniscaleError:
                continue
            if query.query_id in seen or "replay_of" in query.metadata:
                continue
            seen[query.query_id] = None
            if len(seen) > _MOST_SEEN:
                seen.popitem(last=False)
            yield Recorded(record.timestamp_ms / 1000, query)


_MOST_SEEN = 1_000_000
"""Maximum number of ids to keep for recognising queries that were sent twice."""


COMMANDS = [ask, produce, answers, feedback, explain, replay]
