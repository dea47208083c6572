"""`audit` checks a deployment from its topics, and `dead-letters` lists or retries records that failed."""

import contextlib
import sys
from collections.abc import Iterable

import click
import msgspec
import orjson

from agents.bandit.errors import DuplicateQuery
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.record import decode
from streams.log.blocking import BlockingLog, read_all
from streams.settings import Settings
from streams.topics import Topics
from streams.words import counted

# `audit`: account for every query from the raw topics.

_SHOWN = 20


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--settled", is_flag=True, help="Expect nothing in flight: a pending query is a discrepancy too."
)
@click.pass_obj
def audit(settings: Settings, as_json: bool, settled: bool) -> None:
    """Account for every query_id: answered and learned, answered but not learnable, expired, rejected, or pending.

    Reads the raw topics of a running or stopped system up to their current ends. Checks that each query's Decision,
    Answer, Reward and learner's row agree, that its cost follows from its trace, and that nothing was skipped. Run with
    the deployment's settings. Exits with 1 and prints the ids if anything disagrees.
    """
    from streams import audit as package  # imports numpy, which would slow down `--help`

    with contextlib.closing(package.BrokerLog(settings)) as log:
        report = package.audit(log, settings)
    if settled:
        report.settle()
    click.echo(msgspec.json.encode(report).decode() if as_json else _table(report))
    sys.exit(1 if report.wrong else 0)


def _table(report: "package.Report") -> str:  # type: ignore[name-defined]  # noqa: F821
    width = max([len(name) for name in report.states] + [20])
    lines = [f"{name:<{width}} {count:>9,}" for name, count in report.states.items()]
    lines.append(f"{'queries':<{width}} {report.queries:>9,}")
    for each in report.pending[:_SHOWN]:
        due = f"due in {each.due_in_s:.0f} s" if each.due_in_s >= 0 else f"overdue by {-each.due_in_s:.0f} s"
        lines.append(
            f"pending: {each.query_id} waits for the {each.waits_for}, {each.age_s:.0f} s old, {due}"
        )
    lines += [f"wrong: {each['query_id']}: {each['what']}" for each in report.discrepancies]
    if report.unreadable:
        found = ", ".join(f"{count} of {kind}" for kind, count in report.unreadable.items())
        lines.append(f"unreadable records, which should have dead letters: {found}")
    for model, count in report.unpriced.items():
        lines.append(f"not checked: the price of {counted(count, 'answer')}: {model} is not in the catalogue")
    lines.append(report.line)
    return "\n".join(lines)


# `dead-letters list|retry`: list records that could not be handled, or retry them.


def read_dead_letters(settings: Settings) -> list[DeadLetter]:
    """Return the dead letters that are still on the broker, oldest first."""
    found = []
    for record in read_all(settings, [Topics(settings).dead_letter]):
        try:
            found.append(decode(record.value, DeadLetter))
        except UniscaleError as error:
            click.echo(f"note: offset {record.offset} cannot be read: {error}", err=True)
    return found


@click.group("dead-letters")
def dead_letters() -> None:
    """List records that could not be handled, or retry them."""


@dead_letters.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.pass_obj
def show(settings: Settings, as_json: bool) -> None:
    """Print every dead letter: the record's position, the service that could not handle it, and why."""
    found = read_dead_letters(settings)
    if as_json:
        for x in found:
            line = {
                "origin": x.key,
                "service": x.service,
                "error": x.error,
                "field": x.field,
                "reason": x.reason,
                "query_id": x.query_id,
                "size": x.size,
                "sha256": x.sha256,
                "attempts": x.attempts,
            }
            click.echo(orjson.dumps(line).decode())
        return
    for x in found:
        query = f", query {x.query_id}" if x.query_id else ""
        click.echo(f"{x.key}  {x.error} in the {x.service}{query}, {x.size} bytes, tried {x.attempts}x")
        click.echo(f"    {x.reason[:500]}")
    click.echo(counted(len(found), "dead letter"))


@dead_letters.command("retry")
@click.argument("origins", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Retry every record that has dead letters, once each."
)
@click.pass_obj
def retry(settings: Settings, origins: tuple[str, ...], everything: bool) -> None:
    """Read records at their ORIGINS (topic/partition/offset, as `list` prints them) and send them again.

    Fix the cause first, or the record will end up in the dead-letter topic again. A query whose Answer is `rejected`
    keeps that Answer, because the first one counts; send the query under a new id instead. --all skips queries whose id
    is taken. Exits with 1 if a record is no longer on its topic.
    """
    if bool(origins) == everything:
        raise click.UsageError("give ORIGINS, or --all")
    known = {x.key: x for x in read_dead_letters(settings)}
    wanted = _newest(known.values()) if everything else list(dict.fromkeys(origins))
    lost = [origin for origin in wanted if origin not in known]
    for origin in lost:
        click.echo(f"error: {origin}: no such dead letter", err=True)
    found = [known[origin] for origin in wanted if origin in known]
    with BlockingLog(settings) as log:
        for letter in found:
            if log.append_again(letter.origin):
                click.echo(f"sent again: {letter.key}")
                continue
            click.echo(
                f"error: {letter.key}: the topic no longer holds it; the letter has the first {len(letter.head)} of "
                f"{letter.size} bytes",
                err=True,
            )
            lost.append(letter.key)
    sys.exit(1 if lost else 0)


def _newest(known: Iterable[DeadLetter]) -> list[str]:
    """Return the origin from each record's newest dead letter; a failed retry adds another dead letter.

    Queries whose id is taken are left out, because they would fail again.
    """
    newest = {(x.origin.topic, x.sha256): x for x in known}
    return [x.key for x in newest.values() if x.error != DuplicateQuery.__name__]


COMMANDS = [audit, dead_letters]
