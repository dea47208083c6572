"""Commands for learned state: `learner` (check, repair, export or reset the log), `prior` and `verify-decisions`."""

import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import click
import msgspec
import orjson

from agents.bandit.contextual import Contextual
from agents.bandit.errors import CorruptState
from agents.bandit.exploration import Explored
from agents.bandit.logged import LogError, LoggedOutcome, prior_of_log
from agents.bandit.prior import CAP, digest
from agents.decider import snapshot
from agents.decider.decider import Decider
from agents.decider.repair import Refused, refused, repaired, shown
from agents.decider.rows import Row, decode_row
from agents.decider.snapshot import RESET_KEY, EndedIds, kernel, manifests, other_kernels, start_of
from agents.decider.verify import load_replay, mismatches
from agents.embedding import encoder_id
from agents.encoders import encoder_of
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.failure import attempt_id
from schemas.record import Record, decode
from schemas.reward import Reward
from streams.client.outcomes import outcome_of, read_outcomes
from streams.control_follower import catalogue_of
from streams.log.base import ConsumerRecord
from streams.log.blocking import BlockingLog, latest, read_all, require_topics
from streams.runtime.kafka_transactions import advance_offsets, require_stopped, rewrite
from streams.services.decider import policy_of, prior_of
from streams.settings import Settings
from streams.topics import Topics
from streams.words import counted

R = TypeVar("R", bound=Record)

# The graded decisions on the broker, as rows of `logged.jsonl`, which `python -m streams prior` makes a prior from.


def graded(settings: Settings, topics: Topics) -> Iterator[LoggedOutcome]:
    """Yield the row of each decision on the broker that has a propensity and a graded reward."""
    rewards: dict[str, Reward] = {}
    for reward in _decoded(settings, topics.reward, Reward):
        if reward.correct is not None and reward.log_cost is not None:
            rewards[reward.query_id] = reward
    for decision in _decoded(settings, topics.decision, Decision):
        found = rewards.get(decision.query_id)
        if found is not None and found.attempt == decision.attempt:
            del rewards[decision.query_id]
            if (row := graded_row(decision, found)) is not None:
                yield row


def _decoded(settings: Settings, topic: str, kind: type[R]) -> Iterator[R]:
    for record in read_all(settings, [topic]):
        try:
            yield decode(record.value, kind)
        except UniscaleError as error:
            click.echo(f"note: {topic}, offset {record.offset} cannot be read: {error}", err=True)


def graded_row(decision: Decision, reward: Reward) -> LoggedOutcome | None:
    """Return a decision and its outcome, or None if it has no propensity or must not be learned from."""
    if not decision.propensity or not reward.learn:
        return None
    return outcome_of(decision.query, reward, propensity=decision.propensity, features=decision.features)


# `learner`: check the learner's log, repair it, export it to files, or start over.

_YES = click.option("--yes", is_flag=True, help="Skip the confirmation.")


