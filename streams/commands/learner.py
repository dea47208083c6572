"""`learner`: look into the learner's log, mend it, write it to files, or begin anew."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson

from agents.decider import snapshot
from agents.decider.agent import Decider
from agents.decider.ended import EndedIds
from agents.decider.errors import CorruptState
from agents.decider.observations import Row, decode_row
from agents.decider.repair import Refused, refused, repaired
from agents.embedder.encoder import encoder_id
from schemas.base import decode
from schemas.decision import Decision
from schemas.reward import Reward
from streams.rooms.decider.policies import policy_of
from streams.rooms.embedder.encoders import encoder_of
from streams.runtime.kafka import connections
from streams.runtime.kafka.rewrite import commit, require_stopped, rewrite
from streams.settings import Settings
from streams.topics import Topics

_YES = click.option("--yes", is_flag=True, help="Do not ask.")


class _Log:
    """The learner's log as startup reads it, the newest value of each key in the order of writing."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.topics = settings, Topics(settings)
        self.changelog = self.topics.changelog("decider", "pending")
        self.group = self.topics.app_id("decider")
        connections.require_topics(settings, [self.changelog, self.topics.snapshot])
        self.snapshots = connections.latest(settings, [self.topics.snapshot])
        start, self.rows, self.end = snapshot.start_of(self.snapshots), dict[bytes, bytes](), 0
        for record in connections.read_all(settings, [self.changelog], timeout_ms=200):
            self.end = record.offset + 1
            if record.offset >= start:
                self.rows.pop(record.key, None)
                if record.value is not None:
                    self.rows[record.key] = record.value

    def decider(self) -> Decider:
        """Return a fresh decider of the settings."""
        encoder = encoder_of(self.settings)
        return Decider(
            policy_of(self.settings, encoder), seed=self.settings.policy.seed, encoder=encoder_id(encoder),
            ended=EndedIds(self.settings.policy.remembered_ids),
        )  # fmt: skip

    def refused(self) -> list[Refused]:
        """Return everything for which the decider of these settings refuses the log."""
        return refused(self.rows, self.snapshots, self.decider().policy.load)


@click.group()
def learner() -> None:
    """Check or repair the learner's log, export it, or begin anew.

    Run with the settings of the decider: policy, options, warm-up, seed, encoder.
    """


@learner.command("check")
@click.pass_obj
def check(settings: Settings) -> None:
    """Read the learner's log, and name everything for which a decider refuses it.

    Exits with 1 if there is anything. A log that is whole is folded as a decider does when it starts.
    """
    log = _Log(settings)
    if found := log.refused():
        for each in found:
            click.echo(each.what)
        click.echo(f"{len(found)} refused; `python -m streams learner repair` goes on without them", err=True)
        sys.exit(1)
    decider = log.decider()
    recovered = decider.recover([*log.rows.items(), *log.snapshots.items()])
    click.echo(
        f"whole: snapshot {recovered.snapshot_version}, {recovered.folded.decisions} decisions and "
        f"{recovered.folded.updates} updates after it; policy version {decider.policy.version}, "
        f"{recovered.folded.outstanding} rewards outstanding, {len(decider.ended)} ended queries remembered"
    )


