"""`ask`, `produce`, `answers`, `feedback`: what a client of the deployment does."""

import sys
from collections import Counter
from pathlib import Path

import click
import msgspec
import orjson

from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.objective import Weights
from streams.client import Asked, Client, Pace, QuestionError, query_from, read_questions, renamed
from streams.commands.queries.sending import send_and_wait
from streams.settings import Settings

# After this long without an Answer, `ask` prints on stderr that it is still waiting.
_PATIENCE_S = 15.0


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
@click.option("--mean-cost", type=float, help="As accurate as possible at this mean of eFLOPs per query.")
@click.option("--accuracy", type=float, help="As cheap as possible at this share of the best accuracy.")
@click.option("-n", "n", default=1, show_default=True, help="How many completed paths to return.")
@click.option("--reference", help="The right answer, if known; the Answer is graded against it.")
@click.option("--pin", "pin_action", metavar="MODEL/QP/CP/BS", help="Use this configuration.")
@click.option("--model", "models", multiple=True, help="Allow only this model; may be repeated.")
@click.option("--learn/--no-learn", default=True, help="Whether the learner may learn from it.")
@click.option(
    "--timeout", "timeout_s", default=120.0, show_default=True, help="Seconds until the query expires."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole Answer as JSON.")
@click.pass_obj
def ask(settings: Settings, text: str, objective: str | None, weights: str | None,
        mean_cost: float | None, accuracy: float | None, n: int, reference: str | None,
        pin_action: str | None, models: tuple[str, ...], learn: bool, timeout_s: float,
        as_json: bool) -> None:  # fmt: skip
    """Send one question and wait for its Answer. Exits with 0 if the Answer is `ok`, with 1 otherwise."""
    query = query_from(
        text, objective=objective, weights=_weights(weights), mean_cost=mean_cost, accuracy=accuracy, n=n,
        reference=reference, pin_action=pin_action, learn=learn,
        allowed_models=models or None, timeout_s=timeout_s,
    )  # fmt: skip
    patience_s = _PATIENCE_S

    def progress(asked: Asked) -> None:
        nonlocal patience_s
        if asked.waited_s > patience_s:
            patience_s = float("inf")
            click.echo(f"no Answer to {query.query_id} yet; are the rooms running?", err=True)

    with Client(settings) as client:
        answer = client.ask(query, progress=progress)
    show(answer, as_json)
    sys.exit(0 if answer.status == "ok" else 1)


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
        words.append(f"{answer.steps} steps")
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
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    help="Seconds until a query expires, for queries that do not set it.",
)
@click.option(
    "--feedback-wait", "feedback_wait_s", type=float, help="Seconds to wait for feedback after an Answer."
)
@click.option("--run", default="", help="Put RUN: before every id, to send a file again.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until every query has its Answer; exit with 1 if one has none in time or its id was in use.",
)
@click.pass_obj
def produce(settings: Settings, file: Path, rate: float, limit: int | None, objective: str | None,
            timeout_s: float | None, feedback_wait_s: float | None, run: str, wait: bool) -> None:  # fmt: skip
    """Send the questions of a JSON-lines file.

    A line holds `text`, `question`, `problem` or `prompt` and, if known, `reference` or `answer`; or it is a whole
    Query record. Every line is checked before the first is sent.
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
    extra = {"objective": objective, "timeout_s": timeout_s, "feedback_wait_s": feedback_wait_s}
    for at, query in enumerate(queries):
        missing = {k: v for k, v in extra.items() if v is not None and getattr(query, k) is None}
        if any(asked is not None for asked in (query.weights, query.mean_cost, query.accuracy)):
            missing.pop("objective", None)
        queries[at] = msgspec.structs.replace(query, **missing)
    sys.exit(send_and_wait(settings, queries, Pace(rate), wait=wait))


@click.command()
@click.option(
    "--all", "everything", is_flag=True, help="Start with the oldest Answer that is kept. [from now on]"
)
@click.option(
    "--follow/--no-follow", default=True, show_default=True, help="Keep following, or stop at the end."
)
@click.option("--text/--no-text", default=False, help="Include the text of the answer.")
@click.pass_obj
def answers(settings: Settings, everything: bool, follow: bool, text: bool) -> None:
    """Print Answers as JSON lines, only the first of each query: that is the one that counts."""
    with Client(settings) as client:
        for answer in client.answers(everything=everything, follow=follow, on_unreadable=_unreadable):
            line = {
                "query_id": answer.query_id, "status": answer.status,
                "action": str(answer.action) if answer.action else None,
                "score": answer.score, "extracted": answer.extracted, "tokens": answer.generated_tokens,
                "steps": answer.steps, "error": answer.error,
            }  # fmt: skip
            if text:
                line["text"] = answer.text
            click.echo(orjson.dumps(line).decode())


def _unreadable(where: str, error: UniscaleError) -> None:
    click.echo(f"{where} cannot be read: {error}", err=True)


@click.command()
@click.argument("query_id")
@click.argument("correct")
@click.option("--source", default="cli", show_default=True, help="Who gave this feedback.")
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
    click.echo(f"{query_id}: {grade:g} by {source}", err=True)


COMMANDS = [ask, produce, answers, feedback]