class _Log:
    """The learner's log as a decider reads it at startup: the newest value of each key, in the order of writing.

    Attributes:
        earlier: The previous value of each key in the changelog, if it is still on the topic.
        offsets: The offset of the newest value, by topic and key.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.topics = settings, Topics(settings)
        self.changelog = self.topics.changelog("decider", "pending")
        self.group = self.topics.app_id("decider")
        require_topics(settings, [self.changelog, self.topics.snapshot])
        self.snapshots = dict[bytes, bytes]()
        self.rows, self.earlier, self.end = dict[bytes, bytes](), dict[bytes, bytes](), 0
        self.offsets: dict[tuple[str, bytes], int] = {}
        for record in read_all(settings, [self.topics.snapshot]):
            self._read(record, self.snapshots)
        start = start_of(self.snapshots)
        for record in read_all(settings, [self.changelog]):
            self.end = record.offset + 1
            if record.offset >= start:
                key = record.key or b""
                if (before := self._read(record, self.rows)) is None or record.value is None:
                    self.earlier.pop(key, None)
                else:
                    self.earlier[key] = before

    @classmethod
    def of_stopped(cls, settings: Settings) -> Self:
        """Read the log while no decider is running. Raises StillRunning."""
        require_stopped(settings, Topics(settings).app_id("decider"))
        return cls(settings)

    def confirm(self, question: str) -> None:
        """Ask the operator to confirm, and refuse to continue if a decider has written in the meantime."""
        click.confirm(question, abort=True, err=True)
        if self.of_stopped(self.settings).end != self.end:
            raise click.ClickException("a decider has run in the meantime: stop it and start over")

    def _read(self, record: ConsumerRecord, into: dict[bytes, bytes]) -> bytes | None:
        key = record.key or b""
        before = into.pop(key, None)
        if record.value is not None:
            into[key] = record.value
            self.offsets[record.topic, key] = record.offset
        return before

    def decider(self) -> Decider:
        """Return a new decider with these settings."""
        encoder = encoder_of(self.settings.encoder)
        return Decider(
            policy_of(self.settings, encoder),
            seed=self.settings.policy.seed,
            encoder=encoder_id(encoder),
            unit=catalogue_of(self.settings).unit,
            ended=EndedIds(self.settings.policy.remembered_ids),
        )

    def refused(self) -> list[Refused]:
        """Return every record that would make a decider with these settings refuse the log."""
        return refused(self.rows, self.snapshots, self.decider().policy.load, self._decisions)

    def shown(self, each: Refused) -> str:
        """Return a description of a refused record and its position."""
        topic = self.topics.snapshot if each.among_snapshots else self.changelog
        offset = None if each.key is None else self.offsets.get((topic, each.key))
        return f"{topic}: {each.what}" if offset is None else f"{topic}, offset {offset}: {each.what}"

    def _decisions(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        read = read_all(self.settings, [self.topics.decision])
        ids = {key.partition(b" ")[0] for key in keys}
        found = dict[bytes, bytes]()
        for each in read:
            if each.key in ids and each.value:
                with suppress(UniscaleError):
                    decision = decode(each.value, Decision)
                    found[attempt_id(decision.query_id, decision.attempt).encode()] = each.value
        return found


@click.group()
def learner() -> None:
    """Check or repair the learner's log, export it, or start over.

    Run with the decider's settings: policy, options, warm-up, seed, encoder.
    """


@learner.command("check")
@click.pass_obj
def check(settings: Settings) -> None:
    """Read the learner's log and snapshots, and report every record that a decider would refuse or did not write.

    Exits with 1 if there is any such record. Otherwise the log is folded, as a decider does when it starts.
    """
    log = _Log(settings)
    if found := log.refused():
        for each in found:
            click.echo(log.shown(each))
        click.echo(f"{len(found)} refused; `python -m streams learner repair` removes them", err=True)
        sys.exit(1)
    decider = log.decider()
    recovered = decider.recover(log.rows.items(), log.snapshots.items())
    click.echo(
        f"whole: snapshot {recovered.snapshot_version}, {counted(recovered.folded.decisions, 'decision')} and "
        f"{counted(recovered.folded.updates, 'update')} after it; policy version {decider.policy.version}, "
        f"{counted(recovered.folded.outstanding, 'reward')} outstanding, "
        f"{counted(len(decider.ended), 'ended query', 'ended queries')} remembered"
    )


@learner.command("repair")
@click.option(
    "--without", multiple=True, metavar="KEY", help="Also remove the row with this key; repeatable."
)
@_YES
@click.pass_obj
def repair(settings: Settings, without: tuple[str, ...], yes: bool) -> None:
    """Remove exactly the records that `check` reports, so that a decider can start again.

    If such a record has replaced a row that is still on the topic, the row is restored; the query of any other removed
    row is treated as ended. The rest of the log is saved as a snapshot. Refused while a decider is running. Run
    `learner export` first to keep a copy.
    """
    log = _Log.of_stopped(settings)
    found = log.refused()
    keys = [key.encode() for key in without]
    if unknown := [key for key in keys if key not in log.rows]:
        raise click.BadParameter(f"no row has the key {shown(unknown[0])!r}", param_hint="--without")
    if not found and not keys:
        click.echo("the log is whole: nothing to repair")
        return
    for each in found:
        click.echo(log.shown(each))
    keys += [each.key for each in found if each.key is not None and not each.among_snapshots]
    keys = list(dict.fromkeys(keys))
    foreign = sum(each.among_snapshots for each in found)
    what = f"{counted(len(keys), 'row')} and {counted(foreign, 'record')} of snapshots"
    if not yes:
        log.confirm(f"remove {what}?")
    decider = log.decider()
    chunk_bytes = min(snapshot.CHUNK_BYTES, settings.kafka.max_record_bytes // 2)
    records, gone = repaired(decider, log.rows, log.snapshots, keys, log.end, chunk_bytes, log.earlier)
    rewrite(
        settings,
        log.changelog,
        [(log.topics.snapshot, records), (log.changelog, [(key, None) for key in gone])],
    )
    click.echo(
        f"repaired: {what} removed; the learner continues from "
        f"sequence number {decider.seq}, policy version {decider.policy.version}"
    )


@learner.command("export")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.pass_obj
def export(settings: Settings, folder: Path) -> None:
    """Write the learner's rows, state and outcomes to FOLDER.

    `rows.jsonl` contains the log's rows, unchanged. `state.bin` contains the policy's state, if `learner check` finds
    nothing wrong. `logged.jsonl` contains the graded decisions that are still on the broker, each with its propensity,
    in the form that `python -m streams prior` reads.
    """
    log = _Log(settings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_bytes(b"".join(value + b"\n" for value in log.rows.values()))
    logged = list(graded(settings, log.topics))
    (folder / "logged.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in logged))
    said = f"{folder}: {counted(len(log.rows), 'row')}, {counted(len(logged), 'graded decision')}"
    if log.refused():
        click.echo(f"{said}; no state.bin, as the log is not whole: see `learner check`")
        return
    decider = log.decider()
    decider.recover(log.rows.items(), log.snapshots.items())
    state = decider.policy.state()
    (folder / "state.bin").write_bytes(state)
    click.echo(f"{said}, {len(state)} bytes of state at policy version {decider.policy.version}")


@learner.command("reset")
@_YES
@click.pass_obj
def reset(settings: Settings, yes: bool) -> None:
    """Forget everything that was learned. The next decider starts from nothing, or from UNISCALE_PRIOR.

    Deletes the learner's log and snapshots. Let queries in flight end first, because nothing will be learned from their
    rewards. Records that the decider has already read are not read again. The audit does not report the deleted rows as
    missing. Refused while a decider is running.
    """
    log = _Log.of_stopped(settings)
    if not yes:
        log.confirm(f"delete {counted(len(log.rows), 'record')} of {log.changelog} and all snapshots?")
    read = {log.topics.context: -1, log.topics.reward: -1, log.topics.attempt_failed: -1}
    for manifest in manifests(log.snapshots).values():
        read[log.topics.context] = max(read[log.topics.context], manifest.context_offset)
        read[log.topics.reward] = max(read[log.topics.reward], manifest.reward_offset)
        read[log.topics.attempt_failed] = max(read[log.topics.attempt_failed], manifest.failure_offset)
    for row in _readable(log.rows):
        read[log.topics.context] = max(read[log.topics.context], row.context_origin.offset)
        read[log.topics.reward] = max(read[log.topics.reward], row.reward_offset)
        read[log.topics.attempt_failed] = max(read[log.topics.attempt_failed], row.failure_offset)
    advance_offsets(settings, log.group, {topic: last + 1 for topic, last in read.items() if last >= 0})
    every = latest(settings, [log.changelog])  # including rows before the recovery's start offset
    rewrite(
        settings,
        log.changelog,
        [
            (log.topics.snapshot, [(RESET_KEY, _ends(settings, log.topics.decision))]),
            (log.changelog, [(key, None) for key in every]),
            (log.topics.snapshot, [(key, None) for key in log.snapshots if key != RESET_KEY]),
        ],
    )
    prior = prior_of(settings)
    begins = f"the prior {prior}" if prior else "nothing"
    click.echo(f"{counted(len(every), 'record')} deleted; the next decider begins from {begins}")


def _ends(settings: Settings, topic: str) -> bytes:
    """Return the end offsets of a topic's partitions as a JSON object."""
    with BlockingLog(settings) as log:
        return orjson.dumps({str(partition): end for (_, partition), end in log.end_offsets([topic]).items()})


