"""Replays the log and checks that it reproduces every Decision.

Decisions and updates have one total order, so folding everything before a Decision yields the policy that made it. The
live run may have scored queries in batches, which adds numbers in a different order and so changes their last digits.
An action therefore counts as reproduced if its replayed score is within TOLERANCE of the best. The Decision's other
fields must match the replay of that action: its terms, its probability, the reason, the cohort and the runners-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeAlias

from agents.bandit.errors import CorruptState
from agents.bandit.learner import choice, predictions, tied
from agents.bandit.policy import Choice, Context, Objective, Policy, Prediction, Target
from agents.catalogue.action_space import ActionSpace
from agents.decider import snapshot
from agents.decider.decisions import seed_of
from agents.decider.policy_fold import (
    LogEvent,
    events,
    offer,
    refits_of,
    register_actions,
    resume_offer,
    sequence_gap,
    update_policy,
)
from agents.decider.rows import ActionRow, AnyRow, EventKind, OfferRow, Row, decode_row
from agents.decider.sessions import Sessions, without_propensity
from agents.decider.snapshot import is_prior, is_record
from schemas.action import Action
from schemas.chat import ONE_SAMPLE
from schemas.decision import Decision
from schemas.record import decode

TOLERANCE: Final = 1e-9
"""Largest difference attributed to rounding in a replay, relative to the larger number, or to 1 if that is larger."""


Difference: TypeAlias = tuple[str, object, object]
"""A field, its logged value and its replayed value."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A field of a Decision that the replay does not reproduce."""

    query_id: str
    seq: int
    field: str
    logged: object
    replayed: object


def load_replay(policy: Policy, records: Mapping[bytes, bytes]) -> tuple[list[AnyRow], int]:
    """Return a log's rows, and the sequence number after which they can be replayed.

    That number is -1, for a replay from the beginning, unless rows have been removed from the log. In that case,
    snapshots contain everything learned from those rows, and the policy is loaded from the oldest complete one. A log
    without decisions is valid only after `learner reset`.

    Args:
        policy: A new policy with the live run's settings.
        records: Every key and value of the whole log and of the snapshots.

    Raises:
        CorruptState: The log has no decisions but was never reset, a row cannot be read, or rows are missing that no
            snapshot contains.
    """
    snapshots = {k: v for k, v in records.items() if is_record(k)}
    log = [decode_row(k, v) for k, v in records.items() if k not in snapshots]
    decided = [row for row in log if isinstance(row, Row)]
    if not decided and snapshot.RESET_KEY in records:
        return log, -1
    if not decided:
        raise CorruptState("the decider's log", "no rows", "at least one decision")
    if (absent := sequence_gap(decided)) is None:
        prior = {k: v for k, v in snapshots.items() if is_prior(k)}
        found, refused = snapshot.read(prior, policy.load)
        if refused:
            raise refused[0]
        return log, -1
    # If a decider stopped after deleting rows but before deleting older snapshots, those snapshots are still here, but
    # some of the rows after them are gone. They are ignored.
    left = set(snapshot.obsolete(snapshots, snapshot.manifests(snapshots)))
    later = {k: v for k, v in snapshots.items() if not is_prior(k) and k not in left}
    found, refused = snapshot.read(later, policy.load, oldest=True)
    if found is None:
        raise refused[0] if refused else absent
    if (absent := sequence_gap(decided, found.version)) is not None:
        raise absent
    return log, found.version


def mismatches(policy: Policy, rows: Iterable[AnyRow], seed: int, after: int = -1) -> Iterator[Mismatch]:
    """Replay a log in order and yield every field of a Decision that differs.

    Args:
        policy: A policy with the live run's settings, either new or loaded from a snapshot.
        rows: Every row of the log.
        seed: The live run's seed.
        after: Sequence number of the snapshot that the policy was loaded from; -1 for none.
    """
    log = list(rows)
    actions = {row.action: row for row in log if isinstance(row, ActionRow)}
    register_actions(policy, actions.values())
    policy.refits.results.update(refits_of(log, after))
    offered, sessions = resume_offer(policy, log, after, actions), Sessions()
    for told, group in groupby(events(log, after), key=_together):
        rows_of_kind = [event.row for event in group]
        kind = told[0]
        for row in rows_of_kind:
            if isinstance(row, OfferRow):
                offered = row
                offer(policy, offered, actions)
        decided = [row for row in rows_of_kind if isinstance(row, Row)]
        if kind == "decided":
            # These decisions are one batch, made from the same state, including the same λ.
            yield from _compared(policy, decided, offered, seed)
            yield from _kept(decided, sessions)
        update_policy(policy, kind, decided)


