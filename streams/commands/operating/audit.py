"""`audit`: account for every query from the raw topics."""

import sys

import click
import msgspec

from streams.settings import Settings

_SHOWN = 20


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--settled", is_flag=True, help="Expect nothing in flight: a pending query is a discrepancy, too."
)
@click.pass_obj
def audit(settings: Settings, as_json: bool, settled: bool) -> None:
    """Account for every query_id: answered and learned, answered but not learnable, expired, rejected, or pending.

    Reads the raw topics up to their current ends, on a running system or on a stopped one, and checks that Decision,
    Answer, Reward and the learner's row agree, that each price follows from its trace, and that the policy is the
    fold of its log. Run with the settings of the deployment. Exits with 1 and the ids if anything disagrees.
    """
    from streams import audit as package  # with numpy, which `--help` need not wait for

    log = package.BrokerLog(settings)
    try:
        report = package.audit(log, settings)
    finally:
        log.close()
    if settled:
        for each in report.pending:
            report.name(each.query_id, f"is pending: it waits for the {each.waits_for}")
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
    lines.append(report.line)
    return "\n".join(lines)


COMMANDS = [audit]