def _readable(rows: dict[bytes, bytes]) -> Iterator[Row]:
    for key, value in rows.items():
        try:
            row = decode_row(key, value)
        except CorruptState:
            continue
        if isinstance(row, Row):
            yield row


# `verify-decisions`: replay the learner's log and compare every Decision with the one recomputed from it.


_SHOWN = 10
"""Maximum number of mismatches to print; any more are only counted."""


@click.command("verify-decisions")
@click.pass_obj
def verify_decisions(settings: Settings) -> None:
    """Rebuild the policy from the learner's log and snapshots, and check every Decision against it.

    Run with the live decider's settings (policy, options, warm-up, seed, encoder). If rows have been removed from the
    log, checking starts at the oldest snapshot. Exits with 1 if a Decision differs.
    """
    topics = Topics(settings)
    records = latest(settings, [topics.changelog("decider", "pending"), topics.snapshot])
    policy = policy_of(settings, encoder_of(settings.encoder))
    rows, after = load_replay(policy, records)
    decisions = sum(isinstance(row, Row) and row.seq > after for row in rows)
    found = list(mismatches(policy, rows, settings.policy.seed, after))
    for m in found[:_SHOWN]:
        click.echo(
            f"{m.query_id} (sequence number {m.seq}): {m.field} is {m.logged!r} in the log, {m.replayed!r} replayed"
        )
    since = f" after sequence number {after}, where the snapshot ends" if after >= 0 else ""
    if not decisions and RESET_KEY in records:
        since = " since `learner reset`"
    click.echo(
        f"{counted(decisions, 'decision')} replayed{since}, {counted(len(found), 'mismatch', 'mismatches')}"
    )
    for other in other_kernels(manifests(records).values()):
        click.echo(
            f"note: {other} computed a snapshot of this learner, and here {kernel()} computes: differences in the last "
            "bits mean nothing. Replay with OPENBLAS_CORETYPE set to the decider's kernel",
            err=True,
        )
    sys.exit(1 if found else 0)