@learner.command("repair")
@_YES
@click.pass_obj
def repair(settings: Settings, yes: bool) -> None:
    """Leave out exactly what `check` names, so that a decider starts again.

    The rest of the log becomes a snapshot, and the rows that are refused are deleted. Their queries count as ended.
    Refused while a decider runs. `learner export` first keeps a copy.
    """
    log = _Log(settings)
    require_stopped(settings, log.group)
    found = log.refused()
    if not found:
        click.echo("the log is whole: nothing to repair")
        return
    for each in found:
        click.echo(each.what)
    without = list(dict.fromkeys(each.key for each in found if each.key is not None))
    if not yes:
        click.confirm(f"go on without {len(without)} rows?", abort=True, err=True)
    decider = log.decider()
    chunk_bytes = min(snapshot.CHUNK_BYTES, settings.kafka.max_record_bytes // 2)
    records, gone = repaired(decider, log.rows, log.snapshots, without, log.end, chunk_bytes)
    rewrite(
        settings,
        log.changelog,
        [(log.topics.snapshot, records), (log.changelog, [(key, None) for key in gone])],
    )
    click.echo(
        f"repaired: {len(without)} rows left out; the learner goes on from sequence number {decider.seq}, "
        f"policy version {decider.policy.version}"
    )


@learner.command("export")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.pass_obj
def export(settings: Settings, folder: Path) -> None:
    """Write the learner's rows, its state, and what it was told to FOLDER.

    `rows.jsonl` has the rows of the log as they are; `state.bin` the policy's state, where the log is whole;
    `logged.jsonl` the graded decisions that are still on the broker, each with its propensity, as
    `python -m experiments prior --logged` reads them.
    """
    log = _Log(settings)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [value for key, value in log.rows.items() if not snapshot.is_record(key)]
    (folder / "rows.jsonl").write_bytes(b"".join(value + b"\n" for value in rows))
    logged = list(_logged(settings, log.topics))
    (folder / "logged.jsonl").write_bytes(
        b"".join(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in logged)
    )
    said = f"{folder}: {len(rows)} rows, {len(logged)} graded decisions"
    if log.refused():
        click.echo(f"{said}; no state.bin, as the log is not whole: see `learner check`")
        return
    decider = log.decider()
    decider.recover([*log.rows.items(), *log.snapshots.items()])
    state = decider.policy.state()
    (folder / "state.bin").write_bytes(state)
    click.echo(f"{said}, {len(state)} bytes of state at policy version {decider.policy.version}")


def _logged(settings: Settings, topics: Topics) -> Iterator[dict[str, Any]]:
    """Yield each decision that is on the broker with the reward that graded it."""
    graded: dict[str, Reward] = {}
    for record in connections.read_all(settings, [topics.reward], timeout_ms=200):
        reward = decode(record.value, Reward)
        if reward.correct is not None and reward.log_cost is not None:
            graded[reward.query_id] = reward
    for record in connections.read_all(settings, [topics.decision], timeout_ms=200):
        decision = decode(record.value, Decision)
        found = graded.pop(decision.query_id, None)
        if found is None or found.log_cost is None or not decision.propensity:
            continue
        yield {
            "text": decision.query.text, "action": decision.action.id, "correct": found.correct, "score": found.score,
            "cost": math.exp(found.log_cost), "propensity": decision.propensity,
        }  # fmt: skip


@learner.command("reset")
@_YES
@click.pass_obj
def reset(settings: Settings, yes: bool) -> None:
    """Forget everything that was learned: the next decider begins from nothing, or from UNISCALE_PRIOR.

    Deletes the learner's log and snapshots. Let the queries in flight end first: their rewards are not learned. What
    the decider has read is not read again. Refused while a decider runs.
    """
    log = _Log(settings)
    require_stopped(settings, log.group)
    if not yes:
        click.confirm(
            f"delete {len(log.rows)} records of {log.changelog} and all snapshots?", abort=True, err=True
        )
    read = {log.topics.context: -1, log.topics.reward: -1}
    for manifest in snapshot.manifests({**log.rows, **log.snapshots}).values():
        read[log.topics.context] = max(read[log.topics.context], manifest.context_offset)
        read[log.topics.reward] = max(read[log.topics.reward], manifest.reward_offset)
    for row in _readable(log.rows):
        read[log.topics.context] = max(read[log.topics.context], row.context_origin.offset)
        read[log.topics.reward] = max(read[log.topics.reward], row.reward_offset)
    commit(settings, log.group, {topic: last + 1 for topic, last in read.items() if last >= 0})
    every = connections.latest(settings, [log.changelog])  # also what lies before the start of reading
    rewrite(
        settings,
        log.changelog,
        [
            (log.changelog, [(key, None) for key in every]),
            (log.topics.snapshot, [(key, None) for key in log.snapshots]),
        ],
    )
    begins = f"the prior {settings.policy.prior}" if settings.policy.prior else "nothing"
    click.echo(f"{len(every)} records deleted; the next decider begins from {begins}")


def _readable(rows: dict[bytes, bytes]) -> Iterator[Row]:
    for key, value in rows.items():
        try:
            row = None if snapshot.is_record(key) else decode_row(key, value)
        except CorruptState:
            continue
        if isinstance(row, Row):
            yield row


COMMANDS = [learner]