def _together(event: LogEvent) -> tuple[EventKind, int]:
    """Return the key for grouping events: decisions made from the same state share one, and each update has its own."""
    row = event.row
    if event.kind == "decided" and isinstance(row, Row):
        return "decided", row.batch
    return event.kind, event.seq


def _compared(policy: Policy, rows: Sequence[Row], offered: OfferRow, seed: int) -> Iterator[Mismatch]:
    """Yield the differences in a batch of decisions. The policy must be in the state they were made from."""
    decisions = [decode(bytes(row.decision), Decision) for row in rows]
    contexts = [_context(row, made, offered) for row, made in zip(rows, decisions, strict=True)]
    objectives = [Objective.of(row.objective) for row in rows]
    replayed = predictions(policy, contexts, objectives, seed)
    for row, made, of in zip(rows, decisions, replayed, strict=True):
        rate = offered.price_factors.get(made.action.model, 1.0)
        if (charged := made.prices or made.price_factor) != rate:
            yield Mismatch(row.query_id, row.seq, "price_factor", charged, rate)
        own = seed_of(seed, made.query, made.attempt)
        if made.seed != own:
            yield Mismatch(row.query_id, row.seq, "seed", made.seed, own)
        for field, logged, found in _differences(policy, row, made, of):
            yield Mismatch(row.query_id, row.seq, field, logged, found)


def _kept(rows: Sequence[Row], sessions: Sessions) -> Iterator[Mismatch]:
    """Yield decisions with reason `session` that differ from the session's last configuration before this batch.

    A decision is not checked if the log no longer has the session's previous turn. Nor is the time a session keeps its
    configuration checked, because that was a setting of the live run.
    """
    for row in rows:
        last = sessions.last(row.session)
        if last is not None and _keeps(row) and last.action != row.action:
            yield Mismatch(row.query_id, row.seq, "action of the session", row.action, last.action)
    for row in rows:
        sessions.add(row.turn)


def _keeps(row: Row) -> bool:
    return bool(row.session) and decode(bytes(row.decision), Decision).reason == "session"


def _context(row: Row, decision: Decision, offered: OfferRow) -> Context:
    space = ActionSpace(tuple(Action.parse(action_id) for action_id in offered.actions))
    query, allowed = decision.query, decision.query.allowed_models
    left = space.choices(
        pinned=query.pinned,
        # The query may allow models that were not offered at the time.
        allowed_models=None if allowed is None else [m for m in allowed if m in space.models],
        available_models=set(space.models)
        - {*decision.masked_models, *decision.short_models, *decision.excluded, *decision.unable_models},
        answers=query.n,
        one_sample=not ONE_SAMPLE.isdisjoint(decision.required),
    )
    allowed_ids = frozenset(space[i].id for i in left)
    if decision.reason == "session":
        allowed_ids &= {decision.action.id}
    drawn = decision.attempt == 1
    return Context(
        row.name,
        row.vector(),
        allowed_ids,
        drawn=drawn,
        baseline=offered.baseline,
        categories=row.features,
    )


def _differences(policy: Policy, row: Row, decision: Decision, of: Prediction) -> Iterator[Difference]:
    """Yield every field that the replay does not reproduce."""
    target = Target.of(row.objective, row.tenant)
    # A later attempt keeps the first one's objective, including λ, and its cohort.
    if target is not None and policy.pacer is not None and decision.attempt == 1:
        shadow_price = policy.pacer.shadow_price(target)
        if not _close(row.objective.price, shadow_price, relative=True):
            yield "objective.price", row.objective.price, shadow_price
    if decision.candidates != len(of.action_ids):
        yield "candidates", decision.candidates, len(of.action_ids)
    if decision.policy.version != policy.version:
        yield "policy.version", decision.policy.version, policy.version
    ids, at = list(of.action_ids), of.chosen
    if decision.action.id in ids and of.reason == "policy":
        # If two actions' scores are equal up to rounding, either one reproduces the decision.
        own = ids.index(decision.action.id)
        if _close(float(of.score[own]), float(of.score[at])):
            at = own
    if decision.action.id != ids[at]:
        yield "action", decision.action.id, ids[at]
    if row.action != decision.action.id:
        yield "action of the row", row.action, decision.action.id
    chosen = choice(replace(of, chosen=at), policy.version)
    if decision.reason == "session":
        chosen = without_propensity(chosen)
    yield from _provenance(policy, row, decision, chosen)
    yield from _numbers(decision, chosen, sure=at == of.chosen and _clear(of))
    yield from _runners_up(decision, chosen, of)


