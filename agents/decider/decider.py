"""One shard's learner: turns Contexts into Decisions (Alg. 1), learns from Rewards, and retries failed attempts.

It works on lists and does no I/O. Every call returns the rows that must be durable before anything is sent or
acknowledged; the service writes them, waits, then sends. If a call raises or a write fails, the learner may be ahead of
its log and must not be used again: call `recover` on a new one. Each record has its own result, so one bad record in a
batch does not affect the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from agents.bandit.errors import CorruptState, DeciderError
from agents.bandit.policy import ActionVector, Policy
from agents.bandit.prior import begin, outcomes_of, require_cost_basis
from agents.decider import snapshot
from agents.decider.decisions import DecisionResult, Timer, decisions, reject_ended, resend_decision, untimed
from agents.decider.eligibility import DecisionEnvironment
from agents.decider.failed_attempts import (
    Failure,
    PreviousAttempts,
    RetryResult,
    failed,
    is_open_attempt,
    superseded,
)
from agents.decider.policy_fold import NO_OFFER, offer, update_policy
from agents.decider.recovery import Records, Recovered, restore
from agents.decider.rewards import RewardRules, RowTransition, Verdict, apply_reward
from agents.decider.rows import (
    ENDED,
    GROWTH,
    REFIT_BYTES,
    ActionRow,
    OfferRow,
    Row,
    decode_row,
    encode_row,
    refit_rows,
    with_question,
)
from agents.decider.sessions import Sessions
from agents.decider.shares import TeachingShares
from agents.decider.snapshot import EndedIds
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.failure import attempt_id
from schemas.objective import CostUnit
from schemas.prices import Rate
from schemas.query import Origin, QueryContext
from schemas.record import MAX_VALUE, decode, encode
from schemas.reward import Reward

Rows = Callable[[str], bytes | None]
"""Looks up a table row by its attempt's id (`attempt_id`); None if there is none."""


@dataclass(frozen=True, slots=True)
class LearnResult:
    """The result for one Reward: rows to write, nothing, or the error for its dead letter.

    Attributes:
        rows: The query's changed rows. If the call refitted the policy, the last result with rows also includes the
            estimates.
        ended: Names of the attempts whose rows have ended.
    """

    query_id: str
    verdict: Verdict | None = None
    ended: tuple[str, ...] = ()
    rows: tuple[tuple[bytes, bytes], ...] = ()
    error: UniscaleError | None = None