# `prior`: from recorded outcomes, make a prior for a learner to start from.


@click.command()
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write the prior to.",
)
@click.option(
    "--cap",
    type=click.FloatRange(min=1),
    default=CAP,
    show_default=True,
    help="Weight of the prior: it counts as at most this many observations.",
)
@click.option(
    "--context",
    multiple=True,
    help="Column of LOG that is a category of requests, such as a route; repeatable. context_keys names it, too.",
)
@click.pass_obj
def prior(settings: Settings, log: Path, out: Path, cap: float, context: tuple[str, ...]) -> None:
    """Make a prior from LOG, which contains outcomes from `record`, `learner export` or elsewhere, in the same columns.

    LOG is JSON lines, CSV or Parquet with text, action (model/qp/cp/bs), correct, cost and propensity, and score if
    there is one. Run with the decider's settings: policy, options, encoder, catalogue. Then start the decider with
    UNISCALE_PRIOR=FILE and an empty log.
    """
    encoder = encoder_of(settings.encoder)
    policy = policy_of(settings, encoder)
    inner = policy.inner if isinstance(policy, Explored) else policy
    if not isinstance(inner, Contextual):
        raise LogError(f"the policy is {inner.name}; only contextual starts from a prior")
    made, questions = prior_of_log(read_outcomes(log, context), inner, encoder, catalogue_of(settings), cap)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(made)
    click.echo(f"{out}: {counted(questions, 'question')}, {len(made)} bytes, sha256 {digest(made)}")


COMMANDS = [learner, prior, verify_decisions]