def _provenance(policy: Policy, row: Row, decision: Decision, chosen: Choice) -> Iterator[Difference]:
    """Yield differences in the reason and the cohort, and in the fields that the Decision shares with its row."""
    reason = chosen.reason if decision.query.pinned is None else "pinned"
    cohort = chosen.cohort if decision.attempt == 1 else decision.cohort
    for field, logged, replayed in (
        ("policy.name", decision.policy.name, policy.name),
        ("objective", decision.objective, row.objective),
        ("seq", decision.seq, row.seq),
        ("origin", decision.origin, row.query_origin),
        ("reason", decision.reason, reason),
        ("attempt", decision.attempt, row.attempt),
        ("cohort", decision.cohort, cohort),
        ("randomised", decision.randomised, chosen.randomised),
        ("propensity_draws", decision.propensity_draws, chosen.propensity_draws),
    ):
        if logged != replayed:
            yield field, logged, replayed


def _numbers(decision: Decision, chosen: Choice, *, sure: bool) -> Iterator[Difference]:
    """Yield the action's numbers that differ by more than rounding.

    Args:
        decision: The Decision.
        chosen: The replayed terms for its action.
        sure: Whether the set of best actions is certain despite rounding. If it is not, the live run may have had
            different ties, so probabilities and predictions are not compared.
    """
    drawn = ("warm-up", "control", "baseline", "session")
    by_policy = decision.query.pinned is None and chosen.reason not in drawn
    numbers: list[tuple[str, float | None, float | None]] = [
        (field, getattr(decision, field), getattr(chosen, field) if by_policy else None)
        for field in ("mean", "width", "score")
    ]
    if sure or chosen.reason == "warm-up":  # warm-up draws uniformly, regardless of scores
        numbers += [
            ("propensity", decision.propensity, chosen.propensity),
            ("propensity_error", decision.propensity_error, chosen.propensity_error),
        ]
    if sure:
        said = decision.predicted
        logged = (None,) * 3 if said is None else (said.correct, said.score, said.log_cost)
        names = ("predicted.correct", "predicted.score", "predicted.log_cost")
        numbers += zip(names, logged, chosen.predicted or (None,) * 3, strict=True)
    for name, one, two in numbers:
        if not (one is two if one is None or two is None else _close(one, two)):
            yield name, one, two


def _runners_up(decision: Decision, chosen: Choice, of: Prediction) -> Iterator[Difference]:
    """Yield the runners-up that differ; those whose scores are equal up to rounding may be in any order."""
    logged, replayed = decision.runners_up, chosen.runners_up
    others = {each.action for each in logged} - {chosen.action_id}
    if not len(others) == len(logged) == len(replayed):
        yield "runners_up", [each.action for each in logged], [each.action_id for each in replayed]
        return
    ids = list(of.action_ids)
    for own, other in zip(logged, replayed, strict=True):
        at = ids.index(own.action) if own.action in ids else of.chosen
        terms = ((own.mean, of.mean[at]), (own.width, of.width[at]), (own.score, of.score[at]))
        alike = all(_close(one, float(two)) for one, two in terms)
        if own.action not in ids or not alike or not _close(own.score, other.score):
            yield "runners_up", own, other


def _clear(of: Prediction) -> bool:
    """Return whether the set of best actions is certain despite rounding: no other action is nearly tied with them."""
    best = float(of.score.max())
    return sum(_close(float(each), best) for each in of.score) == len(tied(of.score))


def _close(one: float, two: float, *, relative: bool = False) -> bool:
    unit = 0.0 if relative else 1.0
    return abs(one - two) <= TOLERANCE * max(unit, abs(one), abs(two))