@dataclass(slots=True)
class Decider:
    """One shard's learner.

    Args:
        policy: Any policy, without actions.
        rules: How to learn from a reward without correctness.
        seed: Seed for every random choice.
        encoder: Id of the encoder used for the action vectors; a Context from another encoder is rejected. If empty,
            any is accepted.
        unit: Unit of costs; a log or a prior in the other unit is rejected.
        limit: Maximum row size, in bytes. A Context whose row could exceed it is rejected before it is decided. The
            Decision is part of the row, so it fits as well.

    Attributes:
        seq: Next sequence number for decisions and updates.
        clock: Number of decisions.
        offered: The latest offer.
        prior: SHA-256 of the prior that the log started from; empty for none.
        shares: The tenants of the latest outcomes.
        sessions: Each session's last turn.
        ended: Ids of ended queries, for recognising duplicates whose rows have left the log.
        verdicts: Number of rewards per verdict, for metrics.
    """

    policy: Policy
    rules: RewardRules = field(default_factory=RewardRules)
    seed: int = 0
    encoder: str = ""
    unit: CostUnit = "eflops"
    limit: int = MAX_VALUE
    seq: int = 0
    clock: int = 0
    context_offset: int = -1
    reward_offset: int = -1
    failure_offset: int = -1
    verdicts: Counter[str] = field(default_factory=Counter)
    actions: dict[str, ActionRow] = field(default_factory=dict)
    offered: OfferRow = NO_OFFER
    prior: str = ""
    shares: TeachingShares = field(default_factory=TeachingShares)
    sessions: Sessions = field(default_factory=Sessions)
    ended: EndedIds = field(default_factory=EndedIds)

    def offer(
        self,
        actions: Sequence[ActionVector],
        price_factors: Mapping[str, Rate] | None = None,
        baseline: str = "",
        *,
        mixed: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Make exactly these actions available; return the new rows, which must be written before deciding.

        An action keeps the vector from its first appearance, because every x in A was computed with that vector.

        Args:
            actions: The available actions.
            price_factors: Each model's price; a model not listed costs 1 per eFLOP.
            baseline: The action to take until the policy has learned from a graded answer; empty for none.
            mixed: Whether no one verifier scores all models of the catalogue.
        """
        first = not self.actions
        rows = []
        for action in [each for each in actions if each.action_id not in self.actions]:
            known = ActionRow.of(action, len(self.actions), anchor=first)
            self.actions[known.action] = known
            rows.append((known.key, encode_row(known)))
        wanted = tuple(dict.fromkeys(a.action_id for a in actions))
        last = self.offered
        added = {a.model for a in actions} - {self.actions[action_id].model for action_id in last.actions}
        newcomers = set(self.policy.untried(added))
        if last.seq == self.seq:  # the new row will replace it in the log
            newcomers |= set(last.newcomers)
        row = OfferRow(
            seq=self.seq,
            actions=wanted,
            price_factors=dict(price_factors or {}),
            unit=self.unit,
            encoder=self.encoder,
            baseline=baseline,
            mixed=mixed,
            mixed_seq=self.seq if mixed and not last.mixed else last.mixed_seq,
            newcomers=tuple(sorted(newcomers)),
        )
        offer(self.policy, row, self.actions)
        before = (last.actions, last.price_factors, last.baseline, last.mixed)
        if (wanted, row.price_factors, baseline, mixed) != before:
            rows.append((row.key, encode_row(row)))
            self.offered = row
        return rows

    def decide(
        self,
        asked: Sequence[tuple[QueryContext, Origin]],
        rows: Rows,
        environment: DecisionEnvironment,
        timer: Timer = untimed,
    ) -> list[DecisionResult]:
        """Choose an action for each Context.

        Args:
            asked: Contexts with their origins, in offset order.
            rows: The table.
            environment: The catalogue, objectives and live executors.
            timer: Measures how long the choice takes. Decisions record this; nothing else depends on it.
        """
        results: dict[int, DecisionResult] = {}
        fresh: dict[str, tuple[int, QueryContext, Origin]] = {}
        repeated: list[tuple[int, QueryContext]] = []
        for at, (context, origin) in enumerate(asked):
            if (value := rows(context.query_id)) is not None:
                results[at] = resend_decision(context, value)
            elif (place := self.ended.find(context.query_id)) is not None:
                results[at] = reject_ended(context, place)
            elif context.query_id in fresh:
                repeated.append((at, context))
            else:
                fresh[context.query_id] = (at, context, origin)
        places, records = [at for at, _, _ in fresh.values()], [(c, o) for _, c, o in fresh.values()]
        results |= zip(places, self._decide_fresh(records, environment, timer), strict=True)
        for at, context in repeated:
            first = results[fresh[context.query_id][0]]
            results[at] = resend_decision(context, first.row[1]) if first.row else first
        return [results[at] for at in range(len(asked))]

    def learn(self, rewards: Sequence[tuple[Reward, int]], rows: Rows) -> list[LearnResult]:
        """Apply each reward once.

        Args:
            rewards: Rewards with their offsets, in offset order.
            rows: The table.
        """
        # Compute every row before changing anything.
        newer: dict[str, Row] = {}
        results: list[LearnResult] = []
        moves: list[RowTransition] = []
        for reward, offset in rewards:
            try:
                verdict, found = self._apply_reward(reward, offset, newer, rows, self.seq + len(moves))
            except DeciderError as error:
                results.append(LearnResult(reward.query_id, error=error))
                continue
            moves += found
            newer |= {move.row.name: move.row for move in found}
            results.append(
                LearnResult(
                    reward.query_id,
                    verdict,
                    tuple(move.row.name for move in found if move.row.stage in ENDED),
                    tuple((move.row.key, encode_row(move.row)) for move in found),
                )
            )
        self._update_policy(moves)
        self.seq += len(moves)
        self.reward_offset = max([self.reward_offset, *(move.row.reward_offset for move in moves)])
        self.verdicts.update(each.verdict for each in results if each.verdict is not None)
        if moves and (estimated := self._estimated()):
            last = max(at for at, each in enumerate(results) if each.rows)
            results[last] = replace(results[last], rows=results[last].rows + estimated)
        return results

    def retry_failed(
        self,
        failures: Sequence[Failure],
        rows: Rows,
        environment: DecisionEnvironment,
        *,
        attempts: int,
        timer: Timer = untimed,
    ) -> list[RetryResult]:
        """Close each failed attempt's row, and decide again for its query without the models that failed.

        Args:
            failures: The failures, in offset order.
            rows: The table.
            environment: The catalogue, objectives and live executors.
            attempts: Maximum number of attempts at a query.
            timer: As for `decide`.
        """
        made: dict[bytes, bytes] = {}
        results: list[RetryResult] = []
        for failure in failures:

            def newer(name: str) -> bytes | None:
                return made.get(name.encode()) or rows(name)

            try:
                results.append(self._handle_failure(failure, newer, environment, attempts, timer))
            except DeciderError as error:
                results.append(RetryResult(failure.record.query_id, error=error))
            made.update(results[-1].rows)
        return results

    def recover(
        self, log: Records, snapshots: Records = (), *, whole: bool = True, without: Collection[bytes] = ()
    ) -> Recovered:
        """Rebuild the learner from its log; call once, before anything else.

        Records that the learner cannot have written are skipped. If one of them has replaced a row, a sequence number
        will be missing.

        Args:
            log: Every key and value in the log, in any order, starting at the offset named in the snapshots.
            snapshots: Every key and value in the snapshot topic.
            whole: Whether to reject a log with a missing sequence number.
            without: Keys of the snapshot's open rows to leave out.

        Raises:
            CorruptState: A row comes from another release; a sequence number has no row, or two; or rows have been
                removed and there is no complete snapshot that replaces them.
        """
        restored = restore(
            self.policy,
            log,
            snapshots,
            self.ended,
            whole=whole,
            without=without,
            unit=self.unit,
            encoder=self.encoder,
        )
        self.seq, self.clock = restored.seq, restored.clock
        self.context_offset, self.reward_offset = restored.context_offset, restored.reward_offset
        self.failure_offset = restored.failure_offset
        self.actions = restored.actions
        self.offered = restored.offered
        self.prior, self.shares, self.ended = restored.prior, restored.shares, restored.ended
        self.sessions = restored.sessions
        return restored.found

    def begin(
        self,
        prior: bytes,
        actions: Sequence[ActionVector],
        chunk_bytes: int = snapshot.CHUNK_BYTES,
        cost_basis: Mapping[str, float | str] | None = None,
    ) -> list[tuple[bytes, bytes]]:
        """Start from a prior; return the records of snapshot -1, which must be written before anything else.

        Args:
            prior: A policy state learned from a history.
            actions: The actions that will be available.
            chunk_bytes: Chunk size, in bytes.
            cost_basis: The cost basis of these actions; None accepts any.

        Raises:
            PriorRefused: The prior does not fit this learner; nothing has changed.
            CorruptState: The bytes are damaged, or the log is not empty.
        """
        if self.seq or self.actions:
            raise CorruptState("the log", f"sequence number {self.seq}", "an empty log to start from a prior")
        if cost_basis is not None:
            require_cost_basis(prior, cost_basis)
        begin(self.policy, prior, actions)
        self.prior = hashlib.sha256(prior).hexdigest()
        self.shares = TeachingShares(outcomes_of(prior))
        return self.snapshot(chunk_bytes, prior=self.prior)

    def snapshot(
        self,
        chunk_bytes: int = snapshot.CHUNK_BYTES,
        prior: str = "",
        carried: snapshot.Carried | None = None,
        present: Collection[bytes] = (),
    ) -> list[tuple[bytes, bytes]]:
        """Return the records of a snapshot of the current state, in the order they must be written.

        Args:
            chunk_bytes: Chunk size, in bytes.
            prior: SHA-256 of the prior, if this is a prior's snapshot.
            carried: Everything except the policy's state; None for a snapshot that needs the whole log, such as a
                prior.
            present: Keys of the snapshot records that already exist.
        """
        names = ("context_offset", "reward_offset", "failure_offset")
        offsets = {name: getattr(self, name) for name in names}
        written = snapshot.write(
            self.policy.state(),
            version=self.seq - 1,
            clock=self.clock,
            **offsets,
            chunk_bytes=chunk_bytes,
            prior=prior,
            taught=self.shares.window(),
            sessions=self.sessions.turns(),
            carried=carried,
            present=present,
        )
        return list(written)

    def _decide_fresh(
        self, asked: Sequence[tuple[QueryContext, Origin]], environment: DecisionEnvironment, timer: Timer
    ) -> list[DecisionResult]:
        step = 1 if self.policy.traits.counts_decisions else max(1, len(asked))
        results: list[DecisionResult] = []
        for start in range(0, len(asked), step):
            part = asked[start : start + step]
            try:
                made = self._decisions(part, environment, timer)
            except UniscaleError as error:
                if len(part) == 1:
                    results.append(DecisionResult(part[0][0].query_id, error=error))
                else:
                    for one in part:
                        results += self._decide_fresh([one], environment, timer)
                continue
            # All rows have been validated. From here on, no record can be the cause of an error.
            self._record([row for _, row in made])
            self.context_offset = max([self.context_offset, *(origin.offset for _, origin in part)])
            results += [decided for decided, _ in made]
        return results

    def _estimated(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return rows with the estimates the policy has made since the last call."""
        size = min(REFIT_BYTES, self.limit // 2)
        found = [
            row
            for outcomes, result in self.policy.refits.results.items()
            for row in refit_rows(outcomes, result, self.seq - 1, size)
        ]
        self.policy.refits.results.clear()
        return tuple((row.key, encode_row(row)) for row in found)

    def _apply_reward(
        self, reward: Reward, offset: int, newer: Mapping[str, Row], rows: Rows, seq: int
    ) -> tuple[Verdict, list[RowTransition]]:
        """Return the verdict on a reward, and the rows it changes: its own attempt's and those of later attempts."""
        query_id, attempt = reward.query_id, reward.attempt
        name = attempt_id(query_id, attempt)
        row = newer.get(name) or self._row(name, rows)
        verdict: Verdict = "late"
        moves: list[RowTransition] = []
        if row is not None or self.ended.find(query_id) is None:
            self._checked(row)
            verdict, move = apply_reward(row, reward, offset, seq, self.rules, self.shares)
            moves += [] if move is None else [move]
        # A search that ran twice may have failed once and answered once. The attempt that followed the failure is then
        # void.
        while reward.closes:
            attempt += 1
            name = attempt_id(query_id, attempt)
            if (later := newer.get(name) or self._row(name, rows)) is None:
                break
            if later.stage not in ENDED:
                self._checked(later)
                moves.append(superseded(later, offset, seq + len(moves)))
        return verdict, moves

    def _handle_failure(
        self, failure: Failure, rows: Rows, environment: DecisionEnvironment, attempts: int, timer: Timer
    ) -> RetryResult:
        record, context = failure.record, failure.context
        query_id, attempt = record.query_id, record.attempt
        next_ = self._row(attempt_id(query_id, attempt + 1), rows)
        if next_ is not None:  # the failure was delivered before
            if context is None:
                return RetryResult(query_id)
            decision = with_question(bytes(next_.decision), context.query)
            return RetryResult(query_id, encode(decision), decision.group)
        row = self._row(attempt_id(query_id, attempt), rows)
        if row is None:
            # After a reset, the log has no row for the query, but the query must still get an Answer.
            return RetryResult(query_id, answer=None if self.ended.find(query_id) else record.answer)
        if row.failure_offset == failure.offset:
            return RetryResult(query_id, answer=record.answer)
        if not is_open_attempt(row, record):
            return RetryResult(query_id)  # its query has been answered, or the record is a copy
        self._checked(row)
        previous = PreviousAttempts.of(decode(bytes(row.decision), Decision), failure)
        move = failed(row, failure, self.seq, self.shares, learn=previous.decision.query.learn)
        self._update_policy([move])
        self.seq += 1
        self.failure_offset = max(self.failure_offset, failure.offset)
        ended = ((row.key, encode_row(move.row)), *self._estimated())
        possible = failure.in_time and attempt < attempts
        made = self._next_attempt(row, failure.context, previous, environment, timer) if possible else None
        if made is None or made.row is None:
            refused = None if made is None else made.error
            return RetryResult(query_id, answer=record.answer, rows=ended, refused=refused)
        return RetryResult(query_id, made.value, made.group, rows=(*ended, made.row))

    def _next_attempt(
        self,
        row: Row,
        context: QueryContext | None,
        previous: PreviousAttempts,
        environment: DecisionEnvironment,
        timer: Timer,
    ) -> DecisionResult | None:
        """Return the next Decision for a failed attempt's query, or its error; None if the query may have none."""
        if context is None or context.query.pinned is not None or not previous.affordable(context.query):
            return None
        try:
            usable = {environment.space[at].model for at in environment.choices(context.query)}
            excluded = previous.excluded_models(environment.control.catalogue, usable)
            asked = [(context, row.context_origin)]
            [(made, next_)] = self._decisions(asked, replace(environment, excluded=excluded), timer, previous)
        except UniscaleError as error:
            # Returned rather than raised: the failed attempt's row already has a sequence number and must be written.
            return DecisionResult(context.query_id, error=error)
        self._record([next_])
        return made

    def _decisions(
        self,
        asked: Sequence[tuple[QueryContext, Origin]],
        environment: DecisionEnvironment,
        timer: Timer,
        previous: PreviousAttempts | None = None,
    ) -> list[tuple[DecisionResult, Row]]:
        """Return the result of `decisions` for the current state, without changing the state."""
        return decisions(
            self.policy,
            asked,
            environment,
            seq=self.seq,
            clock=self.clock,
            seed=self.seed,
            encoder=self.encoder,
            price_factors=self.offered.price_factors,
            limit=self.limit - GROWTH,
            timer=timer,
            previous=previous,
            baseline=self.offered.baseline,
            sessions=self.sessions,
        )

    def _record(self, made: Sequence[Row]) -> None:
        """Count Decisions, and inform the policy and the sessions about them."""
        update_policy(self.policy, "decided", made)
        self.seq += len(made)
        self.clock += len(made)
        for row in made:
            self.sessions.add(row.turn)

    def _row(self, name: str, rows: Rows) -> Row | None:
        value = rows(name)
        if value is None:
            return None
        row = decode_row(name.encode(), value)
        return row if isinstance(row, Row) else None

    def _checked(self, row: Row | None) -> None:
        """Reject a row whose action is not in the log, before changing anything."""
        if row is not None and row.action not in self.actions:
            raise CorruptState(f"row {row.query_id!r} action", row.action, "an action row of that id")

    def _update_policy(self, moves: Sequence[RowTransition]) -> None:
        """Update the policy in order, batching consecutive moves of the same kind."""
        for kind, group in groupby(moves, key=attrgetter("what")):
            update_policy(self.policy, kind, [move.row for move in group])
